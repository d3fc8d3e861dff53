"""What tests have hosts do: functions for programs, Python 3.8 and standard library only."""

import os
import signal


def echo(arguments):
    """Give back all that comes."""
    while True:
        data = os.read(0, 65536)
        if not data:
            return
        while data:
            data = data[os.write(1, data) :]


def shown(arguments):
    """The arguments, as they arrived."""
    os.write(1, repr(arguments).encode())


def killed(arguments):
    """Ends itself by force."""
    os.kill(os.getpid(), signal.SIGKILL)


def breaks(arguments):
    """Our own fault."""
    raise RuntimeError("a program that is broken")
