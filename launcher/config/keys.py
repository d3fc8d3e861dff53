"""The table of all keys: of job files, roles, ``docker:``, hostfiles and hosts.

The descriptions are for users: the reference documentation is made of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from launcher.config import values
from launcher.config.hostlist import parse_address, split_entries
from launcher.job import MOST_TASKS, OnFailure


class Form(enum.Enum):
    """What may stand at a key."""

    VALUE = "one value"
    LIST = "a list of values, or one text that stands for several"
    LABELS = "a list of labels, one text with commas, or a mapping (``zone: a``)"
    PAIRS = "a mapping of names to texts"
    BY_ROLE = "one value for every role, or a mapping of roles to values"
    OPTIONS = "a mapping of options to one value or a list of values"
    NODE = "more than one form: the caller reads it"


def alone(text: str) -> Sequence[str]:
    """A text that stands for itself: a path may hold commas and blanks."""
    return (text,)


class Key(NamedTuple):
    """One key of a mapping."""

    name: str
    help: str
    #: Makes a value of one text (of ``PAIRS``: of the name), or raises ``ValueError`` with what it expected.
    read: Callable[[str], Any] = str
    form: Form = Form.VALUE
    #: What one text stands for, where a list may stand.
    split: Callable[[str], Sequence[str]] = alone
    #: What counts if the key is not written; empty: nothing.
    default: str = ""


Keys = dict[str, Key]


def _table(*keys: Key) -> Keys:
    return {key.name: key for key in keys}


_ROLES = Key(
    "roles",
    "Only tasks of these roles run on this host.",
    values.role_name,
    Form.LIST,
    values.comma_separated,
)
_LABELS = Key("labels", "Words to select hosts by.", values.label, Form.LABELS, values.comma_separated)
_ENV = Key("env", "Environment variables of the tasks.", values.env_name, Form.PAIRS)
_WORKDIR = Key("workdir", "The folder that the tasks run in.", values.one_line)
_PYTHON = Key("python", "The Python that runs .py files and modules.", values.program_path)

#: One host of a hostfile. Plain lines have all but ``name`` and ``env``.
HOST = _table(
    Key("name", "The name or address that ssh connects to; ranges are allowed, as in node[01-16]."),
    Key("address", "The name or address that other tasks connect to.", parse_address, default="the name"),
    Key("user", "The login user.", values.user_name, default="as ssh has it"),
    Key("port", "The port of the host's ssh server.", values.whole(1, 65535), default="as ssh has it"),
    Key(
        "slots",
        "The number of tasks on this host.",
        values.slots,
        default="1, and more if all hosts are full",
    ),
    Key("max_slots", "How far the host is filled when all slots are taken.", values.slots, default="slots"),
    _PYTHON,
    Key(
        "venv",
        "The folder of a virtual environment, or a conda environment's name or folder.",
        values.one_line,
    ),
    _WORKDIR,
    Key("gpus", "How many GPUs the host has, or their ids.", values.gpu_id, Form.LIST, values.gpu_words),
    _ROLES,
    _LABELS,
    _ENV,
)
HOST_DEFAULTS = {name: key for name, key in HOST.items() if name not in ("name", "address")}
HOSTFILE = _table(
    Key("hosts", "The hosts: names, or mappings with what is known of them.", form=Form.NODE),
    Key("defaults", "Settings of all hosts that do not say otherwise; env is merged.", form=Form.NODE),
)

_PROGRAM = (
    "What the tasks run: a list of words, or one text that is split as a shell does, without expansion."
)
_COMMAND = Key("command", _PROGRAM, form=Form.NODE)
_COMMAND_ALIAS = Key("program", "The same as command.", form=Form.NODE)
_GPUS = Key(
    "gpus", "GPUs for each task.", values.whole(0, values.MOST_GPUS), default="an equal share; 0 for ps"
)

RESOURCES = _table(_GPUS)
ROLE = _table(
    Key("count", "The number of tasks.", values.whole(0, MOST_TASKS), default="1"),
    _COMMAND,
    _COMMAND_ALIAS,
    _ENV,
    _GPUS,
    Key("resources", "The same as gpus, in the form of Kubernetes.", form=Form.NODE),
    Key(
        "hosts",
        "Only these hosts run the tasks; ranges are allowed.",
        parse_address,
        Form.LIST,
        split_entries,
    ),
    _LABELS._replace(help="Only hosts with all of these labels run the tasks."),
    Key(
        "service",
        "The tasks never end by themselves: they are stopped when the job is done.",
        values.flag,
        default="true for ps and evaluator",
    ),  # fmt: skip
    Key("drain", "How long the tasks may go on when the job is done.", values.duration, default="0"),
    Key(
        "sidecar",
        "The tasks serve the job (TensorBoard): their end is not the job's.",
        values.flag,
        default="false",
    ),  # fmt: skip
    Key(
        "flags",
        "Append the classic flags to the program's arguments.",
        values.flag,
        default="flags of the job; false for a sidecar",
    ),  # fmt: skip
    _WORKDIR,
)

DOCKER = _table(
    Key("image", "The image of the containers.", values.image),
    Key("mounts", "Folders of the host in the container, SRC:DST or SRC:DST:ro.", values.one_line, Form.LIST),
    Key("no_mount", "Do not mount the working folder.", values.flag, default="false"),
    Key("read_only", "Mount the working folder read-only.", values.flag, default="false"),
    Key("memory", "The memory limit of each container: 512m, 2g.", values.memory, Form.BY_ROLE),
    Key("cpus", "The CPU limit of each container.", values.cpus, Form.BY_ROLE),
    Key("user", "The user of the tasks, UID:GID.", values.one_line, default="you"),
    Key("pull", "When to pull the image.", values.one_of("missing", "always", "never"), default="missing"),
    _GPUS._replace(help="GPUs for each task of a role that does not say, ps excepted."),
    Key("keep", "Leave the containers when the job is over.", values.flag, default="false"),
    Key(
        "options", "Other options of docker run, without dashes: shm_size: 1g.", values.one_line, Form.OPTIONS
    ),
)

JOB = _table(
    _COMMAND,
    _COMMAND_ALIAS,
    Key("roles", "The roles: a number of tasks, or a mapping.", form=Form.NODE),
    Key("hosts", "A hostfile, a host list, or a list of hosts as in a hostfile.", form=Form.NODE),
    _ENV,
    Key(
        "flags",
        "Append --ps_hosts, --worker_hosts, --job_name and --task_index to the arguments.",
        values.flag,
        default="false",
    ),  # fmt: skip
    _WORKDIR,
    _PYTHON,
    Key(
        "on_failure",
        "What one failed task means for the others: stop or continue.",
        lambda text: OnFailure(values.one_of("stop", "continue")(text)),
        default="stop",
    ),  # fmt: skip
    Key("grace", "How long after SIGTERM the harder signals come.", values.duration, default="10s"),
    Key("timeout", "The limit for the whole job; 0 is no limit.", values.duration, default="0"),
    Key("run_dir", "The folder of this run's files: new or empty.", values.one_line),
    Key("output_dirs", "Give each task a folder for results, in OUTPUT_DIR.", values.flag, default="false"),
    Key(
        "sync",
        "Folders of this machine that the hosts get before the job starts.",
        values.one_line,
        Form.LIST,
    ),
    Key("collect", "Paths that are copied from the hosts when the job ends.", values.one_line, Form.LIST),
    Key("docker", "An image, or a mapping: each task runs in a container.", form=Form.NODE),
)
