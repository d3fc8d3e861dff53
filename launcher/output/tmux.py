"""``--tmux``: a tmux session with one pane a task, as users open terminals by hand.

A pane only shows the task's log (``tail -F``), so the task runs and ends like any other. Closing the session
ends the job. The tmux server belongs to the run (its socket is named after the job) and can't outlive it:
every pane ends with the launcher (``tail --pid``), and a server without panes ends.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from launcher import events
from launcher.errors import LaunchError
from launcher.job import Placed, RunPaths, TaskId
from launcher.output.base import Opening, Shown
from launcher.report import Reason, Report
from launcher.text import signal_name

#: Panes of a window; more tasks get more windows.
PANES = 9
#: Seconds a tmux command may take, and between two looks at whether the session is still there.
_LIMIT, _LOOK = 5.0, 0.2
_SIZE = ("-x", "200", "-y", "50")
_SETTINGS = (
    ("set", "-g", "pane-border-status", "top"),
    ("set", "-g", "pane-border-format", " #{@task} #{@state}#{@host} "),
    ("set", "-g", "status-right", ""),
    ("set", "-g", "history-limit", "50000"),
    ("set", "-g", "mouse", "on"),
)


class Tmux:
    """The session of one job: a renderer, and a source of requests to stop.

    Args:
        job: the job's id.
        attach: show the session in this terminal now; else a notice has the command for it.

    Raises:
        LaunchError: tmux is not installed.
    """

    def __init__(self, job: str, attach: bool) -> None:
        program = shutil.which("tmux")
        if program is None:
            raise LaunchError("--tmux needs tmux, which is not installed (Debian: apt-get install tmux)")
        self._command = [program, "-L", f"launch-{job}"]
        self.how_to_attach = f"tmux -L launch-{job} attach"
        self._attach = attach
        self._panes: dict[TaskId, str] = {}
        self._socket = ""
        #: The server's process, to see its end, and to end one that does not answer.
        self._pidfd = -1
        #: The client in this terminal.
        self._client: subprocess.Popen[bytes] | None = None
        self._over = False
        #: The server does not answer: it is asked nothing more.
        self._stuck = False

    @property
    def attached(self) -> bool:
        """Whether the session fills the user's terminal now."""
        return self._client is not None and self._client.poll() is None

    def begin(self, opening: Opening) -> None:
        """Open the session: every log exists by now.

        Raises:
            LaunchError: tmux can't be started.
        """
        several = len(opening.placement.hosts()) > 1
        last = ""
        for number, placed in enumerate(opening.placement.tasks):
            last = self._open_pane(number, last, placed, opening.paths, several)
        for settings in _SETTINGS:
            self._run(*settings)
        pid, _, self._socket = self._run("display-message", "-p", "#{pid} #{socket_path}").partition(" ")
        with suppress(OSError, ValueError):  # the session was closed meanwhile
            self._pidfd = os.pidfd_open(int(pid))
        # Ctrl-C means what it means without tmux: once orderly, twice at once.
        self._run("bind", "-n", "C-c", "run-shell", "-b", f"kill -INT {os.getpid()}")
        if self._attach:
            self._client = subprocess.Popen([*self._command, "attach"])

    def on(self, event: Shown) -> None:
        """Show the state of a task in the title of its pane."""
        if isinstance(event, events.TaskStarted):
            self._title(event.task, f"pid {event.pid}")
        elif isinstance(event, events.TaskNotStarted):
            self._title(event.task, f"NOT STARTED: {event.why}")
        elif isinstance(event, events.TaskExited):
            end = f"exit code {event.code}" if event.signal is None else signal_name(event.signal)
            self._title(event.task, end)
        elif isinstance(event, events.TaskSignalled):
            self._title(event.task, "stopping")

    def tick(self, now: float) -> float | None:
        """Look again soon whether the session is still there."""
        return None if self._over else _LOOK

    def close(self, report: Report) -> None:
        """Keep the session open while the user looks at it; nothing of it is left when this returns."""
        interrupted = report.failure is not None and report.failure.reason is Reason.INTERRUPTED
        if self.attached and not interrupted and not self._stuck:
            with _until_signal() as asked:
                self._show_end(report)
                while self.attached and not asked:
                    time.sleep(_LOOK)
        self._run("kill-server")
        if self._pidfd >= 0:
            if self._stuck:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
        if self._client is not None:
            try:
                self._client.wait(_LIMIT)
            except subprocess.TimeoutExpired:
                self._client.kill()
                self._client.wait()
        if os.path.basename(self._socket).startswith("launch-"):
            with suppress(OSError):  # tmux has removed it
                os.unlink(self._socket)

    def stop_wanted(self) -> events.StopAsked | None:
        """A closed session means that the job is to end."""
        if self._over or not self._panes or not self._has_ended():
            return None
        self._over = True
        return events.StopAsked(events.now(), signal.SIGHUP, "the closed tmux session")

    def _has_ended(self) -> bool:
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _open_pane(self, number: int, last: str, placed: Placed, paths: RunPaths, several: bool) -> str:
        log = paths.log(placed.task)
        view = ["-P", "-F", "#{pane_id}", "--", "tail", f"--pid={os.getpid()}", "-n", "+1", "-F", log]
        if number == 0:
            pane = self._run("-f", os.devnull, "new-session", "-d", "-s", "launch", *_SIZE, *view)
        elif number % PANES == 0:
            pane = self._run("new-window", "-d", *view)
        else:
            pane = self._run("split-window", "-d", "-t", last, *view)
            self._run("select-layout", "-t", pane, "tiled")
        self._panes[placed.task] = pane
        self._run("set", "-p", "-t", pane, "@task", placed.task)
        if several and not placed.task.names(placed.host.name):
            self._run("set", "-p", "-t", pane, "@host", f" on {placed.host.name}")
        return pane

    def _title(self, task: TaskId, state: str) -> None:
        if not self._over:
            self._run("set", "-p", "-t", self._panes[task], "@state", state.replace("#", "##"))

    def _show_end(self, report: Report) -> None:
        """Show that the job is over, and how to leave."""
        for key in ("q", "C-c"):
            self._run("bind", "-n", key, "kill-session")
        task = f": {report.failure.task}" if report.failure and report.failure.task else ""
        end = f"failed{task}, exit code {report.exit_code}" if report.exit_code else "ok"
        self._run("set", "-g", "status-right-length", "100")
        self._run("set", "-g", "status-right", f" job over: {end}; q leaves ")

    def _run(self, *arguments: str) -> str:
        """Run a tmux command. Once the panes are open a failure only means that the session was closed."""
        if self._stuck:
            return ""
        environment = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                capture_output=True,
                timeout=_LIMIT,
                check=False,
                env=environment,
            )
            if not done.returncode or self._panes:
                return done.stdout.decode().strip()
            why = done.stderr.decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            self._stuck, why = True, f"no answer in {_LIMIT:.0f} s"
        if self._panes:
            return ""
        raise LaunchError(f"tmux could not be started: {why}")


@contextmanager
def _until_signal() -> Iterator[list[int]]:
    """A list that gets the signals that ask the launch to end, while only the session is left."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
