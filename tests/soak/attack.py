"""Runs launches one after another, each in a fork of this process, which has imported the launcher once.

``python -m tests.soak.attack FOLDER``: each line of ``plan.json`` there is a launch: ``argv``, and ``case``
for `pretender.local`, which then replaces the agent of this machine. The lines are read one by one, so that
this process, and with it each fork, stays small. The result of each is a line of JSON on stdout: exit code,
what it printed, memory in kB, seconds, files made elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import launcher.api  # noqa: F401 - imports what a launch needs
import launcher.backends.ssh.connections  # noqa: F401
import launcher.cli.run
import launcher.output.failure
import launcher.output.tensorflow_notices  # noqa: F401
from launcher.__main__ import main
from launcher.agent import main as agent
from tests.soak import pretender

#: Seconds after which a launch is killed, and characters of its output that are kept.
_LONGEST, _KEPT = 60, 100_000


def _launch(launch: dict[str, Any], folder: Path) -> NoReturn:
    """Be a launch."""
    os.setsid()
    signal.alarm(_LONGEST)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if launch["case"] is not None:
        agent.run = lambda _: pretender.local(launch["case"])  # type: ignore[assignment,misc]
    sys.argv = ["launch", *launch["argv"]]
    main()


def _attack(launch: dict[str, Any], folder: Path) -> dict[str, Any]:
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _launch(launch, folder)
    _, status, usage = os.wait4(pid, 0)
    texts = {
        name: (folder / name).read_text(errors="surrogateescape")[:_KEPT] for name in ("stdout", "stderr")
    }
    elsewhere = sorted(os.listdir("."))
    shutil.rmtree(folder / "run", ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - begun
    return {**texts, "code": code, "memory": usage.ru_maxrss, "seconds": took, "elsewhere": elsewhere}


def run(path: str) -> None:
    """Run the launches of a folder."""
    with open(f"{path}/plan.json", encoding="ascii") as file:
        for line in file:
            print(json.dumps(_attack(json.loads(line), Path(path))), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
