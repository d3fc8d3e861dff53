"""``docker:`` of a job file: an image, and what its containers are to be like."""

from __future__ import annotations

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
    if (
        one_line(text).startswith("-")
        or " " in text
        or text.lower() in ("true", "false", "yes", "no", "on", "off")
    ):
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


def _options(fields: Fields) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Options of ``docker run``; the engine knows which there are, and which values."""
    table = fields.table("options", "expected a mapping, as in shm_size: 1g")
    if table is None:
        return ()
    names = tuple(key.text for key, _ in table.entries)
    found = Fields(table, names, fields.faults)
    return tuple((name, values) for name in names if (values := found.words(name, one_line)))
