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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.api.driver import LINES, Driver
from launcher.api.remote import start
from launcher.api.remote.worker import Message, MessageType, receive, send
from launcher.api.run import Options, option_arguments, option_environ
from launcher.api.serialize import modules, start_text
from launcher.config.hostfile import read_hosts
from launcher.config.jobfile import JobFile
from launcher.errors import JobError, JobFailed, LaunchError, TaskFailed
from launcher.feed.listener import LONGEST_FOLDER, Listener, Peer
from launcher.job import JobSpec, OnFailure, is_loopback
from launcher.runs.logs import last_lines
from launcher.text import Waiting, listed, signal_name

#: Seconds between two looks at which tasks have connected.
_LOOK = 0.05
#: Seconds from SIGTERM to SIGKILL by default; and to fetch the files of tasks on other machines.
_GRACE, _FETCHING = 10.0, 300.0
_KEY_SIZE = 32
_PREFIX = "tf-launcher-api-"


class TaskHandle:
    """What is known of one task.

    Args:
        name: ``worker/0``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.host, self.attempt = "", 1
        #: It has connected.
        self.arrived = threading.Event()
        #: How its process ended; empty: it has not. And whether `Tasks` has reported that.
        self.ending, self.reported = "", False
        #: The exception that its function has raised; ``None``: none so far.
        self.outcome: Message | None = None


class Tasks:
    """The tasks of one launch. The functions among the arguments are called in threads.

    Args:
        roles: by name, what a job file says of a role, with its ``count``; those without ``command`` run the
            function.
        options: where and how they run.
        job: a job file; ``None``: there is none.
        fields, pickles: of the message `MessageType.WORK` for each task; more fields are added here.
        failed: is called when the job has failed.
        answer: gives the answer to a slot's message.
        feed: is called when a task has connected for a feed.
        ended: is called with the name of a task that has ended, the number of its start, and how it ended.

    Raises:
        InputError: an argument is wrong.
        LaunchError: there is no place for a socket.
    """

    def __init__(
        self,
        roles: Mapping[str, Mapping[str, Any]],
        options: Options,
        job: str | os.PathLike[str] | None,
        fields: Mapping[str, Any],
        pickles: Sequence[bytes],
        failed: Callable[[LaunchError], None],
        answer: Callable[[TaskHandle, Message], Message] | None = None,
        feed: Callable[[Peer], None] | None = None,
        ended: Callable[[str, int, str], None] = lambda task, attempt, ending: None,
    ) -> None:
        self._quiet = bool(options.get("quiet"))
        self._grace = options.get("grace")
        self._failed, self._answer_slot, self._feed, self._ended = failed, answer, feed, ended
        #: Why the job has failed; ``None``: it runs, or has succeeded.
        self.error: LaunchError | None = None
        overlay = {name: {"command": ["-c", start.COMMAND], **role} for name, role in roles.items()}
        file = _job_file(job, overlay)
        on_failure = options.get("on_failure") or file.job.policy.on_failure.value
        self._goes_on = on_failure == OnFailure.CONTINUE.value
        elsewhere = _is_elsewhere(options.get("hosts"), file)
        image = options.get("docker") or file.sections.get("docker")
        path = [] if elsewhere or image else list(sys.path)
        self._work = Message(MessageType.WORK, {**fields, "path": path}, pickles)
        ours = {name: role["count"] for name, role in roles.items() if "command" not in role}
        names = [f"{role}/{index}" for role, count in ours.items() for index in range(count)]
        self.handles = {name: TaskHandle(name) for name in names}
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
        argv = option_arguments(options)
        for name in variables:
            argv += ["-x", name]
        argv += ["--output-dirs", "--no-last-lines"]  # the exception has the last lines
        argv += ["--relay", self._listener.path] if elsewhere else []
        engine_here = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:")
        argv += ["--mount", self._folder] if image and not elsewhere and engine_here else []
        argv += [] if job is None else ["--", os.fspath(job)]
        self.driver = Driver(
            argv,
            {**option_environ(options), **variables},
            roles=overlay,
            quiet=self._quiet,
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

    # ------------------------------------------------------------------ state

    @property
    def run_dir(self) -> str:
        """The folder of the run; empty: not known yet."""
        return self.driver.run_dir

    def last_lines(self, task: str) -> list[str]:
        """The last lines that a task has printed."""
        return last_lines(self.run_dir, task, LINES) if self.run_dir else []

    def explain(self, text: str) -> None:
        """Print a line on stderr, unless the job is quiet."""
        if not self._quiet:
            notice(text)

    def check(self) -> None:
        """Raise the failure of the job, if it has failed.

        Raises:
            LaunchError: that.
        """
        if self.error is not None:
            raise self.error

    # ------------------------------------------------------------------ waiting

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all tasks have connected.

        Raises:
            LaunchError: the job has failed, or it takes longer.
        """
        waiting = Waiting()
        while not self.driver.over.is_set() and (missing := self._missing()):
            names = listed([handle.name for handle in missing])
            if (waited := waiting.seconds) > seconds:
                raise JobFailed(f"{names} did not connect within {waited:.0f} s", self.run_dir)
            if begun := waiting.due():
                self.explain(f"{begun} {names} to connect (at most {seconds:g} s: reservation_timeout=)")
            missing[0].arrived.wait(_LOOK)
        self.check()

    def _missing(self) -> list[TaskHandle]:
        """Tasks that have not connected. The end of such a task ends the job, unless that goes on."""
        return [
            handle
            for handle in self.handles.values()
            if not (handle.arrived.is_set() or (self._goes_on and handle.ending))
        ]

    def close(self, at_once: bool = False) -> None:
        """End the job and all its tasks.

        Args:
            at_once: tasks are killed, and their files on other machines are not fetched.
        """
        try:
            if not (self.driver.over.is_set() or at_once):
                self._stop()
        finally:
            self.driver.end()
            self._clean()

    def _stop(self) -> None:
        """Stop the job in order: the tasks have their grace, and their files are fetched."""
        if not self.driver.asked:
            self.driver.signal(15)
        if not self.driver.over.wait(Waiting.FIRST):
            seconds = (_GRACE if self._grace is None else self._grace) + _FETCHING
            self.explain(f"waiting for the job to end (at most {seconds:g} s; Ctrl-C ends it at once)")
            self.driver.over.wait(seconds)

    def _clean(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ connections, in threads

    def _connected(self, peer: Peer) -> None:
        if peer.purpose == "feed" and self._feed is not None:
            self._feed(peer)
        elif peer.purpose == "member" and peer.task in self.handles:
            threading.Thread(target=self._talk, args=[peer], name=f"launch-{peer.task}", daemon=True).start()
        else:
            peer.sock.close()

    def _talk(self, peer: Peer) -> None:
        """Serve a connection: the first of a task brings it modules and work, a later one has a message."""
        handle = self.handles[peer.task]
        with peer.sock as sock:
            try:
                if not peer.hello.get("again"):
                    sock.sendall(b"%0*d" % (start.SIZE, len(modules())) + modules())
                    send(sock, self._work)
                    handle.arrived.set()
                elif (message := receive(sock)) is not None:
                    send(sock, self._answer(handle, message))
                sock.recv(1)  # the task closes it, when it has read all
            except OSError:  # it has ended, or connects again
                return

    def _answer(self, handle: TaskHandle, message: Message) -> Message:
        if message.type is not MessageType.RAISED and self._answer_slot is not None:
            return self._answer_slot(handle, message)
        handle.outcome = message
        return Message(MessageType.THANKS)

    # ------------------------------------------------------------------ events, in a thread

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "AgentLost":
            for lost in self.handles.values():
                if lost.host == event["host"] and not lost.ending:
                    self._task_ended(lost, f"is lost with its host: {event['why']}")
        handle = self.handles.get(event.get("task", ""))
        if handle is None:
            return
        if kind == "TaskStarted":
            handle.host, handle.attempt = event["host"], event["attempt"]
            handle.ending, handle.reported = "", False
        elif kind == "TaskExited":
            self._task_ended(handle, ending_text(event["code"], event["signal"]), event["code"] == 0)
        elif kind == "TaskNotStarted":
            self._task_ended(handle, f"could not be started: {event['why']}")

    def _task_ended(self, handle: TaskHandle, ending: str, well: bool = False) -> None:
        """A task has ended. Its failure is the job's, and is reported when that has ended, or it goes on."""
        handle.ending = ending
        if well or self._goes_on:
            outcome = handle.outcome
            if not well and outcome is not None:
                ending = f"raised {outcome.fields['raised']}".partition("\n")[0]
            handle.reported = True
            self._ended(handle.name, handle.attempt, ending)

    def _end(self) -> None:
        """The launcher has ended."""
        if not self.driver.asked:
            error = self.driver.error()
            if isinstance(error, TaskFailed) and error.task in self.handles:
                error = with_outcome(error, error.task, self.handles[error.task].outcome)
            self.error = error
        if self.error is not None:
            self._failed(self.error)
        for handle in self.handles.values():
            if not handle.reported:
                self._ended(handle.name, handle.attempt, handle.ending or "was stopped")


def ending_text(code: int | None, signal: int | None) -> str:
    """How a process ended: ``exited with code 3``."""
    return f"exited with code {code}" if signal is None else f"was killed by {signal_name(signal)}"


def with_outcome(error: TaskFailed, name: str, outcome: Message | None) -> TaskFailed:
    """The failure of a task with what its function has raised: the traceback, and the exception as its cause.

    Args:
        error: the failure.
        name: of the task, or of an instance in it, for the text.
        outcome: how the function went; ``None``: not known.
    """
    if outcome is None or outcome.type is not MessageType.RAISED or outcome.fields["exit"]:
        return error
    where = f" on {error.host}" if error.host and not is_loopback(error.host) else ""
    found = TaskFailed(
        f"{name}{where} raised {outcome.fields['raised']}",
        error.task, error.host, error.code, error.signal,
        outcome.fields["traceback"], error.last_lines, error.run_dir, error.report,
    )  # fmt: skip
    try:
        found.__cause__ = pickle.loads(outcome.pickles[0]) if outcome.pickles else None
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there; the text is known
        found.__cause__ = None
    return found


def notice(text: str) -> None:
    """Print a line on stderr, as `launch` does."""
    if sys.stderr is not None:
        print(f"launch: {text}", file=sys.stderr, flush=True)


def _job_file(path: str | os.PathLike[str] | None, roles: Mapping[str, Any]) -> JobFile:
    """The job file with these roles laid over its own.

    Raises:
        JobError: it can't be read, or is wrong.
    """
    if path is None:
        return JobFile(JobSpec(()))
    from launcher.config.jobfile import read_job_file  # PyYAML takes 30 ms to import
    from launcher.transports import sections

    found, faults = read_job_file(os.fspath(path), roles, sections())
    if faults:
        raise JobError(faults)
    return found


def _is_elsewhere(hosts: str | os.PathLike[str] | None, file: JobFile) -> bool:
    """Whether tasks may run on other machines.

    Raises:
        HostfileError: the hosts are wrong.
    """
    given = file.hosts_ref if hosts is None else hosts
    found = (file.hosts or ()) if given is None else read_hosts(os.fspath(given))
    return not all(is_loopback(host.name) and host.user is None and host.port is None for host in found)


def _private_folder() -> str:
    """A folder for a socket, whose path has to be short. Those of programs that were killed are removed."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        for path in glob.glob(f"{glob.escape(parent)}/{_PREFIX}*/*"):
            _remove_stale(path)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        if len(os.fsencode(folder)) <= LONGEST_FOLDER:
            return folder
        os.rmdir(folder)
    raise LaunchError(f"the path of a socket below {tempfile.gettempdir()} would be too long")


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
        with socket.socket(socket.AF_UNIX) as sock:
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
                sock.connect(path)
    except ConnectionRefusedError:  # no process listens any more
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    except OSError:  # it has just been removed
        return
