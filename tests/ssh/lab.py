"""Hosts to test SSH on, made of namespaces: each with its own network, name, processes, home and sshd.

They hang on a bridge in a namespace of its own, because the rules of a Docker engine would eat the traffic of
a bridge beside it. The machine that runs the tests has one more cable into that bridge. No file of the
machine is changed. It takes root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.seeing import ROOT, is_soon, soon
from tests.ssh.host import SSHD, LabHost, make_key

#: Its programs and the Debian package each is in.
_NEEDS = {
    SSHD: "openssh-server", "ssh-keygen": "openssh-client", "ip": "iproute2",
    "nsenter": "util-linux", "unshare": "util-linux", "setpriv": "util-linux", "mount": "mount",
    "hostname": "hostname",
}  # fmt: skip
#: Where they are looked for: the PATH of most users lacks the last ones.
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
#: Options of a job with a task on one host, on two, or on each of four.
ONE, TWO, ALL = (
    ("--hosts", ",".join(f"node{number}" for number in range(1, count + 1)), "--workers", str(count))
    for count in (1, 2, 4)
)
_SSHD = """\
Port {port}
ListenAddress {address}
HostKey {folder}/etc/host_key
AuthorizedKeysFile {folder}/etc/authorized_keys
PidFile /run/sshd.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


