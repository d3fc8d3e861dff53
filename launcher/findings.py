"""Decides which faults a set of hosts has, from the reports of the hosts.

``launch check`` calls `findings` with the results of its inspection, and a launch calls `findings_of_agents`
with what its agents say anyway. This module is pure: it must not do any input or output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address

from launcher.common.events import HostFacts
from launcher.common.record import Record, replace
from launcher.common.text import byte_size, duration, join_names, last_line, sanitize_host_text
from launcher.job import Host, is_loopback

#: The severity of a fault with which a job will fail, or will do something else than the user asked for.
PROBLEM = "problem"
#: The severity of a fault with which a job may fail.
WARNING = "warning"
#: A clock that is further off leads to a warning.
_ODD_CLOCK_SECONDS = 1.0
#: With a clock that is further off, certificates and locks fail.
_WRONG_CLOCK_SECONDS = 30.0
#: With less disk or memory than this a job probably fails.
_MIN_FREE_BYTES = 1_000_000_000
_ADDRESS_ADVICE = "write an address that all hosts can use as `address:` into the hostfile"
#: What to do about a failed connection, by `ReachResult.result`.
_ADVICE_BY_RESULT = {
    "refused": "a firewall rejects it, or the address leads to another machine: look at both",
    "timed out": "a firewall drops it, or the hosts have no route: tasks use ports of the range in "
    "/proc/sys/net/ipv4/ip_local_port_range, so open that between the hosts",
    "no route": "look at `ip route` there; `address:` in the hostfile may name a better address",
    "another program": "the address leads to another machine or a proxy: write the right one as `address:` "
    "into the hostfile",
    "cut off": "a firewall or a proxy closes the connections",
}
#: By the key in a report: how messages call the folder, and the setting of the hostfile that names another.
_FOLDER_NAMES = {
    "workdir": ("its working folder", "`workdir:`"),
    "tmp": ("its folder for temporary files", "`env: {TMPDIR: ...}`"),
}
_PYTHON_STATES = {"missing": "is not there", "slow": "did not answer in time", "failed": "cannot be run"}


class Finding(Record):
    """A fault of one host, or the same fault of several hosts."""

    #: `PROBLEM` or `WARNING`.
    severity: str
    #: A word that programs can compare: ``address``, ``name``, ``unreachable``, ``python``, ``clock``, ...
    kind: str
    #: The names of the hosts, in the order in which the user listed them.
    hosts: tuple[str, ...]
    #: What is wrong, as a part of a sentence about the hosts.
    seen: str
    #: What to do about it. It may be empty.
    advice: str = ""


class Folder(Record):
    """What a host reports about one of its folders."""

    path: str
    #: The free space in bytes, or None if it is unknown.
    free: int | None
    #: Why the folder cannot be written. It is empty if it can.
    why: str


class Gpu(Record):
    """One GPU as ``nvidia-smi`` lists it."""

    index: str
    uuid: str
    name: str


class Gpus(Record):
    """The GPUs that ``nvidia-smi`` lists, or why it lists none."""

    #: ``ok``, ``missing``, ``failed`` or ``slow``.
    state: str
    output: str
    list: tuple[Gpu, ...]


class TaskPython(Record):
    """The Python that would run the tasks of a host, and the versions of packages that it would import."""

    #: The Python as the user or launch names it.
    asked: str
    #: Where it was found.
    path: str
    #: The result of running it: ``ok``, ``missing``, ``failed`` or ``slow``.
    state: str
    #: What it printed.
    output: str
    version: str = ""
    #: The version of TensorFlow, or None if it is not installed. The same holds for the next two.
    tensorflow: str | None = None
    keras: str | None = None
    tf_keras: str | None = None


class UrlResult(Record):
    """Whether the Python of tasks can reach a URL."""

    #: The URL without secrets.
    url: str
    #: The error, which begins with the URL, or an empty text.
    error: str


class HostInspection(Record):
    """The answer of `launcher.agent.checks`, which inspects one host for ``launch check``."""

    #: The same facts that an agent reports when it starts.
    agent: HostFacts
    #: Bytes of available memory, or None if they are unknown.
    available: int | None
    #: The folders that tasks write to, by the keys of `_FOLDER_NAMES`.
    folders: Mapping[str, Folder]
    #: Environment variables of the agent that matter to tasks.
    environment: Mapping[str, str]
    gpus: Gpus
    task_python: TaskPython


class HostCheck(Record):
    """A host that was inspected, with what it reported about itself."""

    host: Host
    facts: HostInspection
    #: How many seconds its clock is ahead of this machine's clock.
    clock: float
    #: The results for the URLs that the user has named.
    urls: tuple[UrlResult, ...] = ()

    def version(self, package: str) -> str:
        """Return the version of a package that the Python of the tasks would import.

        Args:
            package: ``tensorflow``, ``keras`` or ``tf_keras``, or ``version`` for Python itself.

        Returns:
            The version. It is empty if the package is not installed.
        """
        return getattr(self.facts.task_python, package) or ""


class ReachResult(Record):
    """The result of one connection that a host tried to make to a port on another host or on itself."""

    #: The name of the host that tried to connect.
    source: str
    #: The name of the host to which it connected.
    target: str
    #: ``ok``, ``refused``, ``timed out``, ``no route``, ``unknown name``, ``another program``, ``cut off`` or
    #: ``failed``.
    result: str
    #: The error in the words of the source's system.
    why: str = ""
    #: The numeric address to which the source resolves the target's name. It is empty if it cannot.
    address: str = ""


def findings(
    hosts: Sequence[Host],
    reports: Sequence[HostCheck],
    pairs: Sequence[ReachResult],
    more: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return all findings of ``launch check``, problems before warnings.

    Args:
        hosts: All hosts, including those that could not be inspected.
        reports: The reports of the hosts that answered.
        pairs: The results of the connections between these hosts.
        more: Findings about the allocation, which the backend made.
    """
    facts = {report.host.name: report.facts.agent for report in reports}
    found = [*_addresses(hosts, facts), *_pairs(pairs, hosts, facts), *_versions(reports)]
    found += [*_clocks(reports), *more]
    for report in reports:
        found += [*_urls(report), *_resources(report), *_gpus(report)]
    return _merged(found, hosts)


