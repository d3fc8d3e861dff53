"""The first code of a task: connects to the driver, receives our modules, runs `TASK_MODULE`.

A task is started as ``python -c`` `START_CODE`, which runs a text in its environment: the sources of
`launcher.feed.remote.connect` and of this module. So nothing need be installed where it runs, and the command
line is short and holds no secret. Standard library only, any Python since 3.8: a Python that is not of the
driver's minor version ends with a message.
"""

from __future__ import annotations

import json
import os
import sys

from launcher.feed.remote.connect import DriverRoutes, read_exactly

#: The program of each task. Before any import it takes the working folder off the path.
START_CODE = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import os; "
    "exec(os.environ.pop('LAUNCH_START'), {'__name__': '__main__'})"
)
#: The module that runs the work of the task.
TASK_MODULE = "launcher.api.remote.worker"
#: Digits of the size before the modules.
SIZE_DIGITS = 10


def main(python: tuple[int, int], importer: type) -> None:
    """Connect, import modules from what the driver sends, run `TASK_MODULE`.

    The key of the job is taken out of the environment.

    Args:
        python: the driver's version: functions travel as byte code.
        importer: the class of `launcher.backends.bootstrap.IMPORTER`.
    """
    environ = os.environ
    task, ours = "{JOB_NAME}/{TASK_INDEX}".format_map(environ), sys.version_info[:2]
    if ours != python:
        versions = "it runs Python {}.{}, the program that drives the job {}.{}".format(*ours, *python)
        sys.exit(f"{task}: {versions}; functions can be sent only to the same version (set python=)")
    hello = {"task": task, "attempt": int(environ["LAUNCH_ATTEMPT"]), "python": ours, "pid": os.getpid()}
    addresses, relay = json.loads(environ.pop("LAUNCH_FEED")), environ.pop("LAUNCH_RELAY", "")
    connector = DriverRoutes(addresses, relay, bytes.fromhex(environ.pop("LAUNCH_FEED_KEY")), hello)
    try:
        sock = connector.connect("member")
        modules = read_exactly(sock, int(read_exactly(sock, SIZE_DIGITS)))
    except OSError as error:
        sys.exit(f"{task}: {error}")
    sys.meta_path.insert(0, importer(modules))
    __import__(TASK_MODULE, fromlist=["main"]).main(sock, connector)
