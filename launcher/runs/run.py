"""Finds runs, reads the files of their folders, and signals their launcher processes.

Commands such as ``launch ps`` and ``launch stop`` use it. Files of a run may be damaged or written by another
user, so nothing in them is believed without a check. The module changes nothing in a folder.
"""

import enum
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from launcher.agent.identity import Fate, ProcessIdentity, fate_of, is_alive, start_ticks
from launcher.agent.processes import user_of
from launcher.common.cluster import TaskId, is_task_name
from launcher.common.errors import Fault, InputError, LaunchError, ProtocolError
from launcher.common.record import Record, replace
from launcher.common.text import did_you_mean, duration, escape_controls, task_range
from launcher.common.trusted_io import is_ours, open_regular, read_at_most, read_regular
from launcher.common.validation import FieldReader
from launcher.job import RunPaths

#: The field of ``launcher.json`` with the ids of agents. It is removed when none of their processes is left.
AGENTS_FIELD = "agents"
#: The largest size of a ``launcher.json``.
_MAX_RECORD_BYTES = 64 * 1024
#: The largest size of a plan or a report, enough for ten thousand tasks with many attempts.
_MAX_JSON_BYTES = 1 << 27
#: The latest time of a run, in seconds since the epoch. A later one in a file is wrong.
_MAX_TIME = 1e11
_RecordT = TypeVar("_RecordT", bound=Record)
#: Characters for the name of a run. None of them looks like another.
_NAME_CHARACTERS = "0123456789abcdefghjkmnpqrstvwxyz"


class RunState(enum.Enum):
    """The state of a run, as far as it can be told on this machine."""

    #: Its launcher is alive.
    RUNNING = "running"
    #: Its launcher has exited and left a report.
    ENDED = "ended"
    #: Its launcher has provably exited without a report.
    DIED = "died"
    #: There is no report, and its launcher may be running on another machine or in a queue.
    ELSEWHERE = "elsewhere"


class BatchJob(Record):
    """The job of a cluster's queue in which the launcher of a run runs, or will run."""

    #: The name of the backend of the cluster.
    transport: str
    #: The number of the job in the cluster. Empty if it is not known yet.
    number: str = ""
    #: The node or the pod of the launcher. Empty if the launcher has not started yet.
    node: str = ""
    #: How the cluster is reached, such as a context of kubectl.
    where: str = ""


class Origin(Record):
    """What the user typed to start a run, and where. It contains no values that may be secret."""

    #: The name that the user calls the run, perhaps with a number. Empty if there is none.
    name: str = ""
    #: The note of the user about the run, on one line.
    note: str = ""
    #: The current folder. Empty if it is unknown, as for runs of earlier versions.
    folder: str = ""
    #: The options as words for a command line.
    options: tuple[str, ...] = ()
    #: The program and its arguments, or the job file. Empty if all words together are too long to be kept.
    program: tuple[str, ...] = ()
    #: The Python program that has started the run by the API. Empty for a run of the command line.
    driver: str = ""


def new_run_name() -> str:
    """Return a new name such as ``20261121-070912-k3f9m``: the time in UTC, then random letters."""
    letters = "".join(_NAME_CHARACTERS[byte % len(_NAME_CHARACTERS)] for byte in os.urandom(5))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


