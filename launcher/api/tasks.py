"""``FunctionJob``: one launch with a function of the user's program in each of its tasks.

`launcher.api.cluster` and `launcher.api.parallel` derive from it. It pickles the function, starts the launch,
accepts the connections of the tasks and sends them their work. Nothing from a task is unpickled before the
task has proved that it has the key of the job.

Functions of the program itself (``__main__``, a notebook's cell), closures and lambdas travel as code, by
cloudpickle. Functions of modules travel as names. Modules of the program's own, which are not installed where
the tasks run, travel as code, too.
"""

from __future__ import annotations

import glob
import inspect
import json
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from launcher.agent.host import own_addresses
from launcher.api.driver import MAX_LAST_LINES, Driver
from launcher.api.remote import start
from launcher.api.remote.worker import Message
from launcher.api.run import RunOptions, option_arguments, option_environ
from launcher.backends import rows, sections
from launcher.backends.bootstrap import IMPORTER, packed
from launcher.backends.docker.rows import DOCKER
from launcher.backends.kubernetes.rows import KUBERNETES
from launcher.backends.slurm.rows import SLURM
from launcher.common import trusted_io
from launcher.common.errors import (
    Fault,
    InputError,
    JobError,
    JobFailed,
    LaunchError,
    TaskFailed,
    TransportError,
    hint_lines,
)
from launcher.common.report import TaskState
from launcher.common.text import Waiting, join_names, signal_name
from launcher.config.hostfile import read_hosts
from launcher.config.jobfile import read_job_file
from launcher.config.settings import FileContent, merge
from launcher.config.table import HOSTS, ON_FAILURE
from launcher.feed.listener import MAX_FOLDER_BYTES, FeedPeer, Listener
from launcher.feed.remote import code, connect
from launcher.job import OnFailure, is_loopback
from launcher.messages import say
from launcher.output.logs import last_lines
from launcher.threads import start as start_thread
from launcher.threads import start_function

#: How often the job looks which tasks have connected.
_POLL_SECONDS = 0.02
#: The time from SIGTERM to SIGKILL by default.
_GRACE_SECONDS = 10.0
#: How long the launcher may take to fetch the files of tasks on other machines.
_FETCH_SECONDS = 300.0
_KEY_BYTES = 32
#: How long containers of this machine may take to connect by the socket. After that they may use the network.
_NETWORK_AFTER_SECONDS = 5.0
_FOLDER_PREFIX = "tf-launcher-api-"
#: A socket younger than this may belong to a program that has not called ``listen`` yet.
_NEW_SOCKET_SECONDS = 60.0
#: The modules that are sent to tasks. cloudpickle is one of them, because a pickle can be read only with the
#: version of cloudpickle that made it, or a later one.
_TASK_MODULES = (
    "launcher.__init__",
    "launcher.common.arguments",
    "launcher.common.errors",
    "launcher.common.validation",
    "launcher.common.record",
    "launcher.common.report",
    "launcher.common.cluster",
    "launcher.common.text",
    "launcher.common.trusted_io",
    "launcher.data",
    "launcher.storage",
    "launcher.feed.remote",
    "launcher.api.remote",
    "cloudpickle",
)
_FUNCTION_ADVICE = (
    "make locks, sessions and open files within the function; put what it needs into its arguments; "
    "modules that are not installed travel as code: install those that have such objects"
)


@dataclass(eq=False)
class TaskHandle:
    """What the program knows about one task."""

    #: The name of the task, such as ``worker/0``.
    name: str
    host: str = ""
    attempt: int = 1
    #: The process ID of its main process on its host, or None if it was not started yet.
    pid: int | None = None
    #: Whether it is to start again.
    restarting: bool = False
    #: Whether the user has stopped it (``launch stop RUN TASK``), so the job goes on without it.
    dismissed: bool = False
    #: Whether it has connected to the program.
    arrived: bool = False
    #: How its process ended, such as "exited with code 3". Empty while the process runs.
    ending: str = ""
    #: The message about the exception of its function, by the number of the attempt. Only the last one is
    #: kept.
    outcomes: dict[int, Message] = field(default_factory=dict)

    @property
    def outcome(self) -> Message:
        """The message about the exception of its function in this attempt. It is empty if there was none."""
        return self.outcomes.get(self.attempt, {})


