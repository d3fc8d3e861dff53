"""Job files: YAML -> the job, and perhaps where it runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from launcher.config import hostfile_yaml, schema, values
from launcher.config.faults import Faults, quoted, read_text
from launcher.config.hostlist import Pattern, host_name
from launcher.config.inventory import MOST_HOSTS
from launcher.config.keys import DOCKER, JOB, RESOURCES, ROLE, Form, Key
from launcher.config.records import DockerKeys, JobFile
from launcher.config.schema import Values, entries, is_text, line_of, read_mapping, wrong_kind
from launcher.errors import Fault, JobError
from launcher.job import (
    SERVICE_ROLES,
    SINGLE_ROLES,
    TENSORFLOW_ROLES,
    JobSpec,
    Policy,
    Program,
    ProgramKind,
    Role,
)
from launcher.text import did_you_mean, nearest

MOST_ROLES = 256

_PROGRAM_KEYS = ("command", "program")
#: Stands in for a program that is missing, which is a fault.
_NO_PROGRAM = Program(ProgramKind.EXECUTABLE, "")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
#: Options of ``docker run`` that launch sets itself.
_RESERVED_OPTIONS = (
    "detach", "entrypoint", "interactive", "label", "log_driver", "name", "network", "rm", "sig_proxy",
)  # fmt: skip


def read_job_file(path: str, roles: Mapping[str, Any] = {}) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file; its paths are then absolute. See `parse_job`.

    Raises:
        JobError: the file can't be read.
    """
    found, faults = parse_job(read_text(path, "job file", JobError), path, roles)
    return found.beside(os.path.dirname(os.path.abspath(path))), faults


