"""What the arguments and the job file ask for, as one job and its hosts."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.cli.dockeroptions import conflicts, settle
from launcher.cli.inventory import read_hosts
from launcher.cli.options import COMMAND_LINE, add_options
from launcher.cli.parser import Parser
from launcher.cli.textfile import read_text
from launcher.errors import Fault, InputError, JobError
from launcher.job import OUTPUT_DIR, RELAY, SERVICE_ROLES, Host, JobSpec, OnFailure, Program, Role
from launcher.jobfile.docker_keys import DockerKeys
from launcher.scheduler.plan import check_program_args

if TYPE_CHECKING:
    from typing import TypeVar

    from launcher.jobfile import JobFile

    _T = TypeVar("_T")


_JOB_FILES = (".yaml", ".yml")


class Request(NamedTuple):
    """A job, where it may run, where its files go (``None``: the usual place), and who says so."""

    job: JobSpec
    hosts: tuple[Host, ...]
    run_dir: str | None = None
    #: The option or ``file:line`` that says where the job runs, and with which Python; empty: nobody does.
    workdir_source: str = ""
    python_source: str = ""
    #: The same of what travels.
    sync_source: str = "--sync"
    collect_source: str = "--collect"
    #: And of where its files go.
    run_dir_source: str = "--run-dir"
    #: Remarks for the user.
    notes: tuple[str, ...] = ()


def understand(args: argparse.Namespace) -> Request:
    """What the parsed arguments ask for.

    Raises:
        InputError: they ask for nothing that can be done; all faults at once.
    """
    words = _words(args)
    faults: list[Fault] = []
    try:
        os.getcwd()
    except OSError as error:
        what = "the current folder is gone"
        raise JobError([Fault("", what, "expected to be in a folder that exists")]) from error
    if (words and words[0].endswith(_JOB_FILES)) or args.roles_fd is not None:
        request = _from_file(args, words, faults)
    else:
        settle(args, DockerKeys(), "")
        job = _with_options(_job(args, words, faults), args, faults)
        request = Request(job, _hosts_given(args, faults), args.run_dir, *_sources(args))
        request = request._replace(notes=tuple(_misplaced(args, words)))
    _collected(faults, lambda: check_program_args(request.job), None)
    faults += _relay_faults(args.relay)
    faults += [*_conflicts(args), *conflicts(args, request.hosts), *_report_faults(args.report)]
    if faults:
        raise JobError(faults)
    return request._replace(notes=(*request.notes, *getattr(args, "notes", ())))


def _sources(args: argparse.Namespace, workdir: str = "", python: str = "") -> tuple[str, str]:
    """Who says where the job runs, and with which Python: an option, else what a file has for it."""
    return "--workdir" if args.workdir else workdir, "--python" if args.python else python


def _collected(faults: list[Fault], read: Callable[[], _T], instead: _T) -> _T:
    """What ``read`` gives; where that has faults, they join the others."""
    try:
        return read()
    except InputError as error:
        faults += error.faults
        return instead


#: Options that say what a launch is.
_SHAPING = ("--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker")


def _misplaced(args: argparse.Namespace, words: Sequence[str]) -> Iterator[str]:
    """Remarks on words after the program that would be options of ours before it, and are not there.

    A program may well have options of these names: who writes a ``--`` before it knows of that.
    """
    if args.program[:1] == ["--"]:
        return
    for word in words[1:]:
        option = word.partition("=")[0]
        if option in _SHAPING and not getattr(args, option[2:]):
            yield f"{option} is given to {words[0]}: the options of launch go before the program"


def _conflicts(args: argparse.Namespace) -> Iterator[Fault]:
    """Options that can't both be followed: none is dropped in silence."""
    whole = "--json prints everything, for programs"
    for option in ("quiet", "show", "tmux"):
        if args.json and getattr(args, option) and not args.dry_run:
            yield Fault(COMMAND_LINE, f"--json and --{option} both", f"expected one of them: {whole}")


def _report_faults(path: str | None) -> Iterator[Fault]:
    """A report that can't be written is better known before the job than after it."""
    if path is None:
        return
    if not path or os.path.isdir(path):
        yield Fault("--report", f"{path!r} is no name of a file")
    elif not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        yield Fault("--report", f"{path!r}: there is no such folder")


def _relay_faults(path: str | None) -> Iterator[Fault]:
    if path is not None and not (os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)):
        yield Fault(
            "--relay", f"{path!r} is no socket", "expected the path of a unix socket that is listened on"
        )


def _words(args: argparse.Namespace) -> list[str]:
    if args.module is not None:
        return ["-m", *args.module, *args.program]  # argparse ends the former at a "--"
    if args.code is not None:
        return ["-c", *args.code, *args.program]
    words: list[str] = args.program
    return words[1:] if words[:1] == ["--"] else words