class FunctionJob:
    """One launch whose tasks run a function of the user's program.

    Subclasses override the methods that tell them what happens to tasks. These are called in threads.

    Args:
        roles: The keys of each role in a job file, with its ``count``, by the name of the role. Roles without
            ``command`` run the function.
        options: Where and how the tasks run, as `launcher.api.run.read_options` has returned it.
        job: The path of a job file, or None.
        work: What each task is to run, see `launcher.api.remote.worker`. The numbers of the tasks and the
            path of modules are added here.

    Raises:
        InputError: An argument or the job file is wrong. The message lists all faults.
    """

    def __init__(
        self, roles: Mapping[str, Mapping[str, Any]], options: RunOptions, job: str | None, work: Message
    ) -> None:
        """Read the job file and find out where tasks run. Nothing is started before `start`."""
        # The job file is read here, too, because this program needs some of its settings before the launcher
        # starts: where tasks run decides how they can connect to this program.
        self._options, self._job = options, job
        #: Whether the user is told nothing about progress.
        self.is_quiet = bool(options.get("quiet"))
        #: Why the job has failed. None while it runs, and if it has succeeded.
        self.error: LaunchError | None = None
        #: The roles for the launcher. The command of those that run the function is Python with this code.
        self._roles = {name: {"command": ["-c", start.START_CODE], **role} for name, role in roles.items()}
        file = FileContent() if job is None else read_job_file(job, self._roles, sections())
        if file.faults:
            raise JobError(file.faults)
        # Arguments of the call replace settings of the file.
        settings, _ = merge([file.level], rows())
        on_failure = options.get("on_failure") or settings[ON_FAILURE]
        #: Whether the failure of a task does not stop the job.
        self._goes_on = on_failure == OnFailure.CONTINUE.value
        hosts_text = options.get("hosts")
        hosts = read_hosts(settings[HOSTS] if hosts_text is None else os.fspath(hosts_text))
        # With a user or a port, even localhost is reached by ssh. It may be a port forwarded from elsewhere.
        are_here = [is_loopback(host.name) and host.user is None and host.port is None for host in hosts]
        #: Whether tasks may run on other machines.
        self._elsewhere = not all(are_here)
        #: Whether tasks run in containers. These reach the Unix socket only if its folder is mounted.
        self._in_containers = bool(options.get("docker") or settings.is_given(DOCKER))
        words = {os.fspath(word).partition("=")[0] for word in options.get("options", ())}
        in_pods = settings.is_given(KUBERNETES) or "--kubernetes" in words
        on_slurm = settings.is_given(SLURM) or "--slurm" in words or "SLURM_JOB_ID" in os.environ
        #: Whether tasks run in pods or on nodes of Slurm. These reach this program only over the network.
        self._in_cluster = in_pods or on_slurm
        # Roles with a command of their own run programs, and their tasks do not connect.
        counts = {name: role["count"] for name, role in roles.items() if "command" not in role}
        names = [f"{role}/{index}" for role, count in counts.items() for index in range(count)]
        #: What is known about each task that runs the function, by its name, in the order of their numbers.
        self.handles = {name: TaskHandle(name) for name in names}
        numbers = {name: number for number, name in enumerate(names)}
        # Only processes of this machine can import from its folders.
        path = [] if self._elsewhere or self._in_containers or in_pods else list(sys.path)
        #: The first message to each task: what it is to run.
        self._work = {**work, "numbers": numbers, "path": path}
        #: Fires when containers of this machine should have connected. Those that have not cannot reach the
        #: socket in its folder.
        self._late = threading.Timer(_NETWORK_AFTER_SECONDS, self._open_network_for_late)
        self._late.daemon = True

    def start(self) -> None:
        """Start the launch, and accept the connections of its tasks. After that `close` must be called.

        Tasks reach this program in one of these ways:

        - On this machine, and in its containers, by a Unix socket in a private folder.
        - On other machines, by a port that the launcher forwards to the socket (``--relay``).
        - Over the network, in pods, on nodes of Slurm, in containers of another machine, and wherever the
          other ways fail.

        Raises:
            LaunchError: The launch cannot be started. Nothing needs to be closed.
        """
        modules = packed(_TASK_MODULES)
        # What each task receives first: the size of the modules in decimal digits, then the modules.
        self._modules = b"%0*d%s" % (start.SIZE_DIGITS, len(modules), modules)
        key, variables = os.urandom(_KEY_BYTES), {"LAUNCH_START": start_text()}
        self._resources = ExitStack()
        try:
            self._folder = folder = _private_folder()
            self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
            # Tasks of this machine that are in no container need no address: they use the socket.
            needs_address = self._elsewhere or self._in_containers or self._in_cluster
            addresses = own_addresses() if needs_address else ()
            self._listener = listener = Listener(key, folder, addresses)
            self._resources.callback(listener.close)
            variables.update(LAUNCH_FEED=json.dumps(listener.addresses), LAUNCH_FEED_KEY=key.hex())
            argv = option_arguments(self._options)
            # Tasks receive these variables. Their values are not on the command line, because one is the key.
            for name in variables:
                argv += ["-x", name]
            # The exception tells of the first failure, and a call names all its settings.
            argv += ["--output-dirs", "--no-last-lines", "--no-defaults", *self._open_way()]
            program = [] if self._job is None else ["--", self._job]
            environ = {**option_environ(self._options), **variables}
            self.driver = Driver(argv, environ, self._roles, self.is_quiet, program=program)
            self.driver.on_event, self.driver.on_end = self._handle_event, self._handle_end
            # Tasks may connect as soon as the launcher runs.
            listener.serve(self._handle_connection)
            self.driver.start()
        except BaseException as error:
            # This closes what was opened so far, the last first.
            self._resources.close()
            if isinstance(error, OSError):
                raise LaunchError(f"the job cannot be started: {error}") from error
            raise

    # ------------------------------------------------------------------ for subclasses

    def job_ended(self) -> None:
        """React to the end of the job, for subclasses. The attribute `error` is set if the job has failed."""

    def task_ended(self, task: TaskHandle, ending: str) -> None:
        """React to the end of a task, for subclasses.

        At the end of the job this is called for each task once more.

        Args:
            task: The task.
            ending: How the task ended. It completes the sentence "worker/0 ...".
        """

    def tasks_restart(self, attempts: Mapping[str, int]) -> None:
        """React to tasks that are to start again, for subclasses.

        Args:
            attempts: The numbers of the attempts that have ended or will end, by the names of the tasks.
        """

    def task_started(self, task: TaskHandle) -> None:
        """React to the start of a task, for the first time or again, for subclasses."""

    def feed(self, peer: FeedPeer) -> None:
        """Take over a connection on which a task wants to read rows, for subclasses.

        By default the connection is closed, because this job feeds no rows.
        """
        peer.sock.close()

    def answer(self, task: TaskHandle, attempt: int, message: Message) -> Message:
        """Return the answer to a message of a task. The same message may come twice.

        By default the message is kept as the outcome of the task's function, and the answer is empty.

        Args:
            task: The task.
            attempt: The number of the attempt that has sent the message.
            message: The message, see `launcher.api.remote.worker`.
        """
        task.outcomes = {attempt: message}
        return {}

    # ------------------------------------------------------------------ state

    @property
    def run_dir(self) -> str:
        """The path of the run's folder, or an empty text if the launcher has not reported it yet."""
        return self.driver.run_dir

    def last_lines(self, task: str) -> list[str]:
        """Return the last lines that a task has printed, for messages."""
        return last_lines(self.run_dir, task, MAX_LAST_LINES) if self.run_dir else []

    def say_unless_quiet(self, text: str) -> None:
        """Tell the user about progress, unless the job is to be quiet."""
        if not self.is_quiet:
            say(text)

    def check(self) -> None:
        """Raise the error of the job if it has failed.

        Raises:
            LaunchError: The job has failed, for this reason.
        """
        if self.error is not None:
            raise self.error

    # ------------------------------------------------------------------ waiting

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all tasks have connected.

        Where the end of a task does not stop the job, tasks that have ended count as well.

        Args:
            seconds: The time limit.

        Raises:
            LaunchError: The job has failed, or some tasks did not connect in time.
        """
        waiting = Waiting()
        while missing := [
            task.name
            for task in self.handles.values()
            if not (task.arrived or (self._goes_on_without(task) and task.ending and not task.restarting))
        ]:
            # `over` is set when the launcher has exited. Waiting for it is also the pause between two looks.
            if self.driver.over.wait(_POLL_SECONDS):  # The job has ended, with an error or without.
                break
            if waiting.seconds > seconds:
                text = f"{join_names(missing)} did not connect within {waiting.seconds:.0f}s"
                raise JobFailed(text, self.run_dir)
            if message := waiting.due():
                limit = f"at most {seconds:g}s: reservation_timeout="
                self.say_unless_quiet(f"{message} {join_names(missing)} to connect ({limit})")
        self.check()

    def _goes_on_without(self, task: TaskHandle) -> bool:
        """Return whether the job goes on when this task fails, or is stopped by the user."""
        return self._goes_on or task.dismissed

    def close(self, at_once: bool = False, ends_itself: bool = False) -> None:
        """Stop the job, and return when it has ended.

        Tasks are sent SIGTERM, and have the seconds of ``grace`` to exit. Then their files are fetched.

        Args:
            at_once: Whether tasks are killed, and their files on other machines are not fetched.
            ends_itself: Whether `launch` stops the job by itself, because a task has failed.
        """
        over, grace = self.driver.over, self._options.get("grace")
        try:
            # A second signal would make the launcher kill the tasks.
            if not (at_once or ends_itself or over.is_set() or self.driver.asked):
                self.driver.signal(signal.SIGTERM)
            # The user is told about the wait only if it takes longer than this.
            if not (at_once or over.wait(Waiting.FIRST_SECONDS)):
                seconds = (_GRACE_SECONDS if grace is None else grace) + _FETCH_SECONDS
                limit = f"at most {seconds:g}s; Ctrl-C stops it at once"
                self.say_unless_quiet(f"waiting for the job to end ({limit})")
                over.wait(seconds)
        finally:
            self.driver.end()  # It kills the launcher if that still runs.
            # The listener, the folder of its socket, and the timer.
            self._resources.close()

    # ------------------------------------------------------------------ connections, in threads

    def _handle_connection(self, peer: FeedPeer) -> None:
        """Serve a connection that has proved to belong to this job: for rows, or for messages of a task."""
        if peer.purpose == "feed":
            self.feed(peer)
        elif peer.task in self.handles:
            start_function(self._serve_task, peer, name=f"launch-{peer.task}")
        else:
            # The other end has the key, but is no task that runs the function.
            peer.sock.close()

    def _serve_task(self, peer: FeedPeer) -> None:
        """Serve a connection of a task.

        The first connection of a task's process receives modules and work. Each later one carries a message,
        which is answered.
        """
        handle = self.handles[peer.task]
        # A connection breaks when the task exits, or when its network does. In the latter case the task
        # connects again.
        with peer.sock as sock, suppress(OSError, EOFError):
            is_first = not peer.hello.get("again")
            # The modules contain what the task needs to read the messages that follow.
            if is_first:
                sock.sendall(self._modules)
            with Connection(sock.detach()) as channel:
                answer = self._work if is_first else self.answer(handle, peer.attempt, channel.recv())
                channel.send(answer)
                if is_first:
                    handle.arrived = True
                channel.poll(None)  # until the task has read everything and closes the connection

    # ------------------------------------------------------------------ events, in a thread

    def _open_way(self) -> list[str]:
        """Open the way on which tasks reach this program, and return the options of `launch` for it.

        `start` describes the ways. Tasks on other machines reach the socket through the connections of the
        launcher, and containers of this machine reach it in its folder. The network is opened only where
        neither is possible.
        """
        engine_here = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:")
        if self._elsewhere:
            return ["--relay", self._listener.path]
        if self._in_cluster:
            self._open_network("pods or nodes of Slurm")
        elif self._in_containers and engine_here:
            # The timer starts with the first container, see `_handle_task_moved`.
            self._resources.callback(self._late.cancel)
            return ["--mount", self._folder]
        elif self._in_containers:
            self._open_network("the containers of another machine")
        return []

    def _open_network(self, who: str) -> None:
        """Let tasks connect over the network that have no other way, and tell the user so.

        Args:
            who: The tasks that need it, for the message.
        """
        if self._listener.listen_on_network():
            what = f"port {self._listener.port} of all network interfaces, for {who}"
            self.say_unless_quiet(f"the program listens on {what}: rows are not encrypted")

    def _open_network_for_late(self) -> None:
        """Let containers that have started, but could not reach the socket, connect over the network."""
        late = [task.name for task in self.handles.values() if task.pid is not None and not task.arrived]
        if late:
            self._open_network(f"{join_names(late)}, which did not connect by the socket in {self._folder}")

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        """React to an event of the launcher that is about connections or tasks of this job.

        - ``Opened`` may name hosts from which no port can be forwarded to this program.
        - ``Restarting`` names tasks that are to start again, with the numbers of their attempts.
        - ``TaskStopAsked`` names tasks that the user stops.
        - ``TaskMoved`` says that the state of a task has changed.

        Args:
            event: The event. Others than these are ignored.
        """
        # From hosts without a relay, a forwarded port, tasks can connect only over the network.
        if event["event"] == "Opened" and event["without_relay"]:
            self._open_network(f"{join_names(event['without_relay'])}, where no port is forwarded")
        if event["event"] == "Restarting":
            # The event is also about tasks that run programs instead of the function.
            attempts = event["attempts"].items()
            self.tasks_restart({name: attempt for name, attempt in attempts if name in self.handles})
        elif event["event"] == "TaskStopAsked":
            for name in self.handles.keys() & event["tasks"]:
                self.handles[name].dismissed = True
        elif event["event"] == "TaskMoved" and event["task"] in self.handles:
            self._handle_task_moved(self.handles[event["task"]], event)

    def _handle_task_moved(self, handle: TaskHandle, event: Mapping[str, Any]) -> None:
        """Note a change of a task, and tell the subclass if the task has started or ended.

        The subclass hears of an end once, and only if

        - the task is not to start again, and
        - it has succeeded, or the job goes on without it. Otherwise the failure stops the job, and the
          subclass hears of it at the end of the job, which has the better reason.

        Args:
            handle: The task.
            event: The event ``TaskMoved`` about the task.
        """
        # When a new attempt begins, what is noted about the process of the last one no longer holds.
        if event["attempt"] > handle.attempt:
            handle.attempt, handle.pid, handle.ending = event["attempt"], None, ""
            handle.dismissed = False
        # A process whose ID was not known before has just started.
        has_started = handle.pid != event["pid"]
        # An end that was noted before is not new.
        new_ending = "" if handle.ending else _ending(event)
        was_restarting, handle.restarting = handle.restarting, event["restarting"]
        handle.host, handle.pid = event["host"], event["pid"]
        if has_started:
            self.task_started(handle)
            # Containers have some time to connect by the socket, from the start of the first one on. A timer
            # that was not started has no `ident`.
            if not self._late.ident and self._in_containers and not self._elsewhere:
                try:
                    start_thread(self._late)
                except TransportError:
                    # No thread is left for the timer, so the network is opened at once.
                    self._open_network_for_late()
        if new_ending:
            # The exception of its function says more than its exit code.
            raised = handle.outcome.get("raised")
            handle.ending = f"raised {raised}".partition("\n")[0] if raised else new_ending
        # A task that has ended and was to start again may not do so after all. Then its end is told now.
        may_tell = not handle.restarting and (event["status"]["code"] == 0 or self._goes_on_without(handle))
        if handle.ending and may_tell and (new_ending or was_restarting):
            self.task_ended(handle, handle.ending)

    def _handle_end(self) -> None:
        """Note why the launcher has failed, if so, and tell the subclass that job and tasks have ended."""
        if not self.driver.asked:  # a job that this program has stopped itself has not failed
            error = self.driver.error()
            # The function of the task may have sent its exception, which is better than an exit code.
            if isinstance(error, TaskFailed) and error.task in self.handles:
                error = with_outcome(error, error.task, self.handles[error.task].outcome)
            self.error = error
        # First the subclass lets everything that waits for the job fail with its error. Only then it is told
        # about the end of each task.
        self.job_ended()
        for handle in self.handles.values():
            self.task_ended(handle, handle.ending or "was stopped")


def _ending(moved: Mapping[str, Any]) -> str:
    """Return how the process of a task has ended.

    Args:
        moved: The last event ``TaskMoved`` about the task.

    Returns:
        A text that completes "worker/0 ...". It is empty if the process has not ended.
    """
    state, detail = TaskState(moved["state"]), moved["detail"]
    # The detail is a text such as "its host is lost: WHY".
    if state is TaskState.LOST:
        return f"is lost with its host: {detail.partition(': ')[2]}"
    if state is TaskState.FAILED and moved["pid"] is None:
        return f"could not be started: {detail}"
    if state is TaskState.STOPPED:  # Its process has not ended, or this is not the first event about its end.
        return "was stopped"
    return ending_text(**moved["status"]) if state is TaskState.ENDED else ""


def ending_text(code: int | None, signal: int | None) -> str:
    """Return how a process ended, such as ``exited with code 3`` or ``was killed by SIGKILL``.

    Args:
        code: The exit code, or None if a signal ended the process.
        signal: The number of the signal, or None.
    """
    return f"exited with code {code}" if signal is None else f"was killed by {signal_name(signal)}"


def with_outcome(error: TaskFailed, name: str, outcome: Message) -> TaskFailed:
    """Add the exception that a task's function has raised to the error about the task.

    The error receives the traceback of the exception, and the exception itself becomes its cause.

    Args:
        error: The error about the task, which is changed.
        name: The name of the task, or of the instance that it has run, for the message.
        outcome: The message of the task about its function. Without ``raised`` the error stays as it is.

    Returns:
        The same error.
    """
    if "raised" not in outcome:
        return error
    where = f" on {error.host}" if error.host and not is_loopback(error.host) else ""
    error.traceback = outcome["traceback"]
    lines = [f"{name}{where} raised {outcome['raised']}", error.traceback, *hint_lines(error.report)]
    error.args = ("\n".join(lines),)
    # There may be no exception, or its class may fail to unpickle. The message contains its text in any case.
    with suppress(Exception):
        error.__cause__ = pickle.loads(outcome["exception"])
    return error


# ---------------------------------------------------------------------- what travels


def dumps(caller: str, values: Mapping[str, object]) -> list[bytes]:
    """Pickle a function and its arguments.

    Args:
        caller: The name of the public function that the user has called, for the message.
        values: The values by the names of their parameters, such as ``map_fun``.

    Returns:
        A pickle of each value, in the same order.

    Raises:
        InputError: One of the values cannot be pickled.
    """
    pickles = []
    # Within this context the program's own modules are pickled as code, because tasks may not have them.
    with code.by_value():
        for name, value in values.items():
            try:
                pickles.append(code.dumps(value, sources=True))
            except Exception as error:  # classes of the user can raise anything
                text = f"{name} cannot be sent to another process: {type(error).__name__}: {error}"
                raise InputError([Fault(caller, text, _FUNCTION_ADVICE)]) from error
    return pickles


def start_text() -> str:
    """Return the source text that a task runs first: it connects to this program and receives its modules.

    The text is made of three modules and the importer, because nothing of launch need be installed where the
    task runs. It ends with the call of ``launcher.api.remote.start.main``.
    """
    # In one text the modules need not import each other, and such an import would fail where no launch is.
    left_out = ("from launcher.", "from __future__")
    sources = [inspect.getsource(module) for module in (trusted_io, connect, start)]
    lines = [line for source in sources for line in source.splitlines() if not line.startswith(left_out)]
    call = f"main({tuple(sys.version_info[:2])}, Importer)\n"
    return "\n".join(["from __future__ import annotations", IMPORTER, *lines, call])


def _private_folder() -> str:
    """Make a folder for the socket, and return its path.

    The path of a socket can be only about 100 bytes long, so the folder is in ``/tmp`` if the folder for
    temporary files has a long path. Folders of programs that were killed are removed.
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(f"{parent}/{_FOLDER_PREFIX}")) + 8 > MAX_FOLDER_BYTES:  # mkdtemp adds eight characters
        parent = "/tmp"
    for path in glob.glob(f"{glob.escape(parent)}/{_FOLDER_PREFIX}*/*"):
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                is_new = time.time() - os.stat(path).st_mtime < _NEW_SOCKET_SECONDS
                # This succeeds if the program of the socket still runs. Its folder then stays.
                trusted_io.connect_unix(sock, path, 0.0)
            except ConnectionRefusedError:  # no process listens yet, or one no longer does
                if not is_new:
                    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
            except OSError:  # another program has just removed it
                continue
    return tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent)
