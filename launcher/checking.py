"""The findings of ``launch check``: what is wrong with a set of hosts, from what they report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from ipaddress import ip_address
from typing import Any, NamedTuple

from launcher.job import Host, is_loopback
from launcher.text import byte_size, counted, duration, listed

#: What TensorFlow takes for yes (``tensorflow/python/util/tf2.py`` and keras' lazy loader).
_YES = ("1", "true", "True")
#: Seconds: a clock that is off by more is odd; by more than the second, certificates and locks fail.
_ODD_CLOCK, _WRONG_CLOCK = 1.0, 30.0
#: Bytes of disk and memory below which a job probably fails.
_LITTLE_DISK, _LITTLE_MEMORY = 1_000_000_000, 1_000_000_000
_WRITE = "write an address that all hosts can use as `address:` into the hostfile"
_ADVICE = {
    "refused": "a firewall rejects it, or the address leads to another machine: look at both",
    "timed out": "a firewall drops it, or there is no route: tasks use ports of the range in "
    "/proc/sys/net/ipv4/ip_local_port_range, so open that between the hosts",
    "no route": "look at `ip route` there; `address:` in the hostfile may name a better address",
    "unknown name": "write an address it can resolve as `address:` into the hostfile",
    "another program": "the address leads to another machine or a proxy: write the right one as `address:` "
    "into the hostfile",
    "cut off": "something on the way ends the connections: a firewall, or a proxy",
}
_FOLDERS = {"home": "its home", "tmp": "its folder for temporary files", "workdir": "its working folder"}
_PYTHON_STATES = {
    "missing": "is not there",
    "slow": "did not answer in time",
    "failed": "can't be run",
}


class Severity(Enum):
    """How bad a finding is, the worst first."""

    PROBLEM = "problem"  #: a job on these hosts will fail, or do something else than was asked for
    WARNING = "warning"  #: it may


class Finding(NamedTuple):
    """One thing that was found."""

    severity: Severity
    #: What it is about, one word that programs can rely on.
    kind: str
    #: The hosts concerned, in the order of the inventory; empty: this machine.
    hosts: tuple[str, ...]
    #: What was seen.
    seen: str
    #: What to try; may be empty.
    advice: str = ""


class Offset(NamedTuple):
    """How far the clock of a host is ahead of ours, in seconds, and by how much that may be wrong."""

    seconds: float
    uncertainty: float


class HostReport(NamedTuple):
    """What a host reports of itself."""

    host: Host
    #: See `launcher.agent.checks`.
    facts: Mapping[str, Any]
    offset: Offset
    #: Of the address of each host: ``found`` addresses, ``why`` there are none.
    names: Mapping[str, Mapping[str, Any]] = {}

    def version(self, package: str) -> str | None:
        """The version of a package that the tasks' Python would import; ``None``: it is not installed."""
        found = self.facts["task_python"].get(package)
        return None if found is None else str(found)


class Pair(NamedTuple):
    """A connection from one host to the port of another: ``ok``, or a key of the advice table."""

    source: str
    target: str
    result: str
    #: What the kernel of the source says.
    why: str = ""


def findings(
    hosts: Sequence[Host], reports: Sequence[HostReport], pairs: Sequence[Pair]
) -> tuple[Finding, ...]:
    """All findings, the worst first.

    Args:
        hosts: the inventory, also the hosts that could not be asked.
        reports: of the hosts that answered.
        pairs: the connections between them.
    """
    facts = {report.host.name: report.facts for report in reports}
    found = [*_inventory(hosts), *_foreign_addresses(hosts, facts)]
    found += [*_pairs(pairs, reports, hosts), *_versions(reports)]
    found += _clocks({report.host.name: report.offset for report in reports})
    for report in reports:
        found += [*_names(report, reports), *_resources(report), *_gpus(report)]
    return _merged(found, hosts)


def findings_of_agents(hosts: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]) -> tuple[Finding, ...]:
    """What the agents' own facts tell before a launch: it costs nothing.

    Args:
        hosts: those that the tasks run on.
        facts: of each host, see `launcher.agent.host`.
    """
    same = [host.name for host in hosts if host.name in facts and _runs_its_agent(host)]
    pythons = _python_versions({name: str(facts[name]["python"]) for name in same})
    return _merged([*_inventory(hosts), *_foreign_addresses(hosts, facts), *pythons], hosts)


