"""A remote command: run one command line on this host, with a time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Mapping

#: Exit status of a command that took too long, and of one that is not there; a shell uses the same.
LATE, NOT_FOUND = 124, 127
_LOOK = 0.05


def main(arguments: Mapping[str, Any]) -> int:
    """Run it with our stdout and stderr; the end of our stdin ends it, and all it started, at once.

    Args:
        arguments: ``argv``; ``env``, variables in addition to ours; ``seconds``, the time limit.

    Returns:
        Its exit status; 128+n for signal n.
    """
    env = {**os.environ, **arguments["env"]}
    try:
        process = subprocess.Popen(
            arguments["argv"], stdin=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"{arguments['argv'][0]}: {error.strerror}; PATH is {env.get('PATH', '')}\n")
        return NOT_FOUND
    until = time.monotonic() + float(arguments["seconds"])
    while process.poll() is None:
        ended = bool(select.select([0], [], [], _LOOK)[0]) and not os.read(0, 4096)
        if ended or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return LATE
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def become(arguments: Mapping[str, Any]) -> int:
    """Become a command, with our stdin, stdout and stderr.

    Args:
        arguments: ``argv`` and ``env`` as for `main`.

    Returns:
        Only where there is no such command: its exit status.
    """
    env = {**os.environ, **arguments["env"]}
    os.chdir("/")
    try:
        os.execvpe(arguments["argv"][0], arguments["argv"], env)
    except OSError as error:
        sys.stderr.write(f"{arguments['argv'][0]}: {error.strerror}; PATH is {env.get('PATH', '')}\n")
    return NOT_FOUND