def parse_job(text: str, source: str, roles: Mapping[str, Any] = {}) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file.

    Args:
        text: what it holds; may be empty if there are ``roles``.
        source: its name, for messages.
        roles: by name, a count or the keys of a role. They replace those of the file's role. If one of them
            has a ``command``, roles of the file that are not named here are kept only if they have a program
            of their own.

    Returns:
        The job file, whose job is not to be used if there are faults; and the faults.
    """
    faults = Faults(source)
    text = text.removeprefix("\ufeff")
    node = schema.parse_yaml(text, faults) if text or not roles else schema.node_of({})
    if not isinstance(node, yaml.MappingNode):
        if node is not None:
            wrong_kind(node, "the file", faults, "expected a mapping, with roles:")
        return JobFile(JobSpec(())), faults.all()
    if roles:
        node = _overlaid(node, roles, faults)
    return _Reader(node, faults).job_file(), faults.all()


class _Reader:
    """Reads one job file."""

    def __init__(self, node: yaml.MappingNode, faults: Faults) -> None:
        self.faults = faults
        self.notes: list[str] = []
        self.top = read_mapping(node, JOB, faults, _below_roles)
        #: The name of each role, and its keys.
        self.roles: list[tuple[yaml.Node, Values]] = []
        written = self.top.get("roles")
        if isinstance(written, yaml.MappingNode):
            self._read_roles(written)
        elif written is not None:
            wrong_kind(written, "roles", faults, "expected a mapping, as in worker: 4")

    def _read_roles(self, written: yaml.MappingNode) -> None:
        found = entries(written, self.faults)
        if len(found) > MOST_ROLES:
            self.faults.add(line_of(written), f"{len(found)} roles", f"expected at most {MOST_ROLES}")
        for word, node in found[:MOST_ROLES]:
            self.faults.check(line_of(word), "role", word.value, values.role_name)
            keys = _role_mapping(node)
            if isinstance(keys, yaml.MappingNode):
                self.roles.append((word, read_mapping(keys, ROLE, self.faults)))
            else:
                label, expected = f"role {quoted(word.value)}", "expected a count, or a mapping with count:"
                wrong_kind(node, label, self.faults, expected)

    def job_file(self) -> JobFile:
        """What the file says."""
        top = self.top
        docker = self._docker()
        policy = Policy(**top.some("on_failure", "grace"))
        if top.get("timeout"):  # 0 is no limit, as with timeout(1)
            policy = policy._replace(timeout=top.get("timeout"), timeout_said=top.nodes["timeout"].value)
        settings = top.some("flags", "env", "workdir", "python", "output_dirs")
        job = JobSpec(self._job_roles(docker.gpus), policy=policy, **settings)
        sources = {key: self.faults.where(line) for key, line in top.lines.items()}
        found = JobFile(job, docker=docker, sources=sources, **top.some("run_dir", "sync", "collect"))
        found = found._replace(notes=tuple(dict.fromkeys(self.notes)))
        node = top.nodes.get("hosts")
        if node is None:
            return found
        if is_text(node):
            path = self.faults.check(line_of(node), "hosts", node.value, values.one_line)
            return found._replace(hosts_ref=path)
        if isinstance(node, yaml.MappingNode):
            wrong_kind(node, "hosts", self.faults, "expected a list of hosts, or the path of a hostfile")
            return found
        return found._replace(hosts=hostfile_yaml.read_host_list(node, self.faults))

    # ------------------------------------------------------------------ roles

    def _job_roles(self, gpus: int | None) -> tuple[Role, ...]:
        """The roles that have tasks, in the order written; no task at all is a fault.

        Args:
            gpus: for each task of a role that does not say.
        """
        default = self._program(self.top)
        found = [(self._role(word, keys, default, gpus), keys) for word, keys in self.roles]
        roles = tuple(role for role, _ in found if role.count)
        if self.faults:  # what seems to be missing may have one of the faults
            return roles
        if not roles:
            expected = "expected at least one below roles:, as in worker: 1"
            self.top.add("roles", "no task in any role", expected)
        elif all(role.sidecar for role in roles):
            self.top.add("roles", "sidecars only", "expected another role, whose end is the job's")
        elif not any(role.name == "chief" for role in roles):
            expected = "expected a chief, or a service: without a chief the job waits for this role anyway"
            for role, keys in found:
                if role.count and role.drain and not role.service:
                    keys.add("drain", f'"drain" for {quoted(role.name)}', expected)
        return roles

    def _role(self, word: yaml.Node, keys: Values, default: Program | None, gpus: int | None) -> Role:
        name, count = word.value, keys.get("count", 1)
        program, owner = self._program(keys), keys
        if program is None:
            program, owner = default, self.top
            written = any(key in where.nodes for key in _PROGRAM_KEYS for where in (keys, self.top))
            if default is None and count and not (written or keys.misspelt or self.top.misspelt):
                expected = "expected command: in the role, or once for all roles"
                self.faults.add(line_of(word), f"role {quoted(name)} has no program", expected)
        self._check_role(name, count, keys)
        self._note_name(line_of(word), name)
        sidecar = keys.get("sidecar", False)
        own_gpus = keys.get("gpus", self._resources(keys))
        line = next((owner.lines[key] for key in _PROGRAM_KEYS if key in owner.lines), 0)
        return Role(
            name,
            count,
            program or _NO_PROGRAM,
            gpus=gpus if own_gpus is None and name != "ps" and not sidecar else own_gpus,
            hosts=self._host_names(keys),
            service=keys.get("service", name in SERVICE_ROLES) or sidecar,
            source=self.faults.where(line_of(word)),
            program_source=self.faults.where(line),
            **keys.some("env", "labels", "drain", "sidecar", "workdir", "flags"),
        )

    def _check_role(self, name: str, count: int, keys: Values) -> None:
        """Add faults for keys of a role that contradict each other."""
        sidecar = keys.get("sidecar")
        if count > 1 and name in SINGLE_ROLES:
            keys.add("count", f'{name} is "{count}"', "expected at most 1: TensorFlow takes no more")
        if sidecar and name in TENSORFLOW_ROLES:
            expected = "expected a role with a name of your own: the job needs this one"
            keys.add("sidecar", f"{name} as a sidecar", expected)
        if sidecar and keys.get("gpus", self._resources(keys)):
            expected = "expected one of them: a sidecar is given no GPU"
            keys.add("sidecar", '"gpus" and "sidecar" both', expected)
        if sidecar and "drain" in keys.nodes:
            expected = "expected one of them: a sidecar is stopped with the job"
            keys.add("drain", '"drain" and "sidecar" both', expected)
        elif name == "chief" and "drain" in keys.nodes:
            expected = "expected it in another role: the job is done when the chief is"
            keys.add("drain", f'"drain" for {quoted(name)}', expected)

    def _note_name(self, line: int, name: str) -> None:
        """Note a name that is nearly one of TensorFlow's."""
        word = name.lower()
        meant = "" if name in TENSORFLOW_ROLES else nearest(word, TENSORFLOW_ROLES, 0.8)
        if meant and (word in (meant, f"{meant}s") or meant not in word):
            where = self.faults.where(line)
            what = f'role {quoted(name)}: did you mean "{meant}"?'
            self.notes.append(
                f"{where}: {what} TensorFlow does not know it: it is not in TF_CONFIG's cluster"
            )

    def _resources(self, keys: Values) -> int | None:
        """``resources: {gpus: N}``, the other form of ``gpus``."""
        node = keys.nodes.get("resources")
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            wrong_kind(node, "resources", self.faults, "expected gpus: and a count")
            return None
        resources = read_mapping(node, RESOURCES, self.faults)
        if "gpus" in keys.nodes and "gpus" in resources.nodes:
            resources.add("gpus", '"gpus" and "resources: gpus" both', "expected one of them")
        found: int | None = resources.get("gpus")
        return found

    def _host_names(self, keys: Values) -> tuple[str, ...]:
        """The names of a role's hosts, ranges written out."""
        patterns: Sequence[Pattern] = keys.get("hosts", ())
        total = sum(pattern.size for pattern in patterns)
        if total > MOST_HOSTS:
            keys.add("hosts", f"{total} hosts for a role", f"expected at most {MOST_HOSTS}")
            return ()
        names = dict.fromkeys(name for pattern in patterns for name in pattern.names())
        line = keys.line_of("hosts")
        return tuple(name for name in names if self.faults.check(line, "host", name, host_name))

    # ------------------------------------------------------------------ programs

    def _program(self, keys: Values) -> Program | None:
        """The program written in a mapping; ``None``: there is none, or it has a fault."""
        written = [key for key in _PROGRAM_KEYS if key in keys.nodes]
        if len(written) > 1:
            keys.add("command", '"program" and "command" both', "expected one of them")
        if not written:
            return None
        key, node = written[0], keys.nodes[written[0]]
        if isinstance(node, yaml.SequenceNode):
            words = [schema.text_of(word, key, self.faults) for word in node.value]
            known = [word for word in words if word is not None]
            if len(known) < len(words):
                return None
            program = self.faults.check(line_of(node), key, " ".join(known), lambda _: Program.of(known))
        else:
            text = schema.text_of(node, key, self.faults)
            program = None if text is None else self.faults.check(line_of(node), key, text, _split_program)
        self._note_variables(keys.line_of(key), program)
        return program

    def _note_variables(self, line: int, program: Program | None) -> None:
        """Note a ``$NAME`` in arguments, which a shell would expand."""
        if program is None or program.kind is ProgramKind.CODE or "-c" in program.args:
            return
        for match in filter(None, map(_VARIABLE.search, program.args)):
            what = f"{match[0]} reaches the program as it is written: no shell expands it"
            expected = f"[sh, -c, 'exec {program.name} ...'] does, with the task's environment"
            self.notes.append(f"{self.faults.where(line)}: {what}; {expected}")

    # ------------------------------------------------------------------ docker

    def _docker(self) -> DockerKeys:
        """``docker:``, an image or a mapping."""
        node, faults = self.top.nodes.get("docker"), self.faults
        if node is None:
            return DockerKeys()
        source = faults.where(self.top.line_of("docker"))
        if is_text(node) and not node.tag.endswith(":bool"):
            return DockerKeys(
                faults.check(line_of(node), "docker", node.value, values.image) or "", source=source
            )
        if not isinstance(node, yaml.MappingNode):
            wrong_kind(node, "docker", faults, "expected an image, or a mapping with image:")
            return DockerKeys()
        keys = read_mapping(node, DOCKER, faults)
        if "image" not in keys.nodes:
            faults.add(keys.line, "docker has no image", "expected image:")
        if keys.get("no_mount") and keys.get("read_only"):
            expected = "expected one of them: the working folder is not mounted"
            keys.add("read_only", '"no_mount" and "read_only" both', expected)
        roles = [word.value for word, _ in self.roles]
        limits = [(key, keys.nodes[key]) for key in ("memory", "cpus") if key in keys.nodes]
        for key, limit in limits:
            for word, _ in entries(limit, faults) if isinstance(limit, yaml.MappingNode) and roles else ():
                if word.value not in roles:
                    what = f"{key}: there is no role {word.value!r}"
                    faults.add(line_of(word), what, did_you_mean(word.value, roles))
        settings = {name: value for name, value in keys.given.items() if name != "options"}
        return DockerKeys(**settings, options=self._docker_options(keys), source=source)

    def _docker_options(self, keys: Values) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """``options:`` of ``docker:``; the engine knows which there are."""
        node = keys.nodes.get("options")
        if not isinstance(node, yaml.MappingNode):
            if node is not None:
                wrong_kind(node, "options", self.faults, "expected a mapping, as in shm_size: 1g")
            return ()
        names = [word.value for word, _ in entries(node, self.faults)]
        for name in names:
            if name.replace("-", "_") in _RESERVED_OPTIONS:
                keys.add("options", f"option {quoted(name)}", "expected another: launch sets this one")
        table = {name: Key(name, "", Form.LIST, values.one_line) for name in names}
        return tuple(read_mapping(node, table, self.faults).given.items())


