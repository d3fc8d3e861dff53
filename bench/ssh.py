"""Measures many hosts over SSH: start-up, output and failure.

`bench.run` calls `measure_start` and `measure`. The hosts are network namespaces of this machine, which only
root can make.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import output, processes, tables
from bench.setting import Setting
from bench.ssh_peers import BEFORE, LAUNCH, SshPeer, all_peers
from tests.ssh.lab import Lab

_COUNTS = (4, 16, 32)
_CLONE_NEWNS = 0x20000
#: The time limit for one run.
_TIME_LIMIT = 60.0
#: Seconds in which the processes of a run end on its hosts, before the next client starts.
_SETTLE = 0.5
_LINES, _FEW_LINES = 100_000, 10_000
_HOSTS = 4
_CODE = 7
_NODE = rb"node(?P<named>\d+)"
_OF_LAUNCH = _NODE + rb" +worker/\d+ *\| "
_PREFIXES = {LAUNCH: _OF_LAUNCH, BEFORE: _OF_LAUNCH, "pdsh": _NODE + b": ", "clush": _NODE + b": "}


def measure_start(setting: Setting) -> None:
    """Print how long ``true`` takes on many hosts, with each client."""
    _measure(setting, _start_up)


def measure(setting: Setting) -> None:
    """Print the tables of output, of a failing task and of a killed client."""
    _measure(setting, _output, _failure, _killed)


def _measure(setting: Setting, *steps: Callable[[Setting, Lab, Sequence[SshPeer]], None]) -> None:
    """Make the hosts, and measure in these steps."""
    if os.geteuid() != 0:
        print("\nssh: MISSING: its hosts are network namespaces, which only root can make")
        return
    found = all_peers(setting.launch, setting.before, setting.peers)
    for one in found:
        print(f"  {one.name}: {one.missing and 'MISSING: ' + one.missing or one.version}")
    with Lab(max(_COUNTS)) as lab, _as_for_a_user(lab):
        for step in steps:
            step(setting, lab, found)


@contextmanager
def _as_for_a_user(lab: Lab) -> Iterator[None]:
    """Set up the files of ssh as a user has them, until the end of the context.

    The hosts have names in /etc/hosts, a key and host keys are in ~/.ssh, and ssh_config is missing. Only
    this process and its children see these files, because it enters a mount namespace of its own.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    keys = Path(pwd.getpwuid(0).pw_dir, ".ssh")
    keys.mkdir(mode=0o700, exist_ok=True)
    (lab.client_home / ".ssh/config").unlink()
    mounted = {keys: lab.client_home / ".ssh", Path("/etc/hosts"): lab.hosts[0].folder / "etc/hosts"}
    _call("mount", "--make-rprivate", "/")
    for place, source in mounted.items():
        _call("mount", "--bind", source, place)
    try:
        yield
    finally:
        for place in mounted:
            _call("umount", place)


def _call(*argv: object) -> None:
    """Run a command, which must succeed."""
    subprocess.run([*map(str, argv)], check=True, timeout=_TIME_LIMIT)


def _run(argv: Sequence[str], output: Path | None = None) -> processes.Run:
    """Run a client until it exits.

    Args:
        argv: Its command line.
        output: The file that receives its stdout. By default what it prints is dropped.

    Returns:
        Its time and exit code, and its CPU seconds without those of the hosts.
    """
    with open(output or os.devnull, "wb") as stdout:
        began = time.perf_counter()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True,
            env=_environment(), cwd="/",
        )  # fmt: skip
        in_time = processes.ended(process, _TIME_LIMIT)
        seconds = time.perf_counter() - began
        if not in_time:
            process.kill()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    time.sleep(_SETTLE)
    return processes.Run(seconds, usage.ru_utime + usage.ru_stime, process.returncode if in_time else None)


def _environment() -> dict[str, str]:
    """Return the environment of a client: that of this process, for root and without an ssh-agent."""
    home = pwd.getpwuid(0).pw_dir
    kept = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
    return {**kept, "HOME": home, "USER": "root", "LOGNAME": "root"}


