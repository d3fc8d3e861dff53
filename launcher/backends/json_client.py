"""Asks a program of ours on a host questions: requests and answers are JSON, one line each.

``launch check``, ``launch prepare`` and the steps of Slurm use it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from launcher.backends.programs import RemoteProgram
from launcher.common.errors import ProtocolError, TransportError
from launcher.common.text import last_line, sanitize_host_text
from launcher.common.validation import FieldReader
from launcher.event_loop import await_readable

_T = TypeVar("_T")
#: The pause between two attempts to send.
_SEND_PAUSE_SECONDS = 0.05
#: How often a client that waits for an answer calls its ``check``.
_POLL_SECONDS = 0.25
_READ_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 1 << 20


class JsonClient:
    """A client of a program that answers requests. One thread uses it at a time.

    Args:
        program: The program on the host.
        check: It is called again and again while the client waits. It raises a `TransportError` to end the
            wait.
    """

    def __init__(self, program: RemoteProgram, check: Callable[[], object] = lambda: None) -> None:
        """Use a program that was started. It is asked nothing yet."""
        self._program, self._check = program, check
        #: The bytes that have arrived, and that `receive` has not returned yet.
        self._received = b""

    def ask(self, request: object, seconds: float, record: type[_T]) -> _T:
        """Send a request, and wait for its answer.

        Args:
            request: Anything that JSON can express.
            seconds: The time limit for sending, and again for the answer.
            record: The class of the answer.

        Raises:
            TransportError: No answer comes in time, or a wrong one.
        """
        self.send(request, seconds)
        return read(record, self.receive(seconds))

    def send(self, request: object, seconds: float) -> None:
        """Send a request. This blocks until the program has accepted all of it.

        Args:
            request: Anything that JSON can express.
            seconds: The time limit.

        Raises:
            TransportError: The program does not accept it in time, or has ended.
        """
        deadline = time.monotonic() + seconds
        unsent = memoryview(json.dumps(request).encode("ascii") + b"\n")
        while unsent := unsent[self._program.send(unsent) :]:
            # Meanwhile answers may arrive, which `receive` returns later.
            self._listen(deadline, _SEND_PAUSE_SECONDS)

    def receive(self, seconds: float) -> Any:
        """Wait for the next answer, which is one line of JSON, and return its value.

        Raises:
            TransportError: No answer comes in time, it is not JSON, or the program has ended.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            self._listen(deadline, _POLL_SECONDS)
        line, _, self._received = self._received.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong_answer(error, line) from error

    def _listen(self, deadline: float, seconds: float) -> None:
        """Receive what has arrived, or else wait ``seconds`` at most until something arrives.

        Raises:
            TransportError: The program has ended, or sends too much, or it is later than ``deadline``
                (monotonic).
        """
        self._check()
        data = self._program.recv(_READ_BYTES)
        if data is None:  # Nothing has arrived yet.
            if time.monotonic() > deadline:
                raise TransportError("no answer in time")
            await_readable(self._program, seconds)
        elif data and len(self._received) < _MAX_ANSWER_BYTES:
            self._received += data
        else:  # The program has ended, or what it sends can be no answer.
            if error := self._program.start_error():
                raise error
            printed = last_line(self._program.stderr(), "it printed no error")
            raise TransportError(f"the program there failed: {printed}")


def read(record: type[_T], answer: object) -> _T:
    """Return a record made of the fields of an answer.

    Args:
        record: The class of the record.
        answer: The answer, as any JSON value.

    Raises:
        TransportError: The answer lacks a field, or contains a wrong one.
    """
    try:
        return record(*FieldReader().read(record, answer))
    except (ValueError, RecursionError, ProtocolError) as error:
        raise _wrong_answer(error, answer) from error


def _wrong_answer(error: Exception, answer: object) -> TransportError:
    """Return the error for an answer that the program should not have sent, with the answer's beginning."""
    text = sanitize_host_text(f"{error}: {answer!r:.200}")
    return TransportError(f"the program there sent a wrong answer: {text}")