def findings_of_agents(hosts: Sequence[Host], facts: Mapping[str, HostFacts]) -> tuple[Finding, ...]:
    """Return what is wrong with the hosts of a launch, judged by the facts that their agents report anyway.

    A launch can warn about these before its tasks start, without asking the hosts anything.

    Args:
        hosts: The hosts on which tasks will run.
        facts: What the agent of each host reported, by the name of the host.
    """
    # The facts contain the version of the agent's Python. On other hosts the tasks have another Python.
    names = [host.name for host in hosts if host.name in facts and _shares_python_with_agent(host)]
    pythons = _python_versions({name: facts[name].python for name in names})
    return _merged([*_addresses(hosts, facts), *pythons], hosts)


def _shares_python_with_agent(host: Host) -> bool:
    """Return whether the tasks of a host run with the same Python as its agent.

    An environment, and a path that is relative to the working folder of the tasks, are for the tasks only.
    """
    is_relative = host.python is not None and "/" in host.python and host.python[0] not in "/~"
    return host.venv is None and not is_relative


def _merged(found: Iterable[Finding], hosts: Sequence[Host]) -> tuple[Finding, ...]:
    """Join findings that differ only in their hosts, and return problems before warnings.

    Args:
        found: The findings, mostly about one host each.
        hosts: All hosts, in the order in which a finding names its hosts.
    """
    order = {host.name: number for number, host in enumerate(hosts)}
    hosts_by_finding: dict[Finding, set[str]] = defaultdict(set)
    for finding in found:
        hosts_by_finding[replace(finding, hosts=())].update(finding.hosts)
    merged = []
    for finding, names in hosts_by_finding.items():
        merged.append(replace(finding, hosts=tuple(sorted(names, key=order.__getitem__))))
    return tuple(sorted(merged, key=lambda finding: finding.severity != PROBLEM))