def _job(args: argparse.Namespace, words: Sequence[str], faults: list[Fault]) -> JobSpec:
    try:
        program = Program.of(words)
    except ValueError as error:
        faults.append(Fault("", str(error), "launch --help shows how"))
        return JobSpec(())
    counts = {
        "chief": int(args.chief),
        "worker": args.workers,
        "ps": args.ps,
        "evaluator": int(args.evaluator),
    }
    if not any(counts.values()) and args.workers is None and args.ps is None:
        counts["worker"] = 1
    roles = tuple(_role(name, count, program, args.gpus) for name, count in counts.items() if count)
    if not roles:
        faults.append(
            Fault(
                COMMAND_LINE,
                "no task is left to run",
                "expected --workers N, --ps N, --chief or --evaluator",
            )
        )
    return JobSpec(roles, flags=args.flags)


def _role(name: str, count: int, program: Program, gpus: int | None) -> Role:
    mine = None if name == "ps" else gpus
    return Role(name, count, program, gpus=mine, service=name in SERVICE_ROLES, source=COMMAND_LINE)


def _with_options(job: JobSpec, args: argparse.Namespace, faults: list[Fault]) -> JobSpec:
    """The job with what the options say about it: they win over a file."""
    said = _environment(args, job.output_dirs or args.output_dirs, faults)
    policy = job.policy
    if args.on_failure:
        policy = policy._replace(on_failure=OnFailure(args.on_failure))
    if args.grace is not None:
        policy = policy._replace(grace=_duration("--grace", args.grace, faults))
    if args.timeout is not None:
        timeout = _duration("--timeout", args.timeout, faults) or None
        policy = policy._replace(timeout=timeout, timeout_said=args.timeout if timeout else "")
    if args.drain:
        job = _draining(job, args, faults)
    return job._replace(
        said_env=tuple(said.items()),
        flags=job.flags or args.flags,
        policy=policy,
        output_dirs=job.output_dirs or args.output_dirs,
        python=_python(args.python or job.python),
        workdir=_absolute(args.workdir or job.workdir or "."),
    )


def _draining(job: JobSpec, args: argparse.Namespace, faults: list[Fault]) -> JobSpec:
    """With ``--drain``; what is to be said of it goes to ``args.notes``."""
    from launcher.cli.drain import drained

    args.notes = [*getattr(args, "notes", ())]
    return job._replace(roles=drained(job.roles, args.drain, faults, args.notes))


def _absolute(path: str) -> str:
    """A path as the tasks get it; ``~/`` is the home of whichever machine they run on."""
    return path if path.startswith("~") else os.path.abspath(path)


def _python(path: str | None) -> str:
    """A path, wherever the tasks run; or a name, looked up along their PATH."""
    if path is None:
        return sys.executable
    return _absolute(path) if "/" in path else path


def _environment(args: argparse.Namespace, output_dirs: bool, faults: list[Fault]) -> dict[str, str]:
    """What the ``-x`` options carry; what is to be said of them goes to ``args.notes``."""
    if not args.env:
        return {}
    from launcher.cli.variables import carried

    taken = [name for name, said in ((OUTPUT_DIR, output_dirs), (RELAY, args.relay)) if said]
    args.notes = []
    return carried(args.env, os.environ, taken, faults, args.notes)


def _duration(option: str, text: str, faults: list[Fault]) -> float:
    from launcher.jobfile.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        faults.append(Fault(option, f"{text!r} is no duration", str(error)))
        return 0.0


def _from_file(args: argparse.Namespace, words: Sequence[str], faults: list[Fault]) -> Request:
    """A job file; options may also follow it, there being no program whose arguments they could be."""
    from launcher import jobfile

    path, *rest = words or [""]
    if rest:
        _parse_more(args, rest)
    text = _collected(faults, lambda: read_text(path, "job file", JobError), None) if path else ""
    if text is None:
        found = jobfile.JobFile(JobSpec(()))
        wrong: tuple[Fault, ...] = ()
    else:
        found, wrong = jobfile.examine(text, path or COMMAND_LINE, _roles(args.roles_fd))
    faults += wrong
    folder = os.path.dirname(os.path.abspath(path))
    travelling = (
        "--sync" if args.sync else found.sync_source,
        "--collect" if args.collect else found.collect_source,
    )
    args.sync = args.sync or [os.path.join(folder, directory) for directory in found.sync]
    args.collect = args.collect or list(found.collect)
    settle(args, found.docker, folder)
    if text is None or wrong:
        _with_options(JobSpec(()), args, faults)
        says_where = any(said is not None for said in (args.hosts, found.hosts, found.hosts_ref))
        return Request(JobSpec(()), _hosts_of_job(args, found, folder, faults) if says_where else ())
    job = _with_options(_recounted(_beside_file(found.job, folder), args, faults), args, faults)
    run_dir = args.run_dir if args.run_dir is not None else _joined(folder, found.run_dir)
    sources = _sources(args, found.workdir_source, found.python_source)
    hosts = _hosts_of_job(args, found, folder, faults)
    told_by = found.run_dir_source if args.run_dir is None else ""
    return Request(job, hosts, run_dir, *sources, *travelling, told_by or "--run-dir")


