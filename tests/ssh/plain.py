"""A host for whoever is not root: an sshd on an address of its own, a home, and nothing else."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from tests.ssh.host import LabHost
from tests.ssh.warden import MARK

# As a shell of sshd would: bash looks at SHLVL to know whether it is one.
_SESSION = """\
#!/bin/sh
cd "$HOME" || exit 1
unset SHLVL
exec "$(cat "${MARK}/etc/shell")" -c "$SSH_ORIGINAL_COMMAND"
""".replace("MARK", MARK)


class PlainHost(LabHost):
    """Network, processes and ``/tmp`` are the machine's; what its sessions start is known by a variable."""

    port = 2222

    def __init__(self, number: int, address: str, folder: Path) -> None:
        super().__init__(number, address, folder)
        self.user = pwd.getpwuid(os.getuid()).pw_name

    def settings(self) -> str:
        """What its sshd needs to be told besides what all are told."""
        session = self.folder / "etc/session"
        session.write_text(_SESSION)
        session.chmod(0o755)
        return f"SetEnv HOME={self.home} {MARK}={self.folder}\nForceCommand {session}\n"

    def environment(self) -> dict[str, str]:
        """See `LabHost.environment`."""
        return {**super().environment(), MARK: str(self.folder)}

    def _use_shell(self, path: str) -> None:
        (self.folder / "etc/shell").write_text(path)

    def _is_its(self, folder: Path) -> bool:
        try:
            return f"{MARK}={self.folder}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is somebody else's
            return False

    def sshds(self) -> list[int]:
        """See `LabHost.sshds`; those of connections only as long as the one that listens is there."""
        family = self.sshd()
        for pid in sorted(super().sshds()):
            if _parent(pid) in family:
                family.append(pid)
        return family


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:  # it has just ended
        return 0
