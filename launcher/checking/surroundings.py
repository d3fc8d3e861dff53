"""What else a run meets on a host: proxies and settings in its environment, leftovers of other runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

from launcher.checking.addresses import is_address, plain
from launcher.checking.records import Finding, Severity, Sight
from launcher.text import counted, listed

#: What gRPC asks for a proxy, and what for exceptions: the first that is set, in this order
#: (``src/core/handshaker/http_connect/http_proxy_mapper.cc``); it does not know the others.
_GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_GRPC_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
_OTHER_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "all_proxy")


def of_surroundings(sight: Sight, sights: Sequence[Sight]) -> Iterator[Finding]:
    """All that is to be said of one host.

    Args:
        sight: what was seen there.
        sights: of all hosts, it included: they are whom its tasks connect to.
    """
    yield from _of_proxies(sight, [other.host.shown_address for other in sights])
    yield from _of_settings(sight)
    yield from _of_leftovers(sight)


def _of_proxies(sight: Sight, addresses: Sequence[str]) -> Iterator[Finding]:
    environment: Mapping[str, str] = sight.facts["environment"]
    name = next((name for name in _GRPC_PROXIES if environment.get(name)), None)
    exceptions = next((environment[n] for n in _GRPC_EXCEPTIONS if environment.get(n)), "")
    through = [address for address in addresses if not is_excepted(address, exceptions)]
    advice = f"-x no_proxy={','.join(dict.fromkeys(addresses))}" if len(addresses) <= 8 else "-x no_proxy=..."
    if name and through:
        seen = f"{name}={environment[name]} makes gRPC connect to {listed(through)} through a proxy"
        yield Finding(
            Severity.WARNING, "proxy", (sight.name,), seen, f"unset it there, or launch with `{advice}`"
        )
    others = [other for other in _OTHER_PROXIES if environment.get(other)]
    if others and not name:
        seen = f"{listed(others)} is set: TensorFlow's servers do not use it, other libraries may"
        yield Finding(Severity.NOTE, "proxy", (sight.name,), seen)


def is_excepted(address: str, exceptions: str) -> bool:
    """Whether gRPC connects without a proxy: an entry is the end of a name, or a network for a number.

    Args:
        address: a name or a number.
        exceptions: the value of ``no_proxy``.
    """
    entries = [entry.strip() for entry in exceptions.split(",") if entry.strip()]
    return any(_matches(plain(address), entry.lower()) for entry in entries)


def _matches(address: str, entry: str) -> bool:
    if is_address(address) and "/" in entry:
        try:
            return ip_address(address) in ip_network(entry, strict=False)
        except ValueError:
            return False
    return address.endswith(entry)


def _of_settings(sight: Sight) -> Iterator[Finding]:
    environment: Mapping[str, str] = sight.facts["environment"]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and sight.facts["gpus"]["list"] and sight.host.gpus is None:
        seen = f"CUDA_VISIBLE_DEVICES={visible!r} is set there: tasks see these GPUs only"
        yield Finding(
            Severity.NOTE, "environment", (sight.name,), seen, "`gpus:` in the hostfile says it openly"
        )


def _of_leftovers(sight: Sight) -> Iterator[Finding]:
    """What earlier runs left; what runs there now is another matter."""
    left = sight.facts["leftovers"]
    if left["count"]:
        shown = [f"{process['name']} ({process['pid']})" for process in left["processes"]]
        verb = "is" if left["count"] == 1 else "are"
        number = counted(left["count"], "process", "processes")
        seen = f"{number} of an earlier run {verb} left: {listed(shown, 4)}"
        yield Finding(
            Severity.NOTE, "leftovers", (sight.name,), seen, "the next launch ends what is provably ours"
        )
    if left["busy"]:
        seen = f"another run of launch is there, with {left['busy']} of its processes"
        yield Finding(Severity.NOTE, "busy", (sight.name,), seen, "both will be slower")
    if left["folders"]:
        seen = f"folders of runs: {listed(left['folders'], 3)}"
        advice = "~/.cache/tf-launcher/work there may be removed when nothing runs"
        yield Finding(Severity.NOTE, "leftovers", (sight.name,), seen, advice)
