"""How a function of the user's is run: in the process of a task, with word to the driver of how that went."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from launcher.api.context import TFNodeContext
from launcher.api.talk import Said, Word, hear, say
from launcher.errors import LaunchError
from launcher.feed.remote.connect import Connector

#: Seconds that the driver may take to say that it has what we told it, over a connection that may break
#: meanwhile.
_PATIENCE = 60.0
#: Seconds that a process may take to end when its function has returned.
_LEAVING = 30.0


def leave(code: int) -> None:
    """End the process; also if a thread of the user's would keep it for ever.

    Raises:
        SystemExit: always.
    """
    threading.Thread(target=_end, args=(code,), daemon=True).start()
    sys.exit(code)


def _end(code: int) -> None:
    time.sleep(_LEAVING)
    threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
    text = f"the function has returned {_LEAVING:g} s ago, and the process does not end"
    print(f"{text} (threads: {', '.join(threads)}): it is ended", file=sys.stderr, flush=True)
    os._exit(code)


class Reply:
    """Tells the driver how it went, also when the connection breaks meanwhile.

    Args:
        line: the connection.
        doors: where to get another.
        hello: what to say there.
        purpose: what for.
    """

    def __init__(
        self, line: socket.socket, doors: Connector, hello: Mapping[str, Any], purpose: str = "member"
    ) -> None:
        self._line = line
        self._doors = doors
        self._hello = hello
        self._purpose = purpose

    def __call__(self, said: Said) -> None:
        """Returns when the driver has it, or is gone for good."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                say(self._line, said)
                if hear(self._line) is not None:
                    return
            except OSError as error:
                why = str(error)
            else:
                why = "it hung up"
            left = until - time.monotonic()
            try:
                if left < 0:
                    raise OSError(why)
                self._line = self._doors.connect(self._purpose, left, **self._hello)
            except OSError as error:
                print(f"can't tell the program that drives the job how it went: {error}", file=sys.stderr)
                return


def work(said: Said, ctx: TFNodeContext, reply: Callable[[Said], None]) -> int:
    """Run the function, and tell the driver how it went.

    Args:
        said: its pickles are the function and its arguments.
        ctx: what the function is given.
        reply: tells the driver.

    Returns:
        The exit code for this process.
    """
    try:
        function, arguments = (pickle.loads(piece) for piece in said.pickles)
        if isinstance(arguments, list):
            sys.argv = arguments  # as programs of TensorFlowOnSpark expect it
        result = function(arguments, ctx)
        done = Said(Word.DONE, {}, [_pickled(result)] if said.facts["results"] else [])
        _end_feeds()
    except SystemExit as end:
        if end.code in (None, 0):
            _end_feeds()
            reply(Said(Word.DONE))
            return 0
        return _failed(end, reply)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is: the driver is to know
        return _failed(error, reply)
    reply(done)
    return 0


def _end_feeds() -> None:
    """The function wants no more rows of those feeds that it has opened."""
    datafeed = sys.modules.get("launcher.feed.remote.data_feed")
    if datafeed is not None:
        datafeed.end_all()


def _pickled(result: object) -> bytes:
    from launcher.api.payload import back

    return back(result, "the result of the function")


def _failed(error: BaseException, reply: Callable[[Said], None]) -> int:
    """Say what was raised, here and to the driver."""
    unasked = _is_unasked()
    code = error.code if isinstance(error, SystemExit) else 1
    shown = "" if isinstance(error, SystemExit) else _shown(error)
    if not isinstance(code, int):
        code, shown = 1, str(error.code if isinstance(error, SystemExit) else code)
    sys.stdout.flush()
    print(shown, file=sys.stderr, flush=True)
    what = "".join(traceback.format_exception_only(error)).strip()
    facts = {"what": what, "traceback": shown, "code": code & 0xFF, "unasked": unasked}
    try:
        reply(Said(Word.RAISED, facts, _carried(error)))
    finally:
        if unasked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return code & 0xFF


def _is_unasked() -> bool:
    """Whether this can't have come of being asked to end, as that kills a process that has made no other
    arrangements; from here on it does not: the driver is to know, and that takes a moment."""
    unasked = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unasked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return unasked


def _shown(error: BaseException) -> str:
    """Python's own text, without our functions above the user's."""
    frames = _below_ours(error.__traceback__)
    if isinstance(error, LaunchError):  # it says all there is to say: how we came to it is of no use
        frames = _of_user(frames)
        return "".join(traceback.format_exception(type(error), error, frames, chain=False)).rstrip()
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _below_ours(frames: TracebackType | None) -> TracebackType | None:
    at = frames
    while at is not None and at.tb_frame.f_globals.get("__name__") == __name__:
        at = at.tb_next
    return at or frames


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """Without our functions below the user's."""
    last, at = None, frames
    while at is not None:
        if not str(at.tb_frame.f_globals.get("__name__")).startswith("launcher."):
            last = at
        at = at.tb_next
    if last is None:
        return None
    last.tb_next = None
    return frames


def _carried(error: BaseException) -> Sequence[bytes]:
    """The exception itself, if it can be carried to the driver and made again there."""
    from launcher.api.payload import plain

    if isinstance(error, SystemExit):
        return []
    try:
        carried = plain(error, "the exception")
        pickle.loads(carried)
    except Exception:  # noqa: BLE001 - what unpickling it may raise nobody knows; the driver has the text
        return []
    return [carried]
