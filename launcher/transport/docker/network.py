"""The network of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import TransportError
from launcher.transport.docker.engine import Engine

#: How often a range that was free a moment ago is tried again, when somebody else has got it.
_TRIES = 5


def make(engine: Engine, name: str, labels: Mapping[str, str], fixed: bool = False) -> None:
    """Make a network.

    Args:
        engine: makes it.
        name: what it is called.
        labels: whose it is.
        fixed: addresses can be asked for in it (see `FIXED_ADDRESSES`).

    Raises:
        TransportError: it can't be made.
    """
    _create(engine, name, labels, ())
    if fixed:
        _fix(engine, name, labels)


def _fix(engine: Engine, name: str, labels: Mapping[str, str]) -> None:
    """Make it again, with the range that the engine has chosen: then it counts as chosen by us."""
    for tries in range(_TRIES):
        ranges = _ranges(engine, name)
        engine.asked("a network can't be removed", lambda: engine.client.remove_network(name))
        try:
            _create(engine, name, labels, ranges)
        except TransportError:
            if tries == _TRIES - 1:
                raise
            _create(engine, name, labels, ())
        else:
            return


def _ranges(engine: Engine, name: str) -> Sequence[str]:
    found = engine.asked("a network can't be looked at", lambda: engine.client.inspect_network(name))
    return [pool["Subnet"] for pool in found["IPAM"]["Config"] or () if pool.get("Subnet")]


def _create(engine: Engine, name: str, labels: Mapping[str, str], ranges: Sequence[str]) -> None:
    from docker.types import IPAMConfig, IPAMPool

    settings: dict[str, Any] = {"driver": "bridge", "labels": dict(labels), "check_duplicate": True}
    if ranges:
        settings["ipam"] = IPAMConfig(pool_configs=[IPAMPool(subnet=one) for one in ranges])
    engine.asked("the job's network can't be made", lambda: engine.client.create_network(name, **settings))
