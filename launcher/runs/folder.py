"""Makes the folder of a run, and removes what old runs have left: their folders and their processes here.

A launch makes the folder of its run. A run whose launcher, agent and watchdog were all killed leaves
processes. The next launch on this machine, ``launch ps`` and ``launch stop`` kill them. The module never
touches a folder or a process of a run that may still be running.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence

from launcher.agent.identity import this_process
from launcher.agent.processes import Process, tag, tag_of, user_of
from launcher.agent.sweep import kill_all, tagged
from launcher.common.errors import Fault, JobError, LaunchError
from launcher.common.record import Record, as_dict, replace
from launcher.common.text import join_names
from launcher.job import RunPaths
from launcher.output.run_files import write_json
from launcher.runs.run import AGENTS_FIELD, BatchJob, Origin, Run, RunState, load, read_record, runs_folder

#: The number of runs that are kept below the state folder.
MAX_KEPT_RUNS = 200
#: A launch removes old runs only when there are this many too many, so that few launches spend time on it.
_PRUNE_SLACK = 20
#: The largest number of runs that one launch removes, so that no launch spends long on it.
MAX_REMOVED = 20
#: The largest depth of a ``--run-dir``, because Python makes its parent folders by recursion.
_MAX_DEPTH = 200
#: A launch checks this number of the newest runs for launchers that have died.
_MAX_CHECKED_RUNS = 20
#: A run of another machine without a report may be removed this long after its last sign of life.
_UNKNOWN_AGE_SECONDS = 30 * 24 * 3600.0
#: Longer words of a command line are not kept, so that the record stays small.
_MAX_ORIGIN_BYTES = 32 * 1024
#: The name of a run: the time in UTC and letters.
_RUN_NAME_PATTERN = r"\d{8}-\d{6}-[0-9a-z]+"


def create(
    run_dir: str | None,
    run_name: str,
    agents: Sequence[int] = (),
    batch: BatchJob | None = None,
    origin: Origin | None = None,
) -> Run:
    """Make the folder of a new run, with a record that names this process as its launcher.

    From now on this user can read and write what this process creates, even if the user's umask denies that.

    Args:
        run_dir: The folder, which must not exist yet or be empty. None: a folder below the state folder.
        run_name: The name of the run.
        agents: The ids of its agents on this machine.
        batch: The job of a cluster's queue that starts the launcher. If it has no number, another process
            will be the launcher, so the record names none.
        origin: What the user typed to start the run. None if nothing is known.

    Returns:
        The run, as its record describes it.

    Raises:
        JobError: The folder is in use.
        LaunchError: The folder cannot be made, for example because the disk is full.
    """
    # Keep what the umask denies to others, and drop what it denies to this user, as 0777 and 0277 do. Python
    # can read the umask only by setting another one.
    os.umask(os.umask(0o077) & 0o077)
    if run_dir is not None and run_dir.count("/") > _MAX_DEPTH:
        raise JobError([Fault("--run-dir", f"more than {_MAX_DEPTH} folders in each other")])
    paths = RunPaths(f"{runs_folder()}/{run_name}" if run_dir is None else os.path.abspath(run_dir))
    is_new = _make_folder(paths.root)
    try:
        os.mkdir(paths.logs, 0o700)
        _write_record(paths, run_name, agents, batch, origin or Origin())
    except FileExistsError as error:  # Another launch has used the empty folder since it was checked.
        raise _in_use(paths.root, "another launch has just taken it") from error
    except OSError as error:
        if is_new:  # An empty folder of the user stays.
            with contextlib.suppress(OSError):
                _remove(paths.root)
        raise _cannot_make(paths.root, error) from error
    _register_and_prune(paths.root, run_name)
    run = load(paths.root)
    assert run is not None
    return run


def adopt_run(run: Run, agents: Sequence[int], batch: BatchJob | None) -> None:
    """Make this process the launcher of a run whose folder another process has made.

    A cluster's queue starts such a launcher, and may start it again after a time limit. From now on this user
    can read and write what this process creates, as after `create`.

    Args:
        run: The run, whose folder `create` has made.
        agents: The ids of its agents on this machine.
        batch: The job of the cluster's queue in which this process runs.

    Raises:
        LaunchError: The folder cannot be written.
    """
    # As in `create`, what the umask denies to this user is dropped.
    os.umask(os.umask(0o077) & 0o077)
    try:
        os.makedirs(run.paths.logs, 0o700, exist_ok=True)
        # The report of the launcher before this one gets another name. The first launcher finds none.
        with contextlib.suppress(FileNotFoundError):
            os.replace(run.paths.report, run.paths.earlier)
        with contextlib.suppress(FileNotFoundError):  # This file has asked the launcher before to stop.
            os.unlink(run.paths.stop_asked)
        _write_record(run.paths, run.name, agents, batch, run.origin)
    except OSError as error:
        raise _cannot_make(run.paths.root, error) from error


@contextlib.contextmanager
def locked_names() -> Iterator[None]:
    """Let no other launch choose the name of a run meanwhile, by a lock of the folder of all runs.

    If the system has no such lock, two runs may get the same name, of which the newer one counts.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, LaunchError):
            os.makedirs(runs_folder(), mode=0o700, exist_ok=True)
            folder = os.open(runs_folder(), os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def _write_record(
    paths: RunPaths, run_name: str, agents: Sequence[int], batch: BatchJob | None, origin: Origin
) -> None:
    """Write the record of a run. It names this process as the launcher, unless a queue will start one."""
    # A job of a queue has a number when its launcher runs.
    owner = as_dict(this_process()) if batch is None or batch.number else {}
    record = {"schema": 1, "job": run_name, "started_at": time.time(), **owner}
    if agents:
        record[AGENTS_FIELD] = agents
    if batch is not None:
        record["batch"] = _batch_words(batch)
    fields = as_dict(origin)
    # A very long command line is left out, so that the record stays small.
    if len(json.dumps(fields)) > _MAX_ORIGIN_BYTES:
        fields = as_dict(replace(origin, options=(), program=()))
    record["origin"] = {name: value for name, value in fields.items() if value}
    write_json(paths.record, record)


def _batch_words(batch: BatchJob) -> list[str]:
    """Return a job of a queue as the list of texts that ``launcher.json`` contains for it."""
    return [batch.transport, batch.number, batch.node, batch.where]


def record_batch_job(run: Run, batch: BatchJob | None) -> Run:
    """Write the job of a cluster's queue into the record of a run, for a launcher that cannot do it itself.

    Args:
        run: The run, whose folder is on this machine.
        batch: The job in which its launcher runs. None if there is no such job any longer.

    Returns:
        The run with this job.

    Raises:
        LaunchError: The folder cannot be written.
    """
    try:
        _change_record(run, "batch", None if batch is None else _batch_words(batch))
    except OSError as error:
        raise _cannot_make(run.paths.root, error) from error
    return replace(run, batch=batch)


def _change_record(run: Run, name: str, value: object) -> None:
    """Change one field in the record of a run. The value None removes the field."""
    record, _ = read_record(run.paths)
    changed = {**record, name: value}
    write_json(run.paths.record, {field: new for field, new in changed.items() if new is not None})


def discard(run: Run) -> None:
    """Remove the folder of a run that was not started, and the link to it. Errors are ignored."""
    with contextlib.suppress(OSError, LaunchError):
        link = f"{runs_folder()}/{run.name}"
        if os.path.islink(link):
            os.unlink(link)
        _remove(run.paths.root)


def unfinished(run_name: str) -> list[Run]:
    """Return other runs of which something may be left.

    These have agents and no report, because they are running or their launchers have died, or a command of
    ``--on-end`` that nobody has run.

    Only the newest runs are checked, because each launch calls this.

    Args:
        run_name: The name of the caller's own run, which is left out.
    """
    try:
        folder = runs_folder()
        names = sorted(os.listdir(folder))[-_MAX_CHECKED_RUNS:]  # Names start with the time.
    except (OSError, LaunchError):
        return []
    others = [RunPaths(f"{folder}/{name}") for name in names if name != run_name]
    left = [path for path in others if os.path.lexists(path.on_end) or not os.path.exists(path.report)]
    runs = [run for path in left if (run := load(path.root)) is not None]
    return [run for run in runs if run.agents or os.path.lexists(run.paths.on_end)]


def _make_folder(root: str) -> bool:
    """Make a folder, and return whether it is new; an empty one that exists already is fine, too.

    Raises:
        JobError: There is something else than an empty folder.
        LaunchError: The folder cannot be made or read.
    """
    try:
        os.makedirs(os.path.dirname(root), mode=0o700, exist_ok=True)
        os.mkdir(root, 0o700)
        return True
    except OSError as error:
        # A file in place of a parent folder raises FileExistsError, too.
        if not isinstance(error, FileExistsError) or error.filename != root:
            raise _cannot_make(root, error) from error
    try:
        content = sorted(os.listdir(root))
    except NotADirectoryError as error:
        raise _in_use(root, "it is not a folder") from error
    except OSError as error:
        raise _cannot_make(root, error) from error
    if content:
        raise _in_use(root, f"it contains {join_names([repr(name) for name in content], 4)}")
    return False


def _register_and_prune(root: str, run_name: str) -> None:
    """Link a run with a ``--run-dir`` so that ``launch ps`` finds it, and remove old runs; ignore errors."""
    with contextlib.suppress(OSError, LaunchError):
        folder = runs_folder()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if root != f"{folder}/{run_name}":
            os.symlink(root, f"{folder}/{run_name}")
        names = os.listdir(folder)
        if len(names) > MAX_KEPT_RUNS + _PRUNE_SLACK:
            prune(folder, names, MAX_KEPT_RUNS)


def prune(folder: str, names: Sequence[str], keep: int) -> None:
    """Remove the oldest runs, but none that may still be running.

    Only folders with the name of a run are removed. For a run with a ``--run-dir`` only the link to it is
    removed.

    Args:
        folder: The folder of the runs.
        names: The names of its entries. Sorted by name, runs are sorted by time.
        keep: The number of runs that stay.
    """
    runs = sorted(name for name in names if re.fullmatch(_RUN_NAME_PATTERN, name))
    surplus = min(max(0, len(runs) - keep), MAX_REMOVED)
    for path in [f"{folder}/{name}" for name in runs[:surplus]]:
        with contextlib.suppress(OSError):
            if not _is_over(path):
                continue
            if os.path.islink(path):
                os.unlink(path)
            elif load(path) is None:  # It contains no run, but ``launch rm`` may have left files of the user.
                os.rmdir(path)
            else:
                _remove(path)


def _is_over(path: str) -> bool:
    """Return whether no process writes to the folder of a run any longer.

    If the launcher is on another machine, nobody can tell. Then a run counts as over when nothing was written
    for a long time.

    Args:
        path: The folder of the run, or a link to it.

    Raises:
        OSError: The folder cannot be read.
    """
    run, newest = load(path), os.lstat(path).st_mtime
    if run is not None:
        state = run.state
        if state is not RunState.ELSEWHERE:
            return state is not RunState.RUNNING
        newest = max(newest, run.last_sign)
    return newest < time.time() - _UNKNOWN_AGE_SECONDS


def _in_use(root: str, reason: str) -> JobError:
    """Return the error that a folder cannot be that of a new run."""
    problem = f"{root!r} cannot be used: {reason}"
    return JobError([Fault("--run-dir", problem, "expected a new or an empty folder")])


def _cannot_make(root: str, error: OSError) -> LaunchError:
    """Return the error that the folder of a run, or a file in it, cannot be made."""
    where = "" if error.filename in (None, root) else f" ({error.filename!r})"
    text = f"cannot make the run's folder {root!r}: {error.strerror}{where}"
    return LaunchError(f"{text}; --run-dir DIR puts it elsewhere, and XDG_STATE_HOME those of all runs")


def _remove(folder: str) -> None:
    """Remove a folder with its content. Links in it are removed, not followed."""
    import shutil  # noqa: PLC0415 - it imports modules for compression: 4 ms

    shutil.rmtree(folder)


#: The time limit for killed processes to disappear.
_KILL_TIMEOUT_SECONDS = 5.0
#: Seconds between two checks of the processes.
_POLL_SECONDS = 0.02
#: The letters in /proc for the states of a suspended process.
_SUSPENDED_STATES = "Tt"


class Swept(Record):
    """The result of `kill_leftovers`."""

    #: A message for the user. Empty if no processes were left.
    text: str = ""
    #: Whether some processes still exist.
    left: bool = False


def kill_leftovers(runs: Iterable[Run], seconds: float | None = None) -> Swept:
    """Kill the agents and tasks that runs have left on this machine after their launchers died.

    Runs whose record another user wrote are ignored.

    Args:
        runs: The runs. Those that have not died are ignored.
        seconds: How long agents that still run may take to stop their tasks and to exit. Then they are
            killed, too. None: a run with such an agent is left alone, because the agent stops the tasks.
    """
    died = [run for run in runs if run.agents and run.is_ours and run.state is RunState.DIED]
    swept = [_kill_leftovers_of(run, seconds) for run in died]
    text = "; ".join(result.text for result in swept if result.text)
    return Swept(text, any(result.left for result in swept))


def _kill_leftovers_of(run: Run, seconds: float | None) -> Swept:
    """Kill what one run has left on this machine. Its agents first have time to stop their tasks.

    - With no limit for agents, nothing is killed while one of them runs, and the user is told so.
    - Otherwise all processes of the run are killed when the agents have exited or their time is over.
    - When none is left, the record of the run no longer names agents, so that no later launch looks for them.

    Args:
        run: The run, whose launcher has died.
        seconds: How long agents that still run may take. None: they are left alone.
    """
    deadline = time.monotonic() + (seconds or 0.0)
    while has_agent := _has_agent_that_runs(run):
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if has_agent and seconds is None:
        return Swept(f"the launcher of job {run.name} died; its agent is stopping its tasks here", left=True)
    leftovers = _processes(run)
    surviving_pids = kill_all(lambda: _processes(run), _KILL_TIMEOUT_SECONDS)
    if not surviving_pids:
        # If the record cannot be changed, a later launch looks for the processes again.
        with contextlib.suppress(OSError):
            _change_record(run, AGENTS_FIELD, value=None)
    if not leftovers:
        return Swept()
    many = f"{len(leftovers)} processes" if len(leftovers) > 1 else "a process"
    but = f", but SIGKILL did not stop pid {', '.join(map(str, surviving_pids))}" if surviving_pids else ""
    text = f"the launcher of job {run.name} died and left {many} here: killed{but}"
    return Swept(text, left=bool(surviving_pids))


def _has_agent_that_runs(run: Run) -> bool:
    """Return whether an agent of a run may still stop its tasks here. A suspended one cannot."""
    # The tag with the ordinal 0 belongs to an agent and its parent, the watchdog. Their tasks have larger
    # ones.
    agent_tags = {tag(number, ordinal=0) for number in run.agents}
    running = [process for process in _processes(run) if process.state not in _SUSPENDED_STATES]
    return any(tag_of(process.pid) in agent_tags for process in running)


def _processes(run: Run) -> list[Process]:
    """Return the processes of a run on this machine: its agents, their watchdogs, and all that they started.

    A process belongs to the run if it carries the tag of an agent, a number that it has inherited as a limit.
    Other users could set that limit, too, so only processes of this user count, unless this user is root.
    """
    processes_by_agent = tagged()
    processes = [process for number in run.agents for process in processes_by_agent.get(number, [])]
    return [process for process in processes if os.geteuid() in (0, user_of(process.pid))]
