"""What tests have hosts do: functions for programs, Python 3.8 and standard library only."""

import os
import signal
import sys
import time


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


def ends(arguments):
    """With this exit status, after some last words."""
    sys.stderr.write(arguments["stderr"])
    return arguments["status"]


def floods(size):
    """So many bytes to stderr, and then two to stdout."""
    line = b"x" * 63 + b"\n"
    for _ in range(size // len(line)):
        os.write(2, line)
    os.write(2, b"the last words\n")
    os.write(1, b"ok")


def pours(size):
    """So many bytes to stdout: a counter in 8 bytes, over and over."""
    for number in range(0, size // 8, 8192):
        data = b"".join(b"%07d\n" % n for n in range(number, number + 8192))
        while data:
            data = data[os.write(1, data) :]


def deaf(seconds):
    """Reads nothing for a while, then counts what comes."""
    os.write(1, b"up\n")
    time.sleep(seconds)
    total = 0
    while True:
        data = os.read(0, 65536)
        if not data:
            os.write(1, str(total).encode())
            return
        total += len(data)


def alarmed(arguments):
    """Seconds until its alarm rings, or 0: it has none."""
    os.write(1, b"%d." % signal.alarm(0))


def killed(arguments):
    """Ends itself by force."""
    os.kill(os.getpid(), signal.SIGKILL)


def describes(arguments):
    """How it runs: version, isolation, path, what it was given on its command line."""
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read()
    facts = (sys.version_info[:2], "" in sys.path, "site" in sys.modules, len(command))
    os.write(1, repr(facts).encode())


def breaks(arguments):
    """Our own fault."""
    raise RuntimeError("a program that is broken")
