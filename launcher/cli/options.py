"""The options of a launch: on the command line, and after the name of a job file."""

from __future__ import annotations

import argparse
import os
import sys

from launcher.cli.sshoptions import add_ssh_options, seconds
from launcher.job import MOST_TASKS
from launcher.transports.docker.options import add_docker_options

#: Where a fault is that no single option has; and the source of roles that options made.
COMMAND_LINE = "command line"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a launch, without the program."""
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--ps", type=_count, metavar="N", help="parameter servers")
    tasks.add_argument("--workers", type=_count, metavar="N", help="workers (1, if no task is asked for)")
    tasks.add_argument("--chief", action="store_true", help="a chief")
    tasks.add_argument("--evaluator", action="store_true", help="an evaluator")
    tasks.add_argument("--gpus", type=_count, metavar="N", help="GPUs for each task that is no ps")
    tasks.add_argument(
        "--hosts", action=_Once, metavar="X", help="a hostfile, or host[:slots],... (default: this machine)"
    )

    program = parser.add_argument_group("program")
    program.add_argument(
        "--flags", action="store_true", help="append --ps_hosts= --worker_hosts= --job_name= --task_index="
    )
    program.add_argument(
        "-x", dest="env", action="append", default=[], metavar="NAME[=VALUE]",
        help="environment for the tasks; NAME alone and PRE* carry what is set here; repeatable",
    )  # fmt: skip
    program.add_argument(
        "--python", metavar="PATH", help="the Python of .py programs and modules (default: launch's own)"
    )
    program.add_argument("--workdir", metavar="DIR", help="where the tasks run (default: here)")

    others = parser.add_argument_group("other machines")
    others.add_argument(
        "--sync", action="append", default=[], metavar="DIR[:REMOTE]",
        help="bring this folder to every host and run there; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--collect", action="append", default=[], metavar="[TASK=]PATH[:DIR]",
        help="fetch this of what the tasks wrote when the job is over; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--lease", type=_lease, metavar="S", help="how long tasks outlive a lost connection (default: 60)"
    )
    others.add_argument(
        "--no-check", action="store_true", help="do not try whether the hosts reach each other"
    )
    others.add_argument(
        "--relay", metavar="SOCKET",
        help="for programs: tasks on other machines reach this unix socket by way of their LAUNCH_RELAY",
    )  # fmt: skip
    add_ssh_options(others)
    add_docker_options(parser)

    end = parser.add_argument_group("how it ends")
    end.add_argument(
        "--on-failure",
        choices=("stop", "continue"),
        help="what one failed task means for the others (default: stop)",
    )
    end.add_argument(
        "--grace",
        metavar="S",
        help="from SIGTERM to harder signals: seconds, or 10s, 5m, 0 (default: 10)",
    )
    end.add_argument(
        "--drain", action="append", default=[], metavar="[ROLE=]S",
        help="for workers and evaluator, or a role, to end by themselves when the job is done: 60s, 5m "
        "(default: 0); repeatable",
    )  # fmt: skip
    end.add_argument("--timeout", metavar="S", help="limit for the job: seconds, or 90s, 5m, 2h; 0: none")

    output = parser.add_argument_group("output")
    output.add_argument(
        "--run-dir", metavar="DIR", help="where this run's files go (default: below the XDG state folder)"
    )
    output.add_argument(
        "--output-dirs", action="store_true",
        help="a folder for each task, named in its OUTPUT_DIR; all are in this run's output/ at the end",
    )  # fmt: skip
    output.add_argument("--report", metavar="FILE", help="write the machine-readable report here too")
    output.add_argument(
        "--show", metavar="TASKS", help="show only these tasks' output: worker,ps/0,worker/2-5"
    )
    output.add_argument("-q", "--quiet", action="store_true", help="show failures only")
    output.add_argument(
        "--no-last-lines", action="store_true",
        help="for programs: why a job failed is said without the last lines of the task that failed",
    )  # fmt: skip
    output.add_argument("--json", action="store_true", help="events and output as JSON lines on stdout")
    output.add_argument(
        "--tmux", action="store_true", help="a tmux pane for each task; closing the session ends the job"
    )
    output.add_argument("--dry-run", action="store_true", help="show the plan, start nothing")
    output.add_argument("--version", action="version", version=_version())
    # For programs that start `launch`: launcher.output.eventpipe, launcher.jobfile.overlay, launcher.signals.
    output.add_argument("--events-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--roles-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--until-eof-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)


#: Seconds: hosts are pinged every two, and a lost connection takes five to be noticed.
_LEAST_LEASE = 6


class _Once(argparse.Action):
    """An option of which the last would silently win."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: object,
        option: object = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, value):
            raise argparse.ArgumentError(self, "expected once; several hosts are host,host,...")
        setattr(namespace, self.dest, value)


def _lease(text: str) -> float:
    """Seconds; less than a few would be over before a lost connection is noticed."""
    found = seconds(text)
    if found < _LEAST_LEASE:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_LEAST_LEASE} seconds or more")
    return found


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MOST_TASKS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 0 to {MOST_TASKS}")
    return int(text)


def _descriptor(text: str) -> int:
    """The number of an open descriptor, inherited from the program that started this one."""
    try:
        os.fstat(int(text))
    except (ValueError, OSError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the number of an open descriptor") from None
    return int(text)


def _version() -> str:
    from launcher import __version__

    return f"launch {__version__}, Python {sys.version.split()[0]}"
