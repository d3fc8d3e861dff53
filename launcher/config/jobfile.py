"""Reads job files and project files: the roles of a job and the settings of a launch.

``launch`` calls `read_job_file` or `parse_job` for a job file, and `launcher.config.defaults` calls
`read_defaults` for a project file. The result contains all faults of the file, and this module must not raise
any of them.
"""

from __future__ import annotations

import os
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
from launcher.config.values import GPU_RESOURCE, QUANTITIES, shell_syntax
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

#: Stands for a program that is missing, which is a fault.
_NO_PROGRAM = Program(ProgramKind.EXECUTABLE, "")


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
    path: str, roles: Mapping[str, Any] = {}, sections: Sequence[FileSection] = (), target: Target = NO_TARGET
) -> FileContent:
    """Return the content of a job file, in which paths are absolute.

    Args:
        path: The path of the file.
        roles: By name, the number of tasks or the keys of a role, which replace those of the file.
        sections: The sections of the backends that the file may contain.
        target: What the command line says about the tasks of a TFJob.

    Returns:
        The content, or the faults of the file.
    """
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
    """Return the content of a job file, or of a TFJob of Kubeflow, from its text.

    Args:
        text: The text. It may be empty if there are ``roles``.
        source: The name of the file, for messages.
        roles: By name, the number of tasks or the keys of a role. They replace the keys of the role in the
            file. If one of them contains a ``command``, then roles of the file without a program of their own
            are dropped.
        sections: The sections of the backends that the file may contain.
        folder: The folder of the file, to which its paths are relative. Programs stay as they are, because
            they are relative to the folder in which they run.
        target: What the command line says about the tasks of a TFJob. Other job files accept no program.

    Returns:
        The content, or the faults of the file.
    """
    text, faults, notes = text.removeprefix("\ufeff"), FaultList(source), list[str]()
    node = job_document(text, faults, notes) if text or not roles else ConfigNode({})
    if node is not None and is_tfjob(node):
        from launcher.config.tfjob import job_of  # noqa: PLC0415 - only few job files are TFJobs

        node = job_of(node, target, faults, notes)
    elif node is not None and target.program:
        faults.add(0, f"unexpected argument {target.program[0]!r}", "only options follow a job file")
    if node is None:
        return FileContent(faults=faults.all())
    node = _with_roles(node, roles, faults) if roles else node
    return _JobFileReader(node, faults, sections, folder, notes).content()


def _below_roles(key: str) -> str:
    """Return where an unknown key at the top of a job file belongs, as an advice.

    It is empty if the key is neither the name of a role nor a key of roles.
    """
    lower = key.lower()
    for role in TENSORFLOW_ROLES:
        if lower in (role, f"{role}s"):
            return f"expected it below roles:, as in {role}: 1"
    # For an image, which is a key of roles, too, the table of other programs' keys suggests docker:.
    return "expected it in a role, below roles:" if key in ROLE and key != "image" else ""


def _in_job_file(key: str) -> str:
    """Return where an unknown key of a project file belongs, as an advice.

    It is empty if the key is unknown in job files, too.
    """
    if key == "run_dir":
        return "expected --run-dir: each run has a new folder"
    # For an image the table of other programs' keys suggests docker:.
    keys_of_job_files = {*ROLE, *keys_of(table.ROWS, SourceKind.JOB_FILE)} - {"image"}
    return "expected it in a job file: launch job.yaml" if key in keys_of_job_files else ""


def read_defaults(
    node: ConfigNode, faults: FaultList, sections: Sequence[FileSection], folder: str
) -> FileContent:
    """Return the settings and the faults of a project file.

    Args:
        node: The mapping with the settings.
        faults: The faults so far, to which those of the mapping are added.
        sections: The sections of the backends that the file may contain.
        folder: The folder of the file, to which its paths are relative.
    """
    keys = keys_of(table.ROWS, SourceKind.PROJECT_FILE, sections)
    top = schema.read_mapping(node, keys, faults, _in_job_file)
    level = file_level(top, sections, TENSORFLOW_ROLES, SourceKind.PROJECT_FILE, folder)
    return FileContent(level, faults=faults.all())


