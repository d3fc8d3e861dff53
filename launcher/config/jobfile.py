"""Job files: YAML -> the job, and perhaps where it runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.config import values
from launcher.config.faults import Faults, quoted, read_text
from launcher.config.hostfile import read_host_list
from launcher.config.hostlist import MOST_HOSTS
from launcher.config.keys import JOB, RESOURCES, ROLE
from launcher.config.schema import (
    Key,
    Node,
    Section,
    Values,
    node_of,
    parse_yaml,
    read_mapping,
    text_of,
    wrong_kind,
)
from launcher.errors import Fault, JobError
from launcher.job import (
    CHIEF_ROLES,
    SERVICE_ROLES,
    SINGLE_ROLES,
    TENSORFLOW_ROLES,
    Host,
    JobSpec,
    Policy,
    Program,
    ProgramKind,
    Role,
)
from launcher.text import nearest

MOST_ROLES = 256

_PROGRAM_KEYS = ("command", "program")
#: Stands in for a program that is missing, which is a fault.
_NO_PROGRAM = Program(ProgramKind.EXECUTABLE, "")


class JobFile(NamedTuple):
    """The content of a job file. ``None`` means "not written"."""

    job: JobSpec = JobSpec(())
    #: Hosts that are written out in the file.
    hosts: tuple[Host, ...] | None = None
    #: Or the text for ``--hosts``: a hostfile's path or an inline list.
    hosts_ref: str | None = None
    run_dir: str | None = None
    #: As ``--sync`` and ``--collect`` take them.
    sync: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    #: Key of a transport -> what its `Section` made of it.
    sections: Mapping[str, Any] = {}
    #: Key -> ``file:line`` where it is written, for messages.
    sources: Mapping[str, str] = {}
    #: Notes for the user.
    notes: tuple[str, ...] = ()

    @property
    def names_hosts(self) -> bool:
        """Whether it says where the job runs."""
        return self.hosts is not None or self.hosts_ref is not None

    def beside(self, folder: str) -> JobFile:
        """The same with its paths taken as relative to a folder: that of the file.

        Programs stay as they are: they are relative to the folder that they run in.
        """
        job = self.job

        def here(path: str) -> str:
            """A path of this machine: ``~`` is the home here. Others may be paths of other machines."""
            return os.path.join(folder, os.path.expanduser(path))

        roles = tuple(role._replace(workdir=_below(folder, role.workdir)) for role in job.roles)
        python = _below(folder, job.python) if job.python and "/" in job.python else job.python
        hosts_ref = self.hosts_ref
        if hosts_ref is not None and os.path.exists(here(hosts_ref)):
            hosts_ref = here(hosts_ref)
        return self._replace(
            job=job._replace(roles=roles, workdir=_below(folder, job.workdir), python=python),
            hosts_ref=hosts_ref,
            run_dir=None if self.run_dir is None else here(self.run_dir),
            sync=tuple(map(here, self.sync)),
        )


def _below(folder: str, path: str | None) -> str | None:
    return path if path is None or path.startswith("~") else os.path.join(folder, path)


def read_job_file(
    path: str, roles: Mapping[str, Any] = {}, sections: Mapping[str, Section] = {}
) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file; its paths are then absolute. See `parse_job`.

    Raises:
        JobError: the file can't be read.
    """
    found, faults = parse_job(read_text(path, "job file", JobError), path, roles, sections)
    return found.beside(os.path.dirname(os.path.abspath(path))), faults


