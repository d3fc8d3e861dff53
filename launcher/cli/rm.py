"""``launch rm``: remove runs that have ended, with their files.

It takes names of runs and never paths, so that it cannot be told to remove a folder of the user.
`launcher.runs.removal` knows which files are those of a run.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.agent.identity import Fate, fate_of
from launcher.backends.batch_queue import BatchJobStatus, JobPhase
from launcher.backends.queued_runs import going, queue_of, states
from launcher.common.errors import Fault, HostsError, InputError
from launcher.common.text import escape_controls, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import duration, whole
from launcher.messages import say
from launcher.runs.end_command import run_left_commands
from launcher.runs.folder import kill_leftovers, last_written
from launcher.runs.removal import has_results, link_of, remove_run
from launcher.runs.run import Run, RunState, all_runs, find_named

SUMMARY = "remove ended runs, with their logs and reports"

EXAMPLES = """\
launch rm k3f9m nightly       by the last letters of its id, or by its name
launch rm --keep 20           all ended runs but the newest 20
launch rm --older 7d          those that ended more than a week ago

Removes only files that launch has made (docs/environment.md); all others stay,
and are named. Of a run with a --run-dir only the entry in `launch ps --all` is
removed.

Exit code: 0 they are removed; 2 there is no such run; 125 a run that you name
still runs, or cannot be removed."""

_MAX_RUNS = 1_000_000


def _ended_runs() -> list[str]:
    """Return the names of runs that have ended, for a shell to complete."""
    return [run.name for run in all_runs() if run.state in (RunState.ENDED, RunState.DIED)]


RUNS: Setting[tuple[str, ...]] = Setting(
    "runs", str, "their names, parts of them, or `latest`; never folders", metavar="RUN", default=(),
    positional="*", repeatable=True, complete=_ended_runs,
)  # fmt: skip
KEEP: Setting[int | None] = Setting(
    "keep", whole(0, _MAX_RUNS), "all ended runs but the newest N", metavar="N", default=None
)
OLDER: Setting[float | None] = Setting(
    "older", duration, "all runs that ended longer ago: 7d, 12h", metavar="S", default=None
)
FORCE = Setting("force", switch, "also with results, in output/ or collected/", default=False)
GROUPS = (Group("positional arguments", (RUNS,)), Group("options", (KEEP, OLDER, FORCE)))


def run(settings: Settings) -> int:
    """Remove the runs that the user names, or ended runs by number and age, and print a line for each.

    Runs that are named are removed only if all of them can be.

    Raises:
        InputError: A name matches no run, or several; or the options contradict each other.
        HostsError: A run that was named cannot be removed.
    """
    names, by_rule = settings[RUNS], settings[KEEP] is not None or settings[OLDER] is not None
    if bool(names) == by_rule:
        expected = "expected names of runs, or --keep N, --older S or both"
        raise InputError([Fault("RUN", "names and --keep or --older" if names else "no run", expected)])
    runs = _named(names) if names else _surplus(settings[KEEP] or 0, settings[OLDER] or 0.0)
    refused = _refusals(runs, force=settings[FORCE])
    if names and refused:
        raise HostsError(f"{_label(run)}: {refused[run.name]}" for run in runs if run.name in refused)
    for why in dict.fromkeys(refused.values()):
        labels = [_label(run) for run in runs if refused.get(run.name) == why]
        say(f"not removed: {join_names(labels)}: {why}")
    removable = [run for run in runs if run.name not in refused]
    if faults := [fault for run in removable if (fault := _remove(run))]:
        raise HostsError(faults)
    if not removable:
        print("nothing to remove")
    return 0


def _named(names: Sequence[str]) -> list[Run]:
    """Return the runs that these names mean, each once.

    Raises:
        InputError: Some names match no run, or several, or are paths.
    """
    known, runs, faults = all_runs(), dict[str, Run](), list[Fault]()
    for name in names:
        try:
            if not name or "/" in name:  # In other commands these are the newest run, and a folder.
                expected = "expected a name or a part of it, as `launch ps --all` lists it"
                raise InputError([Fault("RUN", f"{name!r} is not the name of a run", expected)])
            run = find_named(name, known, going)
            runs[run.name] = run
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return [*runs.values()]


def _surplus(keep: int, older: float) -> list[Run]:
    """Return the ended runs but the newest ones, as far as they ended long ago.

    Args:
        keep: How many ended runs are left out, the newest ones.
        older: How many seconds ago they ended at least.
    """
    ended = [run for run in all_runs() if run.state in (RunState.ENDED, RunState.DIED)]
    surplus = ended[: max(0, len(ended) - keep)]
    return [run for run in surplus if time.time() - _ended_at(run) >= older]


def _label(run: Run) -> str:
    """Return what a run is called, with the name that only this run has."""
    return run.name if run.called == run.name else f"{run.called} ({run.name})"


def _ended_at(run: Run) -> float:
    """Return when a run ended, in seconds since the epoch: by its report, or else by its files."""
    at = run.report().get("ended_at")
    if isinstance(at, (int, float)):
        return at
    with suppress(FileNotFoundError):  # Another process has just removed it.
        return last_written(run.paths)
    return 0.0


def _refusals(runs: Sequence[Run], *, force: bool) -> dict[str, str]:
    """Return why some of these runs are not removed, by their names."""
    # Queues are asked only about runs of which the files alone do not show that they are over.
    status_by_run = states([run for run in runs if run.state is RunState.ELSEWHERE or _may_still_write(run)])
    reasons = {run.name: _refusal(run, status_by_run, force=force) for run in runs}
    return {name: reason for name, reason in reasons.items() if reason}


def _refusal(run: Run, status_by_run: Mapping[str, BatchJobStatus], *, force: bool) -> str:
    """Return why a run is not removed. Empty if it has ended, and nothing speaks against it.

    Args:
        run: The run.
        status_by_run: The states of the batch jobs of runs, by the names of the runs.
        force: Whether the user does not mind that results are removed.
    """
    status = status_by_run.get(run.name)
    is_over, state = status is not None and status.phase is JobPhase.OVER, run.state
    if state is RunState.RUNNING:
        return f"it runs; `launch stop {run.called}` stops it"
    if status is not None and not is_over:
        return escape_controls(status.text)
    if state is RunState.ELSEWHERE and not is_over:
        by_hand = f"`rm -r {shlex.quote(link_of(run) or run.paths.root)}`"
        where = f"its launcher was started on {run.machine}, and may still run there"
        return f"{where}: use this command there, or {by_hand} if it has certainly ended"
    if not run.is_ours:
        return f"its record belongs to user {run.written_by}"
    if state is RunState.DIED and (left := kill_leftovers([run])).left:
        return left.text
    if not force and not is_over and _may_still_write(run):
        return f"its launcher on {run.machine} may still fetch files; use this command there, or --force"
    if not force and has_results(run):
        return "it has results in output/ or collected/; --force removes them, too"
    return ""


def _may_still_write(run: Run) -> bool:
    """Return whether the launcher of a run that has a report may still be alive, on another machine."""
    if run.owner is None or fate_of(run.owner) is not Fate.UNKNOWN or link_of(run):
        return False
    queue = queue_of(run)  # Its files may have been copied to this machine when it had ended.
    return queue is None or queue.shares_files


def _remove(run: Run) -> str:
    """Remove a run, and print what was done.

    Returns:
        Why it cannot be removed. Empty if it is.
    """
    run_left_commands([run])  # Nobody could run a command of --on-end afterwards.
    is_elsewhere = bool(link_of(run))
    try:
        left = remove_run(run)
    except BlockingIOError:
        return f"{_label(run)}: another `launch rm` removes it"
    except OSError as error:
        return f"{_label(run)}: cannot remove {error.filename!r}: {error.strerror}"
    print(f"{_label(run)} is removed" + (f"; its files stay in {run.paths.root}" if is_elsewhere else ""))
    if left:
        say(f"{run.paths.root} stays, with files that launch has not made: {join_names(left)}")
    return ""
