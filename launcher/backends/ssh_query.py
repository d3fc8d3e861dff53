"""Asks the ``ssh`` command and the system about a host, for connections and `launcher.backends.here`.

It is imported only when there is something to ask.
"""

from __future__ import annotations

import glob
import os
import pwd
import subprocess
from collections.abc import Sequence

USER_FILE = "~/.ssh/config"
_SYSTEM_FILE = "/etc/ssh/ssh_config"
#: A file for ``ssh -F``: ssh closes all descriptors but the first three, and opens it for each reading.
STDIN_PATH = "/proc/self/fd/0"
#: Both ``ssh`` and ``getent`` are asked about the name of this machine. They may ask a name server.
_ANSWER_TIMEOUT_SECONDS = 2.0


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
        OSError: It cannot be run.
        subprocess.TimeoutExpired: It does not answer in time.
    """
    argv = ["ssh", *(["-F", STDIN_PATH] if is_home_elsewhere(home) else []), "-G", *arguments]
    user_file = glob.escape(os.path.expanduser(USER_FILE))
    with open(os.memfd_create("ssh_config"), "r+b") as stdin:
        stdin.write(f'Include "{user_file}"\nInclude {_SYSTEM_FILE}\n'.encode("utf-8", "surrogateescape"))
        stdin.flush()
        return subprocess.run(argv, stdin=stdin, capture_output=True, timeout=seconds)


def host_name_of(name: str) -> str:
    """Return the ``HostName`` that the user's ssh_config gives a host.

    Returns:
        The name itself if there is no such line.

    Raises:
        TimeoutError: ssh does not answer in time.
    """
    try:
        printed = ask_ssh(["--", name], pwd.getpwuid(os.getuid()).pw_dir, _ANSWER_TIMEOUT_SECONDS).stdout
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    except (KeyError, OSError):  # ssh knows no user without an account; or there is no ssh
        return name
    words = (line.split() for line in printed.decode("utf-8", "surrogateescape").splitlines())
    return next((found[1] for found in words if len(found) == 2 and found[0] == "hostname"), name)


def addresses_of(name: str) -> Sequence[str]:
    """Return the addresses of a name.

    Another process looks them up, because it can be ended when that takes too long. A thread cannot, and an
    agent cannot be forked from a process that has threads.

    Returns:
        No addresses if the name has none, or if the answer takes too long.
    """
    argv = ["getent", "ahosts", name]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split()[0].decode("ascii", "replace") for line in done.stdout.splitlines() if line.strip()]