class Run(Record):
    """One execution of a job, as its folder describes it: name, files and launcher process."""

    name: str
    paths: RunPaths
    #: The launcher. None if the record names none.
    owner: ProcessIdentity | None
    #: The start, in seconds since the epoch. 0 if it is unknown.
    started_at: float
    #: The ids of its agents on this machine. They are part of the tags of all processes that the agents
    #: started.
    agents: tuple[int, ...] = ()
    #: The id of the user who owns ``launcher.json``. -1 if there is no such file.
    written_by: int = -1
    #: The job of a cluster's queue that starts its launcher. None if no queue does.
    batch: BatchJob | None = None
    origin: Origin = Origin()

    @property
    def called(self) -> str:
        """The name that messages and lists use: the one of ``--name``, or else the one that launch chose."""
        return self.origin.name or self.name

    @property
    def title(self) -> str:
        """What it is called, and in parentheses the name that launch chose, as others may be called so."""
        return f"{self.origin.name} ({self.name})" if self.origin.name else self.name

    @property
    def state(self) -> RunState:
        """The state of the run now, found out anew at each call.

        - RUNNING: its launcher is a process of this machine that is alive.
        - ENDED: it has left a report.
        - ELSEWHERE: there is no report, and it may be running on another machine or in a queue.
        - DIED: it has certainly exited without a report.
        """
        # The launcher is looked for first: once it has exited, the report either exists or never will.
        if self.owner is not None and is_alive(self.owner):
            return RunState.RUNNING
        if os.path.exists(self.paths.report):
            return RunState.ENDED
        if self.batch or (self.owner is not None and fate_of(self.owner) is not Fate.DEAD):
            return RunState.ELSEWHERE
        return RunState.DIED

    @property
    def machine(self) -> str:
        """A name for the machine of a launcher that cannot be seen from here, for messages.

        It starts with ``another`` if that machine has the name of this one.
        """
        if self.owner is None:
            return "another machine"
        name = escape_controls(self.owner.machine)
        return name if self.owner.machine != os.uname().nodename else f"another {name}"

    def check_seen(self) -> None:
        """Refuse a run if nobody can tell on this machine whether its launcher is alive.

        Raises:
            LaunchError: The launcher was started on another machine.
        """
        if self.state is not RunState.ELSEWHERE:
            return
        text = f"the launcher of {self.name} was started on {self.machine}, and may still run there"
        if self.machine.startswith("another "):
            text += " (a machine or container with the name of this one, or this one before it was restarted)"
        raise LaunchError(f"{text}: use this command there")

    @property
    def is_ours(self) -> bool:
        """Whether this user or root wrote the record. Other users must not choose which processes we kill."""
        return is_ours(self.written_by)

    def check_trusted(self) -> None:
        """Refuse a record that names a living process, unless a user who may signal that process wrote it.

        Such users are this one, root, and the user of the process.

        Raises:
            LaunchError: Another user wrote the record, and could have named any process.
        """
        owner = self.owner
        if owner is None or not is_alive(owner):  # There is no process to signal.
            return
        if self.is_ours or self.written_by == user_of(owner.pid):
            return
        raise LaunchError(
            f"{self.name}: its record {self.paths.record!r} belongs to user {self.written_by} and names "
            f"process {owner.pid} of another user; if that is its launcher, stop it with kill"
        )

    @property
    def last_sign(self) -> float:
        """When its launcher last wrote an event, a message or output of a task, in seconds since the epoch.

        It is 0 if the launcher never did.
        """
        files, times = [self.paths.events, self.paths.messages], [0.0]
        with suppress(OSError):
            files += [entry.path for entry in os.scandir(self.paths.logs)]
        for path in files:
            with suppress(OSError):  # There is no such file, or a task has just removed it.
                times.append(os.lstat(path).st_mtime)
        return max(times)

    @property
    def has_left_command(self) -> bool:
        """Whether its launcher has provably ended without running its command of ``--on-end``.

        Of a launcher that the queue of a cluster starts, only the queue knows that.
        """
        if self.owner is None or self.batch or not self.is_ours or not os.path.lexists(self.paths.on_end):
            return False
        return fate_of(self.owner) is Fate.DEAD

    def plan(self) -> Mapping[str, Any]:
        """Return the content of ``plan.json``. Empty if there is no such file yet."""
        return json_of(self.paths.plan) or {}

    def report(self) -> Mapping[str, Any]:
        """Return the content of ``report.json``. Empty if there is no such file yet."""
        return json_of(self.paths.report) or {}