# ---------------------------------------------------------------------- start-up


def _start_up(setting: Setting, lab: Lab, found: Sequence[SshPeer]) -> None:
    """Run ``true`` on some hosts and on more, with each client, and print a table for each number."""
    rounds = setting.rounds
    for count in _COUNTS:
        hosts = [host.name for host in lab.hosts[:count]]
        runs: dict[str, list[processes.Run]] = defaultdict(list)
        for number in range(rounds):
            for peer in found[:: -1 if number % 2 else 1]:  # as `Setting.turns`
                if not peer.missing and not _hopeless(runs[peer.name]):
                    run = _run(peer.command(hosts, ["true"]))
                    runs[peer.name].append(run)
                    if peer.name == LAUNCH and run.code != 0:
                        setting.faults.append(f"launch: true on {count} hosts ended with {run.code}")
        _show_start_up(count, found, runs)


def _hopeless(runs: Sequence[processes.Run]) -> bool:
    """Return whether a client has failed, so that it need not be run again."""
    return any(run.code != 0 for run in runs)


def _show_start_up(count: int, found: Sequence[SshPeer], runs: dict[str, list[processes.Run]]) -> None:
    """Print the table of start-up on a number of hosts, from the runs by the name of the client."""
    base = [run.seconds for run in runs[LAUNCH]]
    rows = []
    for peer in found:
        own = runs[peer.name]
        if peer.missing or _hopeless(own):
            why = peer.missing and "MISSING" or f"ended with {own[-1].code}"
            rows.append([peer.name, why, "-", "-"])
            continue
        seconds = [run.seconds for run in own]
        cpu = [run.cpu for run in own]
        rows.append([peer.name, tables.times(seconds), tables.ratio(seconds, base), tables.times(cpu)])
    head = ["seconds: median (min)", f"true on {count} hosts", "x launch", "client CPU s"]
    tables.show(f"ssh start-up: {count} hosts", head, rows)


# ---------------------------------------------------------------------- output


def _output(setting: Setting, lab: Lab, found: Sequence[SshPeer]) -> None:
    """Print how fast the output of four hosts passes through each client, and check every line."""
    lines = _FEW_LINES if setting.quick else _LINES
    hosts = lab.hosts[:_HOSTS]
    for host in hosts:
        (host.home / "lines").write_bytes(output.text(host.number, lines))
    head = ["every line checked", "MB/s: median (max)", "x launch", "client CPU s"]
    head += ["lost", "torn", "doubled", "misplaced"]
    found_out: dict[str, list[output.Checked]] = defaultdict(list)
    argv = ["sh", "-c", "cat $HOME/lines"]
    for _ in range(min(setting.rounds, 3)):
        for peer in found:
            if peer.name in _PREFIXES and not peer.missing:
                folder = setting.folder("ssh")
                words = peer.command([host.name for host in hosts], argv)
                done = _run(words, folder / "output")
                numbers = [host.number for host in hosts]
                checked = output.check(folder / "output", _PREFIXES[peer.name], lines, done, numbers)
                found_out[peer.name].append(checked)
                (folder / "output").unlink()
                if peer.name == LAUNCH and (checked.faults or done.code != 0):
                    setting.faults.append(f"launch: output over ssh ended with {done.code}: {checked}")
    rows = []
    speeds = {name: [checked.speed for checked in runs] for name, runs in found_out.items()}
    for name, own in speeds.items():
        worst = max(found_out[name], key=lambda checked: checked.faults)
        kinds = (worst.lost, worst.torn, worst.doubled, worst.misplaced)
        median = f"{statistics.median(own):.1f} ({max(own):.1f})"
        cpu = tables.times([checked.cpu for checked in found_out[name]])
        rows.append([name, median, tables.ratio(own, speeds[LAUNCH]), cpu, *map(str, kinds)])
    tables.show(f"ssh output: {_HOSTS} hosts x {lines:,} lines of {output.WIDTH} bytes", head, rows)
    for host in hosts:
        (host.home / "lines").unlink()


