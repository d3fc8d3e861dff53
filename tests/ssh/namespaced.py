"""A host made of namespaces: its own network, host name, processes, mounts. Takes root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.ssh.cable import Cable
from tests.ssh.host import LabHost

#: Where a host looks for programs that a test may change.
_BINS = ("/usr/bin", "/usr/local/bin")


class NamespacedHost(LabHost):
    """Its first process holds it all. It sees the files of this machine, but for what `warden` replaces.

    Args:
        show: folders below ``/tmp`` that it sees although its ``/tmp`` is its own.
    """

    def __init__(self, number: int, address: str, folder: Path, show: Sequence[str] = ()) -> None:
        super().__init__(number, address, folder)
        self._show = show
        #: A process of the switch.
        self.switch = 0
        self._cable: Cable | None = None

    def _held(self, argv: Sequence[str]) -> list[str]:
        """See `LabHost._held`; also if ``nsenter`` ends before its child can ask for its signal."""
        alive = 'test "$PPID" = 0 && exec "$@"'  # its parent is outside, and has no number there
        return super()._held(["sh", "-c", alive, "sh", *argv])

    def _enter(self) -> list[str]:
        kinds = ["--net", "--uts", "--ipc", "--mount", "--pid"]
        # Not --wd: that would be the home of outside, whatever is mounted over it.
        return ["nsenter", "--target", str(self.pid), *kinds, "env", "-C", str(self.home)]

    def there(self, path: str | os.PathLike[str]) -> Path:
        """See `LabHost.there`."""
        return Path(f"/proc/{self.pid}/root") / os.fspath(path).lstrip("/")

    def places(self) -> tuple[str, ...]:
        """See `LabHost.places`."""
        return str(self.home), "/tmp", "/dev/shm", "/run/user"

    def _shown(self, path: Path) -> bool:
        return any(path == Path(shown) or path in Path(shown).parents for shown in self._show)

    @property
    def pid_file(self) -> Path:
        """See `LabHost.pid_file`."""
        return self.there("/run/sshd.pid")

    def _use_shell(self, path: str) -> None:
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if line[:5] != "root:"]
        account = f"root:x:0:0:root:{self.home}:{path}"
        # Written in place: it is the file itself that is mounted.
        (self.folder / "etc/passwd").write_text("\n".join([account, *others, ""]))

    # Its network

    def cut(self) -> None:
        """See `LabHost.cut`."""
        self._plug("down")

    def restore(self) -> None:
        """See `LabHost.restore`."""
        self._plug("up")

    def _plug(self, state: str) -> None:
        enter = ["nsenter", "--target", str(self.switch), "--net"]
        argv = [*enter, "ip", "link", "set", f"port{self.number}", state]
        subprocess.run(argv, check=True, capture_output=True, timeout=10)

    def netem(self, spec: str, both_ways: bool = False) -> None:
        """See `LabHost.netem`."""
        self.netem_off()
        self._cable = Cable(self.number, self.pid, self.switch, spec, both_ways)

    def netem_off(self) -> None:
        """See `LabHost.netem_off`."""
        if self._cable is not None:
            self._cable.mend()
            self._cable = None

    # Its files

    def fill_disk(self) -> None:
        """See `LabHost.fill_disk`."""
        self.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "full", str(self.home)])
        # One of the two inodes is the folder, and this is the other.
        self.run(["sh", "-c", 'cat /dev/zero >"$HOME/.full"'], check=False)
        self.expected.append(".full")

    def read_only_home(self) -> None:
        """See `LabHost.read_only_home`."""
        self.run(["mount", "--bind", str(self.home), str(self.home)])
        self.run(["mount", "-o", "remount,ro,bind", str(self.home)])

    def program(self, name: str, text: str | None) -> None:
        """See `LabHost.program`."""
        for folder in _BINS:
            self._own(folder)
            self.run(["rm", "-f", f"{folder}/{name}"])
        if text is not None:
            self.run(["sh", "-c", 'cat >"$0" && chmod 755 "$0"', f"/usr/bin/{name}"], text.encode())

    def no_python(self) -> None:
        """See `LabHost.no_python`."""
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
        """See `LabHost.heal`; plugged in, and with the files that were mounted over."""
        self.netem_off()
        self.restore()
        layers = [f"/run/{name}" for name in os.listdir(self.there("/run")) if name.startswith("layer-")]
        for path in (str(self.home), *_BINS, *layers):
            while self._mounted(path):
                self.run(["umount", "-l", path])
        super().heal()