def parse_job(
    text: str, source: str, roles: Mapping[str, Any] = {}, sections: Mapping[str, Section] = {}
) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file.

    Args:
        text: its content; may be empty if there are ``roles``.
        source: its name, for messages.
        roles: by name, a count or the keys of a role. They replace those of the file's role. If one of them
            has a ``command``, roles of the file that are not named here are kept only if they have a program
            of their own.
        sections: the keys of the transports, see `launcher.transports.sections`.

    Returns:
        The job file, whose job is not to be used if there are faults; and the faults.
    """
    faults = Faults(source)
    text = text.removeprefix("\ufeff")
    node = parse_yaml(text, faults) if text or not roles else Node({})
    if node is None or not isinstance(node.value, dict):
        if node is not None:
            wrong_kind(node, "the file", faults, "expected a mapping, with roles:")
        return JobFile(), faults.all()
    if roles:
        node = _overlaid(node, roles)
    return _Reader(node, faults, sections).job_file(), faults.all()


class _Reader:
    """Reads one job file."""

    def __init__(self, node: Node, faults: Faults, sections: Mapping[str, Section]) -> None:
        self.faults = faults
        self.sections = sections
        self.notes: list[str] = []
        keys = {**JOB, **{name: Key(name, part.help, JOB["roles"].form) for name, part in sections.items()}}
        self.top = read_mapping(node, keys, faults, _below_roles)
        #: Role -> its node, and its keys.
        self.roles: list[tuple[str, Node, Values]] = []
        written = self.top.get("roles")
        if written is not None and isinstance(written.value, dict):
            self._read_roles(written)
        elif written is not None:
            wrong_kind(written, "roles", faults, "expected a mapping, as in worker: 4")

    def _read_roles(self, written: Node) -> None:
        if len(written.value) > MOST_ROLES:
            what = f"{len(written.value)} roles"
            self.faults.add(written.line, what, f"expected at most {MOST_ROLES}")
        for name, node in list(written.value.items())[:MOST_ROLES]:
            self.faults.check(node.key_line, "role", name, values.role_name)
            keys = _role_mapping(node)
            if isinstance(keys.value, dict):
                self.roles.append((name, node, read_mapping(keys, ROLE, self.faults)))
            else:
                label, expected = f"role {quoted(name)}", "expected a count, or a mapping with count:"
                wrong_kind(node, label, self.faults, expected)

    def job_file(self) -> JobFile:
        """The whole file."""
        top = self.top
        policy = Policy(**top.some("on_failure", "grace"))
        if top.get("timeout"):  # 0 is no limit, as with timeout(1)
            policy = policy._replace(timeout=top.get("timeout"), timeout_text=top.nodes["timeout"].value)
        settings = top.some("flags", "env", "workdir", "python", "output_dirs")
        job = JobSpec(self._job_roles(), policy=policy, **settings)
        names = [name for name, _, _ in self.roles]
        found = JobFile(
            job,
            sections={
                name: part.read(top.nodes[name], names, self.faults)
                for name, part in self.sections.items()
                if name in top.nodes
            },
            sources={key: self.faults.where(top.line_of(key)) for key in top.nodes},
            notes=tuple(dict.fromkeys(self.notes)),
            **top.some("run_dir", "sync", "collect"),
        )
        node = top.nodes.get("hosts")
        if node is None:
            return found
        if isinstance(node.value, str):
            return found._replace(
                hosts_ref=self.faults.check(node.line, "hosts", node.value, values.one_line)
            )
        return found._replace(hosts=read_host_list(node, self.faults))

    # ------------------------------------------------------------------ roles

    def _job_roles(self) -> tuple[Role, ...]:
        """The roles that have tasks, in the order written; no task at all is a fault."""
        default = self._program(self.top)
        found = [(self._role(name, node, keys, default), keys) for name, node, keys in self.roles]
        roles = tuple(role for role, _ in found if role.count)
        if self.faults:  # what seems to be missing may have one of the faults
            return roles
        if not roles:
            expected = "expected at least one below roles:, as in worker: 1"
            self.top.add("roles", "no task in any role", expected)
        elif all(role.sidecar for role in roles):
            self.top.add("roles", "sidecars only", "expected another role, whose end is the job's")
        elif not any(role.name in CHIEF_ROLES for role in roles):
            expected = "expected a chief, or a service: without a chief the job waits for this role anyway"
            for role, keys in found:
                if role.count and role.drain and not role.service:
                    keys.add("drain", f'"drain" for {quoted(role.name)}', expected)
        return roles

    def _role(self, name: str, node: Node, keys: Values, default: Program | None) -> Role:
        count = keys.get("count", 1)
        program, owner = self._program(keys), keys
        if program is None:
            program, owner = default, self.top
            written = any(key in where.nodes for key in _PROGRAM_KEYS for where in (keys, self.top))
            if default is None and count and not (written or keys.misspelt or self.top.misspelt):
                expected = "expected command: in the role, or once for all roles"
                self.faults.add(node.key_line, f"role {quoted(name)} has no program", expected)
        gpus = keys.get("gpus", self._resources(keys))
        self._check_role(name, count, gpus, keys)
        self._note_name(node.key_line, name)
        names = [host for hosts in keys.get("hosts", ()) for host in hosts]
        if len(names) > MOST_HOSTS:
            keys.add("hosts", f"{len(names)} hosts for a role", f"expected at most {MOST_HOSTS}")
        line = next((owner.nodes[key].key_line for key in _PROGRAM_KEYS if key in owner.nodes), 0)
        return Role(
            name,
            count,
            program or _NO_PROGRAM,
            gpus=gpus,
            hosts=tuple(dict.fromkeys(names)),
            service=keys.get("service", name in SERVICE_ROLES) or keys.get("sidecar", False),
            source=self.faults.where(node.key_line),
            program_source=self.faults.where(line),
            **keys.some("env", "labels", "drain", "sidecar", "workdir", "flags"),
        )

    def _check_role(self, name: str, count: int, gpus: int | None, keys: Values) -> None:
        """Add faults for keys of a role that contradict each other."""
        sidecar = keys.get("sidecar")
        if count > 1 and name in SINGLE_ROLES:
            keys.add("count", f'{name} is "{count}"', "expected at most 1: TensorFlow takes no more")
        if sidecar and name in TENSORFLOW_ROLES:
            expected = "expected a role with a name of your own: the job needs this one"
            keys.add("sidecar", f"{name} as a sidecar", expected)
        if sidecar and gpus:
            expected = "expected one of them: a sidecar is given no GPU"
            keys.add("sidecar", '"gpus" and "sidecar" both', expected)
        if sidecar and "drain" in keys.nodes:
            expected = "expected one of them: a sidecar is stopped with the job"
            keys.add("drain", '"drain" and "sidecar" both', expected)
        elif name in CHIEF_ROLES and "drain" in keys.nodes:
            expected = "expected it in another role: the job is done when the chief is"
            keys.add("drain", f'"drain" for {quoted(name)}', expected)

    def _note_name(self, line: int, name: str) -> None:
        """Note a name that is nearly one of TensorFlow's."""
        word = name.lower()
        meant = "" if name in TENSORFLOW_ROLES else nearest(word, TENSORFLOW_ROLES, 0.8)
        if meant and (word in (meant, f"{meant}s") or meant not in word):
            what = f'role {quoted(name)}: did you mean "{meant}"?'
            why = "TensorFlow does not know it: it is not in TF_CONFIG's cluster"
            self.notes.append(f"{self.faults.where(line)}: {what} {why}")

    def _resources(self, keys: Values) -> int | None:
        """``resources: {gpus: N}``, the other form of ``gpus``."""
        node = keys.nodes.get("resources")
        if node is None:
            return None
        if not isinstance(node.value, dict):
            wrong_kind(node, "resources", self.faults, "expected gpus: and a count")
            return None
        resources = read_mapping(node, RESOURCES, self.faults)
        if "gpus" in keys.nodes and "gpus" in resources.nodes:
            resources.add("gpus", '"gpus" and "resources: gpus" both', "expected one of them")
        found: int | None = resources.get("gpus")
        return found

    # ------------------------------------------------------------------ programs

    def _program(self, keys: Values) -> Program | None:
        """The program written in a mapping; ``None``: there is none, or it has a fault."""
        written = [key for key in _PROGRAM_KEYS if key in keys.nodes]
        if len(written) > 1:
            keys.add("command", '"program" and "command" both', "expected one of them")
        if not written:
            return None
        key, node = written[0], keys.nodes[written[0]]
        if isinstance(node.value, list):
            words = [text for word in node.value if (text := text_of(word, key, self.faults)) is not None]
            if len(words) < len(node.value):
                return None
            program = self.faults.check(node.line, key, " ".join(words), lambda _: Program.of(words))
        else:
            whole = text_of(node, key, self.faults)
            program = None if whole is None else self.faults.check(node.line, key, whole, _split_program)
        self._note_variables(node.key_line, program)
        return program

    def _note_variables(self, line: int, program: Program | None) -> None:
        """Note a ``$NAME`` in arguments, which a shell would expand."""
        if program is None or program.kind is ProgramKind.CODE or "-c" in program.args:
            return
        for argument in program.args:
            match = re.search(r"\$(\w+|\{\w+\})", argument, re.ASCII)
            if match:
                what = f"{match[0]} reaches the program as it is written: no shell expands it"
                advice = f"[sh, -c, 'exec {program.name} ...'] does, with the task's environment"
                self.notes.append(f"{self.faults.where(line)}: {what}; {advice}")


