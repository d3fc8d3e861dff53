"""``launch ps``: the runs of this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from launcher.cli.tables import print_table
from launcher.runs.orphans import sweep_died
from launcher.runs.run import Run, RunState, all_runs, exit_code_of, tasks_of
from launcher.text import byte_size, duration

SUMMARY = "list the runs of this machine"

EXAMPLES = """\
launch ps             the runs that are running, with their CPU time and memory
launch ps --all       also the runs that have ended
launch ps --json      the same for programs"""

#: CPU and memory are those of this machine. The name of a run has the time of its start.
_HEADERS = ("run", "state", "time", "tasks", "hosts", "CPU", "memory", "command")
#: The most hosts that are named; of more hosts their number is shown.
_MOST_NAMED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch ps``."""
    parser.add_argument("-a", "--all", action="store_true", help="also runs that have ended")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the runs, the newest last."""
    runs = all_runs()
    swept = sweep_died(runs)
    if swept.text:
        print(f"launch: {swept.text}", file=sys.stderr)
    records = [_record(run, state) for run in runs if (state := run.state) is RunState.RUNNING or args.all]
    if args.json:
        print(json.dumps(records, indent=2))
    elif records:
        print_table(_HEADERS, [_row(record) for record in records], crop=True)
    else:
        hint = f"; `launch ps --all` lists {len(runs)} earlier" if runs else ""
        print(f"launch: nothing is running{hint}", file=sys.stderr)
    return 0


def _record(run: Run, state: RunState) -> dict[str, Any]:
    """A run, as ``--json`` prints it."""
    plan, report, owner = run.plan(), run.report(), run.owner
    tasks = tasks_of(plan)
    pid = owner.pid if owner and state is RunState.RUNNING else None
    return {
        "run": run.job,
        "state": state.value,
        "exit_code": exit_code_of(report),
        "started_at": run.started_at,
        "seconds": _seconds(run, state, report),
        "tasks": dict(Counter(task.role for task in tasks)),
        "hosts": list(dict.fromkeys(filter(None, tasks.values()))),
        "pid": pid,
        **_usage(pid),
        "machine": owner.machine if owner else None,
        "command": _command(plan),
        "run_dir": run.paths.root,
    }


def _row(record: Mapping[str, Any]) -> list[str]:
    """The cells of a run."""
    code, seconds, hosts = record["exit_code"], record["seconds"], record["hosts"]
    state = record["state"] if code is None else f"{record['state']} ({code})"
    if record["state"] == RunState.ELSEWHERE.value:
        state = f"on {record['machine']}"
    if hosts == ["localhost"]:
        hosts = []
    return [
        record["run"],
        state,
        "" if seconds is None else duration(seconds),
        ", ".join(f"{count} {role}" for role, count in record["tasks"].items()),
        f"{len(hosts)} hosts" if len(hosts) > _MOST_NAMED else ", ".join(hosts),
        duration(record["cpu_s"]) if record["processes"] else "",
        byte_size(record["rss"]) if record["processes"] else "",
        shlex.join(record["command"]),
    ]


def _seconds(run: Run, state: RunState, report: Mapping[str, Any]) -> float | None:
    """How long the run took so far or until its end; if its launcher died, until its last event."""
    if state is RunState.RUNNING and run.owner is not None:
        started = run.owner.start_ticks / os.sysconf("SC_CLK_TCK")  # since boot, unaffected by clock changes
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    started_at, ended_at = report.get("started_at"), report.get("ended_at")
    if isinstance(started_at, (int, float)) and isinstance(ended_at, (int, float)):
        return ended_at - started_at
    try:
        return max(0.0, os.stat(run.paths.events).st_mtime - run.started_at)
    except OSError:
        return None


def _command(plan: Mapping[str, Any]) -> list[str]:
    """The command line of the run, without the path of ``launch``."""
    found = plan.get("command")
    return ["launch", *map(str, found[1:])] if isinstance(found, list) else []


def _usage(pid: int | None) -> dict[str, float]:
    """The number, CPU seconds (user and system) and resident bytes of a process and its descendants.

    Memory that processes share is counted for each.
    """
    import psutil

    found = []
    with contextlib.suppress(psutil.Error):
        root = None if pid is None else psutil.Process(pid)
        for process in (root, *root.children(recursive=True)) if root else ():
            with contextlib.suppress(psutil.Error), process.oneshot():
                cpu = process.cpu_times()
                found.append((cpu.user + cpu.system, process.memory_info().rss))
    return {
        "processes": len(found),
        "cpu_s": sum(cpu for cpu, _ in found),
        "rss": sum(rss for _, rss in found),
    }
