"""Reading a job file, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.hostfile.yaml_form import read_hosts
from launcher.job import TENSORFLOW_ROLES, JobSpec, OnFailure, Policy, Role
from launcher.jobfile.containers import read_docker
from launcher.jobfile.durations import parse_duration
from launcher.jobfile.overlay import overlaid
from launcher.jobfile.programs import PROGRAM_KEYS, misspells
from launcher.jobfile.record import JobFile
from launcher.jobfile.roles import ROLE_KEYS, names, read_roles
from launcher.marked.checks import flag, misspelt_role, one_line, program_path, tensorflow_role
from launcher.marked.faults import Faults
from launcher.marked.fields import Fields, as_table, wrong_kind
from launcher.marked.nodes import Scalar, Table
from launcher.marked.yaml_nodes import compose

_KEYS = (
    *PROGRAM_KEYS,
    "roles",
    "hosts",
    "env",
    "flags",
    "workdir",
    "python",
    "on_failure",
    "grace",
    "timeout",
    "run_dir",
    "output_dirs",
    "sync",
    "collect",
    "docker",
)


def read(text: str, faults: Faults, roles: Mapping[str, Any]) -> JobFile:
    """What the text says; with any fault the result is not to be used."""
    node = compose(text, faults) if text or not roles else Table((), 0)
    table = as_table(node, "the file", faults, "expected a mapping, with roles:")
    if table is None:
        return JobFile(JobSpec(()))
    if roles:
        table = overlaid(table, roles)
    fields = Fields(table, _KEYS, faults, _below_roles)
    job = _job(fields, table)
    docker = read_docker(fields, names(fields))
    found = JobFile(
        _with_gpus(job, docker.gpus),
        docker=docker,
        run_dir=fields.read("run_dir", one_line),
        run_dir_source=_source("run_dir", fields),
        sync=fields.words("sync", one_line) or (),
        collect=fields.words("collect", one_line) or (),
        workdir_source=_source("workdir", fields),
        python_source=_source("python", fields),
        sync_source=_source("sync", fields),
        collect_source=_source("collect", fields),
        source=faults.source,
    )
    return _with_hosts(found, fields)


def _below_roles(key: str) -> str:
    """Where a key belongs that is none of a file's, but a role or what a role may have."""
    if role := _role_meant(key):
        return f"expected it below roles:, as in {role}: 1"
    return "expected it in a role, below roles:" if key in ROLE_KEYS else ""


def _role_meant(key: str) -> str:
    """The role of TensorFlow's that a key of the file was probably to be; empty: none, or rather a key."""
    role = misspelt_role(key)
    if not role:
        return tensorflow_role(key)
    from difflib import get_close_matches  # only typos pay for it

    near = get_close_matches(key.lower(), (*TENSORFLOW_ROLES, *_KEYS), 1)
    return role if near in ([], [role]) else ""


def _with_gpus(job: JobSpec, gpus: int | None) -> JobSpec:
    """Roles that say nothing of GPUs get what ``docker:`` says of them, as ``--gpus`` would give it."""
    asking = (role.gpus is None and role.name != "ps" and not role.sidecar for role in job.roles)
    roles = zip(job.roles, asking, strict=True)
    return job._replace(roles=tuple(role._replace(gpus=gpus) if asks else role for role, asks in roles))


def _source(key: str, fields: Fields) -> str:
    return "" if fields.node(key) is None else fields.faults.where(fields.line_of(key))


def _job(fields: Fields, table: Table) -> JobSpec:
    return JobSpec(
        roles=_roles(fields, table),
        flags=bool(fields.read("flags", flag)),
        env=fields.pairs("env") or (),
        workdir=fields.read("workdir", one_line),
        python=fields.read("python", program_path),
        policy=_policy(fields),
        output_dirs=bool(fields.read("output_dirs", flag)),
    )


def _roles(fields: Fields, table: Table) -> tuple[Role, ...]:
    """None, where their key has a fault: that there are no tasks would be no news."""
    if misspells(table, _KEYS, ("roles",)) or any(_role_meant(key.text) for key, _ in table.entries):
        return ()
    return read_roles(fields, misspells(table, _KEYS, PROGRAM_KEYS))


def _policy(fields: Fields) -> Policy:
    usual = Policy()
    grace = fields.read("grace", parse_duration)
    # 0 is no limit, as with timeout(1).
    timeout = fields.read("timeout", parse_duration) or usual.timeout
    return Policy(
        on_failure=fields.read("on_failure", _on_failure) or usual.on_failure,
        grace=usual.grace if grace is None else grace,
        timeout=timeout,
        timeout_said="" if timeout is None else fields.read("timeout", str) or "",
    )


def _on_failure(text: str) -> OnFailure:
    try:
        return OnFailure(text)
    except ValueError:
        raise ValueError("expected stop or continue") from None


def _with_hosts(found: JobFile, fields: Fields) -> JobFile:
    node = fields.node("hosts")
    if node is None:
        return found
    found = found._replace(hosts_source=fields.faults.where(fields.line_of("hosts")))
    if isinstance(node, Scalar) and not node.null:
        return found._replace(hosts_ref=fields.read("hosts", one_line))
    if isinstance(node, Table):
        wrong_kind(node, "hosts", fields.faults, "expected a list of hosts, or the path of a hostfile")
        return found
    return found._replace(hosts=read_hosts(node, fields.faults))
