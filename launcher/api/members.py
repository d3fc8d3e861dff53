"""A task as the driver knows it: the connection on which it says how its function went."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher.api.talk import Said, Word, hear, say
from launcher.feed.listener import Peer
from launcher.feed.remote.frames import hang_up


class Member:
    """One task. Its connection has a thread, which ends with it.

    Args:
        name: ``worker/0``.
        bundle: our modules, as it needs them.
        work: what it is to run.
        on_said: is told of all that the task says, in the thread.
    """

    def __init__(self, name: str, bundle: bytes, work: Said, on_said: Callable[[Member, Said], None]) -> None:
        self.name = name
        self._bundle = bundle
        self._work = work
        self._on_said = on_said
        self._lock = threading.Lock()
        #: Held while something is sent, which takes as long as the task likes; `come` and `close` end that.
        self._sending = threading.Lock()
        self._line: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        #: It has come in; it has said how its function went; its connection has ended; its process has.
        self.here = threading.Event()
        self.replied = threading.Event()
        self.silent = threading.Event()
        self.ended = threading.Event()
        #: How its function went; ``None``: it has not said so.
        self.outcome: Said | None = None
        #: Why it was not let in; empty: it was.
        self.refused = ""
        #: When it was first known to have failed, by the monotonic clock.
        self.failed_at: float | None = None
        #: When it said how its function went, by the clock on the wall.
        self.replied_at = 0.0

    def come(self, guest: Peer) -> None:
        """It is at the door: for the first time, or again after its connection has broken."""
        with self._lock:
            old, self._line = self._line, guest.sock
        if old is not None:
            hang_up(old)
        self.silent.clear()
        thread = threading.Thread(target=self._talk, args=(guest,), name=f"launch-{self.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def say(self, said: Said) -> None:
        """Tell it something.

        Raises:
            OSError: its connection is gone.
        """
        with self._sending:
            with self._lock:
                line = self._line
            if line is None:
                raise ConnectionError(f"{self.name} has no connection")
            say(line, said)

    def close(self) -> None:
        """It is over."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            hang_up(line)
        for thread in self._threads:
            thread.join(5)

    def _talk(self, guest: Peer) -> None:
        line = guest.sock
        try:
            if not guest.hello.get("again") and not self._begun(guest):
                return
            self.here.set()
            while (said := hear(line)) is not None:
                if said.word in (Word.DONE, Word.RAISED):
                    self.outcome, self.replied_at = said, time.time()
                    self.replied.set()
                self._on_said(self, said)
                if said.word in (Word.DONE, Word.RAISED):
                    with self._sending:
                        say(line, Said(Word.THANKS))
        except OSError:  # it has died, or comes again: its launcher knows
            pass
        finally:
            if self._line is line:
                self.silent.set()
            with self._lock:
                if self._line is line:
                    self._line = None
            line.close()

    def _begun(self, guest: Peer) -> bool:
        """Give it what it is to run; ``False``: it can't run that."""
        theirs, ours = tuple(guest.hello["python"]), sys.version_info[:2]
        if theirs != ours:
            said = "it runs Python {}.{}, the program that drives the job {}.{}".format(*theirs, *ours)
            self.refused = f"{said}; functions can be carried only to the same version (python= says which)"
            text = f"{self.name}: {self.refused}".encode()
            guest.sock.sendall(b"%010d" % -len(text) + text)
            self.here.set()
            return False
        guest.sock.sendall(b"%010d" % len(self._bundle) + self._bundle)
        say(guest.sock, self._work)
        return True


def raised(outcome: Said) -> BaseException | None:
    """The exception that a task's function has raised, if it could be carried here."""
    if outcome.word is not Word.RAISED or not outcome.pickles:
        return None
    return _loaded(outcome.pickles[0])


def _loaded(data: Any) -> BaseException | None:
    try:
        found = pickle.loads(data)
    except Exception:  # noqa: BLE001 - what unpickling it may raise nobody knows; there is the text
        return None
    return found if isinstance(found, BaseException) else None
