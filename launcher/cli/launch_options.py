"""Makes the options of a launch from the command line and the job file."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher import transports
from launcher.config.hostfile import read_hosts, this_machine
from launcher.config.jobfile import JobFile, parse_job, read_job_file
from launcher.config.options import carried, drained
from launcher.config.values import duration
from launcher.errors import Fault, InputError, JobError
from launcher.job import OUTPUT_DIR, RELAY, SERVICE_ROLES, Host, JobSpec, OnFailure, Program, Role
from launcher.job_run.options import COMMAND_LINE, Options, Sources
from launcher.scheduler.plan import check_program_args

#: Options that describe the shape of a launch.
_SHAPING = ("--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker")
#: Options about other machines. Not ``--relay``: the Python API always gives it, and does not know where a
#: job file has its hosts.
_OF_HOSTS = ("sync", "lease", "fanout", "connect_timeout", "accept_new_host_keys", "no_check")


def read_options(args: argparse.Namespace, words: Sequence[str], job_file: str) -> Options:
    """Make the options of a launch.

    Args:
        args: the parsed command line.
        words: the program and its arguments; or the job file and options, which ``args`` has.
        job_file: the path of the job file; empty: there is none.

    Raises:
        InputError: it asks for something that can't be done; all faults at once.
    """
    try:
        folder = os.getcwd()
    except OSError as error:
        expected = "expected to be in a folder that exists"
        raise JobError([Fault("", "the current folder is gone", expected)]) from error
    faults: list[Fault] = []
    notes: list[str] = []
    file, readable = JobFile(), True
    if job_file or args.roles_fd is not None:
        file, readable = _read_job_file(job_file, args.roles_fd, faults)
        folder = os.path.dirname(os.path.abspath(job_file))
        job = _recounted(file.job, args, faults) if readable else JobSpec(())
        notes += file.notes
    else:
        job = _job_of_words(args, words, faults)
        notes += _misplaced(args, words)
    job = _with_options(job, args, faults, notes)
    named = args.hosts is not None or file.names_hosts
    # Hosts have faults of their own; a job file that is wrong may not name the ones it means.
    hosts = _hosts(args, file, faults) if readable or named else ()
    try:
        check_program_args(job)
    except InputError as error:
        faults += error.faults
    faults += _path_faults(args)
    faults += _conflicts(args, named or not hosts)
    settings = {}
    for name, transport in transports.transports().items():
        settings[name] = transport.settings(args, file.sections.get(name), folder)
        faults += transport.faults(args, settings[name])
    name = transports.selected(settings)
    transport = transports.transports()[name]
    if transport.in_containers and not named and (args.collect or file.collect):
        what = "this is about other machines, and none is named"
        faults.append(Fault("--collect", what, "expected --hosts, or --output-dirs"))
    if file.sync and not args.sync and not named:
        where = file.sources["sync"]
        notes.append(f"{where}: sync: is not used: all tasks run on this machine, in its folders")
    if faults:
        raise JobError(faults)
    sources = {
        name: f"--{name.replace('_', '-')}" if getattr(args, name) else file.sources.get(name, "")
        for name in Sources._fields
    }
    return Options(
        job,
        hosts,
        hosts_text=args.hosts,
        hosts_named=named,
        transport=transport,
        transport_name=name,
        settings=settings,
        check=not args.no_check,
        relay=args.relay,
        sync=tuple(args.sync or (file.sync if named else ())),
        collect=tuple(args.collect or file.collect),
        run_dir=file.run_dir if args.run_dir is None else args.run_dir,
        report=args.report,
        show=args.show,
        quiet=args.quiet,
        json=args.json,
        tmux=args.tmux,
        last_lines=not args.no_last_lines,
        dry_run=args.dry_run,
        events_fd=args.events_fd,
        commands_fd=args.commands_fd,
        sources=Sources(**sources),
        notes=tuple(notes),
    )


def program_words(args: argparse.Namespace) -> list[str]:
    """The program and its arguments."""
    if args.module is not None:
        return ["-m", *args.module, *args.program]  # argparse ends the former at a "--"
    if args.code is not None:
        return ["-c", *args.code, *args.program]
    words: list[str] = args.program
    return words[1:] if words[:1] == ["--"] else words


def _misplaced(args: argparse.Namespace, words: Sequence[str]) -> Iterator[str]:
    """Remarks on words after the program that would be options of ours before it.

    A program may have options of these names: ``--`` before the program says so.
    """
    if args.program[:1] == ["--"]:
        return
    for word in words[1:]:
        option = word.partition("=")[0]
        if option in _SHAPING and not getattr(args, option[2:]):
            yield f"{option} is given to {words[0]}: the options of launch go before the program"


# ---------------------------------------------------------------------- the job


def _job_of_words(args: argparse.Namespace, words: Sequence[str], faults: list[Fault]) -> JobSpec:
    try:
        program = Program.of(words)
    except ValueError as error:
        faults.append(Fault("", str(error), "launch --help shows how"))
        return JobSpec(())
    counts = {"chief": args.chief, "worker": args.workers, "ps": args.ps, "evaluator": args.evaluator}
    if not any(counts.values()) and args.workers is None and args.ps is None:
        counts["worker"] = 1
    roles = tuple(
        Role(
            name,
            int(count),
            program,
            gpus=None if name == "ps" else args.gpus,
            service=name in SERVICE_ROLES,
            source=COMMAND_LINE,
        )
        for name, count in counts.items()
        if count
    )
    if not roles:
        expected = "expected --workers N, --ps N, --chief or --evaluator"
        faults.append(Fault(COMMAND_LINE, "no task is left to run", expected))
    return JobSpec(roles)


def _read_job_file(path: str, roles_fd: int | None, faults: list[Fault]) -> tuple[JobFile, bool]:
    """The job file, and whether it is right; an empty path: there are only the roles of ``--roles-fd``."""
    roles: Mapping[str, Any] = {}
    if roles_fd is not None:
        with open(roles_fd, encoding="utf-8") as stream:
            roles = json.load(stream)
    sections = transports.sections()
    try:
        read = read_job_file(path, roles, sections) if path else parse_job("", COMMAND_LINE, roles, sections)
    except InputError as error:
        faults += error.faults
        return JobFile(), False
    faults += read[1]
    return read[0], not read[1]


def _recounted(job: JobSpec, args: argparse.Namespace, faults: list[Fault]) -> JobSpec:
    """The numbers of tasks and GPUs that options give replace those of the file."""
    names = {role.name for role in job.roles}
    counts = {n: count for n, count in (("worker", args.workers), ("ps", args.ps)) if count is not None}
    for name in counts.keys() - names:
        faults.append(Fault(COMMAND_LINE, f"the job file has no role {name!r} to set a number for"))
    for name in ("chief", "evaluator"):
        if getattr(args, name) and name not in names:
            faults.append(Fault(f"--{name}", f"the job file has no role {name!r}", "expected it in the file"))
    roles = []
    for role in job.roles:
        keeps_gpus = args.gpus is None or role.name == "ps" or role.sidecar
        gpus = role.gpus if keeps_gpus else args.gpus
        role = role._replace(count=counts.get(role.name, role.count), gpus=gpus)
        if role.count:
            roles.append(role)
    return job._replace(roles=tuple(roles))


def _with_options(job: JobSpec, args: argparse.Namespace, faults: list[Fault], notes: list[str]) -> JobSpec:
    """The job with what the options say about it: they win over a file."""
    output_dirs = job.output_dirs or args.output_dirs
    taken = [name for name, given in ((OUTPUT_DIR, output_dirs), (RELAY, args.relay)) if given]
    variables = carried(args.env, os.environ, taken, faults, notes)
    policy = job.policy
    if args.on_failure:
        policy = policy._replace(on_failure=OnFailure(args.on_failure))
    if args.grace is not None:
        policy = policy._replace(grace=_duration("--grace", args.grace, faults))
    if args.timeout is not None:
        timeout = _duration("--timeout", args.timeout, faults) or None
        policy = policy._replace(timeout=timeout, timeout_text=args.timeout if timeout else "")
    python = args.python or job.python or sys.executable
    return job._replace(
        roles=drained(job.roles, args.drain, faults, notes) if args.drain else job.roles,
        option_env=tuple(variables.items()),
        flags=job.flags or args.flags,
        policy=policy,
        output_dirs=output_dirs,
        python=_absolute(python) if "/" in python else python,
        workdir=_absolute(args.workdir or job.workdir or "."),
    )


def _duration(option: str, text: str, faults: list[Fault]) -> float:
    try:
        return duration(text)
    except ValueError as error:
        faults.append(Fault(option, f"{text!r} is not a duration", str(error)))
        return 0.0


def _absolute(path: str) -> str:
    """A path as the tasks get it; ``~/`` is the home on the machine they run on."""
    return path if path.startswith("~") else os.path.abspath(path)


# ---------------------------------------------------------------------- hosts and faults


def _hosts(args: argparse.Namespace, file: JobFile, faults: list[Fault]) -> tuple[Host, ...]:
    """Those of ``--hosts``, else of the job file or the hostfile it names, else this machine."""
    if args.hosts is None and file.hosts is not None:
        return file.hosts
    text = file.hosts_ref if args.hosts is None else args.hosts
    if text is None:
        return (this_machine(os.environ),)
    try:
        return read_hosts(text)
    except InputError as error:
        for fault in error.faults:
            if args.hosts is None and not fault.where.rpartition(":")[2].isdigit():
                # Not of a line of a hostfile: then the line of the job file is the place.
                what = fault.what if fault.where in ("", "--hosts") else f"{fault.where}: {fault.what}"
                fault = fault._replace(where=file.sources["hosts"], what=what)
            faults.append(fault)
        return ()


def _path_faults(args: argparse.Namespace) -> Iterator[Fault]:
    """Paths that can't be used: better known before the job than after it."""
    relay, report = args.relay, args.report
    if relay is not None and not (os.path.exists(relay) and stat.S_ISSOCK(os.stat(relay).st_mode)):
        expected = "expected the path of a unix socket that a process listens on"
        yield Fault("--relay", f"{relay!r} is not a socket", expected)
    if report is None:
        return
    if not report or os.path.isdir(report):
        yield Fault("--report", f"{report!r} is no name of a file")
    elif not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        yield Fault("--report", f"{report!r}: there is no such folder")


def _conflicts(args: argparse.Namespace, other_machines: bool) -> Iterator[Fault]:
    """Options that contradict each other, or have nothing to act on: none is ignored in silence."""
    for name in ("quiet", "show", "tmux"):
        if args.json and getattr(args, name) and not args.dry_run:
            expected = "expected one of them: --json prints everything, for programs"
            yield Fault(COMMAND_LINE, f"--json and --{name} both", expected)
    for name in _OF_HOSTS:
        if not other_machines and getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            yield Fault(option, "this is about other machines, and none is named", "expected --hosts")
