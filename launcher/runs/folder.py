"""Makes the folder of a run.

This lies on the way of every launch: only modules that Python has loaded anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from launcher.errors import Fault, JobError, LaunchError
from launcher.job import RunPaths
from launcher.runs.owner import AGENTS, Keeper, read_record, start_ticks, this_process, write_record
from launcher.text import listed

#: How many runs below the state folder are kept.
KEPT_RUNS = 200

#: So many more are allowed before the oldest are forgotten: it takes time, and not every launch should.
_SLACK = 20

#: At how many of the newest runs a launch looks for some that died.
_LOOKED_AT = 20

#: Seconds for folders elsewhere to answer: that of a file server that is gone never does.
_ANSWER = 0.5

#: Without letters and digits that are mistaken for each other.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_job_id() -> str:
    """A name for a run, such as ``20261121-070912-k3f9m``.

    In UTC, so that names sort by time in the nights when clocks are put back; the five letters
    tell launches of the same second apart.
    """
    letters = "".join(_ALPHABET[byte % 32] for byte in os.urandom(5))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


def runs_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Where the runs of this user are: ``$XDG_STATE_HOME/tf-launcher/runs`` or below ``~/.local/state``.

    Args:
        environ: of the launcher.

    Raises:
        LaunchError: the user has no home.
    """
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        home = environ.get("HOME")
        state = os.path.expanduser("~/.local/state") if home is None else os.path.join(home, ".local/state")
    if not os.path.isabs(state):
        raise LaunchError("no place for a run's files: neither XDG_STATE_HOME nor HOME is set; use --run-dir")
    return os.path.join(state, "tf-launcher", "runs")


def create(run_dir: str | None, job: str, agents: Sequence[tuple[int, int]] = ()) -> RunPaths:
    """Make the folder of a new run, owned by this process.

    From now on what this process makes can be read and written by its user, whatever the umask: tasks have
    that of the agents, which are on their way by now.

    Args:
        run_dir: where the user wants it; it must be new or empty. ``None``: among the runs of
            the state folder, which keeps the newest ``KEPT_RUNS``.
        job: the run's name.
        agents: of its agents on this machine the number and the guardian's pid: what is to be looked for if
            nothing of it can end its tasks any more.

    Raises:
        JobError: ``run_dir`` is in use; the message says what is in the way.
        LaunchError: it can't be made (full disk, no permission).
    """
    os.umask(os.umask(0o077) & 0o077)
    if run_dir is None:
        return _among_the_runs(job, agents)
    if not run_dir:
        raise JobError([Fault("--run-dir", "the name is empty", "expected a folder")])
    paths = RunPaths(os.path.abspath(run_dir))
    made = _made_or_empty(paths.root)
    _furnish(paths, job, agents, made)
    _register(paths.root, job)
    return paths


def _among_the_runs(job: str, agents: Sequence[tuple[int, int]]) -> RunPaths:
    """A folder below the state folder; and the moment to forget old ones."""
    folder = runs_folder()
    paths = RunPaths(f"{folder}/{job}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.mkdir(paths.root, 0o700)
    except OSError as error:
        raise _cannot_make(paths.root, error) from error
    _furnish(paths, job, agents, made=True)
    _prune(folder)
    return paths


def _made_or_empty(root: str) -> bool:
    """Whether the user's folder had to be made; one that is there must be empty."""
    try:
        os.makedirs(os.path.dirname(root), exist_ok=True)
        os.mkdir(root, 0o700)
        return True
    except OSError as error:
        if not isinstance(error, FileExistsError) or error.filename != root:
            raise _cannot_make(root, error) from error
    try:
        found = sorted(os.listdir(root))
    except NotADirectoryError as error:
        raise _in_the_way(root, "it is no folder") from error
    except OSError as error:
        raise _cannot_make(root, error) from error
    if found:
        raise _in_the_way(root, f"{_some(found)} in the way")
    return False


def _furnish(paths: RunPaths, job: str, agents: Sequence[tuple[int, int]], made: bool) -> None:
    """The folder of the logs and the owner's record; on failure, nothing of ours stays."""
    try:
        os.mkdir(paths.logs, 0o700)
        _write_owner(paths, job, agents)
    except FileExistsError as error:  # another launch was given the same folder a moment ago
        raise _in_the_way(paths.root, "another launch has just taken it") from error
    except OSError as error:
        _take_back(paths, made)
        raise _cannot_make(paths.root, error) from error


def _write_owner(paths: RunPaths, job: str, agents: Sequence[tuple[int, int]]) -> None:
    """Record which process runs the job. No command line and no environment: they may hold secrets."""
    record = {"schema": 1, "job": job, "started_at": time.time(), **this_process()._asdict()}
    if agents:
        record[AGENTS] = [Keeper(number, pid, start_ticks(pid) or 0) for number, pid in agents]
    write_record(paths, record)


def unfinished(job: str) -> list[str]:
    """The folders of the newest other runs that left no report but agents: they run, or they died."""
    try:
        folder = runs_folder()
        names = sorted(os.listdir(folder))[-_LOOKED_AT:]
    except (OSError, LaunchError):
        return []
    roots = [f"{folder}/{name}" for name in names if name != job]
    elsewhere = [root for root in roots if os.path.islink(root)]
    found = [root for root in roots if root not in elsewhere and _may_have_left(root)]
    if elsewhere:
        from launcher.runs.answers import answers

        found += [root for root, left in answers(_may_have_left, elsewhere, _ANSWER).items() if left]
    return found


def _may_have_left(root: str) -> bool:
    """Not more than a glance: every launch does it."""
    paths = RunPaths(root)
    if os.path.exists(paths.report):
        return False
    try:
        return AGENTS.encode() in read_record(paths)[0]
    except OSError:
        return False


def _take_back(paths: RunPaths, made: bool) -> None:
    """Remove what was made before something failed, as far as that is possible."""
    steps = [(os.unlink, f"{paths.owner}.{os.getpid()}"), (os.unlink, paths.owner), (os.rmdir, paths.logs)]
    for remove, path in [*steps, (os.rmdir, paths.root)] if made else steps:
        try:
            remove(path)
        except OSError:
            continue


def _register(root: str, job: str) -> None:
    """Let ``launch ps`` find a run that lies elsewhere.

    A state folder that can't be written is no reason to refuse a run whose files go elsewhere:
    the run is then known by its path only.
    """
    try:
        folder = runs_folder()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.symlink(root, f"{folder}/{job}")
    except (OSError, LaunchError):
        return
    _prune(folder)


def _prune(folder: str) -> None:
    """Forget old runs once there are too many. Never a reason for a launch to fail."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    if len(names) > KEPT_RUNS + _SLACK:
        from launcher.runs.pruning import prune

        prune(folder, names, KEPT_RUNS)


def _some(names: list[str]) -> str:
    """The first few names of a list, for a message."""
    return listed([repr(name) for name in names], 4) + (" is" if len(names) == 1 else " are")


def _in_the_way(root: str, what: str) -> JobError:
    text = f"{root!r} can't be used: {what}"
    return JobError([Fault("--run-dir", text, "expected a new or an empty folder")])


def _cannot_make(root: str, error: OSError) -> LaunchError:
    where = "" if error.filename in (None, root) else f" ({error.filename!r})"
    advice = "--run-dir DIR puts it elsewhere"
    return LaunchError(f"can't make the run's folder {root!r}: {error.strerror}{where}; {advice}")
