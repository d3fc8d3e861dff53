"""The table of all keys: of job files, roles, ``docker:``, hostfiles and hosts.

The descriptions are for users: the reference documentation is made of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from launcher.config import values
from launcher.config.hostlist import parse_address, split_entries
from launcher.config.values import comma_separated, duration, flag, one_line
from launcher.job import MOST_TASKS, OnFailure


class Form(enum.Enum):
    """What may stand at a key."""

    VALUE = "one value"
    LIST = "a list of values, or one text that stands for several"
    LABELS = "a list of labels, one text with commas, or a mapping (``zone: a``)"
    PAIRS = "a mapping of names to texts"
    BY_ROLE = "one value for every role, or a mapping of roles to values"
    NODE = "more than one form: `launcher.config.jobfile` or `launcher.config.hostfile_yaml` reads it"


VALUE, LIST, LABELS, PAIRS, BY_ROLE, NODE = Form


def alone(text: str) -> Sequence[str]:
    """A text that stands for itself: a path may hold commas and blanks."""
    return (text,)


class Key(NamedTuple):
    """One key of a mapping."""

    name: str
    help: str
    form: Form = VALUE
    #: Makes a value of one text (of ``PAIRS``: of the name), or raises ``ValueError`` with what it expected.
    read: Callable[[str], Any] = str
    #: What one text stands for, where a list may stand.
    split: Callable[[str], Sequence[str]] = alone


Keys = dict[str, Key]


def _table(*keys: Key) -> Keys:
    return {key.name: key for key in keys}


_pull = values.one_of("missing", "always", "never")


def _on_failure(text: str) -> OnFailure:
    return OnFailure(values.one_of("stop", "continue")(text))


_ROLES = Key("roles", "Only tasks of these roles run here.", LIST, values.role_name, comma_separated)
_LABELS = Key("labels", "Words to select hosts by.", LABELS, values.label, comma_separated)
_ENV = Key("env", "Environment variables of the tasks.", PAIRS, values.env_name)
_WORKDIR = Key("workdir", "The folder that the tasks run in.", VALUE, one_line)
_PYTHON = Key("python", "The Python that runs .py files and modules.", VALUE, values.program_path)
_GPUS = Key("gpus", "GPUs per task. Default: a share; 0 for ps.", VALUE, values.whole(0, values.MOST_GPUS))
_COMMAND = Key("command", "What tasks run: a list of words, or a text that is split as a shell does.", NODE)
_PROGRAM = Key("program", "The same as command.", NODE)

#: One host of a hostfile. Plain lines have all but ``name`` and ``env``.
HOST = _table(
    Key("name", "The name or address that ssh connects to, perhaps with ranges: node[01-16]."),
    Key("address", "The address for other tasks. Default: the name.", VALUE, parse_address),
    Key("user", "The login user. Default: as ssh has it.", VALUE, values.user_name),
    Key("port", "The port of the ssh server. Default: as ssh has it.", VALUE, values.whole(1, 65535)),
    Key("slots", "The number of tasks. Default: 1, and more if all hosts are full.", VALUE, values.slots),
    Key("max_slots", "The number of tasks if all slots are taken. Default: slots.", VALUE, values.slots),
    _PYTHON,
    Key("venv", "A virtual environment's folder, or a conda environment's name or folder.", VALUE, one_line),
    _WORKDIR,
    Key("gpus", "How many GPUs the host has, or their ids.", LIST, values.gpu_id, values.gpu_words),
    _ROLES,
    _LABELS,
    _ENV,
)
HOST_DEFAULTS = {name: key for name, key in HOST.items() if name not in ("name", "address")}
HOSTFILE = _table(
    Key("hosts", "The hosts: names, or mappings with what is known of them.", NODE),
    Key("defaults", "Settings of all hosts that do not say otherwise; env is merged.", NODE),
)

RESOURCES = _table(_GPUS)
ROLE = _table(
    Key("count", "The number of tasks. Default: 1.", VALUE, values.whole(0, MOST_TASKS)),
    _COMMAND,
    _PROGRAM,
    _ENV,
    _GPUS,
    Key("resources", "The same as gpus, in the form of Kubernetes: {gpus: 1}.", NODE),
    Key("hosts", "Only these hosts run the tasks; ranges are allowed.", LIST, parse_address, split_entries),
    _LABELS._replace(help="Only hosts with all of these labels run the tasks."),
    Key("service", "The tasks never end by themselves. Default: true for ps and evaluator.", VALUE, flag),
    Key("drain", "How long the tasks may go on when the job is done. Default: 0.", VALUE, duration),
    Key("sidecar", "The tasks serve the job (TensorBoard): their end is not the job's.", VALUE, flag),
    Key("flags", "Append the classic flags. Default: as the job says; false for a sidecar.", VALUE, flag),
    _WORKDIR,
)

DOCKER = _table(
    Key("image", "The image of the containers.", VALUE, values.image),
    Key("mounts", "Folders of the host in the container, SRC:DST or SRC:DST:ro.", LIST, one_line),
    Key("no_mount", "Do not mount the working folder.", VALUE, flag),
    Key("read_only", "Mount the working folder read-only.", VALUE, flag),
    Key("memory", "The memory limit of each container: 512m, 2g.", BY_ROLE, values.memory),
    Key("cpus", "The CPU limit of each container.", BY_ROLE, values.cpus),
    Key("user", "The user of the tasks, UID:GID. Default: you.", VALUE, one_line),
    Key("pull", "When to pull it. Default: missing.", VALUE, _pull),
    _GPUS._replace(help="GPUs for each task of a role that does not say, ps excepted."),
    Key("keep", "Leave the containers when the job is over.", VALUE, flag),
    Key("options", "Other options of docker run, without dashes: shm_size: 1g.", NODE),
)

JOB = _table(
    _COMMAND,
    _PROGRAM,
    Key("roles", "The roles: a number of tasks, or a mapping.", NODE),
    Key("hosts", "A hostfile, a host list, or a list of hosts as in a hostfile.", NODE),
    _ENV,
    Key("flags", "Append --ps_hosts, --worker_hosts, --job_name and --task_index to arguments.", VALUE, flag),
    _WORKDIR,
    _PYTHON,
    Key("on_failure", "What one failed task means for the others. Default: stop.", VALUE, _on_failure),
    Key("grace", "How long after SIGTERM the harder signals come. Default: 10s.", VALUE, duration),
    Key("timeout", "The limit for the whole job. Default: 0, which is no limit.", VALUE, duration),
    Key("run_dir", "The folder of this run's files: new or empty.", VALUE, one_line),
    Key("output_dirs", "Give each task a folder for results, in OUTPUT_DIR.", VALUE, flag),
    Key("sync", "Folders of this machine that the hosts get before the job starts.", LIST, one_line),
    Key("collect", "Paths that are copied from the hosts when the job ends.", LIST, one_line),
    Key("docker", "An image, or a mapping: each task runs in a container.", NODE),
)