def runs_folder() -> str:
    """Return the folder of the runs of this user, below ``$XDG_STATE_HOME`` or ``~/.local/state``.

    Raises:
        LaunchError: The user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        home = os.environ.get("HOME")
        state = os.path.expanduser("~/.local/state") if home is None else os.path.join(home, ".local/state")
    if not os.path.isabs(state):
        text = "no folder for a run's files: neither XDG_STATE_HOME nor HOME is set; use --run-dir"
        raise LaunchError(text)
    return os.path.join(state, "tf-launcher", "runs")


def all_runs() -> list[Run]:
    """Return the runs of this user, the oldest first."""
    folder = runs_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    # A link with the name of an earlier run may lead to a --run-dir that a later run has used since.
    runs = [run for name in names if (run := load(f"{folder}/{name}")) is not None and run.name == name]
    return sorted(runs, key=lambda run: (run.started_at, run.name))


def running(runs: Sequence[Run]) -> list[Run]:
    """Return the runs among these whose launchers are alive on this machine."""
    return [run for run in runs if run.state is RunState.RUNNING]


def load(path: str) -> Run | None:
    """Read a run from its folder, and return it, or None if the path is not the folder of a run.

    Values of a wrong type in the record are left out.
    """
    paths = RunPaths(os.path.realpath(path))
    record, written_by = read_record(paths)
    if not record and not os.path.exists(paths.plan) and not os.path.exists(paths.report):
        return None
    run_name, agents = record.get("job"), record.get(AGENTS_FIELD)
    if not isinstance(run_name, str):
        run_name = os.path.basename(paths.root)
    if not isinstance(agents, list):
        agents = []
    origin = _record_in(Origin, record.get("origin")) or Origin()
    texts = ("name", "note", "driver")  # Messages show these, so control characters must be escaped.
    shown: dict[str, Any] = {name: escape_controls(getattr(origin, name)) for name in texts}
    return Run(
        escape_controls(run_name),
        paths=paths,
        owner=_record_in(ProcessIdentity, record),
        started_at=time_in(record, "started_at") or 0.0,
        agents=tuple(number for number in agents if type(number) is int),  # A bool is no id.
        written_by=written_by,
        batch=_batch_job_in(record.get("batch")),
        origin=replace(origin, **shown),
    )


def tasks(run: Run) -> dict[TaskId, str]:
    """Return the host of each task of a run, in the order of the plan. Empty if there is no plan yet."""
    return tasks_of(run.plan())


def tasks_of(plan: Mapping[str, Any]) -> dict[TaskId, str]:
    """Return the host of each task in the content of ``plan.json``; other entries are left out."""
    entries = plan.get("tasks")
    hosts = {}
    for entry in entries if isinstance(entries, list) else []:
        task = entry.get("task") if isinstance(entry, dict) else None
        if isinstance(task, str) and is_task_name(task):
            hosts[TaskId(task)] = escape_controls(str(entry.get("host", "")))
    return hosts


def command_of(plan: Mapping[str, Any]) -> list[str]:
    """Return the command line in the content of ``plan.json``, without the path of ``launch``.

    Returns:
        Empty if the plan contains none.
    """
    command = plan.get("command")
    return ["launch", *map(str, command[1:])] if isinstance(command, list) else []


def versions_of(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions in the content of ``plan.json``, by what has them. Empty if it contains none."""
    versions = plan.get("versions")
    return {name: str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}


def program_of(run: Run) -> str:
    """Return what a run runs, for lists: its program, then the options of ``launch`` in parentheses.

    Returns:
        For a run of the Python API only the program that uses it. For a run of an earlier version the whole
        command line. Empty if nothing is known.
    """
    origin = run.origin
    if origin.driver or not origin.program:
        return origin.driver or shlex.join(command_of(run.plan()))
    # Lists show the name and the note of the user beside the program.
    pairs = zip(("", *origin.options), origin.options, strict=False)
    hidden = ("--name", "--note")
    shown = [word for before, word in pairs if word not in hidden and before not in hidden]
    return shlex.join(origin.program) + (f" ({shlex.join(shown)})" if shown else "")


def listing(runs: Sequence[Run]) -> str:
    """Describe the five newest of some runs for a message: a line for each, with name, age and program."""
    ages = [f"{run.called}, started {duration(time.time() - run.started_at)} ago" for run in runs[-5:]]
    programs = map(program_of, runs[-5:])
    return "".join(f"\n  {age}: {program}" for age, program in zip(ages, programs, strict=True))


