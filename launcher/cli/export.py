"""``launch export``: write a job for Kubernetes, Slurm or Docker Compose, where it needs no launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.agent.lookup import environment_variables
from launcher.backends.containers import task_hosts, with_limits
from launcher.backends.docker.options import DockerOptions
from launcher.backends.kubernetes.options import KubernetesOptions, user_faults, user_of
from launcher.backends.slurm import SlurmOptions
from launcher.backends.slurm.rows import SLURM
from launcher.cli.arguments import parse_launch
from launcher.cli.connecting import check_current_folder
from launcher.cli.export_files import program_files
from launcher.common.errors import Fault, JobError
from launcher.common.record import from_attributes, replace
from launcher.config.settings import COMMAND_LINE, Given, Group, Setting, Settings
from launcher.config.table import PYTHON, WORKDIR
from launcher.config.values import OneOf
from launcher.export import compose, kubernetes, slurm
from launcher.export.exported import MARK, TASK_PORT, Exported, exported, label
from launcher.job import Host, JobSpec
from launcher.launch.build_options import build_options
from launcher.launch.options import ON_COMMAND_LINE, LaunchOptions
from launcher.launch.programs import check_all_programs_here
from launcher.launch.tensorboard import ROLE as TENSORBOARD
from launcher.messages import say
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON

SUMMARY = "write a job as a file for Kubernetes, Slurm or Docker Compose"

EXAMPLES = """\
launch export slurm -N 2 --ps 1 --workers 3 train.py > job.sh
launch export kubernetes --docker IMAGE --workers 3 train.py > job.yaml
launch export compose job.yaml > compose.yaml
launch export kubernetes tfjob.yaml > job.yaml     the images of a TFJob

Options, program and job file are those of launch. Comments at the top of the
file say how it is used, and what it can't do."""

#: Form -> the backend whose options it has.
FORMS = {"kubernetes": "kubernetes", "slurm": "slurm", "compose": "docker"}

FORM = Setting("form", OneOf(*FORMS), ", ".join(FORMS), metavar="FORM", default="", positional="1")
ARGS: Setting[tuple[str, ...]] = Setting(
    "args", str, "options and program, or a job file, as for launch", metavar="ARGS", default=(),
    positional="...", repeatable=True,
)  # fmt: skip
GROUPS = (Group("positional arguments", (FORM, ARGS)),)


def run(settings: Settings) -> int:
    """Write the file.

    Raises:
        InputError: the job has faults, or the format can't have it; nothing is written.
        ProgramError: a program for Slurm does not exist.
    """
    os.environ.pop("SLURM_JOB_ID", None)  # the file is not for the job around this process
    form, line = settings[FORM], parse_launch(settings[ARGS])
    is_slurm = form == "slurm"
    implied = {SLURM.name: Given(True, f"launch export {form}", COMMAND_LINE)} if is_slurm else {}
    check_current_folder()
    options = build_options(line, "" if is_slurm else FORMS[form], implied)
    if options.hosts_named:
        problem = f"the hosts are named, but {form} chooses where tasks run"
        raise JobError([Fault("--hosts", problem, "expected a job without hosts")])
    spec = replace(options.spec, roles=tuple(role for role in options.spec.roles if role.name != TENSORBOARD))
    arguments = [argument for role in spec.roles for argument in role.program.args]
    values = [value for name, value in spec.option_env if name not in spec.copied]
    if any("\udc80" <= char <= "\udcff" for text in (*arguments, *values) for char in text):
        raise JobError([Fault(ON_COMMAND_LINE, "an argument or a variable is not UTF-8", "expected text")])
    make = {"kubernetes": _kubernetes, "slurm": _slurm, "compose": _compose}[form]
    made, text = make(options, spec, label(spec, _name(line.command)))
    for note in (*options.notes, *made.placement.notes):
        say(note)
    print(text, end="")
    return 0


def _name(command: Sequence[str]) -> str:
    """The name of a job: that of its job file or program."""
    if command[0] == "-c":
        return ""
    return Path(command[1].rpartition(".")[2] if command[0] == "-m" else command[0]).stem


def _slurm(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[Exported, str]:
    check_all_programs_here(options)
    asked: SlurmOptions = options.backend_options
    words = asked.for_job(spec)
    if any(not word.isprintable() for word in words):
        raise JobError([Fault("--slurm-options", "an option has control characters", "expected one line")])
    python = spec.python if options.settings.is_given(PYTHON) else DEFAULT_PYTHON
    if spec.venv:
        python = VENV_PYTHON
        path = dict(spec.env + spec.option_env).get("PATH", f"{MARK}PATH{MARK}")
        variables = environment_variables({"PATH": path}, spec.venv)
        spec = replace(spec, env=spec.env + tuple(variables.items()))
    # The GPUs of a node are known when the job runs.
    roles = tuple(replace(role, gpus=None) for role in spec.roles)
    spec = replace(spec, roles=roles, python=python, venv=None)
    made = exported(spec, [Host("node")], 1, name)
    return made, slurm.batch_script(made, words)


def _asked(options: LaunchOptions, *names: str) -> Any:
    """Return the options of the backend that is asked for.

    Raises:
        JobError: It is none of these.
    """
    if options.backend.name not in names:
        wanted = " or ".join(f"--{name} IMAGE" for name in names)
        raise JobError(
            [Fault(ON_COMMAND_LINE, "no image is named", f"expected {wanted}, or image: of roles")]
        )
    return options.backend_options


def _kubernetes(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[Exported, str]:
    given = _asked(options, "kubernetes", "docker")
    if isinstance(given, DockerOptions):
        given = from_attributes(KubernetesOptions, given, KubernetesOptions())
        if faults := list(user_faults(given)):
            raise JobError(faults)
    files, notes = ({}, []) if options.settings.is_given(WORKDIR) else program_files(spec)
    for note in notes:
        say(note)
    spec = with_limits(spec, given, options.settings)
    places = [(host, host.roles[0], host.name.rpartition("-")[2]) for host in task_hosts(spec)[0]]
    named = [replace(host, address=kubernetes.host_name(name, role, index)) for host, role, index in places]
    made = exported(spec, named, TASK_PORT, name)
    return made, kubernetes.manifests(made, given, user_of(given), files)


def _compose(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[Exported, str]:
    given: DockerOptions = _asked(options, "docker")
    spec = with_limits(spec, given, options.settings, mounts_folder=not given.no_mount)
    made = exported(spec, task_hosts(spec)[0], TASK_PORT, name)
    return made, compose.compose_file(made, given, given.user or f"{os.getuid()}:{os.getgid()}")