# ---------------------------------------------------------------------- failure


def _failure(setting: Setting, lab: Lab, found: Sequence[SshPeer]) -> None:
    """Print how long launch takes from the failure of one task to the end of all tasks and of itself."""
    script = f"if [ $TASK_INDEX = 2 ]; then sleep 1; exit {_CODE}; fi; exec sleep 300.25"
    hosts = [host.name for host in lab.hosts[:_HOSTS]]
    tasks, launcher, cpu = [], [], []
    for _ in range(setting.rounds):
        before = processes.spent()
        process = subprocess.Popen(
            found[0].command(hosts, ["sh", "-c", script]),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            env=_environment(), start_new_session=True,
        )  # fmt: skip
        failing, others = _await_tasks(script)
        ends = processes.Ends([failing, *others, process.pid])
        ends.wait(30)
        ends.close()
        code = processes.finish(process)
        if code != _CODE or ends.left or len(ends.at) != _HOSTS + 1:
            setting.faults.append(f"launch: a failure over ssh ended with {code}, left {ends.left}")
            continue
        began = ends.at[failing]
        tasks.append((max(ends.at[pid] for pid in others) - began) / 1e9)
        launcher.append((ends.at[process.pid] - began) / 1e9)
        cpu.append(processes.spent() - before)
    if tasks:
        row = ["launch", tables.times(tasks, 1e-3), tables.times(launcher, 1e-3)]
        row += [tables.times(cpu), str(len(tasks))]
        head = ["milliseconds: median (min)", "all tasks gone", "launcher gone", "client CPU s", "runs"]
        tables.show("ssh failure: a task of one of 4 hosts exits 7", head, [row])


# ---------------------------------------------------------------------- killed


def _killed(setting: Setting, lab: Lab, found: Sequence[SshPeer]) -> None:
    """Print how long tasks on all hosts live after the client was killed."""
    hosts = [host.name for host in lab.hosts[:_HOSTS]]
    rows = []
    for peer in (one for one in found if one.name in (LAUNCH, BEFORE, "mpirun")):
        seconds, cpu, left = [], [], 0
        for _ in range(0 if peer.missing else min(setting.rounds, 5)):
            process = subprocess.Popen(
                peer.command(hosts, ["sleep", "300.25"]),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                env=_environment(), start_new_session=True,
            )  # fmt: skip
            ends = processes.Ends(_await("sleep", "300.25", count=_HOSTS))
            before = processes.spent()
            began = time.monotonic_ns()
            process.kill()
            ends.wait(30)
            remaining = ends.left
            ends.close()
            processes.finish(process)
            cpu.append(processes.spent() - before)
            for pid in remaining:
                os.kill(pid, signal.SIGKILL)
            left = max(left, len(remaining))
            seconds.append((max(ends.at.values(), default=began) - began) / 1e9)
            if peer.name == LAUNCH and remaining:
                setting.faults.append(f"launch: a killed launcher left {remaining} over ssh")
        shown = [tables.times(seconds), tables.times(cpu)] if seconds else ["MISSING", "-"]
        rows.append([peer.name, *shown, str(left), str(len(seconds))])
    head = ["seconds: median (min)", "all tasks gone", "client CPU s", "left after 30 s", "runs"]
    tables.show(f"ssh: SIGKILL of the client, {_HOSTS} hosts", head, rows)


def _await(*argv: str, count: int) -> list[int]:
    """Wait for a number of processes with a certain command line, and return their pids on this machine.

    Args:
        argv: The command line.
        count: The number of processes.

    Raises:
        TimeoutError: There are not that many in time.
    """
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        found = [pid for pid in pids if processes.command(pid) == list(argv)]
        if len(found) == count:
            return found
        time.sleep(0.02)
    raise TimeoutError("the tasks did not come up")


def _await_tasks(script: str) -> tuple[int, list[int]]:
    """Wait until all tasks run, and return the pid of the task that will fail, and those of the others."""
    others = _await("sleep", "300.25", count=_HOSTS - 1)
    return _await("sh", "-c", script, count=1)[0], others
