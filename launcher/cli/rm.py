"""``launch rm``: remove runs that have ended, with their files.

It takes names of runs and never paths, so that it cannot be told to remove a folder of the user.
`launcher.runs.removal` knows which files are those of a run.
"""

from __future__ import annotations

import time

from launcher.backends.batch_queue import JobPhase
from launcher.backends.queued_runs import find, states
from launcher.cli.ps import ended_at
from launcher.common.errors import Fault, HostsError, InputError
from launcher.common.text import escape_controls, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import duration, not_empty, whole
from launcher.messages import say
from launcher.runs.end_command import run_left_commands
from launcher.runs.folder import kill_leftovers
from launcher.runs.removal import has_results, link_of, remove_run
from launcher.runs.run import Run, RunState, all_runs

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


def _ended_runs() -> list[Run]:
    """Return the runs that have ended, the oldest first."""
    return [run for run in all_runs() if run.state in (RunState.ENDED, RunState.DIED)]


RUNS: Setting[tuple[str, ...]] = Setting(
    "runs", not_empty, "their names, their ids or ends of those, or `latest`; never folders", metavar="RUN",
    default=(), positional="*", repeatable=True, complete=lambda: [run.name for run in _ended_runs()],
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
        LaunchError: The launcher of one was started on another machine, and may still run there.
    """
    names, by_rule = settings[RUNS], settings[KEEP] is not None or settings[OLDER] is not None
    if bool(names) == by_rule:
        expected = "expected names or ids of runs, or --keep N, --older S or both"
        raise InputError([Fault("RUN", "names and --keep or --older" if names else "no run", expected)])
    named = {run.name: run for run in (find(name, by_path=False) for name in names)}
    runs = [*named.values()] if names else _surplus(settings[KEEP] or 0, settings[OLDER] or 0.0)
    refusals = {run.title: why for run in runs if (why := _refusal(run, force=settings[FORCE]))}
    if names and refusals:
        raise HostsError(f"{name}: {why}" for name, why in refusals.items())
    for why in dict.fromkeys(refusals.values()):
        alike = [name for name in refusals if refusals[name] == why]
        say(f"not removed: {join_names(alike)}: {why}")
    removable = [run for run in runs if run.title not in refusals]
    if faults := [fault for run in removable if (fault := _remove(run))]:
        raise HostsError(faults)
    if not removable:
        print("nothing to remove")
    return 0


def _surplus(keep: int, older: float) -> list[Run]:
    """Return the ended runs but the newest ones, as far as they ended long ago.

    Args:
        keep: How many ended runs are left out, the newest ones.
        older: How many seconds ago they ended at least.
    """
    ended, now = _ended_runs(), time.time()
    surplus = ended[: max(0, len(ended) - keep)]
    return [run for run in surplus if now - (ended_at(run, run.state, run.report()) or 0.0) >= older]


def _refusal(run: Run, *, force: bool) -> str:
    """Return why a run is not removed. Empty if it has ended, and nothing speaks against it.

    Args:
        run: The run.
        force: Whether the user does not mind that results are removed.

    Raises:
        LaunchError: The launcher was started on another machine, and may still run there.
    """
    if run.state is RunState.RUNNING:
        return f"it runs; `launch stop {run.called}` stops it"
    if run.state is RunState.ELSEWHERE:
        # Of runs whose launcher a queue of a cluster starts, only the queue knows whether they are over.
        status = states([run]).get(run.name)
        if status is None:
            run.check_seen()  # It raises, because nobody can tell here.
        elif status.phase is not JobPhase.OVER:
            return escape_controls(status.text)
    if (swept := kill_leftovers([run])).left:
        return swept.text
    if not force and has_results(run):
        return "it has results in output/ or collected/; --force removes them, too"
    return ""


def _remove(run: Run) -> str:
    """Remove a run, and print what was done.

    Returns:
        Why it cannot be removed. Empty if it is.
    """
    run_left_commands([run])  # Nobody could run a command of --on-end afterwards.
    # Of a run with a --run-dir only the link to that folder is removed.
    stays = f"; its files stay in {run.paths.root}" if link_of(run) else ""
    try:
        left = remove_run(run)
    except OSError as error:
        return f"{run.title}: cannot remove {error.filename!r}: {error.strerror}"
    print(f"{run.title} is removed{stays}")
    if left:
        say(f"{run.paths.root} stays, with files that launch has not made: {join_names(left)}")
    return ""
