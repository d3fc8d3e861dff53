"""Asks the ``ssh`` command about a host, for connections and for `launcher.backends.here`.

It is imported only when there is something to ask.
"""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Sequence

USER_FILE = "~/.ssh/config"
_SYSTEM_FILE = "/etc/ssh/ssh_config"
#: A file for ``ssh -F``: ssh closes all descriptors but the first three, and opens it for each reading.
STDIN_PATH = "/proc/self/fd/0"


def is_home_elsewhere(home: str) -> bool:
    """Return whether ``$HOME`` is not the home of the account."""
    return os.path.realpath(os.path.expanduser("~")) != os.path.realpath(home)


def ask_ssh(arguments: Sequence[str], home: str, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh -G``, which prints the options of a host, with the configuration in ``$HOME``.

    Without being told, ssh reads the configuration in the home of the account. If it is told, by ``-F``, it
    does not read that of the system. So it gets a file that includes both.

    Args:
        arguments: Other arguments, with the host.
        home: The home of the account.
        seconds: A limit of time.

    Raises:
        OSError: It can't be run.
        subprocess.TimeoutExpired: It does not answer in time.
    """
    argv = ["ssh", *(["-F", STDIN_PATH] if is_home_elsewhere(home) else []), "-G", *arguments]
    user_file = glob.escape(os.path.expanduser(USER_FILE))
    with open(os.memfd_create("ssh_config"), "r+b") as stdin:
        stdin.write(f'Include "{user_file}"\nInclude {_SYSTEM_FILE}\n'.encode("utf-8", "surrogateescape"))
        stdin.flush()
        return subprocess.run(argv, stdin=stdin, capture_output=True, timeout=seconds)