def _split_program(text: str) -> Program:
    """Split as a shell would: quotes and backslashes, but nothing is expanded."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None
    return Program.of(words)


def _role_mapping(node: yaml.Node) -> yaml.Node:
    """The mapping of a role; ``worker: 4`` is short for one with ``count: 4``."""
    if not is_text(node):
        return node
    return yaml.MappingNode(
        schema.MAPPING, [(yaml.ScalarNode(schema.MAPPING, "count", node.start_mark), node)], node.start_mark
    )


def _below_roles(key: str) -> str:
    """Where a key belongs that a job file does not have, but a role, or the mapping of roles."""
    word = key.lower()
    role = next((role for role in TENSORFLOW_ROLES if word in (role, f"{role}s")), "")
    if role:
        return f"expected it below roles:, as in {role}: 1"
    return "expected it in a role, below roles:" if key in ROLE else ""


def _overlaid(node: yaml.MappingNode, roles: Mapping[str, Any], faults: Faults) -> yaml.MappingNode:
    """The nodes of a job file with other roles, see `parse_job`."""
    top = {key.value: (key, value) for key, value in entries(node, faults)}
    key, old = top.get("roles", (schema.node_of("roles"), schema.node_of({})))
    if not isinstance(old, yaml.MappingNode):  # a fault, which its reader reports
        return node
    theirs = {word.value: (word, value) for word, value in entries(old, faults)}
    replaced_program = any(isinstance(role, dict) and "command" in role for role in roles.values())
    kept = {
        name: entry
        for name, entry in theirs.items()
        if name in roles or not replaced_program or _has_program(entry[1])
    }
    for name, role in roles.items():
        word, value = theirs.get(name, (schema.node_of(name), schema.node_of({})))
        laid = role if isinstance(role, dict) else {"count": role}
        value = _role_mapping(value)
        if isinstance(value, yaml.MappingNode):
            replaced = {*laid, *(_PROGRAM_KEYS if "command" in laid else ())}
            fields = [(key, field) for key, field in entries(value, faults) if key.value not in replaced]
            value = yaml.MappingNode(value.tag, [*fields, *schema.node_of(laid).value], value.start_mark)
        kept[name] = word, value
    top["roles"] = key, yaml.MappingNode(old.tag, list(kept.values()), old.start_mark)
    return yaml.MappingNode(node.tag, list(top.values()), node.start_mark)


def _has_program(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and any(key.value in _PROGRAM_KEYS for key, _ in node.value)
