"""``launch [run]``: start a job and see it to its end."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from launcher.cli import request
from launcher.cli.options import add_options
from launcher.cli.places import is_here, with_defaults
from launcher.cli.programs import check_programs
from launcher.job import Placement
from launcher.scheduler.placement import place
from launcher.signals import stop_at_end_of_file
from launcher.transport import transport_named
from launcher.transport.early import EarlyAgents

if TYPE_CHECKING:
    from launcher.output.selection import Selection

SUMMARY = "start a distributed TensorFlow job, show what its tasks print, and say how each one ended"

EXAMPLES = """\
launch --ps 2 --workers 2 --flags train.py --epochs 3
launch --chief --workers 3 --ps 1 -m mypackage.train
launch --ps 1 --workers 2 train.py --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} \\
       --job_name={job_name} --task_index={task_index}
launch --workers 4 --dry-run train.py            show the plan, start nothing
launch --workers 3 -- sh -c 'echo task $TASK_INDEX'
launch job.yaml                                  all of it in a file"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, then the program and all that follows it."""
    add_options(parser)
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="a Python module and its arguments",
    )
    what.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE", help="Python code and its arguments"
    )
    what.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGS...]",
        help="a .py file (run with the task's Python), an executable, or a job file (.yaml)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Plan the job, start it, see it to its end.

    Returns:
        The job's exit code.

    Raises:
        LaunchError: it could not be started.
    """
    if args.until_eof_fd is not None:
        stop_at_end_of_file(args.until_eof_fd)
    wanted = request.understand(args)
    if args.docker is not None:
        from launcher.cli import indocker

        return indocker.launch(wanted, args, _selection)
    wanted = with_defaults(wanted)
    placement = place(wanted.job, wanted.hosts)
    check_programs(wanted, placement)
    if args.dry_run:
        from launcher.cli import dryrun

        placement = placement._replace(notes=(*wanted.notes, *placement.notes))
        if not args.sync and not args.collect and not wanted.job.output_dirs:
            return dryrun.show(wanted.job, placement, as_json=args.json)
        from launcher.cli.trip import Trip

        trip = Trip(wanted, placement, args)
        return dryrun.show(wanted.job, trip.expected(), args.json, trip.itinerary)
    show = _selection(args.show, placement)
    here = [host for host in placement.hosts() if is_here(host)]
    with EarlyAgents(transport_named("local"), here) as local:
        if len(here) < len(placement.hosts()):
            from launcher.cli import travelling

            return travelling.launch(wanted, placement, args, show, local)
        if args.sync or args.collect:
            from launcher.cli import travelling

            return travelling.launch_here(wanted, placement, args, show, local)
        from launcher.cli import launching  # most of the launcher: it is imported while the agents come up

        return launching.launch(wanted, placement, args, show, lambda _: local)


def _selection(text: str | None, placement: Placement) -> Selection | None:
    """Whose output is to be shown; ``None``: nothing was said.

    Raises:
        JobError: there are no such tasks.
    """
    if text is None:
        return None
    from launcher.output.selection import parse_selection

    return parse_selection(text, placement)