def _runs_its_agent(host: Host) -> bool:
    """Whether the Python of its tasks also runs its agent."""
    relative = host.python is not None and "/" in host.python and host.python[0] not in "/~"
    return host.venv is None and not relative


def _merged(found: Iterable[Finding], hosts: Sequence[Host]) -> tuple[Finding, ...]:
    """The worst first; a finding of several hosts stands once."""
    order = [host.name for host in hosts]
    same: dict[Finding, list[str]] = {}
    for finding in found:
        names = same.setdefault(finding._replace(hosts=()), [])
        names.extend(name for name in finding.hosts if name not in names)
    worst = list(Severity)
    merged = [
        finding._replace(hosts=tuple(sorted(names, key=order.index))) for finding, names in same.items()
    ]
    return tuple(sorted(merged, key=lambda finding: worst.index(finding.severity)))


# ---------------------------------------------------------------------- addresses and names


def _as_address(text: str) -> str:
    """A numeric address in its usual form, ``fd00::1``; empty: it is a name."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        return ""


def _addresses(facts: Mapping[str, Any]) -> set[str]:
    return {_as_address(str(address)) for address in facts.get("addresses", ())}


def _inventory(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Addresses that are wrong whatever the hosts are; a list of this machine alone is right."""
    own = [host for host in hosts if is_loopback(host.shown_address)]
    for host in own if len(own) < len(hosts) else ():
        seen = f"other hosts connect to {host.shown_address}, which is themselves"
        yield Finding(Severity.PROBLEM, "address", (host.name,), seen, _WRITE)
    by_address: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        by_address[_as_address(host.shown_address) or host.shown_address.lower()].append(host.name)
    for address, names in by_address.items():
        if len(names) > 1:
            seen, advice = f"have the same address {address}", "one of them is wrong, or too many"
            yield Finding(Severity.PROBLEM, "address", tuple(names), seen, advice)


