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
from launcher.common.report import Reason, Report, TaskState
from launcher.common.text import escape_controls, join_names, shortened
from launcher.messages import say
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo
from launcher.runs.end_command import UserCommand, print_late, run_command, run_of
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

    def __init__(self, command: UserCommand) -> None:
        self._command = command
        #: What the next call for each kind tells: the last event in words, and how many others there were.
        self._untold: dict[str, tuple[str, int]] = {}
        #: From when on the command may be called for each kind, by ``time.monotonic``.
        self._due_at: dict[str, float] = {}
        #: The threads of the last call for each kind.
        self._calls: dict[str, threading.Thread] = {}
        #: Whether the job has ended. Messages are then printed at once, because nothing else shows them.
        self._has_ended = False
        #: Whether the user no longer wants to wait for calls at the end, so that they are killed.
        self._is_interrupted = False
        #: The attempts that are known to have stalled.
        self._stalled: set[tuple[TaskId, int]] = set()
        #: How the last task that starts again has ended.
        self._cause = ""

    def begin(self, run_info: RunInfo) -> None:
        """Note which run it is, of which variables tell the command."""
        self._run = run_of(run_info.paths)

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
        elif isinstance(event, events.TaskMoved) and event.detail:
            cause, attempt = f"{event.task} on {event.host}: {event.detail}", (event.task, event.attempt)
            self._cause = cause if event.restarting else self._cause
            # The same may be told again, when more is known about the attempt.
            is_stall = (event.state, event.reason) == (TaskState.FAILED, Reason.STALLED)
            if is_stall and attempt not in self._stalled:
                self._stalled.add(attempt)
                self._note("stall", cause)

    def _note(self, kind: str, text: str) -> None:
        """Note that something of a kind has happened."""
        _, others = self._untold.get(kind, ("", -1))  # Beside the first event there are 0 others.
        self._untold[kind] = (text, others + 1)

    def tick(self, now: float) -> float | None:
        """Start the calls that are due: one for each kind of event, which tells of its last event.

        After a call, the next one for this kind waits, so that many events do not start many processes.

        Returns:
            The seconds until the next call that waits is due. None if none waits.
        """
        for kind in [kind for kind in self._untold if now >= self._due_at.get(kind, now)]:
            self._due_at[kind] = now + _PAUSE_SECONDS
            text, others = self._untold.pop(kind)
            try:
                # The command may take long, and the orchestrator, which calls this, must not wait for it.
                self._calls[kind] = start_function(self._call, kind, text, others, name=f"--on-event {kind}")
            except TransportError as error:
                say(f"the command of --on-event does not run: {error}")
        return min((self._due_at[kind] - now for kind in self._untold), default=None)

    def _call(self, kind: str, text: str, others: int) -> None:
        """Run the command, and tell the user what it printed at last and why it failed. A thread calls this.

        Args:
            kind: The kind of the event, for the command.
            text: The last event of this kind in words, for the command.
            others: How many other events of this kind there were since the last call.
        """
        text = shortened(escape_controls(text), _MAX_TEXT_CHARACTERS)
        text += f" (and {others} more since the last call)" if others else ""
        more = {"LAUNCH_EVENT": kind, "LAUNCH_EVENT_TEXT": text}
        lines = run_command(
            "--on-event", self._command, self._run, "running", lambda: self._is_interrupted, more
        )
        if self._has_ended:
            print_late(lines)
        else:
            for line in lines:
                say(line)

    def close(self, report: Report) -> None:
        """Let no call wait for a reader of its messages from now on."""
        self._has_ended = True

    def end(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all calls have ended, each within its limit.

        Args:
            is_interrupted: Returns whether the user no longer wants to wait. The calls are killed then.
        """
        for thread in self._calls.values():
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                self._is_interrupted = self._is_interrupted or is_interrupted()