# ---------------------------------------------------------------------- addresses and connections


def _as_address(text: str) -> str:
    """Return a numeric address in its usual form, such as ``fd00::1``. For a name the result is empty."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        return ""


def _interface_addresses(facts: HostFacts) -> set[str]:
    """Return the addresses of a host's own interfaces, in their usual form."""
    return set(map(_as_address, facts.addresses))


def _addresses(hosts: Sequence[Host], facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Yield the faults of addresses that lead to another host than the one the user meant.

    A loopback address is a fault only if some hosts have another address: if all have one, all tasks run on
    this machine.

    Args:
        hosts: All hosts.
        facts: What the agent of each host has reported, such as the addresses of its interfaces.
    """
    names_by_address: dict[str, list[str]] = defaultdict(list)
    interfaces = {name: _interface_addresses(of_host) for name, of_host in facts.items()}
    for host in hosts:
        address = _as_address(host.shown_address)
        names_by_address[address or host.shown_address.lower()].append(host.name)
        if is_loopback(host.shown_address):
            if not all(is_loopback(other.shown_address) for other in hosts):
                seen = f"other hosts that connect to {host.shown_address} reach themselves"
                yield Finding(PROBLEM, "address", (host.name,), seen=seen, advice=_ADDRESS_ADVICE)
        # An address that no host has may be that of a router, which forwards it.
        elif host.name in facts and address and address not in interfaces[host.name]:
            for other in (name for name in facts if address in interfaces[name]):
                seen = f"its address {address} is not its own but {other}'s"
                yield Finding(PROBLEM, "address", (host.name,), seen=seen, advice=_ADDRESS_ADVICE)
    for address, names in names_by_address.items():
        if len(names) > 1:
            seen, advice = f"have the same address {address}", "correct or remove one of them"
            yield Finding(PROBLEM, "address", tuple(names), seen=seen, advice=advice)


def _pairs(
    pairs: Sequence[ReachResult], hosts: Sequence[Host], facts: Mapping[str, HostFacts]
) -> Iterator[Finding]:
    """Yield the faults of failed connections.

    There is one finding for each name that a host resolves wrongly. All other failures are grouped by the
    host that tried to connect and the way in which it failed.

    Args:
        pairs: The results of the connections between hosts.
        hosts: All hosts, with the names by which others connect to them.
        facts: What the agent of each host has reported, such as the addresses of its interfaces.
    """
    names = {host.name: host.shown_address for host in hosts}
    targets_by_failure: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pair in pairs:
        if pair.result == "ok":
            continue
        name, address = names[pair.target], _as_address(pair.address)
        # The hosts that have an interface with the address to which the source resolves the name.
        owners = [host for host in facts if address in _interface_addresses(facts[host])]
        wrong_name = ""
        if pair.result == "unknown name":
            wrong_name = f"{name} cannot be resolved: {pair.why}"
        elif is_loopback(address) and pair.source != pair.target:
            wrong_name = f"{name} means {address} there, the host itself"
        elif owners and pair.target not in owners:
            wrong_name = f"{name} means {address} there, which is {owners[0]}"
        # An address cannot be resolved wrongly, and a loopback name has a finding of its own.
        if wrong_name and not _as_address(name) and not is_loopback(name):
            advice = f"correct /etc/hosts there, or {_ADDRESS_ADVICE}"
            yield Finding(PROBLEM, "name", (pair.source,), seen=wrong_name, advice=advice)
        else:
            # Every other result says by itself what has happened.
            why = f" ({pair.why})" if pair.result == "failed" else ""
            targets_by_failure[pair.source, pair.result + why].append(pair.target)
    for (source, result), targets in targets_by_failure.items():
        text = join_names(["itself" if target == source else target for target in targets])
        seen = f"cannot reach {text}: {result}"
        yield Finding(PROBLEM, "unreachable", (source,), seen=seen, advice=_ADVICE_BY_RESULT.get(result, ""))


# ---------------------------------------------------------------------- versions


def _versions(reports: Sequence[HostCheck]) -> Iterator[Finding]:
    """Yield the faults of hosts without a usable Python or TensorFlow, or with versions that differ."""
    usable = []
    for report in reports:
        python = report.facts.task_python
        if python.state == "ok":
            usable.append(report)
            continue
        # The last line of a traceback says what is wrong.
        printed = last_line(python.output)
        state = _PYTHON_STATES.get(python.state, python.state)
        seen = f"{python.asked} {state}{f': {printed}' if printed else ''}"
        advice = "write the right one as `python:` or `venv:` into the hostfile, or `launch prepare` one"
        yield Finding(PROBLEM, "python", (report.host.name,), seen=seen, advice=advice)
    # Only Pythons that can be run have versions.
    yield from _python_versions({report.host.name: report.version("version") for report in usable})
    tensorflow = {report.host.name: report.version("tensorflow") for report in usable}
    missing = [report for report in usable if not tensorflow[report.host.name]]
    for report in missing:
        elsewhere = " (others have it)" if len(missing) < len(usable) else ""
        seen = f"{report.facts.task_python.path} does not have TensorFlow{elsewhere}"
        advice = "`launch prepare` installs it; or write `python:` or `venv:` into the hostfile"
        yield Finding(WARNING, "tensorflow-missing", (report.host.name,), seen=seen, advice=advice)
    present = {host: version for host, version in tensorflow.items() if version}
    for version, names, usual in _odd_values(present):
        # It is only a warning if the versions differ in nothing but the last number.
        severity, effect = WARNING, ""
        if _minor(version) != _minor(usual):
            severity, effect = PROBLEM, ": they may not understand each other's graphs and messages"
        seen = f"TensorFlow {version}, the others have {usual}{effect}"
        advice = "install the same version on all hosts"
        yield Finding(severity, "tensorflow-differs", names, seen=seen, advice=advice)


def _python_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the faults of Python versions that differ from the usual one in more than the last number."""
    minor_versions = {host: _minor(version) for host, version in versions.items()}
    for version, names, usual in _odd_values(minor_versions):
        advice = "one may not read what another pickles; one `python:` or `venv:` for all avoids it"
        seen = f"Python {version}, the others have {usual}"
        yield Finding(WARNING, "python-differs", names, seen=seen, advice=advice)


def _odd_values(values: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield each value that differs from the most frequent one.

    Args:
        values: A value for each host, by the name of the host.

    Yields:
        The value, the names of the hosts with this value, and the most frequent value.
    """
    all_values = list(values.values())
    usual = max(dict.fromkeys(all_values), key=all_values.count, default="")
    for value in dict.fromkeys(all_values):
        if value != usual:
            yield value, tuple(host for host in values if values[host] == value), usual


def _minor(version: str) -> str:
    """Return the first two numbers of a version: ``3.11`` for ``3.11.7``."""
    return ".".join(version.split(".")[:2])


# ---------------------------------------------------------------------- clocks, disks, memory, GPUs


def _clocks(reports: Sequence[HostCheck]) -> Iterator[Finding]:
    """Yield the faults of clocks that differ from the median of all clocks, this machine's included.

    With a single host, its clock is compared with this machine's. Logs are hard to compare if clocks differ
    by seconds. If they differ by more, certificates and locks fail, too.
    """
    usual, others = 0.0, "this machine's"  # Of this machine, as clocks are compared with its clock.
    if len(reports) > 1:
        times = sorted([report.clock for report in reports] + [0.0])
        usual, others = times[len(times) // 2], "the others"
    for report in reports:
        ahead = report.clock - usual
        if abs(ahead) > _ODD_CLOCK_SECONDS:
            severity = PROBLEM if abs(ahead) > _WRONG_CLOCK_SECONDS else WARNING
            seen = f"its clock is {duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} {others}"
            advice = "let it be set from the network: `timedatectl set-ntp true`"
            yield Finding(severity, "clock", (report.host.name,), seen=seen, advice=advice)


def _urls(report: HostCheck) -> Iterator[Finding]:
    """Yield a problem for each URL that the Python of tasks cannot reach."""
    for error in (result.error for result in report.urls if result.error):
        # If a package is missing, this is "s3://x/y: s3fs is not installed: pip install 'tf-launcher[s3]'".
        seen, _, package = sanitize_host_text(error).partition(": pip install ")
        advice = ""
        if package:
            seen += f" for {report.facts.task_python.path}"
            prepare = f"launch prepare --name NAME tensorflow {package}"
            install = f"pip install {package}"
            advice = f"{install}; on all hosts: {prepare}; in a Dockerfile: RUN {install}"
        yield Finding(PROBLEM, "url", (report.host.name,), seen=seen, advice=advice)


def _resources(report: HostCheck) -> Iterator[Finding]:
    """Yield the faults of a host whose folders cannot be written, or that is short of disk or memory."""
    host = (report.host.name,)
    for key, (what, setting) in _FOLDER_NAMES.items():
        if (folder := report.facts.folders.get(key)) is None:  # The host says nothing about it.
            continue
        where, free = f"{what} {folder.path}", folder.free
        if folder.why:
            seen = f"{where} cannot be written: {folder.why}"
            advice = f"free space there, correct it, or use another: {setting} in the hostfile"
            yield Finding(PROBLEM, "disk", host, seen=seen, advice=advice)
        elif free is not None and free < _MIN_FREE_BYTES:
            seen = f"{where} has {byte_size(free)} left"
            yield Finding(WARNING, "disk", host, seen=seen, advice="free space there: checkpoints need it")
    available = report.facts.available
    if available is not None and available < _MIN_FREE_BYTES:
        seen = f"{byte_size(available)} of memory left; importing TensorFlow takes 540 MB a task"
        yield Finding(WARNING, "memory", host, seen=seen, advice="see what uses it: `ps aux --sort=-rss`")


def _gpus(report: HostCheck) -> Iterator[Finding]:
    """Yield the faults of GPUs: ``nvidia-smi`` fails, or does not list a GPU that the hostfile names."""
    host, gpus, expected = (report.host.name,), report.facts.gpus, report.host.gpus or ()
    absent = [gpu for gpu in expected if not _is_listed(gpu, gpus.list)]
    # Without nvidia-smi the list is empty, and only the GPUs of the hostfile are missing.
    if gpus.state in ("failed", "slow"):
        lines = gpus.output.splitlines() or ["it did not answer in time"]
        seen = f"nvidia-smi fails: {sanitize_host_text(lines[0])}"
        advice = "the driver is broken, or was replaced without a restart of the host"
        yield Finding(PROBLEM if expected else WARNING, "gpus", host, seen=seen, advice=advice)
    elif absent:
        seen = f"GPU {join_names(absent)} of the hostfile not found: nvidia-smi lists {len(gpus.list)}"
        yield Finding(PROBLEM, "gpus", host, seen=seen, advice="correct `gpus:` in the hostfile")


def _is_listed(gpu: str, listed: Sequence[Gpu]) -> bool:
    """Return whether a GPU of the hostfile is among those of ``nvidia-smi``.

    Args:
        gpu: An index, or the beginning of a UUID. A part of a GPU (MIG) always counts as there, because
            ``nvidia-smi`` lists whole GPUs only.
        listed: The GPUs that ``nvidia-smi`` lists.
    """
    if gpu.startswith("GPU-"):
        return any(other.uuid.startswith(gpu) for other in listed)
    return gpu.startswith("MIG") or any(other.index == gpu for other in listed)