def _foreign_addresses(hosts: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """A numeric address that belongs to another host."""
    for host in hosts:
        address = _as_address(host.shown_address)
        if host.name not in facts or not address or address in _addresses(facts[host.name]):
            continue
        for other, of_other in facts.items():
            if address in _addresses(of_other):
                seen = f"its address {address} is not its own but {other}'s"
                yield Finding(Severity.PROBLEM, "address", (host.name,), seen, _WRITE)


def _names(report: HostReport, reports: Sequence[HostReport]) -> Iterator[Finding]:
    """What the address of each host means on one host."""
    here, advice = (report.host.name,), f"correct /etc/hosts there, or {_WRITE}"
    for target in reports:
        name = target.host.shown_address
        seen = report.names.get(name)
        if seen is None or _as_address(name) or (len(reports) > 1 and is_loopback(name)):
            continue
        found = [_as_address(str(address)) for address in seen["found"]]
        loopback = [address for address in found if is_loopback(address)]
        texts = []
        if not found:
            texts = [f"{name} can't be resolved: {seen['why']}"]
        elif loopback and report is not target:
            texts = [f"{name} means {loopback[0]} there, the host itself"]
        elif not loopback and not set(found) & _addresses(target.facts):
            others = (other for other in reports if set(found) & _addresses(other.facts))
            texts = [f"{name} means {found[0]} there, which is {other.host.name}" for other in others]
        for text in texts:
            yield Finding(Severity.PROBLEM, "name", here, text, advice)


def _pairs(pairs: Sequence[Pair], reports: Sequence[HostReport], hosts: Sequence[Host]) -> Iterator[Finding]:
    """One finding for each host and way of failing. An unknown name has a finding of its own."""
    addresses = {host.name: host.shown_address for host in hosts}
    names = {report.host.name: report.names for report in reports}
    failed: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pair in pairs:
        name = names.get(pair.source, {}).get(addresses[pair.target])
        named = pair.result == "unknown name" and name is not None and not name["found"]
        if pair.result not in ("ok", "not tried") and not named:
            failed[pair.source, pair.result, pair.why].append(pair.target)
    for (source, result, why), targets in failed.items():
        others = [pair.target for pair in pairs if pair.source == source and pair.target != source]
        if targets == [source]:
            text = f"itself at {addresses[source]}"
        elif len(others) > 1 and set(others) <= set(targets):
            text = f"any of the {len(others)} others"
        else:
            text = listed(targets)
        seen = f"can't reach {text}: {result}{f' ({why})' if why else ''}"
        yield Finding(Severity.PROBLEM, "unreachable", (source,), seen, _ADVICE.get(result, ""))


# ---------------------------------------------------------------------- versions


def _versions(reports: Sequence[HostReport]) -> Iterator[Finding]:
    """Python, TensorFlow and Keras: whether they are the same, and can work together."""
    usable = [report for report in reports if report.facts["task_python"]["state"] == "ok"]
    for report in reports:
        if report not in usable:
            python = report.facts["task_python"]
            lines = str(python["output"]).strip().splitlines()
            state = _PYTHON_STATES.get(python["state"], python["state"])
            seen = f"{python['asked']} {state}{f': {lines[-1]}' if lines else ''}"
            advice = "write the right one as `python:` or `venv:` into the hostfile"
            yield Finding(Severity.PROBLEM, "python", (report.host.name,), seen, advice)
    yield from _python_versions({report.host.name: report.version("version") or "" for report in usable})
    having = [report for report in usable if report.version("tensorflow")]
    missing = [report for report in usable if report not in having]
    if missing:
        paths = sorted({str(report.facts["task_python"]["path"]) for report in missing})
        seen = f"{listed(paths)} does not have TensorFlow{' (others have it)' if having else ''}"
        advice = "`pip install tensorflow` there, or write `python:` or `venv:` into the hostfile"
        names = tuple(report.host.name for report in missing)
        yield Finding(Severity.WARNING, "tensorflow-missing", names, seen, advice)
    for package, label in (("tensorflow", "TensorFlow"), ("keras", "Keras")):
        versions = {report.host.name: report.version(package) or "none" for report in having}
        for other, names, usual in _odd_ones(versions):
            seen = f"{label} {other}, the others have {usual}"
            severity = Severity.WARNING
            if package == "tensorflow" and _minor(other) != _minor(usual):
                severity = Severity.PROBLEM
                seen += ": they may not understand each other's graphs and messages"
            advice = "install the same version on all hosts"
            yield Finding(severity, f"{package}-differs", names, seen, advice)
    for report in having:
        yield from _keras(report)


def _python_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Python versions that differ in more than the last number."""
    for other, names, usual in _odd_ones({host: _minor(version) for host, version in versions.items()}):
        advice = "one may not read what another pickles; one `python:` or `venv:` for all avoids it"
        seen = f"Python {other}, the others have {usual}"
        yield Finding(Severity.WARNING, "python-differs", names, seen, advice)


def _keras(report: HostReport) -> Iterator[Finding]:
    """``model.fit`` of Keras 3 can't train across workers; the legacy one can, if installed and asked for."""
    tensorflow, keras, legacy = (report.version(name) or "" for name in ("tensorflow", "keras", "tf_keras"))
    here = (report.host.name,)
    asked = str(report.facts["environment"].get("TF_USE_LEGACY_KERAS", "")) in _YES
    install = f"`pip install 'tf_keras~={_minor(tensorflow)}.0'` there"
    if asked and not legacy:
        seen = "TF_USE_LEGACY_KERAS is set, and tf_keras is not installed: `tf.keras` can't be imported"
        yield Finding(Severity.PROBLEM, "keras", here, seen, install)
    elif asked and _minor(legacy) != _minor(tensorflow):
        seen = f"tf_keras {legacy} is for another TensorFlow than {tensorflow}"
        yield Finding(Severity.WARNING, "keras", here, seen, install)
    elif not asked and keras.partition(".")[0] not in ("", "1", "2"):
        seen = (
            f"Keras {keras.partition('.')[0]}: `model.fit` fails under MultiWorkerMirroredStrategy and "
            "ParameterServerStrategy (custom training loops work)"
        )
        first = "" if _minor(legacy) == _minor(tensorflow) else f"{install} and "
        advice = f"if you need it: {first}launch with `-x TF_USE_LEGACY_KERAS=1`"
        yield Finding(Severity.WARNING, "keras", here, seen, advice)


def _odd_ones(values: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each value that is not the usual one, the hosts that have it, and the usual one."""
    everything = list(values.values())
    usual = max(dict.fromkeys(everything), key=everything.count, default="")
    others: dict[str, list[str]] = {}
    for host, value in values.items():
        if value != usual:
            others.setdefault(value, []).append(host)
    yield from ((other, tuple(names), usual) for other, names in others.items())


def _minor(version: str) -> str:
    """``3.11`` of ``3.11.7``."""
    return ".".join(version.split(".")[:2])


# ---------------------------------------------------------------------- clocks, room, GPUs


def _clocks(offsets: Mapping[str, Offset]) -> Iterator[Finding]:
    """Clocks that are off from most others by more than the measurement may be wrong; ours is one of them."""
    times = sorted([offset.seconds for offset in offsets.values()] + [0.0])
    usual = times[len(times) // 2] if len(offsets) > 1 else 0.0
    others = "the others" if len(offsets) > 1 else "this machine's"
    doubt = max((offset.uncertainty for offset in offsets.values()), default=0.0)
    clocks = [((host,), "its clock", offset.seconds, offset.uncertainty) for host, offset in offsets.items()]
    for hosts, clock, seconds, uncertainty in [*clocks, ((), "the clock of this machine", 0.0, doubt)]:
        off = seconds - usual
        if abs(off) - uncertainty > _ODD_CLOCK:
            severity = Severity.PROBLEM if abs(off) - uncertainty > _WRONG_CLOCK else Severity.WARNING
            seen = f"{clock} is {duration(abs(off))} {'ahead of' if off > 0 else 'behind'} {others}"
            advice = "let it be set from the network: `timedatectl set-ntp true`"
            yield Finding(severity, "clock", hosts, seen, advice)


def _resources(report: HostReport) -> Iterator[Finding]:
    here = (report.host.name,)
    for which, folder in report.facts["folders"].items():
        where = f"{_FOLDERS.get(which, which)} {folder['path']}"
        free = folder["free"]
        if folder["why"]:
            full = free is not None and free < _LITTLE_DISK / 1000
            severity = Severity.PROBLEM if full or which != "home" else Severity.WARNING
            advice = "make room there" if full else "correct it, or use another: `workdir:` in the hostfile"
            yield Finding(severity, "disk", here, f"{where} can't be written: {folder['why']}", advice)
        elif free is not None and free < _LITTLE_DISK:
            seen = f"{where} has {byte_size(free)} left"
            yield Finding(Severity.WARNING, "disk", here, seen, "make room there: checkpoints need it")
    available = report.facts["available"]
    if available is not None and available < _LITTLE_MEMORY:
        seen = f"{byte_size(available)} of memory left; importing TensorFlow takes 540 MB a task"
        advice = "see what uses it: `ps aux --sort=-rss`"
        yield Finding(Severity.WARNING, "memory", here, seen, advice)


def _gpus(report: HostReport) -> Iterator[Finding]:
    """The GPUs of the hostfile against those of ``nvidia-smi``."""
    here, gpus, expected = (report.host.name,), report.facts["gpus"], report.host.gpus or ()
    there: list[dict[str, str]] = gpus["list"]
    absent = [gpu for gpu in expected if not _has_gpu(gpu, there)]
    if gpus["state"] in ("failed", "slow"):
        lines = str(gpus["output"]).splitlines() or ["it did not answer in time"]
        severity = Severity.PROBLEM if expected else Severity.WARNING
        advice = "the driver is broken, or was replaced without a restart of the host"
        yield Finding(severity, "gpus", here, f"nvidia-smi fails: {lines[0]}", advice)
    elif absent:
        those = f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not among the {len(there)} there"
        seen = f"the hostfile says {counted(len(expected), 'GPU')}, and {those}"
        yield Finding(Severity.PROBLEM, "gpus", here, seen, "correct `gpus:` in the hostfile")


def _has_gpu(gpu: str, there: Sequence[Mapping[str, str]]) -> bool:
    """An index, or the beginning of a UUID; parts of a GPU (MIG) are not listed."""
    if gpu.startswith("MIG"):
        return True
    return any(
        gpu == found["index"] or (gpu.startswith("GPU-") and found["uuid"].startswith(gpu)) for found in there
    )
