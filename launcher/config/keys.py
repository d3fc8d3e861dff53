"""The tables of keys: of job files, roles, hostfiles and hosts. A transport has its own in its module.

The descriptions are for users: the reference documentation is made of them.
"""

from __future__ import annotations

from launcher.config import values
from launcher.config.hostlist import parse_address, split_entries
from launcher.config.schema import Form, Key, table
from launcher.config.values import comma_separated, duration, flag, one_line
from launcher.job import MOST_TASKS, OnFailure

VALUE, LIST, LABELS, PAIRS, _, NODE = Form


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
HOST = table(
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
HOSTFILE = table(
    Key("hosts", "The hosts: names, or mappings with what is known of them.", NODE),
    Key("defaults", "Settings of all hosts that do not say otherwise; env is merged.", NODE),
)

RESOURCES = table(_GPUS)
ROLE = table(
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

JOB = table(
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
)
