"""The servers of a run of the tests: processes of their own, on an address that hosts, nodes and pods reach.

All test processes of a run share them. ``python -m tests.storage.servers FOLDER`` ends them. It takes root to
reach them from elsewhere than this machine; else they are at 127.0.0.1.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.seeing import MARK, alive, kill, proc, soon

#: The variable that all servers of a folder have.
_OWNER = "LAUNCH_TEST_STORAGE"
#: Seconds for a server to begin or to end, on a busy machine.
_SOON = 120.0


class Servers:
    """Servers with a folder and an address.

    Args:
        folder: For their files. Other test processes name the same one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with self.turn():
            self.address = self._known("address", _new_address)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only test process that starts or joins something."""
        with open(self.folder / "turn", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    @contextmanager
    def use(self, name: str, alone: bool) -> Iterator[None]:
        """Use something beside other test processes, or while no other does.

        Who must be alone holds the gate while it waits: others that take turns would keep it waiting.
        """
        with open(self.folder / f"{name}.gate", "w") as gate, open(self.folder / f"{name}.use", "w") as lock:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(gate, fcntl.LOCK_UN)
            yield

    def port(self, name: str, usual: int) -> int:
        """The port of a server: the usual one on an address of our own, else one that was free."""
        if _bridge(self.address):
            return usual
        return int(self._known(f"{name}.port", lambda: str(_free_port(self.address))))

    def _known(self, name: str, make: Callable[[], str]) -> str:
        """What a file has; made if there is none."""
        file = self.folder / name
        if not file.exists():
            file.write_text(make())
        return file.read_text()

    # ------------------------------------------------------------------ processes

    def start(self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start a server that does not run; its output goes to ``NAME.log``."""
        if self.pid(name):
            return
        known = {key: value for key, value in os.environ.items() if key != MARK}
        # Not a child of ours: it outlives this process, and no test takes it for something left behind.
        script = 'echo $$ >"$0"; exec "$@"'
        with open(self.folder / f"{name}.log", "ab") as log:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", script, self.folder / f"{name}.pid", *argv],
                env={**known, **(environ or {}), _OWNER: str(self.folder)}, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=_SOON,
            )  # fmt: skip
        soon(lambda: self.pid(name), _SOON, lambda: self.log(name))

    def pid(self, name: str) -> int:
        """The process of a server; 0 if it does not run."""
        file = self.folder / f"{name}.pid"
        pid = int((file.read_text() if file.exists() else "") or 0)
        ours = f"{_OWNER}={self.folder}".encode() in proc(pid, "environ").split(b"\0")
        return pid if ours and alive(pid) else 0

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a server, and wait for its end if that is SIGKILL."""
        pid = self.pid(name)
        if pid:
            kill(pid, number)
        if number == signal.SIGKILL:
            soon(lambda: not self.pid(name), _SOON)

    def log(self, name: str) -> str:
        """The end of what a server has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """Kill all servers, and remove the network and the folder."""
        for file in self.folder.glob("*.pid"):
            self.kill(file.stem)
        if bridge := _bridge(self.address):
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ networks

    def join(self, network: str) -> None:
        """Let what is in a network namespace reach the servers, and what has it as its gateway.

        Args:
            network: The name of the namespace.
        """
        with self.turn():
            there = subprocess.run(["ip", "-n", network, "link", "show", "data"], capture_output=True)
            if not there.returncode:
                return
            number = int(self._known("cables", lambda: "1")) + 1
            (self.folder / "cables").write_text(str(number))
            bridge = _bridge(self.address)
            cable = f"{bridge}-{number}"
            _ip("link", "add", cable, "type", "veth", "peer", "name", "data", "netns", network)
            _ip("link", "set", cable, "master", bridge, "up")
            own = f"{self.address.rpartition('.')[0]}.{number}/24"
            _ip("-n", network, "addr", "add", own, "dev", "data")
            _ip("-n", network, "link", "set", "data", "up")
            # Clusters have the same addresses: the servers answer the gateway.
            masquerade = ["iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "data", "-j", "MASQUERADE"]
            subprocess.run(["nsenter", f"--net=/run/netns/{network}", *masquerade], check=True, timeout=30)

    def route(self, pid: int, gateway: str) -> None:
        """Let the machine of a process reach the servers over this machine's address in its network."""
        route = ["ip", "route", "replace", self.address, "via", gateway]
        subprocess.run(["nsenter", f"--target={pid}", "--net", *route], check=True, timeout=30)


def _new_address() -> str:
    """The address of a new bridge, without a cable so far."""
    if os.getuid():
        return "127.0.0.1"
    for number in range(1, 255):
        bridge = f"tfdata{number}"
        made = subprocess.run(
            ["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, timeout=30
        )
        if not made.returncode:
            _ip("addr", "add", f"10.76.{number}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            return f"10.76.{number}.1"
    raise RuntimeError(f"no bridge for the servers: {made.stderr.decode().strip()}")


def _bridge(address: str) -> str:
    found = re.fullmatch(r"10\.76\.(\d+)\.1", address)
    return f"tfdata{found[1]}" if found else ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


def _free_port(address: str) -> int:
    with socket.socket() as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


def answers(address: str, port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((address, port)) == 0


def python_server(servers: Servers, name: str, usual: int, *argv: str) -> int:
    """Start a server that is a Python module, and wait until it listens: its port."""
    with servers.turn():
        port = servers.port(name, usual)
        servers.start(name, [sys.executable, "-m", *(word.format(servers.address, port) for word in argv)])
        soon(lambda: answers(servers.address, port), _SOON, lambda: servers.log(name))
    return port


@contextmanager
def shared_servers(run: str) -> Iterator[Servers]:
    """The servers of a run of the tests, which end with the last test process that uses them.

    Args:
        run: Its name.
    """
    from tests.clusters import cache_folder, shared

    folder = cache_folder() / f"storage-{run}"
    with shared(f"storage-{run}", sys.executable, "-m", "tests.storage.servers", str(folder)) as turn:
        with turn:
            servers = Servers(folder)
        yield servers


if __name__ == "__main__" and Path(sys.argv[1]).exists():
    Servers(Path(sys.argv[1])).end()