def _roles(fd: int | None) -> Mapping[str, Any]:
    """The roles that the program which started this launch has written for it, as JSON."""
    if fd is None:
        return {}
    with open(fd, encoding="utf-8") as file:
        roles: Mapping[str, Any] = json.load(file)
    return roles


def _beside_file(job: JobSpec, folder: str) -> JobSpec:
    """Paths in a job file are relative to the file; programs to the folder they run in."""
    roles = tuple(role._replace(workdir=_joined(folder, role.workdir)) for role in job.roles)
    python = job.python if job.python is None or "/" not in job.python else _joined(folder, job.python)
    return job._replace(roles=roles, workdir=_joined(folder, job.workdir), python=python)


def _joined(folder: str, path: str | None) -> str | None:
    return path if path is None or path.startswith("~") else os.path.join(folder, path)


def _hosts_of_job(
    args: argparse.Namespace, found: JobFile, folder: str, faults: list[Fault]
) -> tuple[Host, ...]:
    """Those of the option, or of the job file itself, or of the hostfile it names."""
    if args.hosts is None and found.hosts is not None:
        return found.hosts
    if args.hosts is not None or found.hosts_ref is None:
        return _hosts_given(args, faults)
    try:
        return _hosts(_beside(folder, found.hosts_ref))
    except InputError as error:
        faults += [_told_by(found.hosts_source, fault) for fault in error.faults]
        return ()


def _hosts_given(args: argparse.Namespace, faults: list[Fault]) -> tuple[Host, ...]:
    """Those of the option, or this machine."""
    return _collected(faults, lambda: _hosts(args.hosts), ())


def _told_by(source: str, fault: Fault) -> Fault:
    """A fault of what a job file has at ``hosts:``, with the line that says so; one in a file has its own."""
    if fault.where.rpartition(":")[2].isdigit():
        return fault
    what = fault.what if fault.where in ("", "--hosts") else f"{fault.where}: {fault.what}"
    return fault._replace(where=source, what=what)


def _parse_more(args: argparse.Namespace, rest: Sequence[str]) -> None:
    """What was said before the file stays, unless it is said again: argparse leaves alone what is there."""
    parser = Parser(prog="launch JOB.yaml", allow_abbrev=False)
    add_options(parser)
    parser.parse_args(list(rest), namespace=args)


def _beside(folder: str, reference: str) -> str:
    """A hostfile named in a job file lies beside it."""
    path = os.path.join(folder, reference)
    return path if os.path.exists(path) else reference


def _recounted(job: JobSpec, args: argparse.Namespace, faults: list[Fault]) -> JobSpec:
    """The counts, and GPUs, that options give replace the file's."""
    asked = {"worker": args.workers, "ps": args.ps}
    counts = {name: count for name, count in asked.items() if count is not None}
    for name in counts.keys() - {role.name for role in job.roles}:
        faults.append(Fault(COMMAND_LINE, f"the job file has no role {name!r} to set a number for"))
    for option in ("chief", "evaluator"):
        if getattr(args, option) and option not in {role.name for role in job.roles}:
            faults.append(
                Fault(f"--{option}", f"the job file has no role {option!r}", "expected it in the file")
            )
    roles = (
        role._replace(count=counts.get(role.name, role.count), gpus=_gpus_of(role, args.gpus))
        for role in job.roles
    )
    return job._replace(roles=tuple(role for role in roles if role.count))


def _gpus_of(role: Role, said: int | None) -> int | None:
    return role.gpus if said is None or role.name == "ps" or role.sidecar else said


def _hosts(text: str | None) -> tuple[Host, ...]:
    if text is None:
        return (this_machine(os.environ),)
    return read_hosts(text)


def this_machine(environ: Mapping[str, str]) -> Host:
    """The host of a launch without ``--hosts``: room for everything, its GPUs as the driver lists them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus: tuple[str, ...] | None = tuple(filter(None, visible.split(",")))
    else:
        gpus = _driver_gpus()
    return Host("localhost", address="127.0.0.1", gpus=gpus)


def _driver_gpus() -> tuple[str, ...] | None:
    try:
        return tuple(str(index) for index, _ in enumerate(os.listdir("/proc/driver/nvidia/gpus")))
    except OSError:
        return None
