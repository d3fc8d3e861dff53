"""Holds the namespaces of a lab while its owner lives; a program of its own, started by `lab`.

Everything hangs on processes, nothing on names: when the warden ends, however that happens, so do the first
processes of all hosts, and with them their namespaces, interfaces and whatever still ran there.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

#: The first process of a host. SIGCHLD ignored, so that the kernel reaps what it inherits, as an init would.
_INIT = r"""
set -e
dir=$1 name=$2; shift 2
hostname "$name"
mount --make-rprivate /
mount -t tmpfs -o mode=755 lab /run
mkdir -m 755 /run/sshd
mount -t tmpfs lab /dev/shm
for file in passwd shadow hosts; do mount --bind "$dir/etc/$file" "/etc/$file"; done
for path; do
    case $path in /tmp/*) mkdir -p "$dir$path"; mount --rbind "$path" "$dir$path";; esac
done
mount --rbind "$dir/tmp" /tmp
ip link set lo up
echo up
exec env --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1
"""
_SWITCH = "set -e; ip link set lo up; ip link add br0 type bridge forward_delay 0 stp_state 0; " + (
    "ip link set br0 up; echo up; exec sleep infinity </dev/null >/dev/null 2>&1"
)


class Failed(Exception):
    """The lab cannot be built."""


def main(settings_text: str) -> int:
    """Build the lab, print a line of JSON about it, hold it until its owner ends or a signal comes."""
    settings = json.loads(settings_text)
    # What is lost on a host belongs to the next launch there. A porter of the machine, which sees the
    # processes of all hosts, leaves alone what has an ancestor of this name.
    Path("/proc/self/comm").write_text("launch-watchdog")
    # The owner first: from here on nothing stays when it ends.
    owner = os.pidfd_open(settings["owner"])
    wake, waker = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(waker, b"."))
    lines: list[subprocess.Popen[str]] = []
    try:
        _say(_build(settings, lines))
        select.select([owner, wake], [], [])
    except (Failed, OSError, subprocess.SubprocessError) as error:
        _say({"error": str(error)})
        return 1
    finally:
        for line in lines:
            line.kill()
            # To the end of its output: a host that has not come up may still be making folders.
            line.communicate()
        # It would go by itself, a little later.
        subprocess.run(["ip", "link", "del", settings["uplink"]], capture_output=True, timeout=10)
        shutil.rmtree(settings["folder"], ignore_errors=True)
    return 0


def _say(what: object) -> None:
    """The whole output: the parent waits for its end."""
    print(json.dumps(what), flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _build(settings: dict[str, Any], lines: list[subprocess.Popen[str]]) -> dict[str, Any]:
    folder, count = Path(settings["folder"]), settings["count"]
    lines.append(_unshared(["--net"], ["sh", "-c", _SWITCH]))
    all_of_them = ["--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc"]
    for number in range(1, count + 1):
        argv = ["sh", "-c", _INIT, "init", str(folder / f"node{number}"), f"node{number}", *settings["show"]]
        lines.append(_unshared(all_of_them, argv))
    for line in lines:
        if line.stdout is None or line.stdout.readline() != "up\n":
            raise Failed(f"a host did not come up: {line.stderr and line.stderr.read()}")
    children = _children([line.pid for line in lines])
    switch, hosts = children[0], children[1:]
    _wire(settings["subnet"], settings["uplink"], switch, hosts)
    return {"warden": os.getpid(), "switch": switch, "hosts": hosts}


def _unshared(kinds: list[str], argv: list[str]) -> subprocess.Popen[str]:
    """A process in new namespaces that ends with this one."""
    held = ["setpriv", "--pdeathsig", "KILL", "unshare", *kinds, "--fork", "--kill-child", *argv]
    return subprocess.Popen(
        held, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def _children(parents: list[int]) -> list[int]:
    """The one child of each."""
    child = {}
    for name in os.listdir("/proc"):
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if stat:
            child[int(stat.rpartition(b")")[2].split()[1])] = int(name)
    return [child[parent] for parent in parents]


def _wire(subnet: str, uplink: str, switch: int, hosts: list[int]) -> None:
    """A cable from the switch to each host, and one to the machine itself."""
    cables = [f"link add {uplink} type veth peer name uplink netns {switch}"]
    cables += [f"addr add {subnet}.254/24 dev {uplink}", f"link set {uplink} up"]
    _ip(None, cables)
    ports = ["link set uplink master br0", "link set uplink up"]
    for number, pid in enumerate(hosts, 1):
        ports.append(f"link add port{number} type veth peer name eth0 netns {pid}")
        ports += [f"link set port{number} master br0", f"link set port{number} up"]
    _ip(switch, ports)
    for number, pid in enumerate(hosts, 1):
        _ip(pid, [f"addr add {subnet}.{number}/24 dev eth0", "link set eth0 up"])


def _ip(pid: int | None, lines: list[str]) -> None:
    enter = [] if pid is None else ["nsenter", "-t", str(pid), "--net"]
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        raise Failed(f"ip: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
