"""``leash.py PIDFD DRIVER [FOLDER]``: ends a launch when the program that started it is gone.

That program holds the other end of our stdin. When that ends before the launcher does (it was killed,
or left by ``os._exit``, or just ended), the launcher is asked to end, twice, which means at once, and killed
if it does not; its agents see to the rest. As a forked child of the program would hold that end too, the
program itself is watched as well. The folder, with the files that are in it, is removed then.
Runs by itself: standard library only.
"""

import os
import select
import signal
import sys

#: A signal, and the seconds until the next: twice means "at once", for launchers.
LADDER = ((signal.SIGTERM, 0.3), (signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0))

#: So many tenths of a second more for a launcher that gets no time to take one before the next.
LOOKS = 100


def wait(files: "list[int]", seconds: "float | None") -> "set[int]":
    """Those of the files that are readable, or at their end, within so many seconds."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {file for file, _ in poll.poll(None if seconds is None else seconds * 1000)}


def main(pidfd: int, driver: int) -> bool:
    """Wait for the end of the launcher, or of the program.

    Args:
        pidfd: of the launcher.
        driver: of the program.

    Returns:
        Whether it was the program.
    """
    if pidfd in wait([0, pidfd, driver], None):
        return False
    end(pidfd)
    return True


def is_pending(pidfd: int, number: int) -> bool:
    """Whether the process has not taken this signal yet: it would take no notice of a second one."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            pid = int(file.read().partition(b"\nPid:")[2].split()[0])
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = int(file.read().partition(b"\nShdPnd:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):  # it is over, or this is no Linux as we know it
        return False
    return bool(pending >> (number - 1) & 1)


def end(pidfd: int) -> None:
    """See to it that the launcher is over."""
    for number, seconds in LADDER:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)  # a suspended one could not act on it
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return
        if wait([pidfd], seconds):
            return
        for _ in range(LOOKS):
            if not is_pending(pidfd, number):
                break
            if wait([pidfd], 0.1):
                return


def remove(folder: str) -> None:
    """Remove a folder with the files in it, as far as it is there."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:  # somebody else is at it
        pass


if __name__ == "__main__":
    # What ends a terminal's processes is not for us: we end when the others have.
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    if main(int(sys.argv[1]), int(sys.argv[2])):
        for path in sys.argv[3:]:
            remove(path)
    os._exit(0)
