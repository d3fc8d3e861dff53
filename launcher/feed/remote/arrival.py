"""What a task runs first: it connects to the program that drives its job, and is given the modules it needs.

A task is started as ``python -c`` `KNOCK`, which runs a text in its environment: the source of
`launcher.feed.remote.connect` and of this module (`launcher.api.bundle.arrival`). So nothing need be
installed where it runs, and the command line is short. Standard library only, any Python since 3.8: the
driver rejects a Python that is not its own version with a message.
"""

from __future__ import annotations

import json
import os
import sys

from launcher.feed.remote.connect import ConnectError, Connector, read_exactly

TYPE_CHECKING = False

if TYPE_CHECKING:
    import socket
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: The program of each task: short, and without a secret.
KNOCK = "import os; exec(os.environ.pop('LAUNCH_KNOCK'), {'__name__': '__main__'})"

#: The module that goes on with the task.
TASK = "launcher.api.task"

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


def carried(sock: socket.socket) -> bytes:
    """The modules, as the driver sends them first.

    Raises:
        SystemExit: the driver sends an error message instead.
    """
    size = int(read_exactly(sock, SIZE))
    if size < 0:
        sys.exit(read_exactly(sock, -size).decode("utf-8", "replace"))
    return read_exactly(sock, size)


def install(bundle: bytes) -> None:
    """Import these modules from the bundle from now on, whatever is installed."""
    import marshal
    import zlib
    from importlib.machinery import ModuleSpec

    modules: dict[str, tuple[bool, str, bytes]] = marshal.loads(zlib.decompress(bundle))

    class Carried:
        """Finds and loads modules of the bundle."""

        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            """See `importlib.abc.MetaPathFinder`."""
            if name not in modules:
                return None
            is_package, file, _ = modules[name]
            loader: Any = cls
            return ModuleSpec(name, loader, origin=file, is_package=is_package)

        @classmethod
        def create_module(cls, spec: ModuleSpec) -> None:
            """See `importlib.abc.Loader`."""

        @classmethod
        def exec_module(cls, module: ModuleType) -> None:
            """See `importlib.abc.Loader`."""
            _, module.__file__, code = modules[module.__name__]
            exec(marshal.loads(code), module.__dict__)

    finder: Any = Carried
    sys.meta_path.insert(0, finder)


def main() -> None:
    """Connect, install the modules, go on with `TASK`."""
    connector = from_environment()
    for left in reversed(range(TRIES)):
        try:
            sock = connector.connect("member")
            install(carried(sock))
            break
        except OSError as error:  # the network broke after the connection; or there is no route
            if not left or isinstance(error, ConnectError):
                sys.exit(f"{connector.hello['task']}: {error}")
    __import__(TASK, fromlist=["main"]).main(sock, connector)


if __name__ == "__main__":
    main()
