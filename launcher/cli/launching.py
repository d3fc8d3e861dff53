"""Carries a launch out: the run's folder, the orchestrator, what shows it, the report."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher import runs
from launcher.cli.planfile import write_plan
from launcher.cli.request import Request
from launcher.errors import JobError, LaunchError
from launcher.events import StopAsked
from launcher.job import Host, Placement, Plan, RunPaths
from launcher.orchestrator import Orchestrator, Source, Voice
from launcher.output.base import Opening, Renderer
from launcher.report import Report
from launcher.transport import Transport

if TYPE_CHECKING:
    from launcher.cli.screen import Screen
    from launcher.output.selection import Selection
    from launcher.output.tmux import Tmux


def launch(
    wanted: Request,
    placement: Placement,
    args: argparse.Namespace,
    show: Selection | None,
    transport: Callable[[Host], Transport],
    job: str = "",
    voice: Voice | None = None,
    check: bool = False,
    watching: Sequence[Renderer] = (),
    afterwards: Callable[[Plan | None, RunPaths], None] = lambda *_: None,
    paths: RunPaths | None = None,
) -> int:
    """Run the job and show it.

    Args:
        wanted, placement: what to run where.
        args: the options that say how to show it.
        show: whose output is shown; ``None``: everybody's.
        transport: opens the links to the agent of a host.
        job: the run's name, if it has one already.
        voice: has remarks for the user while the job runs.
        check: see whether the hosts reach each other, before anything is started.
        watching: renderers besides those that show the job.
        afterwards: called when the job is over, with its plan (if it came to one) and where its files are.
        paths: the run's folder, if it is made already.

    Returns:
        The job's exit code.

    Raises:
        LaunchError: it could not be started.
    """
    started = time.time()
    job = job or runs.new_job_id()
    tmux = _tmux(job) if args.tmux else None
    paths = paths or _folder(wanted, job, _agents_here(transport, placement))
    if wanted.job.output_dirs:
        from launcher.cli.outputs import make_here

        placement = make_here(placement, paths)
    display = _Display(lambda: _screen(args, show, paths, tmux))
    sources: list[Source] = [display]
    remarks = [_announcement(job, placement, paths), *wanted.notes, *placement.notes]
    if tmux is not None:
        sources.append(tmux)
        remarks.append(f"a pane for each task: {tmux.how_to_attach}")
    plans: list[Plan] = []

    unwritten: list[str] = []

    def planned(plan: Plan) -> str:
        plans.append(plan)
        unwritten.append(write_plan(plan, paths, job))
        return "\n".join(filter(None, (unwritten[0], _sweep_others(job))))

    orchestrator = Orchestrator(
        wanted.job,
        placement,
        transport,
        [*watching, *display.renderers(), *_event_pipe(args)],
        Opening(job, placement, paths, started),
        remarks=remarks,
        on_plan=planned,
        sources=sources,
        voice=voice,
        check=check,
        audience=display,
    )
    _collect_garbage_again()
    report = orchestrator.run()
    display.close()
    afterwards(plans[0] if plans else None, paths)
    code = report.exit_code if args.report is None else write_report(report, args.report)
    return code or _code_of_lost(display.unwritten or any(unwritten))


class _Display:
    """The screen, once it is made."""

    def __init__(self, make: Callable[[], Screen]) -> None:
        self._make = make
        self._screen: Screen | None = None

    def renderers(self) -> Sequence[Renderer]:
        """Make it."""
        self._screen = self._make()
        return self._screen.renderers

    def stop_wanted(self) -> StopAsked | None:
        """See `launcher.orchestrator.Source`."""
        return None if self._screen is None else self._screen.stop_wanted()

    def full(self) -> bool:
        """See `launcher.output.base.Audience`."""
        return self._screen is not None and self._screen.writer.full()

    def hurry(self) -> None:
        """See `launcher.output.base.Audience`."""
        if self._screen is not None:
            self._screen.writer.hurry()

    def flush(self, asked: Callable[[], bool]) -> None:
        """See `launcher.output.base.Audience`."""
        if self._screen is not None:
            self._screen.writer.flush(asked=asked)

    @property
    def unwritten(self) -> bool:
        """Whether something could not be written; to be asked once it is closed."""
        return self._screen is not None and self._screen.unwritten

    def close(self) -> None:
        """Say what could not be shown."""
        if self._screen is not None:
            self._screen.close()


def _agents_here(transport: Callable[[Host], Transport], placement: Placement) -> list[tuple[int, int]]:
    """The agents that were started on this machine already: number and guardian."""
    ways = {id(way): way for way in map(transport, placement.hosts())}
    return [agent for way in ways.values() for agent in getattr(way, "agents", ())]


def _folder(wanted: Request, job: str, agents: list[tuple[int, int]]) -> RunPaths:
    """Make the run's folder; a job file that names one names the same for each of its runs.

    Raises:
        JobError: it is in use.
    """
    try:
        return runs.create(wanted.run_dir, job, agents)
    except JobError as error:
        if wanted.run_dir_source == "--run-dir":
            raise
        advice = "expected a new or an empty folder: remove it, or give this run another with --run-dir"
        faults = [fault._replace(where=wanted.run_dir_source, expected=advice) for fault in error.faults]
        raise JobError(faults) from error


def _code_of_lost(unwritten: bool) -> int:
    """What a job exits with that is ok: what could not be written is lost, and that is no success."""
    if not unwritten:
        return 0
    text = "the job is ok, but not everything could be written, as said above"
    print(f"launch: exit code {LaunchError.exit_code}: {text}", file=sys.stderr)
    return LaunchError.exit_code


def _sweep_others(job: str) -> str:
    """End what earlier runs left that were killed altogether; what is to be said of it."""
    folders = runs.unfinished(job)
    if not folders:
        return ""
    from launcher.cli.remains import sweep_at

    return sweep_at(folders)


def _event_pipe(args: argparse.Namespace) -> list[Renderer]:
    """What tells the program that started this launch, if it asked for that."""
    if args.events_fd is None:
        return []
    from launcher.output.eventpipe import EventPipe

    return [EventPipe(args.events_fd)]


def _screen(args: argparse.Namespace, show: Selection | None, paths: RunPaths, tmux: Tmux | None) -> Screen:
    from launcher.cli.screen import Screen

    return Screen(args, show, paths, tmux)


def _tmux(job: str) -> Tmux:
    """A session for the job: in this terminal if it is one, else to be attached to.

    Raises:
        LaunchError: there is no tmux.
    """
    from launcher.output.tmux import Tmux

    return Tmux(job, attach=all(map(os.isatty, (0, 1, 2))))


def _collect_garbage_again() -> None:
    """What is here by now stays: only what comes is looked at."""
    gc.freeze()
    gc.enable()


def _announcement(job: str, placement: Placement, paths: RunPaths) -> str:
    counts: dict[str, int] = {}
    for placed in placement.tasks:
        counts[placed.role.name] = counts.get(placed.role.name, 0) + 1
    tasks = ", ".join(f"{count} {_plural(role, count)}" for role, count in counts.items())
    hosts = placement.hosts()
    where = hosts[0].name if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"job {job}: {tasks} on {where}; logs in {paths.logs}"


def _plural(role: str, count: int) -> str:
    return role if count == 1 or role.endswith("s") else f"{role}s"


# ---------------------------------------------------------------------- files


def write_report(report: Report, path: str) -> int:
    """Write ``--report``; a report that can't be written is no success."""
    from launcher.output.files import write_json_for_user
    from launcher.output.jsonl import report_as_dict

    try:
        write_json_for_user(path, report_as_dict(report))
    except OSError as error:
        print(f"launch: can't write the report to {path!r}: {error.strerror}", file=sys.stderr)
        return report.exit_code or LaunchError.exit_code
    return report.exit_code
