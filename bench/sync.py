"""Measures ``--sync``: 2,000 files go to hosts over SSH, once and again, beside rsync.

`bench.run` calls `measure`. It counts seconds, CPU and bytes on the wire. ``programs/sync.py`` runs the parts
of launch that copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.setting import Setting
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

_PROGRAM = Path(__file__).resolve().parent / "programs" / "sync.py"
_ROOT = Path(__file__).resolve().parent.parent
_FILES, _FEW_FILES, _FOLDERS = 2000, 400, 50
#: The largest number of bytes to a host that has all files, or all but one. The connection and the modules
#: of launch take most of them.
_MOST_OF_NOTHING = 500_000
#: The time limit for one run.
_TIME_LIMIT = 120.0
_STEPS = ("first", "second, unchanged", "one file changed")
LAUNCH, LAUNCH_KEPT = "launch --sync DIR", "launch --sync DIR:REMOTE"


class Run(NamedTuple):
    """The results of one copy to all hosts."""

    seconds: float
    #: CPU seconds of the clients and their children on this machine.
    cpu: float
    #: Bytes in both directions on the wires of all hosts.
    wire: int
    #: The highest exit code, or None if a client did not exit in time.
    code: int | None


class Mover(NamedTuple):
    """A way to copy a folder to hosts."""

    name: str
    #: Returns the command lines that copy the folder, which run at the same time. The last argument is the
    #: number of the run.
    commands: Callable[[Lab, Path, Sequence[LabHost], int], list[list[str]]]
    #: Returns where the folder is then, below the home folder, for the number of the run.
    place: Callable[[int], str]


def measure(setting: Setting) -> None:
    """Copy a folder to one host and to four in each way, and print the tables."""
    if os.geteuid() != 0:
        print("\nsync: MISSING: its hosts are network namespaces, which only root can make")
        return
    if shutil.which("rsync") is None:
        print("\nsync: MISSING: rsync, to compare with: apt-get install rsync")
        return
    with Lab(4) as lab:
        for hosts in (lab.hosts[:1], lab.hosts):
            runs = {mover.name: _rounds(setting, lab, mover, hosts) for mover in _movers()}
            _show(setting, len(hosts), runs)


def _movers() -> list[Mover]:
    """Return all ways to copy the folder."""
    return [
        Mover(LAUNCH, _launch(""), lambda number: f".cache/tf-launcher/work/job{number}/tree"),
        Mover(LAUNCH_KEPT, _launch(":kept/tree"), lambda number: "kept/tree"),
        Mover("rsync -a", _rsync("-a"), lambda number: "rsynced"),
        Mover("rsync -az", _rsync("-az"), lambda number: "rsynced"),
    ]


def _launch(remote: str) -> Callable[[Lab, Path, Sequence[LabHost], int], list[list[str]]]:
    """Return the commands of ``launch --sync``, where ``remote`` is empty or ``:REMOTE``."""

    def commands(lab: Lab, tree: Path, hosts: Sequence[LabHost], number: int) -> list[list[str]]:
        names = [host.name for host in hosts]
        return [[sys.executable, str(_PROGRAM), "bring", f"job{number}", f"{tree}{remote}", *names]]

    return commands


def _rsync(how: str) -> Callable[[Lab, Path, Sequence[LabHost], int], list[list[str]]]:
    """Return the commands of rsync with an option, one for each host."""

    def commands(lab: Lab, tree: Path, hosts: Sequence[LabHost], number: int) -> list[list[str]]:
        ssh = f"ssh -F {lab.ssh_config}"
        return [["rsync", how, "--delete", "-e", ssh, f"{tree}/", f"{host.name}:rsynced/"] for host in hosts]

    return commands


def _rounds(setting: Setting, lab: Lab, mover: Mover, hosts: Sequence[LabHost]) -> list[list[Run]]:
    """Copy the folder in one way in each step of each round.

    Returns:
        For each round, the results of the steps: first, unchanged, and with one changed file.
    """
    found = []
    for _ in range(min(setting.rounds, 3)):
        lab.heal()
        shutil.rmtree(lab.client_home / ".cache", ignore_errors=True)
        tree = _tree(setting.folder("sync"), _FEW_FILES if setting.quick else _FILES)
        runs = []
        for number in range(len(_STEPS)):
            if number == 2:
                (tree / "package7/module7.py").write_text("changed = True\n")
            runs.append(_run(lab, mover.commands(lab, tree, hosts, number), hosts))
            _check(setting, mover, runs[-1], tree, hosts, number)
            if mover.name == LAUNCH:
                names = [host.name for host in hosts]
                _run(lab, [[sys.executable, str(_PROGRAM), "finish", f"job{number}", *names]], hosts)
        found.append(runs)
        shutil.rmtree(tree.parent)
    return found


def _tree(folder: Path, files: int) -> Path:
    """Make a project of Python files, each of a few kB and as compressible as usual, and return its path."""
    root = folder / "tree"
    texts = [path.read_text() for path in sorted((_ROOT / "launcher/supervisor").glob("*.py"))]
    lines = "".join(texts).splitlines(keepends=True)
    for number in range(files):
        path = root / f"package{number % _FOLDERS}/module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = number * 7 % (len(lines) - 200)
        path.write_text(f"number = {number}\n" + "".join(lines[start : start + 100 + number % 60]))
    return root


def _run(lab: Lab, commands: Sequence[Sequence[str]], hosts: Sequence[LabHost]) -> Run:
    """Run clients side by side until all have exited."""
    before = sum(map(_wire, hosts))
    environment = {**os.environ, **lab.environment(), "XDG_CACHE_HOME": "", "PYTHONPATH": str(_ROOT)}
    began = time.perf_counter()
    clients = [
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env=environment, cwd="/",
        )
        for argv in commands
    ]  # fmt: skip
    in_time = [processes.ended(client, _TIME_LIMIT) for client in clients]
    seconds = time.perf_counter() - began
    cpu, codes = 0.0, []
    for client, ended in zip(clients, in_time, strict=True):
        if not ended:
            client.kill()
            client.wait()
            continue
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        cpu += usage.ru_utime + usage.ru_stime
        codes.append(client.returncode)
    return Run(seconds, cpu, sum(map(_wire, hosts)) - before, max(codes) if all(in_time) else None)


def _wire(host: LabHost) -> int:
    """Return how many bytes have passed the wire of a host so far, in both directions."""
    lines = Path(f"/proc/{host.pid}/net/dev").read_text().splitlines()[2:]
    counts = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines}
    return sum(int(count[0]) + int(count[8]) for name, count in counts.items() if name != "lo")


def _check(
    setting: Setting, mover: Mover, run: Run, tree: Path, hosts: Sequence[LabHost], number: int
) -> None:
    """Add a fault if launch has failed, or the files on a host are not those that were sent."""
    if not mover.name.startswith("launch"):
        return
    if run.code != 0:
        setting.faults.append(f"{mover.name}, {_STEPS[number]}: ended with {run.code}")
        return
    expected = {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*.py")}
    for host in hosts:
        place = host.there(host.home) / mover.place(number)
        if {path.relative_to(place): path.read_bytes() for path in place.rglob("*.py")} != expected:
            setting.faults.append(f"{mover.name}, {_STEPS[number]}: {host.name} has something else")


def _show(setting: Setting, count: int, runs: dict[str, list[list[Run]]]) -> None:
    """Print the table for a number of hosts, and add a fault if launch has sent too much."""
    files = _FEW_FILES if setting.quick else _FILES
    rows = []
    for name, rounds in runs.items():
        for step, title in enumerate(_STEPS):
            own = [one[step] for one in rounds]
            base = [one[step].seconds for one in runs[LAUNCH]]
            bad = [run.code for run in own if run.code != 0]
            seconds = [run.seconds for run in own]
            rows.append(
                [
                    f"{name}: {title}",
                    f"ended with {bad[0]}" if bad else tables.times(seconds),
                    tables.ratio(seconds, base),
                    tables.times([run.cpu for run in own]),
                    f"{min(run.wire for run in own) / 1e3:,.0f}",
                ]
            )
    head = ["median (min)", "seconds", "x launch", "client CPU s", "kB on the wire"]
    tables.show(f"sync: {files:,} files to {count} host{'s' if count > 1 else ''} over SSH", head, rows)
    for name in (LAUNCH, LAUNCH_KEPT):
        for step in (1, 2):
            sent = min(one[step].wire for one in runs[name])
            if sent >= count * _MOST_OF_NOTHING:
                setting.faults.append(f"{name}, {_STEPS[step]}: {sent} bytes to {count} hosts")
