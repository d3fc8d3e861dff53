"""Asks the ``ssh`` command and the system about a host, for SSH connections and for `launcher.backends.here`.

It imports subprocess, so it must be imported only when there is something to ask.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import subprocess
from collections.abc import Sequence

from launcher.common.trusted_io import memory_file

USER_FILE = "~/.ssh/config"
_SYSTEM_FILE = "/etc/ssh/ssh_config"
#: A file for ``ssh -F``. ssh closes all descriptors but the first three, and opens the file for each reading.
STDIN_PATH = "/proc/self/fd/0"
#: The time limit of ``ssh`` and ``getent``, which may ask a name server.
_ANSWER_TIMEOUT_SECONDS = 2.0


def is_home_elsewhere(home: str) -> bool:
    """Return whether ``$HOME`` is not the home of the account.

    Args:
        home: The home of the account, from the user database.
    """
    return os.path.realpath(os.path.expanduser("~")) != os.path.realpath(home)


def ask_ssh(arguments: Sequence[str], home: str, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh -G``, which prints the options of a host, with the configuration in ``$HOME``.

    ssh itself reads the configuration in the home of the account, which may be another folder. If ``-F``
    names a file, ssh does not read the configuration of the system. So it gets a file that includes both: in
    memory, as its stdin.

    Args:
        arguments: The other arguments, with the host.
        home: The home of the account.
        seconds: The time limit.

    Raises:
        OSError: ssh cannot be started.
        subprocess.TimeoutExpired: ssh does not answer in time.
    """
    file_option = ["-F", STDIN_PATH] if is_home_elsewhere(home) else []
    argv = ["ssh", *file_option, "-G", *arguments]
    user_file = glob.escape(os.path.expanduser(USER_FILE))
    # Without ``-F``, ssh does not read its stdin.
    with open(memory_file("ssh_config"), "r+b") as stdin:
        stdin.write(f'Include "{user_file}"\nInclude {_SYSTEM_FILE}\n'.encode("utf-8", "surrogateescape"))
        stdin.flush()
        return subprocess.run(argv, stdin=stdin, capture_output=True, timeout=seconds)


def host_name_of(name: str) -> str:
    """Return the ``HostName`` that the user's ssh_config sets for a host, or else the name itself.

    Raises:
        TimeoutError: ssh does not answer in time.
    """
    try:
        printed = ask_ssh(["--", name], pwd.getpwuid(os.getuid()).pw_dir, _ANSWER_TIMEOUT_SECONDS).stdout
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    except (KeyError, OSError):  # No account belongs to this user, or there is no ssh.
        return name
    found = re.search(r"^hostname (\S+)$", printed.decode("utf-8", "surrogateescape"), re.MULTILINE)
    return found[1] if found else name


def addresses_of(name: str) -> Sequence[str]:
    """Return the addresses of a name, or none if it has none or if the answer takes too long.

    Another process looks them up, because it can be killed when that takes too long. A thread cannot, and an
    agent cannot be forked from a process that has threads.
    """
    argv = ["getent", "ahosts", name]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split()[0].decode("ascii", "replace") for line in done.stdout.splitlines() if line.strip()]
