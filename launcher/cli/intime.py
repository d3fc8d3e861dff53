"""What is done for a job that is over, when the launcher is asked to end meanwhile: it gets a little time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.signals import STOP_SIGNALS

#: Seconds that are left then; who asks twice, and then kills, has more patience.
LEFT = 10.0
_ASKING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Give this some seconds more if a signal asks the launcher to end, instead of ending it at once.

    Ctrl-C ends it at once, as ever.

    Args:
        what: is done.

    Raises:
        KeyboardInterrupt: the seconds are over, or a second signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if number == signal.SIGALRM or asked:
            raise KeyboardInterrupt
        asked.append(number)
        signal.setitimer(signal.ITIMER_REAL, LEFT)
        name = STOP_SIGNALS[signal.Signals(number)]
        _say(f"{name}: {LEFT:g} s are left for {what}; once more ends it at once")

    heard = [number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in (*heard, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """From a signal handler: what it has interrupted may have been about to print, too."""
    try:
        os.write(2, f"launch: {text}\n".encode())
    except OSError:  # nobody reads it
        return
