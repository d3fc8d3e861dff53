"""The options of a launch: on the command line, and after the name of a job file."""

from __future__ import annotations

import argparse
import sys

from launcher import __version__
from launcher.cli.parser import Once, descriptor, seconds, whole_number
from launcher.job import MOST_TASKS
from launcher.transports.docker.options import add_docker_options
from launcher.transports.ssh import SshSettings

#: Seconds: hosts are pinged every two, and a lost connection is noticed after five.
_LEAST_LEASE = 6
#: Hosts that may be connected to at a time.
_MOST_AT_ONCE = 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a launch, without the program."""
    count = whole_number(0, MOST_TASKS)
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--ps", type=count, metavar="N", help="parameter servers")
    tasks.add_argument("--workers", type=count, metavar="N", help="workers (1, if no task is asked for)")
    tasks.add_argument("--chief", action="store_true", help="a chief")
    tasks.add_argument("--evaluator", action="store_true", help="an evaluator")
    tasks.add_argument("--gpus", type=count, metavar="N", help="GPUs per task (ps tasks get none)")
    tasks.add_argument(
        "--hosts", action=Once, metavar="X", help="a hostfile, or host[:slots],... (default: this machine)"
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
        help="copy PATH from the tasks back here when the job ends; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--lease", type=_lease, metavar="S",
        help=f"how long tasks outlive a lost connection, at least {_LEAST_LEASE} s (default: 60)",
    )  # fmt: skip
    others.add_argument(
        "--no-check", action="store_true", help="do not try whether the hosts reach each other"
    )
    others.add_argument(
        "--relay", metavar="SOCKET",
        help="forward a port on each host to this unix socket here; tasks find its address in LAUNCH_RELAY",
    )  # fmt: skip
    add_ssh_options(others)
    add_docker_options(parser)

    end = parser.add_argument_group("how it ends")
    end.add_argument(
        "--on-failure", choices=("stop", "continue"),
        help="what one failed task means for the others (default: stop)",
    )  # fmt: skip
    end.add_argument(
        "--grace", metavar="S", help="from SIGTERM to harder signals: seconds, or 10s, 5m, 0 (default: 10)"
    )
    end.add_argument(
        "--drain", action="append", default=[], metavar="[ROLE=]S",
        help="time for workers and evaluator, or a role, to end by themselves when the job is done: 60s, 5m "
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
        "--no-last-lines", action="store_true", help="leave the failed task's last lines out of the error"
    )
    output.add_argument("--json", action="store_true", help="events and output as JSON lines on stdout")
    output.add_argument(
        "--tmux", action="store_true", help="a tmux pane for each task; closing the session ends the job"
    )
    output.add_argument("--dry-run", action="store_true", help="show the plan, start nothing")
    version = f"launch {__version__}, Python {sys.version.split()[0]}"
    output.add_argument("--version", action="version", version=version)
    # For programs that start `launch`: launcher.output.eventpipe, launcher.config.jobfile,
    # launcher.job_run.interrupts.
    output.add_argument("--events-fd", type=descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--roles-fd", type=descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--until-eof-fd", type=descriptor, metavar="N", help=argparse.SUPPRESS)


def add_ssh_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of connecting to hosts, the same for every command; `ssh_settings` reads them."""
    parser.add_argument(
        "--accept-new-host-keys", action="store_true", help="trust hosts that were never connected to before"
    )
    parser.add_argument(
        "--connect-timeout", type=seconds, metavar="S",
        help="for each step of connecting to a host (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--fanout", type=whole_number(1, _MOST_AT_ONCE), metavar="N",
        help="hosts to connect to at the same time (default: 32)",
    )  # fmt: skip


def ssh_settings(args: argparse.Namespace) -> SshSettings:
    """The settings that these options ask for."""
    given = {name: getattr(args, name, None) for name in ("connect_timeout", "fanout", "lease")}
    settings = SshSettings(accept_new=args.accept_new_host_keys)
    return settings._replace(**{name: value for name, value in given.items() if value is not None})


def _lease(text: str) -> float:
    """Seconds; a shorter lease would be over before a lost connection is noticed."""
    found = seconds(text)
    if found < _LEAST_LEASE:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_LEAST_LEASE} seconds or more")
    return found
