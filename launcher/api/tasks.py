"""One launch with a function of the program in each of its tasks: started, watched, ended."""

from __future__ import annotations

import glob
import json
import os
import pickle
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from launcher.api.driver import LINES, Driver
from launcher.api.options import Settings
from launcher.api.remote import start
from launcher.api.remote.messages import Message, MessageType, receive, send
from launcher.api.serialize import modules, start_text
from launcher.config.hostfile import read_hosts
from launcher.config.jobfile import JobFile
from launcher.errors import JobError, JobFailed, LaunchError, TaskFailed
from launcher.feed.listener import LONGEST_FOLDER, Listener, Peer
from launcher.feed.remote.frames import hang_up
from launcher.feed.waiting import FIRST, Waiting
from launcher.job import JobSpec, OnFailure, is_loopback
from launcher.runs.logs import last_lines
from launcher.text import listed, signal_name

#: Seconds between two looks at which tasks have connected.
_LOOK = 0.05
#: Seconds for the last lines of a failed task to arrive.
_LAST_LINES = 0.5
#: Seconds from SIGTERM to SIGKILL by default; and for what tasks have left on other machines to be fetched.
_GRACE, _FETCHING = 10.0, 300.0
_KEY_SIZE = 32
_PREFIX = "tf-launcher-api-"


class TaskEnd(NamedTuple):
    """The end of a task's process.

    Attributes:
        task, host: ``worker/0``, and where it ran.
        code, signal: one of them; both ``None``: not known.
        why: in words, if the status is not all.
        attempt: the number of its start, from 1.
    """

    task: str
    host: str = ""
    code: int | None = None
    signal: int | None = None
    why: str = ""
    attempt: int = 1

    @property
    def text(self) -> str:
        """How it ended: ``exited with code 3``."""
        if self.why:
            return self.why
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with code {self.code}"


