"""The signals that ask the job to end, as bytes of a pipe: nothing is interrupted, and none is missed."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys

#: Signals that ask the job to end, and how to call them.
STOP_SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "a hang-up of the terminal",
}
#: Seconds from a dropped Ctrl-C to the next try.
_SOON = 0.01


def heed_dropped() -> None:
    """Let Ctrl-C count that comes where Python drops what is raised: in a destructor, or after an import.

    It is raised again a moment later. Whatever else is dropped is shown as ever.
    """
    sys.unraisablehook = _again


def stop_at_end_of_file(fd: int) -> None:
    """Send this process SIGTERM when the pipe ends: the program that holds its other end is gone.

    The kernel sends the signal, so this works before and while the job runs, and needs no thread.

    Args:
        fd: the reading end of a pipe to which nobody writes.
    """
    os.set_inheritable(fd, False)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):  # it had ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _again(dropped: sys.UnraisableHookArgs) -> None:
    what = dropped.exc_value
    if not isinstance(what, (KeyboardInterrupt, SystemExit)):
        sys.__unraisablehook__(dropped)
        return

    def throw(*_: object) -> None:
        raise what

    signal.signal(signal.SIGALRM, throw)
    signal.setitimer(signal.ITIMER_REAL, _SOON)


class Signals:
    """Turns them into bytes, as a context; ``fd`` is readable when one came.

    A terminal that stops background jobs which write to it (``stty tostop``) does not stop us meanwhile: the
    tasks would go on, and nobody could end them.
    """

    def __enter__(self) -> Signals:
        self.fd, self._writing = os.pipe()
        for fd in (self.fd, self._writing):
            os.set_blocking(fd, False)
        self._old_fd = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        # What is ignored stays so: whoever starts us with nohup means it.
        heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._old = {number: signal.signal(number, _noted) for number in heard}
        self._old[signal.SIGALRM] = signal.signal(signal.SIGALRM, _noted)
        self._old[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self.fd)
        os.close(self._writing)

    def read(self) -> list[signal.Signals]:
        """Those that came, in their order."""
        try:
            came = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        # An alarm is a Ctrl-C that was dropped just before (or a SIGTERM, which is told as Ctrl-C then).
        heard = [signal.SIGINT if number == signal.SIGALRM else number for number in came]
        return [signal.Signals(number) for number in heard if number in STOP_SIGNALS]


def _noted(*_: object) -> None:
    """A signal handler: the pipe does the work."""
