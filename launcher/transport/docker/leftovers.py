"""What launches have made at an engine: found by its labels, removed by force."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from docker.errors import APIError

from launcher.transport.docker.engine import FAULTS, Engine
from launcher.transport.docker.settings import JOB, OWNER

if TYPE_CHECKING:
    from typing import Any

#: Seconds for a container or network to go, and between two looks.
PATIENCE = 15.0
_LOOK = 0.05
#: What the engine answers when a thing is gone, or just going.
_GONE, _GOING = 404, 409


class Thing(NamedTuple):
    """A container or a network with our labels."""

    kind: str
    id: str
    name: str
    labels: Mapping[str, str]


def things(engine: Engine, job: str | None = None) -> list[Thing]:
    """Everything that carries our labels, containers first.

    Args:
        engine: where to look.
        job: only what is of this job.

    Raises:
        TransportError: the engine does not say.
    """
    wanted = {"label": [OWNER] if job is None else [OWNER, f"{JOB}={job}"]}

    def listed() -> list[Thing]:
        containers = engine.client.containers(all=True, filters=wanted)
        networks = engine.client.networks(filters=wanted)
        return [
            *(Thing("container", one["Id"], _name(one), one.get("Labels") or {}) for one in containers),
            *(Thing("network", one["Id"], one["Name"], one.get("Labels") or {}) for one in networks),
        ]

    return engine.asked("what launches have made can't be listed", listed)


def _name(container: Mapping[str, Any]) -> str:
    names = container.get("Names") or [container["Id"][:12]]
    return str(names[0]).lstrip("/")


def remove(engine: Engine, found: list[Thing], seconds: float = PATIENCE) -> list[str]:
    """Remove these, containers first, and wait until they are gone.

    Returns:
        What is still there, and why.
    """
    remove_container = partial(engine.client.remove_container, force=True, v=True)
    deadline = time.monotonic() + seconds
    containers = [thing for thing in found if thing.kind == "container"]
    rest = [thing for thing in found if thing.kind != "container"]
    left: list[str] = []
    for group, request, look in (
        (containers, remove_container, engine.client.inspect_container),
        (rest, engine.client.remove_network, engine.client.inspect_network),
    ):
        refused = {thing.id: _requested(engine, request, thing.id) for thing in group}
        for thing in group:
            why = _until_gone(engine, request, look, thing, refused[thing.id], deadline)
            left += [f"{thing.kind} {thing.name}: {why}"] if why else []
    return left


def _requested(engine: Engine, request: Callable[[str], object], it: str) -> str:
    """Ask for a removal; why it was refused, empty if it was not."""
    try:
        request(it)
    except APIError as error:
        return "" if error.status_code in (_GONE, _GOING) else engine.explain(error)
    except FAULTS as error:
        return engine.explain(error)
    return ""


def _until_gone(
    engine: Engine,
    request: Callable[[str], object],
    look: Callable[[str], object],
    thing: Thing,
    why: str,
    deadline: float,
) -> str:
    """Wait, and ask again, until a thing is gone; why it is not, empty if it is."""
    while True:
        try:
            look(thing.id)
        except APIError as error:
            if error.status_code == _GONE:
                return ""
            why = engine.explain(error)
        except FAULTS as error:
            return engine.explain(error)
        if time.monotonic() > deadline:
            return why or "it is still being removed"
        time.sleep(_LOOK)
        why = _requested(engine, request, thing.id)
