"""What a task runs first: it comes to the program that drives its job, and is given what it needs to go on.

A task is started as ``python -c`` `KNOCK`. That runs a text which is in its environment: this module and
those that it needs, `launcher.feed.knock`, `launcher.feed.ways` and `launcher.feed.keepalive`, one below the
other (`launcher.api.bundle.arrival`). So nothing need be installed where it runs, and no command line is
long. It knocks at the doors that are named there until one opens, is given the modules of ours that it needs,
and goes on with `launcher.api.task`. Only the standard library, any Python since 3.8: one that is too old
is told so at the door.
"""

from __future__ import annotations

import json
import os
import sys

from launcher.feed.knock import Doors, Shut, exactly

TYPE_CHECKING = False

if TYPE_CHECKING:
    import socket
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: What a task is started with: short, the same for all, no secret in it.
KNOCK = "import os; exec(os.environ.pop('LAUNCH_KNOCK'), {'__name__': '__main__'})"

#: What a task goes on with: of what it was given, and started by its name, as an agent is.
TASK = "launcher.api.task"

#: Of the size before the modules; below zero it is a reason instead.
SIZE = 10
#: How often a task asks for what it needs, if its connection breaks meanwhile.
TRIES = 3


def from_environment() -> Doors:
    """The doors that the environment names; the key is taken out of it."""
    environ = os.environ
    who = {
        "task": "/".join((environ.get("JOB_NAME", ""), environ.get("TASK_INDEX", ""))),
        "attempt": int(environ.get("TASK_ATTEMPT", "1")),
        "python": list(sys.version_info[:2]),
        "pid": os.getpid(),
    }
    key = bytes.fromhex(environ.pop("LAUNCH_FEED_KEY"))
    return Doors(json.loads(environ.pop("LAUNCH_FEED")), environ.pop("LAUNCH_RELAY", ""), key, who)


def carried(line: socket.socket) -> bytes:
    """What the driver gives a member first: modules of ours.

    Raises:
        SystemExit: it gives a reason instead not to go on.
    """
    size = int(exactly(line, SIZE))
    if size < 0:
        sys.exit(exactly(line, -size).decode("utf-8", "replace"))
    return exactly(line, size)


def install(bundle: bytes) -> None:
    """From now on these modules are imported from what was carried here, whatever is installed."""
    import marshal
    import zlib
    from importlib.machinery import ModuleSpec

    modules: dict[str, tuple[bool, str, bytes]] = marshal.loads(zlib.decompress(bundle))

    class Carried:
        """Finds and loads them."""

        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            """Its place among the carried ones."""
            if name not in modules:
                return None
            is_package, file, _ = modules[name]
            loader: Any = cls
            return ModuleSpec(name, loader, origin=file, is_package=is_package)

        @classmethod
        def create_module(cls, spec: ModuleSpec) -> None:
            """The usual kind."""

        @classmethod
        def exec_module(cls, module: ModuleType) -> None:
            """Run its code."""
            _, module.__file__, code = modules[module.__name__]
            exec(marshal.loads(code), module.__dict__)

    finder: Any = Carried
    sys.meta_path.insert(0, finder)


def main() -> None:
    """All that a task does before it runs anything of the user's."""
    doors = from_environment()
    for left in reversed(range(TRIES)):
        try:
            line = doors.knock("member")
            install(carried(line))
            break
        except OSError as error:  # the network broke after we came in; or there was no way in at all
            if not left or isinstance(error, Shut):
                sys.exit(f"{doors.who['task']}: {error}")
    __import__(TASK, fromlist=["main"]).main(line, doors)


if __name__ == "__main__":
    main()
