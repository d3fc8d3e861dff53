"""Job files: YAML -> the roles of a job, the settings of the launch, and perhaps the hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.common.cluster import TENSORFLOW_ROLES
from launcher.common.errors import JobError
from launcher.common.record import replace
from launcher.common.text import closest_match
from launcher.config import hostfile, schema, table, values
from launcher.config.documents import (
    NO_TARGET,
    ConfigNode,
    FaultList,
    Target,
    is_tfjob,
    job_document,
    node_of,
    quoted,
    read_text,
)
from launcher.config.hostfile import ENV, LABELS, WORKDIR
from launcher.config.levels import file_level, keys_of
from launcher.config.schema import KeySpec, MappingValues, key_table, mapping, mapping_of, several, single
from launcher.config.settings import FileContent, FileSection, SourceKind
from launcher.config.values import GPU_RESOURCE, QUANTITIES
from launcher.job import (
    MAX_TASKS,
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


_FLAG = single(values.flag)
_GPUS = KeySpec("gpus", single(QUANTITIES[GPU_RESOURCE]), "GPUs per task. Default: a share; 0 for ps.")
_QUANTITIES = mapping(
    key_table(*(KeySpec(name, single(read)) for name, read in QUANTITIES.items())),
    f"expected a mapping with cpu:, memory: or {GPU_RESOURCE}:",
)
_RESOURCES = mapping(
    key_table(KeySpec("limits", _QUANTITIES), KeySpec("requests", _QUANTITIES)),
    "expected limits:, or requests:, as in Kubernetes",
)
_HOSTS = several(hostfile.parse_address, hostfile.split_entries)
_ROLE_RESTART = single(values.OneOf(*ROLE_RESTART_CHOICES))
_IMAGE = single(values.image)
_RETRYABLE = several(values.exit_codes, values.comma_separated)

ROLE = key_table(
    KeySpec("count", single(values.whole(0, MAX_TASKS)), "The number of tasks. Default: 1."),
    KeySpec("command", table.read_program, table.COMMAND.key_help),
    ENV,
    _GPUS,
    KeySpec("image", _IMAGE, "The image of the tasks: they run in containers. Default: that of docker."),
    KeySpec(
        "resources", _RESOURCES, "Limits of a task in the form of Kubernetes: cpu, memory, nvidia.com/gpu."
    ),
    KeySpec("hosts", _HOSTS, "Only these hosts run the tasks; ranges are allowed."),
    replace(LABELS, help="Only hosts with all of these labels run the tasks."),
    KeySpec("service", _FLAG, "The tasks never exit. Default: true for ps and evaluator."),
    KeySpec(
        "drain", single(values.duration), "How long the tasks may run after the job is done. Default: 0."
    ),
    KeySpec("restart", _ROLE_RESTART, "What starts again when one of the tasks fails: never, task or job."),
    KeySpec(
        "retryable", _RETRYABLE, "Exit codes after which a task starts again, [1, 128-255]. Default: all."
    ),
    KeySpec("sidecar", _FLAG, "The tasks only serve the job (TensorBoard). The job ignores how they end."),
    KeySpec("flags", _FLAG, "Append the classic flags. Default: as for the job; false for a sidecar."),
    WORKDIR,
)


# ---------------------------------------------------------------------- the file


def read_job_file(
    path: str,
    roles: Mapping[str, Any] = {},
    sections: Sequence[FileSection] = (),
    target: Target = NO_TARGET,
) -> FileContent:
    """Read a job file; its paths become absolute. See `parse_job`."""
    try:
        text = read_text(path, "job file", JobError)
    except JobError as error:
        return FileContent(faults=error.faults)
    return parse_job(text, path, roles, sections, os.path.dirname(os.path.abspath(path)), target)


def parse_job(
    text: str,
    source: str,
    roles: Mapping[str, Any] = {},
    sections: Sequence[FileSection] = (),
    folder: str = "",
    target: Target = NO_TARGET,
) -> FileContent:
    """Read a job file, or a TFJob of Kubeflow.

    Args:
        text: its content; may be empty if there are ``roles``.
        source: its name, for messages.
        roles: name -> a count, or keys of a role, which replace the keys of the file's role. If one of them
            has a ``command``, other roles of the file are kept only if they have their own program.
        sections: those of the backends.
        folder: of the file: paths in it are relative to this folder. Programs are not changed: they are
            relative to the folder that they run in.
        target: what the command line says about a TFJob; other job files take no program.
    """
    text, faults, notes = text.removeprefix("\ufeff"), FaultList(source), list[str]()
    node = job_document(text, faults, notes) if text or not roles else ConfigNode({})
    if node is not None and is_tfjob(node):
        from launcher.config.tfjob import job_of  # noqa: PLC0415 - few job files are TFJobs

        node = job_of(node, target, faults, notes)
    elif node is not None and target.program:
        faults.add(0, f"unexpected argument {target.program[0]!r}", "only options follow a job file")
    if node is None:
        return FileContent(faults=faults.all())
    node = _overlaid(node, roles, faults) if roles else node
    return _JobFileReader(node, faults, sections, folder, notes).content()


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
    known = {*ROLE, *keys_of(table.ROWS, SourceKind.JOB_FILE)} - {"image"}
    return "expected it in a job file: launch job.yaml" if key in known else ""


def read_defaults(
    node: ConfigNode, faults: FaultList, sections: Sequence[FileSection], folder: str
) -> FileContent:
    """Read the settings of a project file.

    Args:
        node: a mapping.
        faults: new faults are added.
        sections, folder: see `parse_job`.
    """
    keys = keys_of(table.ROWS, SourceKind.PROJECT_FILE, sections)
    top = schema.read_mapping(node, keys, faults, _in_job_file)
    level = file_level(top, sections, TENSORFLOW_ROLES, SourceKind.PROJECT_FILE, folder)
    return FileContent(level, faults=faults.all())


class _JobFileReader:
    """Reads a job file."""

    def __init__(
        self,
        node: ConfigNode,
        faults: FaultList,
        sections: Sequence[FileSection],
        folder: str,
        notes: list[str],
    ) -> None:
        self.faults = faults
        self.sections = sections
        self.folder = folder
        self.notes = notes
        self.keys = keys_of(table.ROWS, SourceKind.JOB_FILE, sections)
        self.top = schema.read_mapping(node, self.keys, faults, _below_roles)

    def content(self) -> FileContent:
        """The content of the file."""
        roles = self._roles()
        names = tuple(self.top["roles"].value) if roles else ()
        level = file_level(self.top, self.sections, names, SourceKind.JOB_FILE, self.folder)
        roles = () if self.faults else roles
        return FileContent(
            level, roles=roles, notes=tuple(dict.fromkeys(self.notes)), faults=self.faults.all()
        )

    # ------------------------------------------------------------------ roles

    def _above_roles(self, key: str) -> str:
        """For an unknown key of a role: where it belongs, if it is a key of the job; else empty."""
        if key == "container":
            return 'expected "image"'
        return "expected it at the top of the file, beside roles:" if key in self.keys else ""

    def _roles(self) -> tuple[Role, ...]:
        """The roles that have tasks, in the order written; a job without tasks is a fault."""
        faults, top = self.faults, self.top
        node = top.get("roles", ConfigNode({}))
        written_roles = mapping_of(node, "roles", faults, "expected a mapping, as in worker: 4")
        if "command" in top:
            self._note_variables(top.nodes["command"].key_line, top["command"])
        found = []
        for name, written in written_roles.items():
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
            keys["workdir"] = table.remote_path(keys["workdir"], self.folder)
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
            if (least != most) if key == GPU_RESOURCE else (most is not None and least > most):
                expected = "expected at most the limit; as many GPUs as in limits:"
                keys.add("resources", f"{key} of {name}: requests: and limits: do not fit", expected)
        if requests.keys() - {GPU_RESOURCE}:
            why = f"requests: of {name}: launch reserves no CPUs and no memory; limits: and slots limit tasks"
            self.notes.append(f"{self.faults.where(keys.line_of('resources'))}: {why}")
        if GPU_RESOURCE in limits and keys.setdefault("gpus", limits[GPU_RESOURCE]) != limits[GPU_RESOURCE]:
            keys.add("gpus", f"gpus of {name} differs from {GPU_RESOURCE} in limits:", "expected one of them")
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
    return replace(node, value={"count": node}) if isinstance(node.value, str) else node


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
            before = replace(before, value={**before.value, **node_of(keys, faults).value})
        merged[name] = before
    return replace(node, value={**node.value, "roles": replace(old, value=merged)})
