"""The process that serves the page of a job for ``--page``.

It is a `launch page` of its own, which reads the files of the run and is told nothing, so it cannot harm
the job. It ends with its launcher, even if that is killed.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable

from launcher.common.text import why_not_started
from launcher.event_loop import EventLoop
from launcher.itself import launch_command
from launcher.job import RunPaths
from launcher.output.lines import clean_lines

#: How long the page has to tell its viewers how the job has ended.
_END_SECONDS = 3.0
_READ_BYTES = 4096
_STDERR = 2
#: How long the tasks of a detached job wait for the address of the page.
_ADDRESS_SECONDS = 10.0
#: The largest number of bytes of its output that are shown.
_MAX_SHOWN_BYTES = 16 * 1024


class PageProcess:
    """The process of the page, from now on until the end of this context.

    Args:
        paths: The files of the run.
        loop: Watches the process.
        show: Shows a line to the user alone, because the address contains a token.
        is_detached: Whether the user sees only what is shown before the tasks run, and no browser.
    """

    def __init__(
        self, paths: RunPaths, loop: EventLoop, show: Callable[[str], None], *, is_detached: bool
    ) -> None:
        self._loop, self._show = loop, show
        #: How many bytes of its output were shown.
        self._shown_bytes = 0
        #: The start of a line whose end was not printed yet.
        self._rest = b""
        has_browser = not is_detached and os.isatty(_STDERR)
        words = ["page", "--until-end", *([] if has_browser else ["--no-browser"]), paths.root]
        #: The process. None if it could not be started (then it has no `_pipe`, either), or has ended.
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # The page is a process of its own: its libraries must not slow down or end the launcher. It has a
            # session of its own, because signals of this terminal are for the job.
            self._process = subprocess.Popen(
                launch_command(*words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:  # Such as no free descriptor. The job goes on.
            show(f"there is no page: {why_not_started(error)}")
            return
        assert self._process.stdout is not None
        #: What the process prints, see `_read`.
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        loop.watch(self._pipe.fileno(), self._read)
        if is_detached:
            # The address must be shown before `launch --detach` returns to the user's shell.
            ready = select.poll()
            ready.register(self._pipe, select.POLLIN)
            ready.poll(1000 * _ADDRESS_SECONDS)
            self._read()

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """End the process, which first tells its viewers how the job has ended. It leaves no zombie."""
        if self._process is None:
            return
        self._loop.watch(self._pipe.fileno())
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe.close()
        self._process = None

    def _read(self) -> None:
        """Show what the process has printed, or that it has ended before the job."""
        data: bytes | None = self._pipe.read(_READ_BYTES)
        if data == b"":
            self._end()
            self._show("the page has ended; `launch page` shows the job again")
            return
        *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
        for line in clean_lines(b"\n".join(lines), is_cut=False):
            self._show(line.removeprefix("launch: "))
        self._shown_bytes += len(data or b"")
        # It prints an address and a few messages. A page that prints without end must not hide those of the
        # job.
        if self._shown_bytes > _MAX_SHOWN_BYTES:
            self._loop.watch(self._pipe.fileno())