def selected(known: Collection[TaskId], names: Collection[str], where: str = "") -> list[TaskId]:
    """Return the tasks that names select, such as ``worker``, ``ps/0`` or ``worker/2-5``.

    Args:
        known: The tasks of the run.
        names: The names of roles, tasks and ranges of tasks. Empty: all tasks are selected.
        where: The option that contains the names, for messages.

    Returns:
        The selected tasks, in the order of `known`.

    Raises:
        InputError: Some names match no task. The error lists all of them.
    """
    by_role: dict[str, list[TaskId]] = {}
    for task in known:
        by_role.setdefault(task.role, []).append(task)
    chosen: set[TaskId] = set()
    faults: list[Fault] = []
    for name in names:
        role, _, indexes = name.rpartition("/")
        tasks = by_role.get(name, [])  # The name may be that of a role.
        # Otherwise it is one index (``ps/0``), or the first and the last one (``worker/2-5``).
        if role in by_role and (match := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", indexes)):
            first, last = int(match[1]), int(match[2] or match[1])
            tasks = by_role[role][first : last + 1] if last < len(by_role[role]) else []
        chosen.update(tasks)
        if not tasks:
            # Some tasks of each role are enough to guess what was meant.
            candidates = [*by_role, *(task for tasks in by_role.values() for task in tasks[:100])]
            known_roles = f"expected one of {', '.join(by_role)}"
            # TensorFlow writes ``worker:0`` in some messages.
            expected = did_you_mean(name.replace(":", "/"), candidates, known_roles)
            if role in by_role:
                expected = f"expected {task_range(role, by_role[role][-1].index + 1)}"
            faults.append(Fault(where, f"there is no task {name!r}", expected))
    if faults:
        raise InputError(faults)
    return [task for task in known if not names or task in chosen]


def exit_code_of(report: Mapping[str, Any]) -> int | None:
    """Return the exit code in the content of ``report.json``, or None if there is none."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else None


def time_in(content: Mapping[str, Any], name: str) -> float | None:
    """Return a time in the content of ``launcher.json`` or ``report.json``. None if it cannot be one."""
    at = content.get(name)
    return float(at) if isinstance(at, (int, float)) and 0 < at < _MAX_TIME else None


def json_of(path: str) -> Mapping[str, Any] | None:
    """Return the object in a JSON file of a run, or None if the file is missing or contains no object."""
    try:
        return _object_in(read_regular(path, _MAX_JSON_BYTES))
    except OSError:
        return None


def read_record(paths: RunPaths) -> tuple[Mapping[str, Any], int]:
    """Read the record of a run, which is the file ``launcher.json`` in its folder.

    A symbolic link in place of the file is ignored, because launch itself never makes one there.

    Returns:
        The content of the record, and the id of the user who owns the file. Empty and -1 if there is no such
        file.
    """
    try:
        with open_regular(paths.record, links=False) as file:
            return _object_in(read_at_most(file, _MAX_RECORD_BYTES)) or {}, os.fstat(file.fileno()).st_uid
    except OSError:
        return {}, -1


def _object_in(data: bytes) -> Mapping[str, Any] | None:
    """Return the object in a text of JSON, or None if it contains none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _batch_job_in(value: object) -> BatchJob | None:
    """Return the job of a queue in a field of ``launcher.json``, or None if the field describes none.

    Args:
        value: A list of the values of a `BatchJob`. It may be anything, as another user may have written it.
    """
    words = value if isinstance(value, list) else []
    fields = [escape_controls(word) for word in words if isinstance(word, str)]
    return BatchJob(*fields[: len(BatchJob._fields)]) if fields else None


def _record_in(kind: type[_RecordT], value: object) -> _RecordT | None:
    """Return the record in a value of ``launcher.json``, in which another user may have written anything.

    Returns:
        None if a field is missing that has no default, or has another type.
    """
    try:
        return kind(*FieldReader(trusted=True).read(kind, value))
    except (ProtocolError, ValueError):
        return None


def open_pidfd(owner: ProcessIdentity) -> int | None:
    """Open a pidfd of a launcher, which becomes readable when the process exits. The caller closes it.

    Returns:
        None if the process has exited already.

    Raises:
        LaunchError: The kernel does not provide a pidfd.
    """
    if not is_alive(owner):
        return None
    try:
        pidfd = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise LaunchError(f"cannot watch process {owner.pid}: {error.strerror}") from error
    # A later process may have got the pid before the pidfd was opened.
    if start_ticks(owner.pid) == owner.start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def send_sigterm(pidfd: int) -> None:
    """Send SIGTERM to a launcher, and then SIGCONT, because a suspended process does not handle signals.

    A process that has exited is ignored.

    Args:
        pidfd: A pidfd of the launcher.

    Raises:
        LaunchError: The process belongs to another user.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LaunchError("cannot stop it: the launcher of this run belongs to another user") from error


def is_pending(pidfd: int, number: int) -> bool:
    """Return whether a signal still waits for a process to handle it.

    As long as it waits, the kernel drops a second signal of the same number.

    Args:
        pidfd: A pidfd of the process. False is returned if the process has exited.
        number: The number of the signal.
    """
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            pid = int(file.read().partition(b"\nPid:")[2].split()[0])
        with open(f"/proc/{pid}/status", "rb") as file:
            pending_mask = int(file.read().partition(b"\nShdPnd:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):
        # The process has exited.
        return False
    return bool(pending_mask >> (number - 1) & 1)  # Bit 0 stands for signal 1, see proc(5).
