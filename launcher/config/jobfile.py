"""Job files: YAML -> the roles of a job, the settings of the launch, and perhaps the hosts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.common.cluster import TENSORFLOW_ROLES
from launcher.common.errors import JobError
from launcher.common.text import closest_match
from launcher.config import hostfile, schema, values
from launcher.config.documents import is_tfjob, job_document
from launcher.config.hostfile import ENV, LABELS, PYTHON, VENV, WORKDIR
from launcher.config.options import NO_TARGET, Target
from launcher.config.options import JobFile as JobFile
from launcher.config.schema import (
    ConfigNode,
    FaultList,
    Keys,
    KeySpec,
    MappingValues,
    Section,
    mapping,
    quoted,
    several,
    single,
    table,
    text_of,
)
from launcher.job import (
    MAX_TASKS,
    RESTART_CHOICES,
    ROLE_RESTART_CHOICES,
    SERVICE_ROLES,
    SINGLE_ROLES,
    Program,
    ProgramKind,
    Role,
    deciding_roles,
)

#: Placeholder for a program that is missing, which is a fault.
_NO_PROGRAM = Program(ProgramKind.EXECUTABLE, "")
#: Words of a command line that a shell does not pass to a program.
_SHELL_OPERATORS = frozenset({"&&", "||", "|", ";", ">", ">>", "<", "2>&1", "&>"})


# ---------------------------------------------------------------------- keys


def _program(node: ConfigNode, label: str, faults: FaultList) -> Program | None:
    """Read a program: a list of words, or a text that is split as a shell does, without expansions."""
    if isinstance(node.value, list):
        command = [text for item in node.value if (text := text_of(item, label, faults)) is not None]
        if len(command) < len(node.value):
            return None
        return faults.check(node.line, label, " ".join(command), lambda _: Program.of(command))
    text = text_of(node, label, faults)
    return None if text is None else faults.check(node.line, label, text, _split_program)


def _split_program(text: str) -> Program:
    try:
        command = shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None
    return Program.of(command)


def _duration(text: str) -> str:
    values.duration(text)
    return text


def _logdir(text: str) -> str | None:
    """The folder; empty for ``true``: the default; ``None`` for ``false``."""
    try:
        return "" if values.flag(text) else None
    except ValueError:
        return values.one_line(text)


_FLAG = single(values.flag)
_DURATION = single(_duration)
_PATH = single(values.one_line)
_COMMAND_HELP = "The program and its arguments: a list, or a text that is split as a shell does."
_COMMAND = KeySpec("command", _COMMAND_HELP, _program)
_WHOLE_GPUS = single(values.whole(0, values.MAX_GPUS))
_GPUS = KeySpec("gpus", "GPUs per task. Default: a share; 0 for ps.", _WHOLE_GPUS)
_GPU_RESOURCE = "nvidia.com/gpu"
_QUANTITIES = mapping(
    table(
        KeySpec("cpu", "CPUs, as in 2 or 500m.", single(values.cpu_quantity)),
        KeySpec("memory", "Memory, as in 512Mi or 2Gi.", single(values.memory_quantity)),
        KeySpec(_GPU_RESOURCE, "GPUs.", _WHOLE_GPUS),
    ),
    f"expected a mapping with cpu:, memory: or {_GPU_RESOURCE}:",
)
_RESOURCES = mapping(
    table(
        KeySpec("limits", "What a task may use.", _QUANTITIES),
        KeySpec("requests", "What a task needs.", _QUANTITIES),
    ),
    "expected limits:, or requests:, as in Kubernetes",
)
_HOSTS = several(hostfile.parse_address, hostfile.split_entries)
_ROLE_RESTART = single(values.choice(*ROLE_RESTART_CHOICES))
_IMAGE = single(values.image)
_RETRYABLE = several(values.exit_codes, values.comma_separated)

ROLE = table(
    KeySpec("count", "The number of tasks. Default: 1.", single(values.whole(0, MAX_TASKS))),
    _COMMAND,
    ENV,
    _GPUS,
    KeySpec("image", "The image of the tasks: they run in containers. Default: that of docker.", _IMAGE),
    KeySpec(
        "resources", "Limits of a task in the form of Kubernetes: cpu, memory, nvidia.com/gpu.", _RESOURCES
    ),
    KeySpec("hosts", "Only these hosts run the tasks; ranges are allowed.", _HOSTS),
    LABELS._replace(help="Only hosts with all of these labels run the tasks."),
    KeySpec("service", "The tasks never exit. Default: true for ps and evaluator.", _FLAG),
    KeySpec(
        "drain", "How long the tasks may run after the job is done. Default: 0.", single(values.duration)
    ),
    KeySpec("restart", "What starts again when one of the tasks fails: never, task or job.", _ROLE_RESTART),
    KeySpec(
        "retryable", "Exit codes after which a task starts again, [1, 128-255]. Default: all.", _RETRYABLE
    ),
    KeySpec("sidecar", "The tasks only serve the job (TensorBoard). The job ignores how they end.", _FLAG),
    KeySpec("flags", "Append the classic flags. Default: as for the job; false for a sidecar.", _FLAG),
    WORKDIR,
)

_ROLE_NAME = single(values.role_name)
_ON_FAILURE = single(values.choice("stop", "continue"))
_RESTART = single(values.choice(*RESTART_CHOICES))
_FLAGS_HELP = "Append --ps_hosts, --worker_hosts, --job_name and --task_index to arguments."
_PRELOAD_HELP = "Modules that a process on each host imports once; tasks are forked from it."
_TENSORBOARD_HELP = "Run TensorBoard on this folder; true: on the folder that the tasks run in."
_SYNC_HELP = "Folders of this machine that are copied to the hosts before the job starts."
#: Settings of the launch; options of the same names override them.
_SETTING_KEYS = table(
    ENV,
    KeySpec("flags", _FLAGS_HELP, _FLAG),
    WORKDIR,
    PYTHON,
    VENV,
    KeySpec("preload", _PRELOAD_HELP, several(values.module, values.comma_separated)),
    KeySpec("on_failure", "Whether other tasks stop or continue when one fails. Default: stop.", _ON_FAILURE),
    KeySpec("done_when", "The tasks that decide when the job is done: chief, workers or a role.", _ROLE_NAME),
    KeySpec("grace", "Time from SIGTERM to SIGABRT, which SIGKILL follows. Default: 10s.", _DURATION),
    KeySpec("timeout", "The time limit of the job. 0 (default): unlimited.", _DURATION),
    KeySpec(
        "restarts",
        "How often failed tasks start again, in all. Default: 0.",
        single(values.whole(0, MAX_TASKS)),
    ),
    KeySpec("restart", "What starts again after a failure: auto (default), task or job.", _RESTART),
    KeySpec("stall", "A task that prints nothing for so long has failed. 0 (default): no limit.", _DURATION),
    KeySpec("run_dir", "The folder of this run's files: new or empty.", _PATH),
    KeySpec("output_dirs", "Give each task a folder for results, in OUTPUT_DIR.", _FLAG),
    KeySpec("sync", _SYNC_HELP, several(values.one_line)),
    KeySpec("tensorboard", _TENSORBOARD_HELP, single(_logdir)),
    KeySpec("collect", "Paths that are copied from the hosts when the job ends.", several(values.one_line)),
)
_HOSTS_KEY = KeySpec("hosts", "A hostfile, a host list, or a list of hosts as in a hostfile.")
JOB = table(
    _COMMAND,
    KeySpec("roles", "The roles: a number of tasks, or a mapping."),
    _HOSTS_KEY,
    *_SETTING_KEYS.values(),
)

_COUNT = single(values.whole(0, MAX_TASKS))
#: Options that only defaults have as keys: job files have roles.
COUNTS = table(
    KeySpec("ps", "The number of parameter servers.", _COUNT),
    KeySpec("workers", "The number of workers.", _COUNT),
    KeySpec("chief", "Whether there is a chief.", _FLAG),
    KeySpec("evaluator", "Whether there is an evaluator.", _FLAG),
    _GPUS,
)
#: The keys of ``[tool.launch]`` and ``launch.toml``, without those of the transports.
DEFAULTS = table(
    *COUNTS.values(), _HOSTS_KEY, *(key for key in _SETTING_KEYS.values() if key.name != "run_dir")
)


# ---------------------------------------------------------------------- the file


def read_job_file(
    path: str,
    roles: Mapping[str, Any] = {},
    sections: Mapping[str, Section] = {},
    target: Target = NO_TARGET,
) -> JobFile:
    """Read a job file; its paths become absolute. See `parse_job`.

    Raises:
        JobError: the file can't be read.
    """
    folder = os.path.dirname(os.path.abspath(path))
    return parse_job(schema.read_text(path, "job file", JobError), path, roles, sections, folder, target)


def parse_job(
    text: str,
    source: str,
    roles: Mapping[str, Any] = {},
    sections: Mapping[str, Section] = {},
    folder: str = "",
    target: Target = NO_TARGET,
) -> JobFile:
    """Read a job file, or a TFJob of Kubeflow.

    Args:
        text: its content; may be empty if there are ``roles``.
        source: its name, for messages.
        roles: name -> a count, or keys of a role, which replace the keys of the file's role. If one of them
            has a ``command``, other roles of the file are kept only if they have their own program.
        sections: the keys of the transports, see `launcher.backends.sections`.
        folder: of the file: paths in it are relative to this folder. Programs are not changed: they are
            relative to the folder that they run in.
        target: what the command line says about a TFJob; other job files take no program.
    """
    faults = FaultList(source)
    text = text.removeprefix("\ufeff")
    notes: Sequence[str]
    node, notes = job_document(text, faults) if text or not roles else (ConfigNode({}), ())
    if node is not None and not isinstance(node.value, dict):
        faults.add_kind(node, "the file", "expected a mapping, with roles:")
        node = None
    elif node is not None and is_tfjob(node):
        from launcher.config.tfjob import job_of

        made, more_notes = job_of(node, target, faults)
        node, notes = None if faults else made, (*notes, *more_notes)
    elif node is not None and target.program:
        faults.add(0, f"unexpected argument {target.program[0]!r}", "only options follow a job file")
    if node is None:
        return JobFile(faults=faults.all())
    node = _overlaid(node, roles, faults) if roles else node
    found = _JobFileReader(node, faults, sections, folder, notes).job_file()
    return found._replace(roles=(), sections={}, faults=faults.all()) if faults else found


def _below_roles(key: str) -> str:
    """For an unknown key at the top: where it belongs, if it is a key or the name of a role; else empty."""
    lower = key.lower()
    role = next((role for role in TENSORFLOW_ROLES if lower in (role, f"{role}s")), "")
    if role:
        return f"expected it below roles:, as in {role}: 1"
    if lower == "name":
        return "leave it out: launch names the run"
    return "expected it in a role, below roles:" if key in ROLE and key != "image" else ""


def _in_job_file(key: str) -> str:
    """For an unknown key of the defaults: where it belongs, if it is a key of job files; else empty."""
    if key == "run_dir":
        return "expected --run-dir: each run has a new folder"
    return "expected it in a job file: launch job.yaml" if key in {*JOB, *ROLE} - {"image"} else ""


def read_defaults(
    node: ConfigNode, faults: FaultList, sections: Mapping[str, Section], folder: str
) -> JobFile:
    """Read the defaults of launches, a mapping with the keys of `DEFAULTS`.

    Args:
        node: the mapping.
        faults: new faults are added.
        sections, folder: see `parse_job`.

    Returns:
        The settings, the counts of tasks among them, and the sections; no roles.
    """
    reader = _JobFileReader(node, faults, sections, folder, keys=DEFAULTS, elsewhere=_in_job_file)
    found = reader.content(reader.settings(), (), TENSORFLOW_ROLES)
    return found._replace(sections={}, faults=faults.all()) if faults else found


class _JobFileReader:
    """Reads a job file, or defaults."""

    def __init__(
        self,
        node: ConfigNode,
        faults: FaultList,
        sections: Mapping[str, Section],
        folder: str,
        notes: Sequence[str] = (),
        keys: Keys = JOB,
        elsewhere: Callable[[str], str] = _below_roles,
    ) -> None:
        self.faults = faults
        self.sections = sections
        self.folder = folder
        self.notes = [*notes]
        keys = {**keys, **{name: KeySpec(name, part.help) for name, part in sections.items()}}
        self.top = schema.read_mapping(node, keys, faults, elsewhere)

    def job_file(self) -> JobFile:
        """The content of the file."""
        settings, roles = self.settings(), self._roles()
        return self.content(settings, roles, tuple(self.top["roles"].value) if roles else ())

    def settings(self) -> dict[str, Any]:
        """The settings of the launch, with absolute paths."""
        top = self.top
        settings = top.some(*COUNTS, *_SETTING_KEYS)
        if "workdir" in settings:
            settings["workdir"] = self._below(settings["workdir"])
        for name in ("python", "venv"):
            if "/" in settings.get(name, ""):
                settings[name] = self._below(settings[name])
        if "run_dir" in settings:
            settings["run_dir"] = self._here(settings["run_dir"])
        if "sync" in settings:
            settings["sync"] = tuple(map(self._here, settings["sync"]))
        hosts = top.get("hosts")
        if hosts is not None and isinstance(hosts.value, str):
            path = self._here(hosts.value)
            is_file = os.path.exists(path) and not os.path.isdir(path)
            found = path if is_file or hostfile.names_file(hosts.value) else hosts.value
            settings["hosts"] = self.faults.check(hosts.line, "hosts", found, values.one_line)
        elif hosts is not None:
            settings["hosts"] = hostfile.read_host_list(hosts, self.faults)
        return settings

    def content(self, settings: dict[str, Any], roles: tuple[Role, ...], names: Sequence[str]) -> JobFile:
        """The content of the file, with the sections of the transports.

        Args:
            settings, roles: of the file.
            names: of the roles that sections may name.
        """
        top, sections = self.top, {}
        for name in self.sections.keys() & top.keys():
            sections[name] = self.sections[name].read(top[name], names, self.faults)
        sources = {key: self.faults.where(top.line_of(key)) for key in top.nodes}
        notes = tuple(dict.fromkeys(self.notes))
        return JobFile(roles, settings, sections, sources, notes)

    def _below(self, path: str) -> str:
        """A path that may be on another machine: ``~`` stays, as the home there is another one."""
        return path if path.startswith("~") else os.path.join(self.folder, path)

    def _here(self, path: str) -> str:
        return os.path.join(self.folder, os.path.expanduser(path))

    # ------------------------------------------------------------------ roles

    def _above_roles(self, key: str) -> str:
        """For an unknown key of a role: where it belongs, if it is a key of the job; else empty."""
        if key == "container":
            return 'expected "image"'
        return "expected it at the top of the file, beside roles:" if key in {*JOB, *self.sections} else ""

    def _roles(self) -> tuple[Role, ...]:
        """The roles that have tasks, in the order written; a job without tasks is a fault."""
        faults, top = self.faults, self.top
        node = top.get("roles", ConfigNode({}))
        if not isinstance(node.value, dict):
            faults.add_kind(node, "roles", "expected a mapping, as in worker: 4")
            return ()
        if "command" in top:
            self._note_variables(top.nodes["command"].key_line, top["command"])
        found = []
        for name, written in node.value.items():
            if ":" in name:  # {worker:2} is a key without a value
                faults.add(written.key_line, f"role is {quoted(name)}", 'expected a space after the ":"')
                continue
            faults.check(written.key_line, "role", name, values.role_name)
            if not isinstance(written.value, (str, dict)):
                expected = "expected a count, or a mapping with count:"
                faults.add_kind(written, f"role {quoted(name)}", expected)
                continue
            keys = schema.read_mapping(_role_mapping(written), ROLE, faults, self._above_roles, f"of {name}")
            found.append((self._role(name, written.key_line, keys), keys))
        roles = tuple(role for role, _ in found if role.count)
        if faults:  # one of them may be the reason why something seems to be missing
            return roles
        if not roles:
            top.add("roles", "no task in any role", "expected at least one below roles:, as in worker: 1")
        elif all(role.sidecar for role in roles):
            top.add("roles", "sidecars only", "expected another role, which decides when the job is done")
        waited = deciding_roles(roles, top.get("done_when", ""))
        for role, keys in found:
            if role.drain and not role.service and waited.get(role.name) == role.count:
                expected = (
                    "expected it beside a chief, or a role of done_when: the job waits for this one anyway"
                )
                keys.add("drain", f'"drain" for {quoted(role.name)}', expected)
        return roles

    def _role(self, name: str, line: int, keys: MappingValues) -> Role:
        count, sidecar = keys.get("count", 1), keys.get("sidecar")
        owner = keys if "command" in keys.nodes else self.top
        if "command" not in owner.nodes and count and not (keys.misspelt or self.top.misspelt):
            expected = "expected command: in the role, or once for all roles"
            self.faults.add(line, f"role {quoted(name)} has no program", expected)
        if owner is keys and "command" in keys:
            self._note_variables(keys.line_of("command"), keys["command"])
        self._note_name(name, line)
        if count > 1 and name in SINGLE_ROLES:
            keys.add("count", f'{name} is "{count}"', "expected at most 1: TensorFlow takes no more")
        if sidecar and name in TENSORFLOW_ROLES:
            expected = "expected a role with a name of your own: the job needs this one"
            keys.add("sidecar", f"{name} as a sidecar", expected)
        limits = self._limits(name, keys)
        for key in ("gpus", "drain", "restart", "retryable") if sidecar else ():
            if keys.get(key):
                expected = "expected one of them: a sidecar has no GPU, is stopped with the job, and may fail"
                keys.add(key, f'"{key}" and "sidecar" both', expected)
        if "workdir" in keys:
            keys["workdir"] = self._below(keys["workdir"])
        return Role(
            name,
            count,
            owner.get("command", _NO_PROGRAM),
            gpus=keys.get("gpus"),
            hosts=tuple(dict.fromkeys(host for names in keys.get("hosts", ()) for host in names)),
            service=keys.get("service", name in SERVICE_ROLES) or bool(sidecar),
            source=self.faults.where(line),
            program_source=self.faults.where(owner.line_of("command")),
            **limits,
            **keys.some(
                "env", "labels", "drain", "sidecar", "workdir", "restart", "flags", "retryable", "image"
            ),
        )

    def _limits(self, name: str, keys: MappingValues) -> Mapping[str, Any]:
        """The limits in ``resources:`` of a role; that of GPUs becomes its ``gpus:``."""
        limits, requests = (keys.get("resources", {}).get(part, {}) for part in ("limits", "requests"))
        for key, least in requests.items():
            most = limits.get(key)
            if (least != most) if key == _GPU_RESOURCE else (most is not None and least > most):
                expected = "expected at most the limit; as many GPUs as in limits:"
                keys.add("resources", f"{key} of {name}: requests: and limits: do not fit", expected)
        if requests.keys() - {_GPU_RESOURCE}:
            why = f"requests: of {name}: launch reserves no CPUs and no memory; limits: and slots limit tasks"
            self.notes.append(f"{self.faults.where(keys.line_of('resources'))}: {why}")
        if (
            _GPU_RESOURCE in limits
            and keys.setdefault("gpus", limits[_GPU_RESOURCE]) != limits[_GPU_RESOURCE]
        ):
            keys.add(
                "gpus", f"gpus of {name} differs from {_GPU_RESOURCE} in limits:", "expected one of them"
            )
        return {field: limits[key] for key, field in (("cpu", "cpus"), ("memory", "memory")) if key in limits}

    def _note_name(self, name: str, line: int) -> None:
        """Add a note on a name that is similar to one of TensorFlow's."""
        lower = name.lower()
        meant = "" if name in TENSORFLOW_ROLES else closest_match(lower, TENSORFLOW_ROLES)
        if meant and (lower in (meant, f"{meant}s") or meant not in lower):
            problem = f'role {quoted(name)}: did you mean "{meant}"?'
            why = "TensorFlow does not know it: it is not in TF_CONFIG's cluster"
            self.notes.append(f"{self.faults.where(line)}: {problem} {why}")

    def _note_variables(self, line: int, program: Program) -> None:
        """Add a note on what only a shell would understand in arguments: ``$NAME``, ``&&`` and the like."""
        if program.kind is ProgramKind.CODE or "-c" in program.args:
            return
        pairs = zip(("", *program.args), program.args, strict=False)  # `--separator '|'` is meant so
        operators = [word for before, word in pairs if word in _SHELL_OPERATORS and before[:1] != "-"]
        if operators:
            problem = f"the program gets {operators[0]} as it is written: no shell reads it"
            advice = "[sh, -c, '...'] with the whole command in the quotes runs it in a shell"
            self.notes.append(f"{self.faults.where(line)}: {problem}; {advice}")
        elif match := re.search(r"\$(\w+|\{\w+\})", " ".join(program.args), re.ASCII):
            problem = f"the program gets {match[0]} as it is written: no shell expands it"
            advice = f"[sh, -c, 'exec {program.name} ...'] expands it from the task's environment"
            self.notes.append(f"{self.faults.where(line)}: {problem}; {advice}")


def _role_mapping(node: ConfigNode) -> ConfigNode:
    """The mapping of a role; ``worker: 4`` is short for ``worker: {count: 4}``."""
    return node._replace(value={"count": node}) if isinstance(node.value, str) else node


def _overlaid(node: ConfigNode, roles: Mapping[str, Any], faults: FaultList) -> ConfigNode:
    """A job file with other roles, see `parse_job`."""
    old = node.value.get("roles", ConfigNode({}))
    if not isinstance(old.value, dict):  # a fault, which `_JobFileReader` reports
        return node
    new_program = any(isinstance(role, dict) and "command" in role for role in roles.values())
    merged = {
        name: role
        for name, role in old.value.items()
        if name in roles or not new_program or (isinstance(role.value, dict) and "command" in role.value)
    }
    for name, role in roles.items():
        keys = role if isinstance(role, dict) else {"count": role}
        before = _role_mapping(merged.get(name, ConfigNode({})))
        if isinstance(before.value, dict):
            before = before._replace(value={**before.value, **schema.node_of(keys, faults).value})
        merged[name] = before
    return node._replace(value={**node.value, "roles": old._replace(value=merged)})