def _split_program(text: str) -> Program:
    """Split as a shell would: quotes and backslashes, but nothing is expanded."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None
    return Program.of(words)


def _role_mapping(node: Node) -> Node:
    """The mapping of a role; ``worker: 4`` is short for one with ``count: 4``."""
    return node._replace(value={"count": node}) if isinstance(node.value, str) else node


def _below_roles(key: str) -> str:
    """Where a key belongs that a job file does not have, but a role, or the mapping of roles."""
    word = key.lower()
    role = next((role for role in TENSORFLOW_ROLES if word in (role, f"{role}s")), "")
    if role:
        return f"expected it below roles:, as in {role}: 1"
    return "expected it in a role, below roles:" if key in ROLE else ""


def _overlaid(node: Node, roles: Mapping[str, Any]) -> Node:
    """A job file with other roles, see `parse_job`."""
    old = node.value.get("roles", Node({}))
    if not isinstance(old.value, dict):  # a fault, which its reader reports
        return node
    new_program = any(isinstance(role, dict) and "command" in role for role in roles.values())
    merged = {
        name: role
        for name, role in old.value.items()
        if name in roles or not new_program or _has_program(role)
    }
    for name, role in roles.items():
        keys = role if isinstance(role, dict) else {"count": role}
        before = _role_mapping(merged.get(name, Node({})))
        if isinstance(before.value, dict):
            replaced = _PROGRAM_KEYS if "command" in keys else ()
            kept = {key: value for key, value in before.value.items() if key not in replaced}
            before = before._replace(value={**kept, **node_of(keys).value})
        merged[name] = before
    return node._replace(value={**node.value, "roles": old._replace(value=merged)})


def _has_program(role: Node) -> bool:
    return isinstance(role.value, dict) and any(key in role.value for key in _PROGRAM_KEYS)