class TaskHandle:
    """One task. Each of its connections has a thread.

    Args:
        name: ``worker/0``.
        work: what it runs.
        answer: is called with each message, in the thread; its result is sent.
    """

    def __init__(self, name: str, work: Message, answer: Callable[[TaskHandle, Message], Message]) -> None:
        self.name = name
        self._work = work
        self._answer = answer
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        #: It has connected; its process has ended.
        self.arrived = threading.Event()
        self.ended = threading.Event()
        #: How its function went; ``None``: not known.
        self.outcome: Message | None = None
        #: Why it can't run the function; empty: it can.
        self.refused = ""
        #: Its function has raised, and not because the task was being stopped.
        self.has_failed = False

    def connected(self, peer: Peer) -> None:
        """Take over a connection: the first one, or one after a break."""
        with self._lock:
            old, self._sock = self._sock, peer.sock
        if old is not None:
            hang_up(old)
        thread = threading.Thread(target=self._talk, args=[peer], name=f"launch-{self.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Close its connection."""
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            hang_up(sock)
        for thread in self._threads:
            thread.join(5)

    def _talk(self, peer: Peer) -> None:
        sock = peer.sock
        try:
            if not peer.hello.get("again") and not self._begin(peer):
                return
            self.arrived.set()
            while (message := receive(sock)) is not None:
                send(sock, self._answer(self, message))
        except OSError:  # it has ended, or connects again
            pass
        finally:
            with self._lock:
                if self._sock is sock:
                    self._sock = None
            sock.close()

    def _begin(self, peer: Peer) -> bool:
        """Send it the modules and its work; ``False``: its Python can't run that."""
        theirs, ours = tuple(peer.hello["python"]), sys.version_info[:2]
        if theirs != ours:
            what = "it runs Python {}.{}, the program that drives the job {}.{}".format(*theirs, *ours)
            self.refused = f"{what}; functions can be sent only to the same version (set python=)"
            text = f"{self.name}: {self.refused}".encode()
            peer.sock.sendall(b"%0*d" % (start.SIZE, -len(text)) + text)
            self.arrived.set()
            return False
        peer.sock.sendall(b"%0*d" % (start.SIZE, len(modules())) + modules())
        send(peer.sock, self._work)
        return True


class Handlers(NamedTuple):
    """What is called in threads of `Tasks`.

    Attributes:
        failed: the job has failed.
        answer: a slot's message is answered.
        feed: a task has connected for a feed.
        ended: a task's process has ended.
    """

    failed: Callable[[LaunchError], None]
    answer: Callable[[TaskHandle, Message], Message] = lambda handle, message: Message(MessageType.THANKS)
    feed: Callable[[Peer], None] = lambda peer: peer.sock.close()
    ended: Callable[[TaskEnd], None] = lambda end: None


class Tasks:
    """The tasks of one launch.

    Args:
        roles: by name, what a job file says of a role, with its ``count``; those without ``command`` run the
            function.
        settings: where and how they run.
        work: for each task; the fields are completed here.
        handlers: see there.

    Raises:
        InputError: what is asked for is wrong.
        LaunchError: there is no place for a socket.
    """

    def __init__(
        self,
        roles: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        work: Message,
        handlers: Handlers,
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._hosts: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._pending: tuple[TaskEnd, threading.Timer] | None = None
        self._first: TaskEnd | None = None
        #: The first failure; ``None``: none so far.
        self.error: LaunchError | None = None
        ours = {name: role["count"] for name, role in roles.items() if "command" not in role}
        overlay = {name: {"command": ["-c", start.COMMAND], **role} for name, role in roles.items()}
        file = _job_file(settings, overlay)
        self._goes_on = (settings.on_failure or file.job.policy.on_failure.value) == OnFailure.CONTINUE.value
        elsewhere = _is_elsewhere(settings, file)
        image = settings.docker or file.sections.get("docker")
        fields = {**work.fields, "path": [] if elsewhere or image else list(sys.path)}
        work = work._replace(fields=fields)
        self.handles = {
            name: TaskHandle(name, work, self._answer)
            for name in [f"{role}/{index}" for role, count in ours.items() for index in range(count)]
        }
        engine_here = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:")
        modules()  # it may fail: before anything is made
        start_text()
        key = secrets.token_bytes(_KEY_SIZE)
        self._folder = _private_folder()
        try:
            self._listener = Listener(key, self._folder, elsewhere or bool(image), notice)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise LaunchError(f"the job can't be started: {error}") from error
        variables = {
            "LAUNCH_FEED": json.dumps(self._listener.addresses),
            "LAUNCH_FEED_KEY": key.hex(),
            "LAUNCH_START": start_text(),
        }
        words = settings.words()
        for name in variables:
            words += ["-x", name]
        words += ["--output-dirs", "--no-last-lines"]  # the exception has the last lines
        words += ["--relay", self._listener.path] if elsewhere else []
        words += ["--mount", self._folder] if image and not elsewhere and engine_here else []
        words += [] if settings.job is None else ["--", os.fspath(settings.job)]
        self.driver = Driver(
            words,
            {**settings.environ(), **variables},
            roles=overlay,
            quiet=settings.quiet,
            on_event=self._take,
            on_end=self._end,
        )

    def start(self) -> None:
        """Start the launch; `close` must be called then.

        Raises:
            LaunchError: it can't be started.
        """
        try:
            self.driver.start()
        except BaseException:
            self._clean()
            raise
        self._listener.serve(self._connected)

    # ------------------------------------------------------------------ what is known

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started them, and not a fork of that."""
        return os.getpid() == self._pid

    @property
    def run_dir(self) -> str:
        """The folder of the run; empty: not known yet."""
        return self.driver.run_dir

    def last_lines(self, task: str) -> list[str]:
        """The last lines that a task has printed."""
        return last_lines(self.run_dir, task, LINES) if self.run_dir else []

    def explain(self, text: str) -> None:
        """Print a line on stderr, unless the job is quiet."""
        if not self._settings.quiet:
            notice(text)

    def check(self) -> None:
        """Raise the failure of the job, if it has failed.

        Raises:
            LaunchError: that.
        """
        if self.error is not None:
            raise self.error

    def failure(self, end: TaskEnd, outcome: Message | None, name: str = "") -> TaskFailed:
        """The exception for a task, or for ``name`` in it, by its end and by what its function raised."""
        where = f" on {end.host}" if end.host and not is_loopback(end.host) else ""
        subject = f"{name or end.task}{where}"
        lines = self.last_lines(end.task)
        if outcome is None or outcome.type is not MessageType.RAISED:
            return TaskFailed(
                f"{subject} {end.text}", end.task, end.host, end.code, end.signal, "", lines, self.run_dir
            )
        what, shown = str(outcome.fields["what"]), str(outcome.fields["traceback"])
        code = outcome.fields["code"] if end.code is None and end.signal is None else end.code
        if shown.strip() == what:  # without a function of the user's
            shown, lines = "", [line for line in lines if line.strip() not in what]
        text = (
            f"{subject} exited with code {code}"
            if what.startswith("SystemExit")
            else f"{subject} raised {what}"
        )
        error = TaskFailed(text, end.task, end.host, code, end.signal, shown, lines, self.run_dir)
        error.__cause__ = _exception(outcome)
        return error

    # ------------------------------------------------------------------ waiting

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all tasks have connected.

        Raises:
            LaunchError: the job has failed, or it takes longer.
        """
        waiting = Waiting()
        while missing := [
            one for one in self.handles.values() if not (one.arrived.is_set() or one.ended.is_set())
        ]:
            self.check()
            names = listed([one.name for one in missing])
            if (waited := waiting.seconds) > seconds:
                raise JobFailed(f"{names} did not connect within {waited:.0f} s", self.run_dir)
            if begun := waiting.due():
                self.explain(f"{begun} {names} to connect (at most {seconds:g} s: reservation_timeout=)")
            missing[0].arrived.wait(_LOOK)
        self.check()
        refused = [f"{one.name}: {one.refused}" for one in self.handles.values() if one.refused]
        if refused:
            raise JobFailed("\n".join(refused), self.run_dir)

    def close(self, at_once: bool = False) -> None:
        """End the job and everything of it.

        Args:
            at_once: tasks are killed, and what they have left on other machines is not fetched.
        """
        try:
            if not (self.driver.over.is_set() or at_once):
                self._stop()
        finally:
            self.driver.end()
            self._clean()
            for handle in self.handles.values():
                handle.close()

    def _stop(self) -> None:
        """Stop the job in order: the tasks have their grace, and what they have left is fetched."""
        if self.error is None and not self.driver.asked:
            self.driver.signal(15)
        if not self.driver.over.wait(FIRST):
            grace = _GRACE if self._settings.grace is None else self._settings.grace
            seconds = grace + _FETCHING
            self.explain(f"waiting for the job to end (at most {seconds:g} s; Ctrl-C ends it at once)")
            self.driver.over.wait(seconds)

    def _clean(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ in threads

    def _connected(self, peer: Peer) -> None:
        if peer.purpose == "feed":
            self._handlers.feed(peer)
        elif peer.purpose == "member" and peer.task in self.handles:
            self.handles[peer.task].connected(peer)
        else:
            peer.sock.close()

    def _answer(self, handle: TaskHandle, message: Message) -> Message:
        if message.type not in (MessageType.DONE, MessageType.RAISED):
            return self._handlers.answer(handle, message)
        if message.type is MessageType.RAISED:
            stopped = handle.name in self._stopped
            handle.has_failed = not stopped or bool(message.fields["unasked"])
        handle.outcome = message
        return Message(MessageType.THANKS)

    def _take(self, event: Mapping[str, Any]) -> None:
        """An event of the launcher."""
        kind, task = event["event"], event.get("task", "")
        if kind == "AgentLost":
            why = f"is lost with its host: {event['why']}"
            for name, host in list(self._hosts.items()):
                if host == event["host"]:
                    self._task_ended(TaskEnd(name, host, why=why), failed=True)
        elif kind == "TimeUp" and event["timer"] == "job":
            self._fail(JobFailed("the job took longer than its timeout", self.run_dir))
        if task not in self.handles:
            return
        if kind == "TaskStarted":
            self._hosts[task] = event["host"]
            self._stopped.discard(task)
        elif kind == "TaskSignalled":
            self._stopped.add(task)
        elif kind == "TaskExited":
            end = TaskEnd(task, event["host"], event["code"], event["signal"], "", event["attempt"])
            if event["oom"]:
                end = end._replace(why=f"{end.text} (out of memory)")
            self._task_ended(end, failed=event["code"] != 0 and task not in self._stopped)
        elif kind == "TaskNotStarted":
            why = f"could not be started: {event['why']}"
            self._task_ended(TaskEnd(task, event["host"], event["code"], None, why), failed=True)
        elif kind == "TaskGone":
            self._judge(task)

    def _task_ended(self, end: TaskEnd, failed: bool) -> None:
        self._hosts.pop(end.task, None)
        if failed and self._first is None:
            self._first = end
            if not self._goes_on:
                self._pending = end, threading.Timer(_LAST_LINES, self._judge, [end.task])
                self._pending[1].start()
                return
        self._forget(end, failed)

    def _forget(self, end: TaskEnd, failed: bool) -> None:
        """The task has ended, and if that is the job's failure, it is known."""
        handle = self.handles[end.task]
        handle.ended.set()
        outcome = handle.outcome
        if failed and outcome is not None and outcome.type is MessageType.RAISED:
            what = str(outcome.fields["what"]).partition("\n")[0]
            end = end if what.startswith("SystemExit") else end._replace(why=f"raised {what}")
        self._handlers.ended(end)

    def _judge(self, task: str) -> None:
        """Report the failure of a task: its last lines are there, or take too long."""
        with self._lock:
            if self._pending is None or self._pending[0].task != task:
                return
            (end, timer), self._pending = self._pending, None
        timer.cancel()
        self._fail(self.failure(end, self.handles[task].outcome))
        self._forget(end, failed=True)

    def _end(self) -> None:
        """The launcher has ended."""
        if self._pending is not None:
            self._judge(self._pending[0].task)
        if self.error is None and not self.driver.asked:
            late = [handle for handle in self.handles.values() if handle.has_failed]
            if self._first is not None:
                self._fail(self.failure(self._first, self.handles[self._first.task].outcome))
            elif late:  # it raised at the moment at which the job was done and all others were stopped
                self._fail(self.failure(TaskEnd(late[0].name), late[0].outcome))
            elif error := self.driver.error():
                self._fail(error)
        for handle in self.handles.values():
            handle.ended.set()

    def _fail(self, error: LaunchError) -> None:
        if self.error is None and not self.driver.asked:
            self.error = error
            self._handlers.failed(error)


def notice(text: str) -> None:
    """Print a line on stderr, as `launch` does."""
    if sys.stderr is not None:
        print(f"launch: {text}", file=sys.stderr, flush=True)


def _exception(outcome: Message) -> BaseException | None:
    """The exception that a function has raised, if it could be pickled."""
    try:
        found = pickle.loads(outcome.pickles[0]) if outcome.pickles else None
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there; the text is known
        return None
    return found if isinstance(found, BaseException) else None


def _job_file(settings: Settings, roles: Mapping[str, Any]) -> JobFile:
    """What the job file says, with these roles laid over its own.

    Raises:
        JobError: it can't be read, or is wrong.
    """
    if settings.job is None:
        return JobFile(JobSpec(()))
    path = os.fspath(settings.job)
    from launcher.config.jobfile import read_job_file  # PyYAML takes 30 ms to import
    from launcher.transports import sections

    found, faults = read_job_file(path, roles, sections())
    if faults:
        raise JobError(faults)
    return found


def _is_elsewhere(settings: Settings, file: JobFile) -> bool:
    """Whether tasks may run on other machines.

    Raises:
        HostfileError: the hosts are wrong.
    """
    given = file.hosts_ref if settings.hosts is None else settings.hosts
    hosts = (file.hosts or ()) if given is None else read_hosts(os.fspath(given))
    return not all(is_loopback(host.name) and host.user is None and host.port is None for host in hosts)


def _private_folder() -> str:
    """A folder for a socket, whose path has to be short. Those of programs that were killed are removed."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        _remove_stale(parent)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        if len(os.fsencode(folder)) <= LONGEST_FOLDER:
            return folder
        os.rmdir(folder)
    raise LaunchError(f"the path of a socket below {tempfile.gettempdir()} would be too long")


def _remove_stale(parent: str) -> None:
    for path in glob.glob(f"{glob.escape(parent)}/{_PREFIX}*/*"):
        try:
            found = os.lstat(path)
            with socket.socket(socket.AF_UNIX) as sock:
                if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
                    sock.connect(path)
        except ConnectionRefusedError:  # no process listens any more
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        except OSError:  # it has just been removed
            continue
