"""The renderer of ``--detach``: it tells the command that started the launcher how far the job is.

A session makes it if its launcher runs in the background. The command that listens is
`launcher.launch.detach`, and may have been killed: that must not change the job.
"""

from __future__ import annotations

import os
from contextlib import suppress

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.events import TaskMoved
from launcher.job import RunPaths
from launcher.messages import begin_with_times
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo


class Background(Renderer):
    """The renderer that tells the command which folder the run has, and when all tasks run.

    Args:
        pipe: The pipe to the command. `launcher.launch.detach` says what it carries.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        #: The tasks that have not started yet.
        self._not_started: set[TaskId] = set()

    def use_folder(self, paths: RunPaths, run_name: str) -> None:
        """Let stdout and stderr go into a file in the folder of the run from now on, and tell the command so.

        Messages begin with the time there.

        Args:
            paths: The files of the run.
            run_name: The name of the run.

        Raises:
            LaunchError: The file cannot be made.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        try:
            fd = os.open(paths.messages, flags, 0o600)
        except OSError as error:
            raise LaunchError(f"cannot write {paths.messages!r}: {error.strerror}") from error
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        begin_with_times()
        self._tell(f"{paths.root}\0{run_name}\0")

    def begin(self, run_info: RunInfo) -> None:
        """Note which tasks the job has."""
        self._not_started = {placed.task for placed in run_info.placement.tasks}

    def on(self, event: DisplayEvent) -> None:
        """Tell the command when the last task has started for the first time.

        A zero byte says so. Before it the command has got the folder and the name of the run, each with a
        zero byte at its end.
        """
        # A task has a pid once its process runs.
        if isinstance(event, TaskMoved) and event.pid is not None and self._not_started:
            self._not_started.discard(event.task)
            if not self._not_started:
                self._tell("\0")

    def _tell(self, text: str) -> None:
        """Write to the command that has started this launcher, if it still exists."""
        with suppress(BrokenPipeError):  # The command was killed.
            os.write(self._pipe, os.fsencode(text))
