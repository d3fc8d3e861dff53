"""The command of ``--on-event``, which runs while the job runs: at a restart, a lost host, a stall and so on.

It is a renderer, since what happens is what renderers are shown. Threads wait for the commands, so that none
can hold up the loop. Between two calls for the same kind of event a minute passes, which is longer than a
call may take, so at most one of each kind runs. What happens meanwhile is told together at the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import TransportError
from launcher.common.report import Reason, TaskState
from launcher.common.text import escape_controls, join_names, shortened
from launcher.messages import say
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo
from launcher.runs.end_command import EndCommand, execute, print_late
from launcher.runs.run import Run, load
from launcher.threads import start_function

#: The pause between two calls for the same kind of event.
_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MAX_TEXT_CHARACTERS = 1000
_MAX_LISTED_TASKS = 10


class EventCommandRunner(Renderer):
    """The renderer that runs the command of ``--on-event``.

    Args:
        command: The command.
    """

    def __init__(self, command: EndCommand) -> None:
        self._command = command
        self._run: Run | None = None
        #: What the next call for each kind tells: the last event in words, and how many others there were.
        self._untold: dict[str, tuple[str, int]] = {}
        #: When the last call for each kind began, by ``time.monotonic``.
        self._called_at: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        #: What the threads have to say.
        self._lines: list[str] = []
        self._is_interrupted = False
        #: The attempts that are known to have stalled.
        self._stalled: set[tuple[TaskId, int]] = set()
        #: How the last task that starts again has ended.
        self._cause = ""

    def begin(self, run_info: RunInfo) -> None:
        """Note which run it is, of which variables tell the command."""
        unknown = Run(run_info.run_name, run_info.paths, owner=None, started_at=run_info.started_at)
        self._run = load(run_info.paths.root) or unknown

    def on(self, event: DisplayEvent) -> None:
        """Note an event of which the command is to be told."""
        if isinstance(event, events.Restarting):
            tasks, cause = join_names([*event.attempts], _MAX_LISTED_TASKS), self._cause
            self._note("restart", f"starting {tasks} again{f', because {cause}' if cause else ''}")
            self._cause = ""
        elif isinstance(event, events.AgentLost):
            self._note("host-lost", f"host {event.host} is lost: {event.why.removeprefix(f'{event.host}: ')}")
        elif isinstance(event, events.Noticed):
            self._note(event.kind, event.text)
        elif isinstance(event, events.TaskMoved):
            self._on_move(event)

    def _on_move(self, move: events.TaskMoved) -> None:
        """Note that a task has stalled, or how one has ended that starts again."""
        about = f"{move.task} on {move.host}: {move.detail}"
        if move.restarting and move.detail:
            self._cause = about
        is_stall = (move.state, move.reason) == (TaskState.FAILED, Reason.STALLED)
        if is_stall and (move.task, move.attempt) not in self._stalled:
            self._stalled.add((move.task, move.attempt))
            self._note("stall", about)

    def _note(self, kind: str, text: str) -> None:
        """Note that something of a kind has happened."""
        _, others = self._untold.get(kind, ("", -1))
        self._untold[kind] = (text, others + 1)

    def tick(self, now: float) -> float | None:
        """Start the calls that are due, and say what those before had to say."""
        for kind in [kind for kind in self._untold if now >= self._due(kind)]:
            self._called_at[kind] = now
            text, others = self._untold.pop(kind)
            try:
                thread = start_function(self._call, kind, text, others, name=f"--on-event {kind}")
                self._threads.append(thread)
            except TransportError as error:
                say(f"the command of --on-event does not run: {error}")
        while self._lines:
            say(self._lines.pop(0))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        waits = [self._due(kind) - now for kind in self._untold]
        return min([*waits, *([_POLL_SECONDS] if self._threads else [])], default=None)

    def _due(self, kind: str) -> float:
        """Return from when on the command may be called for a kind of event, by ``time.monotonic``."""
        return self._called_at.get(kind, float("-inf")) + _PAUSE_SECONDS

    def _call(self, kind: str, text: str, others: int) -> None:
        """Run the command, and leave what it printed at last and why it failed to the loop."""
        assert self._run is not None
        text = shortened(escape_controls(text), _MAX_TEXT_CHARACTERS)
        text += f" (and {others} more since the last call)" if others else ""
        more = {"LAUNCH_EVENT": kind, "LAUNCH_EVENT_TEXT": text}
        failure, lines = execute(self._command, self._run, "running", lambda: self._is_interrupted, more)
        self._lines += [f"--on-event {self._command.name}: {line}" for line in (*lines, failure) if line]

    def end(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all calls have ended, each within its limit.

        Args:
            is_interrupted: Returns whether the user no longer wants to wait. They are killed then.
        """
        while any(thread.is_alive() for thread in self._threads):
            self._threads[-1].join(_POLL_SECONDS)
            self._is_interrupted = self._is_interrupted or is_interrupted()
        print_late(self._lines)
