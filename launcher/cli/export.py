"""``launch export``: write a job as a file for Kubernetes, Slurm or Docker Compose, which need no launch.

The command reads the options and files of a job and checks them as a launch does. The modules of
`launcher.export` write the text. Nothing is started.
"""

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
from launcher.export.exported import MARK, TASK_PORT, ExportedJob, export_name, export_plan
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
file say how it is used, and what it cannot do."""

#: The forms of a file, and for each the backend whose options it accepts.
FORMS = {"kubernetes": "kubernetes", "slurm": "slurm", "compose": "docker"}

FORM = Setting("form", OneOf(*FORMS), ", ".join(FORMS), metavar="FORM", default="", positional="1")
ARGS: Setting[tuple[str, ...]] = Setting(
    "args", str, "options and program, or a job file, as for launch", metavar="ARGS", default=(),
    positional="...", repeatable=True,
)  # fmt: skip
GROUPS = (Group("positional arguments", (FORM, ARGS)),)


def run(settings: Settings) -> int:
    """Print the file for the form that the user asks for, and notes about it on stderr.

    Raises:
        InputError: The job has faults, or the form cannot express it. Nothing is printed then.
        ProgramError: A program for Slurm does not exist.
    """
    # The file may run anywhere, so a Slurm job around this process does not matter.
    os.environ.pop("SLURM_JOB_ID", None)
    form, line = settings[FORM], parse_launch(settings[ARGS])
    is_slurm = form == "slurm"
    # The user need not type --slurm, too.
    implied = {SLURM.name: Given(True, f"launch export {form}", COMMAND_LINE)} if is_slurm else {}
    check_current_folder()
    # The form names the backend whose options the job may have. Slurm is named by its setting instead.
    options = build_options(line, "" if is_slurm else FORMS[form], implied)
    if options.hosts_named:
        problem = f"the hosts are named, but {form} chooses where tasks run"
        raise JobError([Fault("--hosts", problem, "expected a job without hosts")])
    # Only a launcher starts TensorBoard for a job.
    spec = replace(options.spec, roles=tuple(role for role in options.spec.roles if role.name != TENSORBOARD))
    # Values of variables that launch copies from its environment are not written to the file.
    values = [value for name, value in spec.option_env if name not in spec.copied]
    texts = [*values, *(argument for role in spec.roles for argument in role.program.args)]
    # Python shows bytes that are not UTF-8 as these characters. A file of text cannot contain them.
    if any("\udc80" <= char <= "\udcff" for char in "".join(texts)):
        raise JobError([Fault(ON_COMMAND_LINE, "an argument or a variable is not UTF-8", "expected text")])
    write = {"kubernetes": _kubernetes, "slurm": _slurm, "compose": _compose}[form]
    job, text = write(options, spec, export_name(spec, _program_name(line.command)))
    for note in (*options.notes, *job.placement.notes):
        say(note)
    print(text, end="")
    return 0


def _program_name(command: Sequence[str]) -> str:
    """Return the name of the job file, script or module in a command line, after which the job is called.

    Code after ``-c`` has no name, and the result is empty.

    Args:
        command: The words of the program, at least one: `build_options` refuses a launch without a program.
    """
    if command[0] == "-c":
        return ""
    name = command[1].rpartition(".")[2] if command[0] == "-m" else command[0]
    return Path(name).stem


def _slurm(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[ExportedJob, str]:
    """Return a job as it is exported for Slurm, and the script for sbatch.

    Args:
        options: The options of the launch.
        spec: The job, which may lack roles that `options` contains.
        name: The name of the exported job.

    Raises:
        JobError: An option of sbatch contains control characters, or the job cannot be placed.
        ProgramError: A program does not exist on this machine.
    """
    check_all_programs_here(options)
    slurm_options: SlurmOptions = options.backend_options
    words = slurm_options.for_job(spec)  # These are the options of sbatch.
    if any(not word.isprintable() for word in words):
        raise JobError([Fault("--slurm-options", "an option has control characters", "expected one line")])
    # By default the tasks of a launch run launch's own Python, which the nodes may not have.
    python = spec.python if options.settings.is_given(PYTHON) else DEFAULT_PYTHON
    if spec.venv:
        python = VENV_PYTHON
        # If the user sets no PATH, the environment's folder stands before that of the node. The script writes
        # a name between two `MARK` as a variable of bash.
        path = dict(spec.env + spec.option_env).get("PATH", f"{MARK}PATH{MARK}")
        # These are the variables that an activated environment sets.
        variables = environment_variables({"PATH": path}, spec.venv)
        spec = replace(spec, env=spec.env + tuple(variables.items()))
    # Only the running job knows the GPUs of its nodes.
    roles = tuple(replace(role, gpus=None) for role in spec.roles)
    spec = replace(spec, roles=roles, python=python, venv=None)
    # The script finds out the nodes and ports when it runs. This host and this port only stand in for them.
    job = export_plan(spec, [Host("node")], port=1, name=name)
    return job, slurm.batch_script(job, words)


def _container_options(options: LaunchOptions, *names: str) -> Any:
    """Return the options of the backend of a launch, which must be one that runs tasks in images.

    Args:
        options: The options of the launch.
        names: The names of the backends that the form accepts.

    Raises:
        JobError: The launch uses another backend, so no image is named.
    """
    if options.backend.name not in names:
        wanted = " or ".join(f"--{name} IMAGE" for name in names)
        expected = f"expected {wanted}, or image: of roles"
        raise JobError([Fault(ON_COMMAND_LINE, "no image is named", expected)])
    return options.backend_options


def _kubernetes(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[ExportedJob, str]:
    """Return a job as it is exported for Kubernetes, and its manifests.

    Args:
        options: The options of the launch, with those of ``--kubernetes`` or ``--docker``.
        spec: The job. It is that of the options, without what an export cannot contain.
        name: The name of the exported job.

    Raises:
        JobError: No image is named, the user is not a number, or the job cannot be placed.
    """
    pod_options = _container_options(options, "kubernetes", "docker")
    # Options of --kubernetes were checked with all others. Those of --docker become options of pods. They may
    # name a user that pods cannot have, because pods need the number of a user.
    if isinstance(pod_options, DockerOptions):
        pod_options = from_attributes(KubernetesOptions, pod_options, KubernetesOptions())
        if faults := list(user_faults(pod_options)):
            raise JobError(faults)
    # With --workdir the tasks run in a folder of their images, which must contain the program then.
    files, notes = ({}, []) if options.settings.is_given(WORKDIR) else program_files(spec)
    for note in notes:
        say(note)
    # Each role gets the limits and GPUs of its containers, and the Python of the image.
    spec = with_limits(spec, pod_options, options.settings)
    hosts = []
    task_pods, _ = task_hosts(spec)
    for host in task_pods:
        index = host.name.rpartition("-")[2]  # The host of a task is named ROLE-INDEX.
        hosts.append(replace(host, address=kubernetes.host_name(name, host.roles[0], index)))
    job = export_plan(spec, hosts, TASK_PORT, name)
    return job, kubernetes.manifests(job, pod_options, user_of(pod_options), files)


def _compose(options: LaunchOptions, spec: JobSpec, name: str) -> tuple[ExportedJob, str]:
    """Return a job as it is exported for Docker Compose, and its file.

    Args:
        options: The options of the launch, with those of ``--docker``.
        spec: The job, which may lack roles that `options` contains.
        name: The name of the exported job.

    Raises:
        JobError: No image is named, or the job cannot be placed.
    """
    docker: DockerOptions = _container_options(options, "docker")
    # Each role gets the limits and GPUs of its containers, and the Python of the image.
    spec = with_limits(spec, docker, options.settings, mounts_folder=not docker.no_mount)
    # `task_hosts` also returns the GPUs of each host, which depend on the machine that uses the file.
    job = export_plan(spec, task_hosts(spec)[0], TASK_PORT, name)
    # By default tasks run as the user who exports the job, as in a launch.
    return job, compose.compose_file(job, docker, docker.user or f"{os.getuid()}:{os.getgid()}")
