"""``--tmux``: the terminals people open by hand, one pane a task, each live.

A pane only shows the task's log (``tail -F``), so the task is started, watched and ended like any
other and its exit status is known whatever happens to the pane. Closing the session ends the job. The
tmux server is the run's own (its socket is named after the job) and can't outlive it: every pane ends
with the launcher (``tail --pid``), and a server without panes ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

from launcher import events
from launcher.errors import LaunchError
from launcher.events import Tell
from launcher.job import Placed, RunPaths, TaskId
from launcher.output import tmuxsocket
from launcher.output.base import Opening, Renderer, Shown
from launcher.report import Reason, Report
from launcher.text import signal_name

#: Panes a window can show with room to read; more tasks get more windows.
PANES = 9
#: Seconds a tmux command may take, and between two looks at whether the session is still there.
_LIMIT, _LOOK = 5.0, 0.2
_STUCK = "tmux does not answer any more: its panes stay as they are, the job goes on without them"
_SIGHUP = 1
_SIZE = ("-x", "200", "-y", "50")
_SETTINGS = (
    ("set", "-g", "pane-border-status", "top"),
    ("set", "-g", "pane-border-format", " #{@task} #{@state}#{@host} "),
    ("set", "-g", "status-right", ""),
    ("set", "-g", "history-limit", "50000"),
    ("set", "-g", "mouse", "on"),
)
#: Who sends one of these while the session is only looked at wants it closed.
_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Tmux:
    """The session of one job: a renderer, and a source of one wish, that the job end.

    Args:
        job: the job's id.
        attach: show the session in this terminal now; else the user is told how to.

    Raises:
        LaunchError: there is no tmux.
    """

    def __init__(self, job: str, attach: bool) -> None:
        self._program = _find_tmux()
        self._socket = f"{tmuxsocket.PREFIX}{job}"
        self._attach = attach
        self._panes: dict[TaskId, str] = {}
        self._last = ""
        self._alive: subprocess.Popen[bytes] | None = None
        self._client: subprocess.Popen[bytes] | None = None
        self._over = False
        #: Its server does not answer: it is asked nothing more.
        self.stuck = False
        #: A handle of its server; -1: there is none. And where it listens.
        self._server = -1
        self._path = ""
        self._stopped: set[TaskId] = set()

    @property
    def attached(self) -> bool:
        """Whether the session fills the user's terminal now."""
        return self._client is not None and self._client.poll() is None

    @property
    def how_to_attach(self) -> str:
        """The command that shows the session."""
        return f"tmux -L {self._socket} attach"

    def around(self, console: Renderer) -> list[Renderer]:
        """This renderer, and one that shows its remarks while the session does not cover them."""
        return [self, Held(self, console)]

    # ------------------------------------------------------------------ renderer

    def begin(self, opening: Opening) -> None:
        """Open the session: every log exists by now."""
        if opening.paths is None:
            raise LaunchError("--tmux shows the logs of a run, and this one writes none")
        tasks = opening.placement.tasks
        one_host = len(opening.placement.hosts()) == 1
        for number, placed in enumerate(tasks):
            self._open_pane(number, placed, opening.paths, "" if one_host else placed.host.name)
        for settings in _SETTINGS:
            self._run(*settings)
        pid, _, self._path = self._run("display-message", "-p", "#{pid} #{socket_path}").partition(" ")
        self._server = _handle(pid)
        if self._path:
            tmuxsocket.sweep(os.path.dirname(self._path))
        # Ctrl-C means what it means without tmux: once orderly, twice at once.
        self._run("bind", "-n", "C-c", "run-shell", "-b", f"kill -INT {os.getpid()}")
        # This command ends when somebody calls its name (nobody does) or with the server.
        self._alive = self._start("wait-for", "launch-is-over")
        if self._attach:
            self._client = subprocess.Popen([self._program, "-L", self._socket, "attach"])

    def on(self, event: Shown) -> None:
        """Show what becomes of the tasks in their panes' titles."""
        if isinstance(event, events.TaskStarted):
            self._stopped.discard(event.task)
            self._title(event.task, f"pid {event.pid}")
        elif isinstance(event, events.TaskNotStarted):
            self._title(event.task, f"NOT STARTED: {event.why}")
        elif isinstance(event, events.TaskExited):
            self._title(event.task, self._end_of(event))
        elif isinstance(event, events.TaskSignalled):
            self._stopped.add(event.task)

    def _end_of(self, exited: events.TaskExited) -> str:
        """How a task ended; a signal of ours is no news."""
        stopped = exited.task in self._stopped
        if exited.signal is not None:
            return "stopped" if stopped else f"killed by {signal_name(exited.signal)}"
        code = f"exit code {exited.code}"
        return f"stopped, {code}" if stopped else code

    def tick(self, now: float) -> float | None:
        """Look again soon whether the session is still there."""
        return None if self._over else _LOOK

    def close(self, report: Report) -> None:
        """Keep the session open while somebody looks at it; nothing of it is left when this returns.

        Who has asked for the end need not be told of it.
        """
        asked = report.failure is not None and report.failure.reason is Reason.INTERRUPTED
        if self._client is not None and self.attached and not asked and not self.stuck:
            with _Asked() as end:
                self._tell_end(report)
                while self.attached and not end.asked:
                    _wait(self._client, _LOOK)
        self._end_server()
        for process in (self._client, self._alive):
            if process is not None:
                _end(process)

    def _end_server(self) -> None:
        """It ends all of the session with it."""
        self._run("kill-server")
        if self._server >= 0:
            if self.stuck:
                signal.pidfd_send_signal(self._server, signal.SIGKILL)
            tmuxsocket.remove(self._path, self._server)
            os.close(self._server)
            self._server = -1

    def _tell_end(self, report: Report) -> None:
        """That the job is over, and how to leave."""
        for key in ("q", "C-c"):
            self._run("bind", "-n", key, "kill-session")
        who = report.failure.task if report.failure else None
        failed = f"failed: {who}, exit code" if who else "failed, exit code"
        end = "ok" if report.exit_code == 0 else f"{failed} {report.exit_code}"
        self._run("set", "-g", "status-right-length", "100")
        self._run("set", "-g", "status-right", f" job over: {end}; q leaves ")

    # ------------------------------------------------------------------ source

    def stop_wanted(self) -> events.StopAsked | None:
        """The session was closed: whoever closes the terminals wants the job to end."""
        if self._over or self._alive is None or self._alive.poll() is None:
            return None
        self._over = True
        return events.StopAsked(time.time(), _SIGHUP, "the closed tmux session")

    # ------------------------------------------------------------------ tmux itself

    def _open_pane(self, number: int, placed: Placed, paths: RunPaths, host: str) -> None:
        pid = str(os.getpid())
        view = (
            "-P",
            "-F",
            "#{pane_id}",
            "--",
            "tail",
            f"--pid={pid}",
            "-n",
            "+1",
            "-F",
            paths.log(placed.task),
        )
        if number == 0:
            pane = self._run("-f", os.devnull, "new-session", "-d", "-s", "launch", *_SIZE, *view)
        elif number % PANES == 0:
            pane = self._run("new-window", "-d", *view)
        else:
            pane = self._run("split-window", "-d", "-t", self._last, *view)
            self._run("select-layout", "-t", pane, "tiled")
        self._last = self._panes[placed.task] = pane
        self._run("set", "-p", "-t", pane, "@task", placed.task)
        if host and not placed.task.names(host):  # last: a narrow pane cuts the end of its title off
            self._run("set", "-p", "-t", pane, "@host", f" on {host}")

    def _title(self, task: TaskId, state: str) -> None:
        if not self._over:
            self._run("set", "-p", "-t", self._panes[task], "@state", state.replace("#", "##"))

    def _run(self, *words: str) -> str:
        """One tmux command; a session that is gone meanwhile is no fault (`stop_wanted` tells it)."""
        if self.stuck:
            return ""
        command = [self._program, "-L", self._socket, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_LIMIT, check=False, env=_environment(os.environ)
            )
        except subprocess.TimeoutExpired as error:
            if not self._panes:
                raise LaunchError(f"tmux could not be started: no answer in {_LIMIT:.0f} s") from error
            self.stuck = True
            return ""
        if done.returncode and not self._panes:
            raise LaunchError(f"tmux could not be started: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode().strip()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [self._program, "-L", self._socket, *words]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


class _Asked:
    """Notes the signals of whoever wants us to end, while nothing but the session is left."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _Asked:
        self._before = {number: signal.signal(number, self._note) for number in _LEAVING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self.asked = True


class Held:
    """Keeps remarks back while tmux fills the terminal, and shows them when it does not any more.

    Args:
        tmux: the session.
        inner: the renderer that would draw over it.
    """

    def __init__(self, tmux: Tmux, inner: Renderer) -> None:
        self._tmux = tmux
        self._inner = inner
        self._kept: list[Tell] = []
        self._complained = False

    def begin(self, opening: Opening) -> None:
        """See `Renderer.begin`."""
        self._inner.begin(opening)

    def on(self, event: Shown) -> None:
        """See `Renderer.on`."""
        if self._tmux.stuck and not self._complained:
            self._complained = True
            self.on(Tell(_STUCK, urgent=True))
        if isinstance(event, Tell) and self._tmux.attached:
            self._kept.append(event)
            return
        self._release()
        self._inner.on(event)

    def tick(self, now: float) -> float | None:
        """See `Renderer.tick`."""
        return None if self._tmux.attached else self._inner.tick(now)

    def close(self, report: Report) -> None:
        """See `Renderer.close`."""
        self._release()
        self._inner.close(report)

    def _release(self) -> None:
        if self._kept and not self._tmux.attached:
            for tell in self._kept:
                self._inner.on(tell)
            self._kept.clear()


def _find_tmux() -> str:
    path = shutil.which("tmux")
    if path is None:
        raise LaunchError("--tmux needs tmux, and there is none along PATH (Debian: apt-get install tmux)")
    return path


def _handle(pid: str) -> int:
    """A handle of this process; -1 if it is gone, or nothing was said."""
    try:
        return os.pidfd_open(int(pid))
    except (OSError, ValueError):
        return -1


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``TMUX`` would tie a command to the session the user is in."""
    return {name: value for name, value in environ.items() if name not in ("TMUX", "TMUX_PANE")}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it has ended within so many seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if not _wait(process, _LIMIT):
        process.kill()
        process.wait()
