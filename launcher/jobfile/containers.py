"""``docker:`` of a job file: an image, and what its containers are to be like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.hostfile.settings import MOST_GPUS
from launcher.jobfile.docker_keys import DockerKeys
from launcher.jobfile.sizes import parse_size
from launcher.marked.checks import flag, one_line, whole
from launcher.marked.faults import expected_one_of
from launcher.marked.fields import Fields, as_text, wrong_kind
from launcher.marked.nodes import Scalar, Table

if TYPE_CHECKING:
    from typing import TypeVar

    N = TypeVar("N", int, float)

#: Role -> limit; an empty name is every role.
Limits = tuple[tuple[str, "N"], ...]

#: The smallest limit an engine takes: 6 MiB.
LEAST_MEMORY = 6 << 20
_PULL = ("missing", "always", "never")
_KEYS = (
    "image", "mounts", "no_mount", "read_only", "memory", "cpus", "user", "pull", "gpus", "keep", "options",
)  # fmt: skip

_CAPABILITY = re.compile("[A-Z][A-Z_]{0,63}")
_ULIMIT = re.compile(r"([a-z]{1,20})=(-1|\d{1,18})(?::(-1|\d{1,18}))?")
#: As engines know them: those of setrlimit(2), but for the address space.
_ULIMITS = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
    "rtprio", "rttime", "sigpending", "stack",
)  # fmt: skip
_EXTRA_HOST = re.compile(r"[A-Za-z0-9_.-]+[:=][0-9A-Za-z:.\[\]-]+")


def read_docker(top: Fields, roles: Sequence[str]) -> DockerKeys:
    """What the file has at ``docker:``.

    Args:
        top: the fields of the whole file.
        roles: the names below its ``roles:``; none, and nobody can say which are wrong.
    """
    node = top.node("docker")
    if node is None:
        return DockerKeys()
    faults = top.faults
    source = faults.where(top.line_of("docker"))
    if isinstance(node, Scalar) and not node.null:
        return DockerKeys(image=top.read("docker", image) or "", source=source)
    if not isinstance(node, Table):
        wrong_kind(node, "docker", faults, "expected an image, or a mapping with image:")
        return DockerKeys()
    fields = Fields(node, _KEYS, faults)
    if fields.node("image") is None:
        faults.add(fields.line, "docker has no image", "expected image:")
    found = _read(fields, roles)
    if found.no_mount and found.read_only:
        wanted = "expected one of them: the working folder is not mounted"
        faults.add(fields.line_of("read_only"), '"no_mount" and "read_only" both', wanted)
    return found._replace(source=source)


def _read(fields: Fields, roles: Sequence[str]) -> DockerKeys:
    return DockerKeys(
        image=fields.read("image", image) or "",
        mounts=fields.words("mounts", one_line) or (),
        no_mount=bool(fields.read("no_mount", flag)),
        read_only=bool(fields.read("read_only", flag)),
        memory=_limits(fields, "memory", memory, roles),
        cpus=_limits(fields, "cpus", cpus, roles),
        user=fields.read("user", one_line),
        pull=fields.read("pull", _pull),
        gpus=fields.read("gpus", whole(0, MOST_GPUS)),
        keep=bool(fields.read("keep", flag)),
        options=_options(fields),
    )


def image(text: str) -> str:
    """The name of an image."""
    if one_line(text).startswith("-") or " " in text:
        raise ValueError("expected the name of an image")
    return text


def cpus(text: str) -> float:
    """How many CPUs."""
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    if not 0.01 <= count <= 10_000:
        raise ValueError("expected a number of CPUs such as 2 or 0.5")
    return count


def memory(text: str) -> int:
    """How much memory, in bytes."""
    count = parse_size(text)
    if count < LEAST_MEMORY:
        raise ValueError("expected 6m or more: no container can do with less")
    return count


def _pull(text: str) -> str:
    if text not in _PULL:
        raise ValueError(f"expected one of {', '.join(_PULL)}")
    return text


def _limits(fields: Fields, key: str, check: Callable[[str], N], roles: Sequence[str]) -> Limits[N]:
    """One limit for every role, or a mapping of roles to limits."""
    node = fields.node(key)
    if not isinstance(node, Table):
        found = fields.read(key, check)
        return () if found is None else (("", found),)
    said = []
    for word, value in node.entries:
        if roles and word.text not in roles:
            what = f"{key}: there is no role {word.text!r}"
            fields.faults.add(word.line, what, expected_one_of(word.text, roles))
        text = as_text(value, f"{key} of {word.text}", fields.faults)
        limit = None if text is None else fields.faults.check(value.line, key, text, check)
        if limit is not None:
            said.append((word.text, limit))
    return tuple(said)


# ---------------------------------------------------------------------- options


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(expected)
        return text

    return read


def _path(text: str) -> str:
    if not one_line(text).startswith("/"):
        raise ValueError("expected an absolute path, perhaps with more after a colon")
    return text


def _ipc(text: str) -> str:
    if text not in ("private", "shareable", "host", "none"):
        raise ValueError("expected private, shareable, host or none")
    return text


def _ulimit(text: str) -> str:
    match = _ULIMIT.fullmatch(text)
    if match is None:
        raise ValueError("expected NAME=SOFT or NAME=SOFT:HARD")
    if match[1] not in _ULIMITS:
        raise ValueError(f"the name: {expected_one_of(match[1], _ULIMITS)}")
    soft, hard = int(match[2]), int(match[3] or match[2])
    if hard >= 0 and not 0 <= soft <= hard:
        raise ValueError("expected a soft limit that is not above the hard one; -1 is no limit")
    return text


def _shm_size(text: str) -> str:
    return str(parse_size(text))


_capability = _matching(_CAPABILITY, "expected a capability such as SYS_PTRACE")

#: Name -> how one value is read, and whether there may be several. As ``docker run`` has them, but for
#: dashes and the plural; `launcher.transport.docker.options` passes them on.
OPTIONS: dict[str, tuple[Callable[[str], str], bool]] = {
    "shm_size": (_shm_size, False),
    "ulimits": (_ulimit, True),
    "cap_add": (_capability, True),
    "cap_drop": (_capability, True),
    "devices": (_path, True),
    "tmpfs": (_path, True),
    "extra_hosts": (_matching(_EXTRA_HOST, "expected NAME:ADDRESS"), True),
    "ipc": (_ipc, False),
    "security_opt": (one_line, True),
    "pids_limit": (lambda text: str(whole(1, 10**9)(text)), False),
}


def _options(fields: Fields) -> tuple[tuple[str, tuple[str, ...]], ...]:
    table = fields.table("options", "expected a mapping, as in shm_size: 1g")
    if table is None:
        return ()
    found = Fields(table, tuple(OPTIONS), fields.faults)
    said = ((name, _values(found, name)) for name in OPTIONS)
    return tuple((name, values) for name, values in said if values)


def _values(fields: Fields, name: str) -> tuple[str, ...]:
    check, several = OPTIONS[name]
    if several:
        return fields.words(name, check) or ()
    value = fields.read(name, check)
    return () if value is None else (value,)
