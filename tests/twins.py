"""Two machines of one host name that share all files: clones, each a boot of its own.

They are made of namespaces: network, host name, processes, mounts. That takes root.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NAME = "twin"
#: The first process: what is its own although its files are those of this machine.
_INIT = r"""
set -e
hostname "$1"
mount --make-rprivate /
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
[ ! -e /etc/machine-id ] || mount --bind "$2/machine-id" /etc/machine-id
mount --bind "$2/var-tmp" /var/tmp
ip link set lo up
echo up
exec env --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1
"""
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")


class Twin:
    """One of them.

    Args:
        folder: for the files that are its own.
        machine_id: clones may share it.
    """

    def __init__(self, folder: Path, machine_id: str) -> None:
        self._folder = folder
        (folder / "var-tmp").mkdir(parents=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (folder / "machine-id").write_text(f"{machine_id}\n")
        #: The beginning of a command that runs there.
        self.enter: Sequence[str] = ()

    @contextmanager
    def running(self) -> Iterator[Twin]:
        """Switch it on until the end of the context."""
        held = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child"]
        argv = [*held, "--mount-proc", "sh", "-c", _INIT, "init", NAME, str(self._folder)]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n", "a twin did not come up"
                (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                self.enter = ["nsenter", "--target", init, *_NAMESPACES, "--"]
                yield self
            finally:
                process.kill()

    def run(self, *argv: str) -> str:
        """Run a command there to its end: what it prints."""
        return subprocess.run(
            [*self.enter, *argv], stdout=subprocess.PIPE, text=True, check=True, timeout=60
        ).stdout.strip()


@contextmanager
def two_machines(folder: Path, same_id: bool) -> Iterator[tuple[Twin, Twin]]:
    """Two of them; with one machine id, or each with its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root: machines made of namespaces")
    one = uuid.uuid4().hex
    with ExitStack() as stack:
        ids = (one, one if same_id else uuid.uuid4().hex)
        made = [Twin(folder / f"machine-{number}", its_id) for number, its_id in enumerate(ids, 1)]
        first, second = (stack.enter_context(twin.running()) for twin in made)
        yield first, second
