"""What a task runs first: it connects to the driver, is given our modules, and goes on with `TASK`.

A task is started as ``python -c`` `COMMAND`, which runs a text in its environment: the sources of
`launcher.feed.remote.connect` and of this module. So nothing need be installed where it runs, and the command
line is short and holds no secret. Standard library only, any Python since 3.8: a Python that is not of the
driver's minor version ends with a message.
"""

from __future__ import annotations

import json
import os
import sys

from launcher.feed.remote.connect import ConnectError, Connector, read_exactly

#: The program of each task.
COMMAND = "import os; exec(os.environ.pop('LAUNCH_START'), {'__name__': '__main__'})"
#: The module that goes on with the task.
TASK = "launcher.api.remote.worker"
#: Digits of the size before the modules.
SIZE = 10
#: Attempts to get the modules, if the connection breaks meanwhile.
TRIES = 3


def from_environment() -> Connector:
    """The routes that the environment names; the key is taken out of the environment."""
    environ = os.environ
    hello = {
        "task": "/".join((environ.get("JOB_NAME", ""), environ.get("TASK_INDEX", ""))),
        "attempt": int(environ.get("TASK_ATTEMPT", "1")),
        "python": list(sys.version_info[:2]),
        "pid": os.getpid(),
    }
    key = bytes.fromhex(environ.pop("LAUNCH_FEED_KEY"))
    return Connector(json.loads(environ.pop("LAUNCH_FEED")), environ.pop("LAUNCH_RELAY", ""), key, hello)


def install(modules: bytes) -> None:
    """Import modules from this zip from now on, whatever is installed."""
    fd = os.memfd_create("tf-launcher")
    with open(fd, "wb", closefd=False) as file:
        file.write(modules)
    sys.path.insert(0, f"/proc/self/fd/{fd}")


def main(python: tuple[int, int]) -> None:
    """Connect, install the modules, run `TASK`.

    Args:
        python: the driver's version: functions travel as byte code.
    """
    connector = from_environment()
    task, ours = connector.hello["task"], sys.version_info[:2]
    if ours != python:
        versions = "it runs Python {}.{}, the program that drives the job {}.{}".format(*ours, *python)
        sys.exit(f"{task}: {versions}; functions can be sent only to the same version (set python=)")
    for left in reversed(range(TRIES)):
        try:
            sock = connector.connect("member")
            data = read_exactly(sock, int(read_exactly(sock, SIZE)))
            break
        except OSError as error:  # the network broke after the connection; or there is no route
            if not left or isinstance(error, ConnectError):
                sys.exit(f"{task}: {error}")
    install(data)
    __import__(TASK, fromlist=["main"]).main(sock, connector)
