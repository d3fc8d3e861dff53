"""``--tmux``: a tmux session with a pane for each task.

`launcher.launch.session` makes it as a renderer of the job. A pane shows the task's log (``tail -F``), so
tmux cannot change what happens to the task. Closing the session stops the job. The tmux server belongs to the
run (its socket is named after the job) and cannot outlive it: every pane ends with the launcher (``tail
--pid``), and a server without panes exits.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.report import Reason, Report, TaskState
from launcher.common.text import why_not_started
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo

#: How many panes a window contains at most. More tasks get more windows.
MAX_PANES = 9
_TMUX_TIMEOUT_SECONDS = 5.0
#: The pause between two looks at whether the session was closed.
_POLL_SECONDS = 0.2
_NEW_SESSION = ["new-session", "-d", "-s", "launch", "-x", "200", "-y", "50"]
_SETTINGS = (
    ("set", "-g", "pane-border-status", "top"),
    ("set", "-g", "pane-border-format", " #{@task} #{@state}#{@host} "),
    ("set", "-g", "status-right", ""),
    ("set", "-g", "history-limit", "50000"),
    ("set", "-g", "mouse", "on"),
)


class Tmux(Renderer):
    """The tmux session of one job: a renderer, and a source of requests to stop.

    Args:
        run_name: The name of the run.
        attach: Whether to show the session in this terminal. Otherwise a note contains the command for that.
        is_interrupted: Returns whether a signal asks to stop the launch.

    Raises:
        LaunchError: Tmux is not installed.
    """

    def __init__(self, run_name: str, *, attach: bool, is_interrupted: Callable[[], bool]) -> None:
        program = shutil.which("tmux")
        if program is None:
            raise LaunchError("--tmux needs tmux, which is not installed (Debian: apt-get install tmux)")
        #: The start of each command, with the name of the run's own server.
        self._command = [program, "-L", f"launch-{run_name}"]
        #: The command that shows the session.
        self.attach_command = f"tmux -L launch-{run_name} attach"
        self._attach = attach
        self._is_interrupted = is_interrupted
        #: The id of each task's pane.
        self._panes: dict[TaskId, str] = {}
        #: The state in the title of each task's pane.
        self._titles: dict[TaskId, str] = {}
        #: The path of the server's socket. Empty until the server runs.
        self._socket = ""
        #: A descriptor of the server's process, to notice its exit, and to kill it if it does not answer.
        #: It is -1 as long as the server does not run, or if it has exited before.
        self._pidfd = -1
        #: The client in this terminal, if there is one.
        self._client: subprocess.Popen[bytes] | None = None
        #: Whether the session was closed, and `stop_asked` has said so.
        self._is_over = False
        #: Whether the server does not answer, and gets no more commands.
        self._is_stuck = False

    @property
    def is_attached(self) -> bool:
        """Whether the session fills the user's terminal now."""
        return self._client is not None and self._client.poll() is None

    def begin(self, run_info: RunInfo) -> None:
        """Open the session. Every log exists by now.

        Raises:
            LaunchError: Tmux cannot be started.
        """
        tasks = run_info.placement.tasks
        has_several_hosts = len(run_info.placement.hosts()) > 1
        for first in range(0, len(tasks), MAX_PANES):  # Each window is one command: tmux refuses a long one.
            # The first window comes with the session, and with a server that reads no settings of the user.
            commands: list[str] = [] if first else ["-f", os.devnull]
            open_pane = ["new-window"] if first else _NEW_SESSION
            for placed in tasks[first : first + MAX_PANES]:
                # With -P it prints the id of the pane, which shows the log from its first line (-n +1), also
                # after the file was replaced (-F), until launch exits (--pid).
                commands += [*open_pane, "-P", "-F", "#{pane_id}", "--", "tail", f"--pid={os.getpid()}"]
                commands += ["-n", "+1", "-F", run_info.paths.log(placed.task)]
                commands += [";", "set", "-p", "@task", placed.task]
                if has_several_hosts and not placed.task.is_own_host(placed.host.name):
                    commands += [";", "set", "-p", "@host", f" on {placed.host.name}"]
                commands += [";", "select-layout", "tiled", ";"]
                open_pane = ["split-window"]
            panes = self._run(*commands, is_required=True).split()
            # The command has printed the ids of this window's panes. The tasks after those have none yet.
            self._panes.update(zip((placed.task for placed in tasks[first:]), panes, strict=False))
        for settings in _SETTINGS:
            self._run(*settings)
        # The first window is shown first. The server tells its process and its socket.
        shown = self._run("select-window", "-t", ":0", ";", "display-message", "-p", "#{pid} #{socket_path}")
        pid, _, self._socket = shown.partition(" ")
        with suppress(OSError, ValueError):  # The session was closed meanwhile.
            self._pidfd = os.pidfd_open(int(pid))
        # Ctrl-C interrupts the launcher, as without tmux.
        self._run("bind", "-n", "C-c", "run-shell", "-b", f"kill -INT {os.getpid()}")
        if self._attach:
            try:
                # This process of tmux shows the session on the user's terminal while launch runs the job.
                self._client = subprocess.Popen([*self._command, "attach"])
            except OSError as error:
                raise LaunchError(f"tmux cannot be started: {why_not_started(error)}") from error

    def on(self, event: DisplayEvent) -> None:
        """Show the state of a task in the title of its pane."""
        if isinstance(event, events.TaskMoved):
            is_running = event.state is TaskState.RUNNING
            state = f"pid {event.pid}" if is_running else event.detail or event.state.value
            if event.state is TaskState.FAILED and event.pid is None:  # It never had a process.
                state = f"NOT STARTED: {event.detail}"
            if self._titles.get(event.task) != state:
                self._titles[event.task] = state
                self._set_title(event.task, state)

    def tick(self, now: float) -> float | None:
        """Return when to look again at whether the session was closed, unless it was."""
        return None if self._is_over else _POLL_SECONDS

    def close(self, report: Report) -> None:
        """Show the end of the job until the user leaves the session, then stop the server.

        A server that has not answered a command in time (`_is_stuck`) is killed, as it may never answer.
        """
        # A user who has stopped the job wants the terminal back.
        is_interrupted = report.failure is not None and report.failure.reason is Reason.INTERRUPTED
        if self.is_attached and not is_interrupted and not self._is_stuck:
            self._show_end(report)
            while self.is_attached and not self._is_interrupted():
                time.sleep(_POLL_SECONDS)
        self._run("kill-server")
        if self._pidfd >= 0:
            if self._is_stuck:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
        if self._client is not None:
            try:
                self._client.wait(_TMUX_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._client.kill()
                self._client.wait()
        # A server that was killed leaves its socket. The name is that of `_command`.
        if os.path.basename(self._socket).startswith("launch-"):
            with suppress(OSError):  # Tmux has removed its socket.
                os.unlink(self._socket)

    def stop_asked(self) -> events.StopAsked | None:
        """Return a request to stop the job if the session was closed.

        Returns:
            The request, only once. None if the session is open.
        """
        # Without panes the session was not opened yet.
        if self._is_over or not self._panes or not self._has_ended():
            return None
        self._is_over = True
        return events.StopAsked(events.now(), signal.SIGHUP, "the closed tmux session")

    def _has_ended(self) -> bool:
        """Return whether the tmux server has exited, as it does when its session is closed."""
        if self._pidfd < 0:  # It had exited before its process could be watched.
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _set_title(self, task: TaskId, state: str) -> None:
        """Show the state of a task in the title of its pane. A ``#`` would start a format of tmux."""
        if not self._is_over and task in self._panes:
            self._run("set", "-p", "-t", self._panes[task], "@state", state.replace("#", "##"))

    def _show_end(self, report: Report) -> None:
        """Show in the session that the job is over, and how to leave."""
        for key in ("q", "C-c"):
            self._run("bind", "-n", key, "kill-session")
        task = f": {report.failure.task}" if report.failure and report.failure.task else ""
        verdict = f"failed{task}, exit code {report.exit_code}" if report.exit_code else "ok"
        self._run("set", "-g", "status-right-length", "100")
        self._run("set", "-g", "status-right", f" job over: {verdict}; q leaves ")

    def _run(self, *arguments: str, is_required: bool = False) -> str:
        """Run a tmux command.

        Args:
            arguments: The arguments of tmux.
            is_required: Whether a failure is an error. Once the panes are open it only means that the session
                was closed.

        Returns:
            What the command has printed. Empty if it failed.

        Raises:
            LaunchError: It failed, and `is_required` is true.
        """
        if self._is_stuck:
            return ""
        # Within tmux, these variables would name the server of the user.
        environment = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                capture_output=True,
                timeout=_TMUX_TIMEOUT_SECONDS,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            self._is_stuck = True
            return ""
        except OSError as error:
            if is_required:
                raise LaunchError(f"tmux cannot be started: {why_not_started(error)}") from error
            return ""
        if done.returncode and is_required:
            raise LaunchError(f"tmux could not be started: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode().strip()
