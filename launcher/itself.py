"""The command line that runs ``launch`` itself in another process.

The Python API starts its launchers by it, and Slurm and Kubernetes start the launchers of submitted jobs. It
must not depend on an installed script, because launch also runs from a folder that is on no path.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: Python code that runs the launcher from the folder in its first argument. It takes the current folder off
#: the path, and resets all signals, because a child inherits the signals that this process ignores.
_SIGNALS_CODE = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.path.append(sys.argv.pop(1))
import signal
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("HUP", "QUIT", "USR1", "USR2", "TERM", "CHLD", "XCPU", "PWR"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
"""
START_CODE = f"{_SIGNALS_CODE}from launcher.__main__ import main\nmain()\n"
#: The folder that contains the package.
PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])


def launch_command(*argv: str) -> list[str]:
    """Return the command line that runs ``launch`` with these arguments, for `subprocess`."""
    return [sys.executable, "-c", START_CODE, PACKAGE_FOLDER, *argv]


def program_command(module: str) -> list[str]:
    """Return the command line that calls ``main`` of a module of ours in a process of its own."""
    return [sys.executable, "-c", f"{_SIGNALS_CODE}from {module} import main\nmain()\n", PACKAGE_FOLDER]
