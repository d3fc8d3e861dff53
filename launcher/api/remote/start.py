"""The first code of a task: it connects to the program, receives the modules, and runs `TASK_MODULE`.

A task is started as ``python -c`` `START_CODE`, which runs a text from its environment: the sources of
`launcher.feed.remote.connect` and of this module. So nothing need be installed where it runs, and the command
line is short and contains no secret. The code must run on any Python since 3.8 with the standard library
alone, because a Python of another minor version than the program's is to exit with a message.
"""

from __future__ import annotations

import json
import os
import sys

from launcher.feed.remote.connect import DriverRoutes, read_exactly

#: The program of each task. It first removes the working folder from the path, whose modules might shadow
#: those of Python.
START_CODE = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import os; "
    "exec(os.environ.pop('LAUNCH_START'), {'__name__': '__main__'})"
)
#: The module that runs the work of the task.
TASK_MODULE = "launcher.api.remote.worker"
#: The number of decimal digits in the size that comes before the modules.
SIZE_DIGITS = 10


def main(python: tuple[int, int], importer: type) -> None:
    """Connect to the program, import the modules that it sends, and run `TASK_MODULE`.

    The key of the job is removed from the environment, so that programs of the user cannot read it there.

    Args:
        python: The program's major and minor version. It must be that of the task, because functions travel
            as byte code.
        importer: The class of `launcher.backends.bootstrap.IMPORTER`. It makes an importer of the modules
            that the program sends.

    Raises:
        SystemExit: The versions differ, or the program cannot be reached. Also when the task has done its
            work.
    """
    environ = os.environ
    task, version = "{JOB_NAME}/{TASK_INDEX}".format_map(environ), sys.version_info[:2]
    if version != python:
        versions = "it runs Python {}.{}, the program that drives the job {}.{}".format(*version, *python)
        sys.exit(f"{task}: {versions}; functions can be sent only to the same version (set python=)")
    hello = {"task": task, "attempt": int(environ["LAUNCH_ATTEMPT"]), "python": version, "pid": os.getpid()}
    addresses, relay = json.loads(environ.pop("LAUNCH_FEED")), environ.pop("LAUNCH_RELAY", "")
    connector = DriverRoutes(addresses, relay, bytes.fromhex(environ.pop("LAUNCH_FEED_KEY")), hello)
    try:
        # A "member" connection carries modules, work and messages, and no rows.
        sock = connector.connect("member")
        modules = read_exactly(sock, int(read_exactly(sock, SIZE_DIGITS)))
    except OSError as error:
        sys.exit(f"{task}: {error}")
    # `TASK_MODULE` is one of the modules that the program has sent, which can be imported only from now on.
    sys.meta_path.insert(0, importer(modules))
    # With `fromlist` this returns the module itself, and not the package at its top.
    __import__(TASK_MODULE, fromlist=["main"]).main(sock, connector)
