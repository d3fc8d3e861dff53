"""What a task runs first: it connects to the driver, is given our modules, and goes on with `TASK`.

A task is started as ``python -c`` `COMMAND`, which runs a text in its environment: the sources of
`launcher.feed.remote.connect` and of this module. So nothing need be installed where it runs, and the command
line is short and holds no secret. Standard library only, any Python since 3.8: the driver rejects a Python
that is not of its own minor version with a message.
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
#: Digits of the size before the modules; a negative size is that of an error message.
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


def main() -> None:
    """Connect, install the modules, run `TASK`."""
    connector = from_environment()
    for left in reversed(range(TRIES)):
        try:
            sock = connector.connect("member")
            size = int(read_exactly(sock, SIZE))
            data = read_exactly(sock, abs(size))
            break
        except OSError as error:  # the network broke after the connection; or there is no route
            if not left or isinstance(error, ConnectError):
                sys.exit(f"{connector.hello['task']}: {error}")
    if size < 0:
        sys.exit(data.decode("utf-8", "replace"))
    install(data)
    __import__(TASK, fromlist=["main"]).main(sock, connector)


if __name__ == "__main__":
    main()
