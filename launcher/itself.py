"""A command line that runs `launch` itself, from another process or on another machine."""

from __future__ import annotations

import sys
from pathlib import Path

#: Runs the launcher of the folder that is its first argument. The current folder is not on its ``sys.path``,
#: and it handles Ctrl-C and the other stop signals even where this process ignores them.
START_CODE = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.path.append(sys.argv.pop(1))
import signal
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("HUP", "QUIT", "USR1", "USR2", "TERM", "CHLD", "XCPU", "PWR"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
from launcher.__main__ import main
main()
"""
#: The folder of the package, for the path of a Python.
PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])


def launch_command(*argv: str) -> list[str]:
    """The command line that runs ``launch`` with these arguments."""
    return [sys.executable, "-c", START_CODE, PACKAGE_FOLDER, *argv]
