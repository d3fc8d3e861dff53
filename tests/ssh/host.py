"""One host of the lab: what tests do to it and see on it.

It is made of namespaces: its own network, host name, processes, mounts. That takes root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcher.job import Host
from tests.seeing import command_line, process_name, soon, stat_field
from tests.ssh.cable import Cable

SSHD = "/usr/sbin/sshd"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Where the cache of the launcher may be, below the home.
CACHE = ".cache/tf-launcher"
#: Where a host looks for programs that a test may change.
_BINS = ("/usr/bin", "/usr/local/bin")
#: What a shell reads at its start, even if it only runs a command for sshd.
_START_FILES = (".bashrc", ".zshenv", ".cshrc", ".config/fish/config.fish")
#: Seconds for anything that a host does in a moment, on a machine that is busy with other work.
TIME_LIMIT = 30.0


class Process(NamedTuple):
    """A process as its host numbers it."""

    pid: int
    name: str
    #: Its command line, or its name if it has none.
    argv: str


class LabHost:
    """A host. Its first process holds it all; it sees the files of this machine but those `warden` replaces.

    Args:
        number: 1, 2 ...
        address: in the network of the lab.
        folder: for its files.
        show: folders below ``/tmp`` that it sees although its ``/tmp`` is its own.
    """

    user = "root"
    port = 22

    def __init__(self, number: int, address: str, folder: Path, show: Sequence[str] = ()) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = address
        self.folder = folder
        #: The same path here and there (what is mounted over it there is seen through `there`).
        self.home = folder / "home"
        #: The pid, as this machine numbers it, of its first process.
        self.pid = 0
        #: What is expected to stay, below its home, besides the cache: a test may add what its tasks write.
        self.expected: list[str] = []
        self._show = show
        #: A process of the switch.
        self.switch = 0
        self._cable: Cable | None = None
        self._is_cut = False

    def record(self) -> Host:
        """As a hostfile says it, by address; by name, ``.ssh/config`` says the rest."""
        return Host(self.address, user=self.user, port=self.port)

    # What happens on it

    def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there, beside sshd, to its end; at the time-out it is killed.

        Raises:
            subprocess.CalledProcessError: it failed, and ``check``.
            subprocess.TimeoutExpired: it took too long.
        """
        return subprocess.run(
            self._held(argv), input=stdin, capture_output=True, timeout=timeout, check=check,
            env=self.environment(), cwd=self.home,
        )  # fmt: skip

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command there, with pipes; the caller must end it, and wait for it."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._held(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment(), cwd=self.home
        )

    def _held(self, argv: Sequence[str]) -> list[str]:
        """A command that runs there, and ends when the process that started it ends.

        Also if ``nsenter`` ends before its child can ask for its signal.
        """
        kinds = ["--net", "--uts", "--ipc", "--mount", "--pid"]
        # Not --wd: that would be the home of outside, whatever is mounted over it.
        enter = ["nsenter", "--target", str(self.pid), *kinds, "env", "-C", str(self.home)]
        alive = 'test "$PPID" = 0 && exec "$@"'  # its parent is outside, and has no number there
        return [*enter, "setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", alive, "sh", *argv]

    def environment(self) -> dict[str, str]:
        """What a login there has."""
        names = {"USER": self.user, "LOGNAME": self.user}
        return {**names, "HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8"}

    def there(self, path: str | os.PathLike[str]) -> Path:
        """A path of the host as this machine reaches it."""
        return Path(f"/proc/{self.pid}/root") / os.fspath(path).lstrip("/")

    def processes(self, *names: str) -> list[Process]:
        """The processes there, zombies too, of these names; without a name all but those of sshd."""
        every = (self._process(int(pid)) for pid in os.listdir(self.there("/proc")) if pid.isdigit())
        return sorted(it for it in every if it.pid != 1 and _is_meant(it.name, names))

    def _process(self, pid: int) -> Process:
        root = self.there("/proc")
        name = process_name(pid, root)
        return Process(pid, name, command_line(pid, root) or f"({name})")

    def kill(self, number: int, *pids: int) -> None:
        """Signal processes there, all at once; some may just have ended."""
        if pids:
            self.run(["kill", f"-{number:d}", *map(str, pids)], check=False)

    def files(self) -> list[str]:
        """All files and folders in its home, and in what else is its own: absolute paths there."""
        return sorted(path for top in self.places() for path in self._below(top))

    def places(self) -> tuple[str, ...]:
        """The folders that no other host has."""
        return str(self.home), "/tmp", "/dev/shm", "/run/user"

    def _below(self, top: str) -> list[str]:
        found = []
        for folder, folders, names in os.walk(self.there(top)):
            inside = Path(top) / Path(folder).relative_to(self.there(top))
            folders[:] = [name for name in folders if not self._shown(inside / name)]
            found += [str(inside / name) for name in [*folders, *names]]
        return found

    def _shown(self, path: Path) -> bool:
        """Whether it is only there because the lab shows it on all hosts."""
        return any(path == Path(shown) or path in Path(shown).parents for shown in self._show)

    def left(self) -> list[str]:
        """What should not be there when no launch runs, in words; the launcher's cache may be."""
        allowed = [self.home / path for path in (CACHE, *self.expected)]
        files = [path for path in map(Path, self.files()) if not _covered(path, allowed)]
        return [f"process {p.pid} ({p.argv})" for p in self.processes()] + [f"file {path}" for path in files]

    # Its sshd

    def start_sshd(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if not self.sshd():
            # Without -D: it becomes a daemon that the first process inherits. The limit is what a login has.
            sshd = [SSHD, "-f", str(self.folder / "etc/sshd_config"), "-E", str(self.log)]
            self.run(["prlimit", "--nofile=1024:", *sshd])
        soon(self.answers, TIME_LIMIT, f"sshd of {self.name} answers; {self.log} says why not")

    def stop_sshd(self) -> None:
        """End the one that listens: new connections are refused, the ones that are there stay."""
        self.kill(signal.SIGKILL, *self.sshd())
        soon(lambda: not self.sshd(), TIME_LIMIT, f"sshd of {self.name} ended")

    @contextmanager
    def sshd_with(self, setting: str) -> Iterator[None]:
        """Have its sshd read other lines before its settings, for a while: the first value counts."""
        config = self.folder / "etc/sshd_config"
        before = config.read_text()
        try:
            config.write_text(f"{setting}\n{before}")
            self._restart_sshd()
            yield
        finally:
            config.write_text(before)
            self._restart_sshd()

    def _restart_sshd(self) -> None:
        self.stop_sshd()
        self.start_sshd()

    def kill_sshd_sessions(self, number: int = signal.SIGKILL) -> int:
        """Kill, or signal, the sshd of each connection: how many processes that were."""
        listening = self.sshd()
        pids = [it.pid for it in self.processes("sshd") if it.pid not in listening]
        self.kill(number, *pids)
        return len(pids)

    @property
    def log(self) -> Path:
        """Where sshd writes what it thinks."""
        return self.folder / "sshd.log"

    def sshd(self) -> list[int]:
        """The sshd that listens: at most one."""
        try:
            pid = int(self.there("/run/sshd.pid").read_text())
        except (OSError, ValueError):
            return []
        return [pid] if process_name(pid, self.there("/proc")) == "sshd" else []

    def answers(self) -> bool:
        """Whether sshd says hello to this machine."""
        try:
            with socket.create_connection((self.address, self.port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def new_host_key(self) -> None:
        """As if it had just been installed: another host key, which no known_hosts has."""
        self.stop_sshd()
        for path in self._keys("host_key"):
            path.unlink()
        make_key(self._keys("host_key")[0], self.name)
        self.start_sshd()

    def make_host_key(self) -> None:
        """The one that is known, and a copy to come back to."""
        make_key(self._keys("host_key")[0], self.name)
        for new, copy in zip(self._keys("host_key"), self._keys("first_host_key"), strict=True):
            shutil.copy(new, copy)

    def _keys(self, name: str) -> list[Path]:
        return [self.folder / "etc" / name, self.folder / "etc" / f"{name}.pub"]

    # Its user

    def set_shell(self, path: str) -> None:
        """Set the login shell of its user."""
        if not os.access(path, os.X_OK):
            raise RuntimeError(f"the SSH tests need {path}: apt-get install {Path(path).name}")
        if path.endswith("fish"):
            self.expected += [".config/fish", ".local/share/fish"]
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if line[:5] != "root:"]
        account = f"root:x:0:0:root:{self.home}:{path}"
        # Written in place: it is the file itself that is mounted.
        (self.folder / "etc/passwd").write_text("\n".join([account, *others, ""]))

    def start_up(self, command: str, *files: str) -> None:
        """Have its login shell run a command first, by its start-up file; default: that of bash."""
        for name in files or (".bashrc",):
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{command}\n")
            self.expected.append(name)

    def banner(self, text: str) -> None:
        """Have its login shell, whichever it is, print something before it runs a command."""
        self.start_up(f"echo {shlex.quote(text)}", *_START_FILES)

    # Its network

    def cut(self) -> None:
        """Pull its cable: what is sent either way is lost, silently."""
        self._plug("down")

    def power_off(self) -> None:
        """Cut it off, and kill all its processes at once."""
        self.cut()
        soon(self._emptied, TIME_LIMIT, f"all processes of {self.name} end")

    def power_on(self) -> None:
        """Start it again after `power_off`."""
        self.kill_sshd_sessions()
        self.restore()

    def restore(self) -> None:
        """Plug it in again."""
        if self._is_cut:
            self._plug("up")

    def _plug(self, state: str) -> None:
        enter = ["nsenter", "--target", str(self.switch), "--net"]
        argv = [*enter, "ip", "link", "set", f"port{self.number}", state]
        subprocess.run(argv, check=True, capture_output=True, timeout=10)
        self._is_cut = state == "down"

    def slow(self, delay: int = 0, loss: int = 0) -> None:
        """Delay what it sends and gets, each by so many milliseconds, and lose so many per cent."""
        self.mend()
        self._cable = Cable(self.number, self.switch, delay, loss)

    def mend(self) -> None:
        """A good cable again."""
        if self._cable is not None:
            self._cable.mend()
            self._cable = None

    # Its files

    def fill_disk(self) -> None:
        """Its home is a file system with not a byte free."""
        self.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "full", str(self.home)])
        # One of the two inodes is the folder, and this is the other.
        self.run(["sh", "-c", 'cat /dev/zero >"$HOME/.full"'], check=False)
        self.expected.append(".full")

    def read_only_home(self) -> None:
        """Nothing can be written to its home."""
        self.run(["mount", "--bind", str(self.home), str(self.home)])
        self.run(["mount", "-o", "remount,ro,bind", str(self.home)])

    def program(self, name: str, text: str | None) -> None:
        """Put an executable into its ``/usr/bin``, instead of any of this name; ``None``: there is none."""
        for folder in _BINS:
            self._own(folder)
            self.run(["rm", "-f", f"{folder}/{name}"])
        if text is not None:
            self.run(["sh", "-c", 'cat >"$0" && chmod 755 "$0"', f"/usr/bin/{name}"], text.encode())

    def no_python(self) -> None:
        """No ``python3`` of any name in its ``PATH``."""
        for name in {path.name for folder in _BINS for path in Path(folder).glob("python*")}:
            self.program(name, None)

    def _own(self, folder: str) -> None:
        """A folder that all hosts share becomes its own: what is changed there changes nowhere else."""
        if self._mounted(folder):
            return
        layer = "/run/layer" + folder.replace("/", "-")
        self.run(["mkdir", "-p", layer])
        self.run(["sh", "-c", 'mount -t tmpfs layer "$0" && mkdir "$0/upper" "$0/work"', layer])
        options = f"lowerdir={folder},upperdir={layer}/upper,workdir={layer}/work"
        self.run(["mount", "-t", "overlay", "-o", options, "lab", folder])

    def _mounted(self, path: str) -> bool:
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        return path in (line.split()[4] for line in lines)

    # Its health

    def heal(self) -> None:
        """Undo whatever a test did: plugged in, an empty home, the first host key, sshd running."""
        self.mend()
        self.restore()
        layers = [f"/run/{name}" for name in os.listdir(self.there("/run")) if name.startswith("layer-")]
        for path in (str(self.home), *_BINS, *layers):
            while self._mounted(path):
                self.run(["umount", "-l", path])
        # Until all are gone: what is killed may be writing a file just now, or have forked meanwhile.
        soon(self._emptied, TIME_LIMIT, f"all processes of {self.name} end")
        self.empty()
        self.expected.clear()
        self.set_shell("/bin/bash")
        self._heal_sshd()

    def _emptied(self) -> bool:
        """Kill all processes there; whether there were none."""
        pids = [process.pid for process in self.processes()]
        self.kill(signal.SIGKILL, *pids)
        return not pids

    def _heal_sshd(self) -> None:
        self.kill_sshd_sessions()
        key, first = self._keys("host_key")[0], self._keys("first_host_key")[0]
        if key.read_bytes() != first.read_bytes():
            self.stop_sshd()
            for old, now in zip(self._keys("first_host_key"), self._keys("host_key"), strict=True):
                shutil.copy(old, now)
        if [stat_field(pid, 3, self.there("/proc")) for pid in self.sshd()] not in ([b"S"], [b"R"]):
            self._restart_sshd()

    def empty(self) -> None:
        """Remove every file of its user."""
        for path in map(self.there, reversed(self.files())):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            elif not any(path.iterdir()):
                path.rmdir()


def make_key(path: Path, comment: str) -> None:
    """A key pair without a passphrase."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True, timeout=30)


def _covered(path: Path, allowed: Sequence[Path]) -> bool:
    """Whether it is one of them, in one of them, or on the way to one."""
    return any(path == one or one in path.parents or path in one.parents for one in allowed)


def _is_meant(name: str, names: Sequence[str]) -> bool:
    """Whether a process of this name is asked for; one that has just ended has no name."""
    return name in names if names else name not in ("", "sshd")
