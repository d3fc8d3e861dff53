"""Carries a launch out: the run's folder, the renderers, the orchestrator, the report."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
import time
from collections.abc import Sequence

from launcher import runs
from launcher.cli.request import Request
from launcher.errors import LaunchError
from launcher.model.facts import StopAsked
from launcher.model.orders import Tell
from launcher.model.plan import Placement, Plan
from launcher.model.records import TYPE_CHECKING
from launcher.model.report import Report
from launcher.model.rundir import RunPaths
from launcher.orchestrator import Orchestrator, Source
from launcher.output.base import Opening, Renderer
from launcher.output.files import Files, write_json
from launcher.output.writer import Writer
from launcher.transport import Transport

if TYPE_CHECKING:
    from launcher.output.selection import Selection
    from launcher.output.tmux import Tmux

#: Version of ``plan.json``.
PLAN_SCHEMA = 1
_STDOUT, _STDERR, _SIGPIPE = 1, 2, 13


def launch(
    wanted: Request,
    placement: Placement,
    args: argparse.Namespace,
    show: Selection | None,
    transport: Transport,
) -> int:
    """Run the job and show it.

    Args:
        wanted, placement: what to run where.
        args: the options that say how to show it.
        show: whose output is shown; ``None``: everybody's.
        transport: opens the links to the agents.

    Returns:
        The job's exit code.

    Raises:
        LaunchError: it could not be started.
    """
    started = time.time()
    job = runs.new_job_id()
    tmux = _tmux(job) if args.tmux else None
    paths = runs.create(wanted.run_dir, job)
    writer = Writer(logs=paths.logs)
    renderers: list[Renderer] = [Files(lambda tell: _warn(writer, tell))]
    sources: list[Source] = [_Reader(writer)]
    remarks = [_announcement(job, placement, paths), *placement.notes]
    console = _shown(args, show, writer)
    if tmux is None:
        renderers.append(console)
    else:
        renderers += tmux.around(console)
        sources.append(tmux)
        remarks.append(f"a pane for each task: {tmux.how_to_attach}")
    opening = Opening(job, placement, paths, started)
    orchestrator = Orchestrator(
        wanted.job,
        placement,
        lambda _: transport,
        renderers,
        opening,
        remarks=remarks,
        on_plan=lambda plan: _write_plan(plan, paths, job, writer),
        sources=sources,
    )
    _collect_garbage_again()
    report = orchestrator.run()
    _all_written(writer, paths)
    writer.close()
    return report.exit_code if args.report is None else _reported(report, args.report)


def _collect_garbage_again() -> None:
    """What is here by now stays: only what comes is looked at."""
    gc.freeze()
    gc.enable()


def _shown(args: argparse.Namespace, show: Selection | None, writer: Writer) -> Renderer:
    """The renderer for whoever looks at stdout."""
    if args.json:
        from launcher.output.jsonl import Jsonl

        return Jsonl(writer)
    from launcher.output.console import Console, Options, wants_colour
    from launcher.output.selection import Selection

    terminal, live = os.isatty(_STDOUT), os.isatty(_STDERR) and not args.tmux
    options = Options(
        terminal=terminal,
        live=live and os.environ.get("TERM") != "dumb",
        colour=wants_colour(terminal, os.environ),
        show=Selection(frozenset()) if show is None and args.tmux and terminal else show or Selection(),
        quiet=args.quiet,
    )
    return Console(writer, options)


def _tmux(job: str) -> Tmux:
    """A session for the job: in this terminal if it is one, else to be attached to.

    Raises:
        LaunchError: there is no tmux.
    """
    from launcher.output.tmux import Tmux

    return Tmux(job, attach=all(map(os.isatty, (0, _STDOUT, _STDERR))))


class _Reader:
    """Whoever reads our output: when they are gone, nobody wants the job any more (as SIGPIPE has it)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._asked = False

    def stop_wanted(self) -> StopAsked | None:
        """See `launcher.orchestrator.Source`."""
        if self._asked or not isinstance(self._writer.broken(_STDOUT), BrokenPipeError):
            return None
        self._asked = True
        return StopAsked(time.time(), _SIGPIPE, "the end of whoever read the output")


def _warn(writer: Writer, tell: Tell) -> None:
    writer.write(_STDERR, f"launch: {tell.text}\n".encode("utf-8", "backslashreplace"), urgent=True)


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


def _write_plan(plan: Plan, paths: RunPaths, job: str, writer: Writer) -> None:
    """``plan.json``, before anything starts. A full disk does not stop the job."""
    try:
        write_json(paths.plan, plan_as_dict(plan, job))
    except OSError as error:
        _warn(writer, Tell(f"can't write {paths.plan}: {error.strerror}"))


def plan_as_dict(plan: Plan, job: str) -> dict[str, object]:
    """A plan for JSON. Of the environment only what we set ourselves: the rest may be secret."""
    tasks = [
        {
            "task": task.task,
            "host": task.host,
            "address": task.address,
            "port": task.port,
            "argv": task.argv,
            "workdir": task.workdir,
            "gpus": task.gpus,
            "env": {name: task.env[name] for name in OWN_VARIABLES if name in task.env},
        }
        for task in plan.tasks
    ]
    command = _shown_command(sys.argv)
    return {"schema": PLAN_SCHEMA, "job": job, "command": command, "tasks": tasks, "cluster": plan.cluster}


def _shown_command(words: Sequence[str]) -> list[str]:
    """The command line without the values that ``-x NAME=VALUE`` gives: they may be secret."""
    return [
        f"{word.partition('=')[0]}=..." if "=" in word and (word.startswith("-x") or before == "-x") else word
        for before, word in zip(["", *words], words, strict=False)
    ]


#: Variables of a task that are ours, in the order shown.
OWN_VARIABLES = (
    "JOB_NAME",
    "TASK_INDEX",
    "TASK_ADDRESS",
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "CUDA_VISIBLE_DEVICES",
)


def _all_written(writer: Writer, paths: RunPaths) -> None:
    """Say so where the output could not be written (not to who has stopped reading, or closed it)."""
    error = writer.broken(_STDOUT)
    if error is not None and error.errno not in (errno.EPIPE, errno.EBADF):
        text = f"the output could not be written: {error.strerror}; it is complete in {paths.logs}"
        _warn(writer, Tell(text, urgent=True))


def _reported(report: Report, path: str) -> int:
    """Write ``--report``; a report that can't be written is no success."""
    from launcher.output.reportjson import report_as_dict

    try:
        write_json(path, report_as_dict(report))
    except OSError as error:
        print(f"launch: can't write the report to {path!r}: {error.strerror}", file=sys.stderr)
        return report.exit_code or LaunchError.exit_code
    return report.exit_code


__all__: Sequence[str] = ["OWN_VARIABLES", "PLAN_SCHEMA", "launch", "plan_as_dict"]