class _JobFileReader:
    """A reader of one job file, which collects its faults and notes.

    Args:
        node: The mapping of the file.
        faults: Receives the faults.
        sections: The sections of the backends that the file may contain.
        folder: The folder of the file, to which its paths are relative.
        notes: Receives notes for the user.
    """

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
        #: The keys that the top of a job file may contain.
        self.keys = keys_of(table.ROWS, SourceKind.JOB_FILE, sections)
        #: The values of those that this file contains.
        self.top = schema.read_mapping(node, self.keys, faults, _below_roles)

    def content(self) -> FileContent:
        """Return the roles and settings of the file with its notes, or its faults."""
        roles = self._roles()
        # A section may name each role that is written in the file, even one without tasks. If the file has no
        # roles, `_roles` has added a fault. With empty `role_names` sections may name any role, so that the
        # same mistake leads to no further faults.
        role_names = tuple(self.top["roles"].value) if roles else ()
        level = file_level(self.top, self.sections, role_names, SourceKind.JOB_FILE, self.folder)
        roles = () if self.faults else roles
        notes = tuple(dict.fromkeys(self.notes))  # The same note may come from several roles.
        return FileContent(level, roles=roles, notes=notes, faults=self.faults.all())

    # ------------------------------------------------------------------ roles

    def _above_roles(self, key: str) -> str:
        """Return where an unknown key of a role belongs, as an advice.

        It is empty if the key is unknown at the top of a job file, too.
        """
        if key == "container":
            return 'expected "image"'
        return "expected it at the top of the file, beside roles:" if key in self.keys else ""

    def _roles(self) -> tuple[Role, ...]:
        """Return the roles with at least one task, in the order of the file, and add all faults of roles."""
        faults, top = self.faults, self.top
        node = top.get("roles", ConfigNode({}))
        written_roles = mapping_of(node, "roles", faults, "expected a mapping, as in worker: 4")
        if "command" in top:
            self._note_shell_syntax(top.nodes["command"].key_line, top["command"])
        roles_and_keys = []
        for name, written in written_roles.items():
            if ":" in name:  # In YAML ``{worker:2}`` is a key without a value.
                faults.add(written.key_line, f"role is {quoted(name)}", 'expected a space after the ":"')
                continue
            faults.check(written.key_line, "role", name, values.role_name)
            if not isinstance(written.value, (str, dict)):
                expected = "expected a count, or a mapping with count:"
                faults.add_kind(written, f"role {quoted(name)}", expected)
                continue
            # For a key that no role has, `_above_roles` advises where in the file it belongs.
            keys = schema.read_mapping(_role_mapping(written), ROLE, faults, self._above_roles, f"of {name}")
            roles_and_keys.append((self._role(name, written.key_line, keys), keys))
        roles = tuple(role for role, _ in roles_and_keys if role.count)
        # One of the faults may be the reason why something seems to be missing.
        if faults:
            return roles
        if not roles:
            top.add("roles", "no task in any role", "expected at least one below roles:, as in worker: 1")
        elif all(role.sidecar for role in roles):
            top.add("roles", "sidecars only", "expected another role, which decides when the job is done")
        # The job waits for all tasks of some roles, so time to finish after the job has no meaning for them.
        # By role, for how many of its tasks the job waits.
        waited_tasks = deciding_roles(roles, top.get("done_when", ""))
        for role, keys in roles_and_keys:
            if role.drain and not role.service and waited_tasks.get(role.name) == role.count:
                why = "the job waits for this one anyway"
                expected = f"expected it beside a chief, or a role of done_when: {why}"
                keys.add("drain", f'"drain" for {quoted(role.name)}', expected)
        return roles

    def _role(self, name: str, line: int, keys: MappingValues) -> Role:
        """Return a role, and add its faults and notes.

        With a fault the role is only good for finding more faults of the file, because the file is refused.

        Args:
            name: The name of the role.
            line: The line of the name.
            keys: The values of the keys of the role. Two of them are changed in place: ``workdir`` becomes
                absolute, and a limit of GPUs becomes ``gpus``.
        """
        count, sidecar = keys.get("count", 1), keys.get("sidecar")
        # The program is that of the role, or else the one at the top of the file.
        program_owner = keys if "command" in keys.nodes else self.top
        # A role without tasks needs no program. An unknown key may be a misspelt command:, and it is reported
        # already.
        if "command" not in program_owner.nodes and count and not (keys.misspelt or self.top.misspelt):
            expected = "expected command: in the role, or once for all roles"
            self.faults.add(line, f"role {quoted(name)} has no program", expected)
        # The program at the top of the file gets its note only once, from `_roles`.
        if program_owner is keys and "command" in keys:
            self._note_shell_syntax(keys.line_of("command"), keys["command"])
        self._note_name(name, line)
        if count > 1 and name in SINGLE_ROLES:
            keys.add("count", f'{name} is "{count}"', "expected at most 1: TensorFlow takes no more")
        if sidecar and name in TENSORFLOW_ROLES:
            expected = "expected a role with a name of your own: the job needs this one"
            keys.add("sidecar", f"{name} as a sidecar", expected)
        limits = self._limits(name, keys)
        # These keys may not be given for a sidecar.
        for key in ("gpus", "drain", "restart", "retryable") if sidecar else ():
            if keys.get(key):
                expected = "expected one of them: a sidecar has no GPU, is stopped with the job, and may fail"
                keys.add(key, f'"{key}" and "sidecar" both', expected)
        if "workdir" in keys:
            keys["workdir"] = table.remote_path(keys["workdir"], self.folder)
        return Role(
            name,
            count,
            program_owner.get("command", _NO_PROGRAM),
            gpus=keys.get("gpus"),
            hosts=tuple(dict.fromkeys(host for names in keys.get("hosts", ()) for host in names)),
            # A service, such as a ps, need not exit by itself: the job does not wait for it.
            service=keys.get("service", name in SERVICE_ROLES) or bool(sidecar),
            source=self.faults.where(line),
            program_source=self.faults.where(program_owner.line_of("command")),
            **limits,
            **keys.some(
                "env", "labels", "drain", "sidecar", "workdir", "restart", "flags", "retryable", "image"
            ),
        )

    def _limits(self, name: str, keys: MappingValues) -> Mapping[str, Any]:
        """Return the fields ``cpus`` and ``memory`` of a role from the limits in its ``resources:``.

        The limit of GPUs becomes its key ``gpus``. Faults of the limits and requests are added.

        Args:
            name: The name of the role.
            keys: The values of the keys of the role. The key ``gpus`` may be set.
        """
        resources = keys.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for key, request in requests.items():
            limit = limits.get(key)
            # Kubernetes cannot give a task more GPUs than it requests, nor fewer.
            fits = request == limit if key == GPU_RESOURCE else limit is None or request <= limit
            if not fits:
                expected = "expected at most the limit; as many GPUs as in limits:"
                keys.add("resources", f"{key} of {name}: requests: and limits: do not fit", expected)
        if requests.keys() - {GPU_RESOURCE}:
            why = f"requests: of {name}: launch reserves no CPUs and no memory; limits: and slots limit tasks"
            self.notes.append(f"{self.faults.where(keys.line_of('resources'))}: {why}")
        # The limit of GPUs becomes the key `gpus`, unless that is set, too. Then both must be equal.
        if GPU_RESOURCE in limits and keys.setdefault("gpus", limits[GPU_RESOURCE]) != limits[GPU_RESOURCE]:
            keys.add("gpus", f"gpus of {name} differs from {GPU_RESOURCE} in limits:", "expected one of them")
        field_names = {"cpu": "cpus", "memory": "memory"}
        return {field: limits[key] for key, field in field_names.items() if key in limits}

    def _note_name(self, name: str, line: int) -> None:
        """Add a note about a role whose name seems to be a misspelling of one of TensorFlow's roles."""
        lower = name.lower()
        meant = "" if name in TENSORFLOW_ROLES else closest_match(lower, TENSORFLOW_ROLES)
        # A longer name that contains the other, such as "worker-cpu", is no misspelling.
        if meant and (lower in (meant, f"{meant}s") or meant not in lower):
            problem = f'role {quoted(name)}: did you mean "{meant}"?'
            why = "TensorFlow does not know it: it is not in TF_CONFIG's cluster"
            self.notes.append(f"{self.faults.where(line)}: {problem} {why}")

    def _note_shell_syntax(self, line: int, program: Program) -> None:
        """Add a note about arguments that only a shell would understand, such as ``$NAME`` or ``&&``.

        Args:
            line: The line of the program.
            program: The program with its arguments.
        """
        found = "" if program.kind is ProgramKind.CODE else shell_syntax(program.args)
        if found.startswith("$"):
            problem = f"the program gets {found} as it is written: no shell expands it"
            advice = f"[sh, -c, 'exec {program.name} ...'] expands it from the task's environment"
            self.notes.append(f"{self.faults.where(line)}: {problem}; {advice}")
        elif found:
            problem = f"the program gets {found} as it is written: no shell reads it"
            advice = "[sh, -c, '...'] with the whole command in the quotes runs it in a shell"
            self.notes.append(f"{self.faults.where(line)}: {problem}; {advice}")


