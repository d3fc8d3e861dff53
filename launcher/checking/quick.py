"""The quick form of the check, from what agents tell anyway: it costs a launch nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.checking.addresses import of_inventory, of_machines
from launcher.checking.clocks import of_clocks
from launcher.checking.records import Finding, Offset, merged
from launcher.checking.versions import of_pythons
from launcher.job import Host

if TYPE_CHECKING:
    from typing import Any


def quick(
    hosts: Sequence[Host],
    ready: Mapping[str, Mapping[str, Any]],
    offsets: Mapping[str, Offset] | None = None,
) -> tuple[Finding, ...]:
    """What can be said of hosts whose agents are ready.

    Args:
        hosts: those that the tasks run on.
        ready: host -> ``AgentReady.facts`` (see ``launcher.agent.hostfacts``).
        offsets: of their clocks, as far as they were measured.
    """
    return merged(_all(hosts, ready, offsets or {}), [host.name for host in hosts])


def _all(
    hosts: Sequence[Host], ready: Mapping[str, Mapping[str, Any]], offsets: Mapping[str, Offset]
) -> Iterator[Finding]:
    yield from of_inventory(hosts)
    yield from of_machines(hosts, ready)
    yield from of_clocks(offsets)
    plain = [host.name for host in hosts if host.name in ready and _runs_its_agent(host)]
    yield from of_pythons({name: str(ready[name]["python"]) for name in plain})


def _runs_its_agent(host: Host) -> bool:
    """Whether the Python of its tasks runs its agent too; another one is not known yet."""
    relative = host.python is not None and "/" in host.python and host.python[0] not in "/~"
    return host.venv is None and not relative