class Lab:
    """So many hosts; ``node1``, ``node2`` ... A context manager: after it nothing of the lab is left.

    Each host sees this Python and the project under the paths that they have here, also below ``/tmp``.

    Args:
        count: The number of hosts, at most 250.
    """

    def __init__(self, count: int) -> None:
        _check_needs()
        self.hosts: list[LabHost] = []
        self.number, self._lock = _subnet()
        self.subnet = f"10.77.{self.number}"
        #: The address that the hosts see of the machine that runs the tests.
        self.address = f"{self.subnet}.254"
        # Not below /tmp, which each host has of its own.
        self.folder = Path(f"/var/tmp/tf-launcher-lab-{os.getuid()}-{self.number}")
        #: The home of the launching user: ``.ssh/config``, a key, ``known_hosts``.
        self.client_home = self.folder / "client"
        self._show = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, ROOT)]
        self._warden = 0
        try:
            self._prepare(count)
            self._start()
        except BaseException:
            self.close()
            raise

    def _prepare(self, count: int) -> None:
        # An earlier lab of this number is gone: this one has its lock.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o711)
        make_key(self.key, "lab")
        for number in range(1, count + 1):
            folder = self.folder / f"node{number}"
            self.hosts.append(LabHost(number, f"{self.subnet}.{number}", folder, self._show))
        self._each_host(self._furnish)
        self.move_in(self.client_home)

    def _each_host(self, do: Callable[[LabHost], object]) -> None:
        """Do something to all hosts at once."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(do, self.hosts))

    def _furnish(self, host: LabHost) -> None:
        etc = host.folder / "etc"
        for path in (host.home, host.folder / "tmp", etc):
            path.mkdir(parents=True)
        (host.folder / "tmp").chmod(0o1777)
        host.make_host_key()
        shutil.copy(self.key.with_suffix(".pub"), etc / "authorized_keys")
        (etc / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        (etc / "hosts").write_text(self._names())
        (etc / "sshd_config").write_text(
            _SSHD.format(port=host.port, address=host.address, folder=host.folder)
        )
        host.set_shell("/bin/bash")

    def _names(self) -> str:
        lines = [f"{host.address} {host.name}" for host in self.hosts]
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", f"{self.address} launcher", *lines, ""])

    @property
    def key(self) -> Path:
        """The private key that all hosts let in."""
        return self.folder / "id_ed25519"

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``: OpenSSH does not look at ``$HOME``."""
        return self.client_home / ".ssh/config"

    def move_in(self, home: Path) -> None:
        """Give a home what its owner needs to get to the hosts: ``.ssh/config``, a key, ``known_hosts``."""
        folder = home / ".ssh"
        folder.mkdir(parents=True, mode=0o700)
        shutil.copy(self.key, folder)
        shutil.copy(self.key.with_suffix(".pub"), folder)
        (folder / "known_hosts").write_text("".join(self._known(host) for host in self.hosts))
        (folder / "config").write_text(self._config(folder))

    def _config(self, folder: Path) -> str:
        every = f"Host *\n  IdentityFile {folder}/id_ed25519\n  IdentitiesOnly yes\n  BatchMode yes\n"
        every += f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        form = "Host {0.name}\n  HostName {0.address}\n  Port {0.port}\n  User {0.user}\n"
        return "".join(form.format(host) for host in self.hosts) + every

    def _known(self, host: LabHost) -> str:
        kind, key = (host.folder / "etc/host_key.pub").read_text().split()[:2]
        return f"{host.name},{host.address} {kind} {key}\n"

    def _start(self) -> None:
        settings = {
            "owner": os.getpid(), "folder": str(self.folder), "count": len(self.hosts), "subnet": self.subnet,
            "uplink": f"tflab{self.number}", "show": self._show,
        }  # fmt: skip
        program = str(Path(__file__).with_name("warden.py"))
        warden = [sys.executable, "-I", "-S", program, json.dumps(settings)]
        # --fork: not a child of ours, so that no test takes it for something left behind.
        done = subprocess.run(
            ["setsid", "--fork", *warden], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60,
            cwd="/", env={"PATH": SEARCH}, pass_fds=[self._lock.fileno()],
        )  # fmt: skip
        answer = json.loads(done.stdout or '{"error": "no answer from the warden of the lab"}')
        self._lock.close()
        if "error" in answer:
            raise RuntimeError(f"no lab: {answer['error']}")
        self._warden = answer["warden"]
        for host, pid in zip(self.hosts, answer["hosts"], strict=True):
            host.pid = pid
            host.switch = answer["switch"]
        self._each_host(LabHost.start_sshd)

    def environment(self) -> dict[str, str]:
        """To be added to an environment: the configuration and key of the lab, and the user of a login."""
        user = {"USER": "root", "LOGNAME": "root"}
        return {"HOME": str(self.client_home), "SSH_AUTH_SOCK": "", **user}

    def heal(self) -> None:
        """Undo whatever a test did to any host."""
        self._each_host(LabHost.heal)

    def settled(self) -> list[str]:
        """What is still left on any host after a while, in words; see `LabHost.left`."""
        is_soon(lambda: not self._left(), 40)
        return self._left()

    def _left(self) -> list[str]:
        return [f"{host.name}: {what}" for host in self.hosts for what in host.left()]

    def close(self) -> None:
        """End everything of the lab and remove its files."""
        if self._warden and self._warden_lives():
            os.kill(self._warden, signal.SIGTERM)
            soon(lambda: not self._warden_lives(), 60, f"the warden of {self.folder} ends")
        self._warden = 0
        self._remove()

    def _remove(self) -> None:
        """Remove its files, unless its warden has, and while no other lab can have its number."""
        lock = self._lock
        if lock.fileno() < 0:
            lock = is_soon(lambda: not self.folder.exists() or _locked(self.number), 20)
        if isinstance(lock, socket.socket):
            with lock:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _warden_lives(self) -> bool:
        """Whether the process of this number is still it."""
        try:
            return f'"{self.folder}"'.encode() in Path(f"/proc/{self._warden}/cmdline").read_bytes()
        except OSError:
            return False

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _subnet() -> tuple[int, socket.socket]:
    """A free network: its number, and what keeps other labs from it while it is open."""
    routes = subprocess.check_output(["ip", "-4", "route"], text=True, timeout=10)
    for number in range(1, 255):
        lock = _locked(number)
        if lock is None:
            continue
        if f"10.77.{number}." not in routes:
            return number, lock
        lock.close()
    raise RuntimeError("no lab: 10.77.1.0/24 to 10.77.254.0/24 are all in use")


def _locked(number: int) -> socket.socket | None:
    """What keeps other labs from this network; ``None``: one has it."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0tf-launcher-lab-{number}")
    except OSError:
        lock.close()
        return None
    return lock


def _check_needs() -> None:
    missing = sorted({package for name, package in _NEEDS.items() if not shutil.which(name, path=SEARCH)})
    if missing:
        raise RuntimeError(f"the SSH tests need {' '.join(missing)}: apt-get install {' '.join(missing)}")