def _role_mapping(node: ConfigNode) -> ConfigNode:
    """Return the mapping of a role, where ``worker: 4`` is short for ``worker: {count: 4}``.

    Anything else than such a number or a mapping is returned as it is.
    """
    return replace(node, value={"count": node}) if isinstance(node.value, str) else node


def _with_roles(node: ConfigNode, roles: Mapping[str, Any], faults: FaultList) -> ConfigNode:
    """Return a job file whose roles are replaced or extended by those of the caller.

    Args:
        node: The mapping of the file.
        roles: By name, the number of tasks or the keys of a role. They replace the keys of the role in the
            file.
        faults: Receives the faults of these roles.
    """
    old_roles = node.value.get("roles", ConfigNode({}))
    if not isinstance(old_roles.value, dict):  # This is a fault, which `_JobFileReader` reports.
        return node
    merged = dict(old_roles.value)
    # A caller that brings programs, such as the functions of the Python API, brings them for its own roles
    # only. The file's other roles take part only with a program of their own.
    if any(isinstance(role, dict) and "command" in role for role in roles.values()):
        merged = {
            name: role
            for name, role in merged.items()
            if name in roles or (isinstance(role.value, dict) and "command" in role.value)
        }
    for name, role in roles.items():
        keys = role if isinstance(role, dict) else {"count": role}
        merged_role = _role_mapping(merged.get(name, ConfigNode({})))
        if isinstance(merged_role.value, dict):  # Anything else is a fault, which `_JobFileReader` reports.
            merged_role = replace(merged_role, value={**merged_role.value, **node_of(keys, faults).value})
        merged[name] = merged_role
    return replace(node, value={**node.value, "roles": replace(old_roles, value=merged)})
