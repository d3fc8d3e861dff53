"""Runs functions of the driver's program in a task: one, or, as a slot, one instance after another.

Task and driver exchange messages on a connection that both have authenticated. Each is one frame: a type with
its fields as JSON, then pickles. The task sends, the driver answers; only the first message,
`MessageType.WORK`, comes unasked.

A slot imports nothing of the user's, so an instance is a fork of it that takes a millisecond and finds
everything as a fresh process would.
"""

from __future__ import annotations

import enum
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from launcher.api.remote.node import TFNodeContext
from launcher.errors import LaunchError
from launcher.feed.remote.frames import FeedBroken, check_size, recv_frame, send_frame

if TYPE_CHECKING:
    from launcher.feed.remote.connect import Connector

#: Seconds in which a broken connection to the driver has to be made again, and attempts to send a message.
_RECONNECT, _TRIES = 60.0, 10
#: Seconds that a process may take to end when its function has returned, or has raised.
_RETURNED, _RAISED = 30.0, 3.0
#: What a task of a cluster has in its environment, and an instance that is alone must not have.
_OF_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC", "TASK_ADDRESS")
_BACK = "return texts, numbers, arrays; write models and the like to files, say below ctx.output_dir"
#: The kind of its frames; those of feeds have other numbers (`launcher.feed.remote.frames.Kind`).
_KIND = 100


# ---------------------------------------------------------------------- messages


class MessageType(enum.Enum):
    """What a message says."""

    WORK = "work"  #: driver: run this function. Pickles: function, and arguments unless the task is a slot.
    DONE = "done"  #: task: the function has returned. Pickle: its result, if that is asked for.
    RAISED = "raised"  #: task: it has raised, or exited. Pickle: the exception, if it can be pickled.
    THANKS = "thanks"  #: driver: it has received the message.
    FREE = "free"  #: slot: it is free; with the outcome of the instance that it ran, if it ran one.
    START = "start"  #: driver, to a slot: run this instance. Pickle: its arguments.


class Message(NamedTuple):
    """One message."""

    type: MessageType
    fields: Mapping[str, Any] = {}
    pickles: Sequence[Any] = ()


def send(sock: socket.socket, message: Message) -> None:
    """Send a message; returns when the kernel has all of it.

    Raises:
        OSError: the connection is lost.
    """
    head = json.dumps([message.type.value, message.fields]).encode()
    send_frame(sock, _KIND, [head, *message.pickles])


def receive(sock: socket.socket) -> Message | None:
    """Wait for a message.

    Returns:
        ``None``: the other end has closed the connection.

    Raises:
        OSError: the connection is lost.
        FeedBroken: what comes is not a message.
    """
    frame = recv_frame(sock)
    if frame is None:
        return None
    kind, buffers = frame
    if kind != _KIND or not buffers:
        raise FeedBroken(f"received a frame of kind {kind} instead of a message")
    name, fields = json.loads(bytes(buffers[0]))
    return Message(MessageType(name), fields, buffers[1:])


def request(connector: Connector, message: Message) -> Message:
    """Send the driver a message on a connection of its own, and wait for the answer.

    After a break the message is sent again: the driver may get it twice.

    Raises:
        OSError: the driver can't be reached any more.
    """
    for left in reversed(range(_TRIES)):
        with connector.connect("member", _RECONNECT, again=True) as sock:
            try:
                send(sock, message)
                answer = receive(sock)
            except OSError:
                if not left:
                    raise
                continue
        if answer is not None:  # relayed connections end in order when their network breaks
            return answer
    raise OSError("the driver closes the connection")


def main(sock: socket.socket, connector: Connector) -> None:
    """Run the work that the driver sends on this connection, then end the process.

    Raises:
        SystemExit: always.
    """
    with sock:
        work = receive(sock)
    if work is None or work.type is not MessageType.WORK:
        sys.exit(f"{connector.hello['task']}: the program that drives the job sends no work")
    for folder in work.fields["path"]:  # modules of the program are found as in the driver
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
    sys.path.append("")
    if work.fields["slot"]:
        _serve(connector, work)
        sys.exit(0)
    message, code = _run(work.pickles, TFNodeContext.of_task(work.fields, connector), results=False)
    if message.type is MessageType.RAISED:
        try:
            request(connector, message)
        except OSError as error:
            print(f"the outcome of the function can't be sent to the driver: {error}", file=sys.stderr)
    elif connector.hello["task"].startswith("ps/"):
        while True:  # a parameter server stays until it is stopped, also without anything to do
            signal.pause()
    _leave(message, code)


def _leave(message: Message, code: int) -> None:
    """End the process, also where a thread of the user's would keep it for ever.

    Args:
        message: the outcome of its function, which is sent.
        code: the exit code.

    Raises:
        SystemExit: always.
    """
    seconds = _RETURNED if message.type is MessageType.DONE else _RAISED

    def end() -> None:
        time.sleep(seconds)
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
        text = f"the process does not end {seconds:g} s after its function (threads: {', '.join(threads)})"
        print(f"{text}: it is ended", file=sys.stderr, flush=True)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
    sys.exit(code)


# ---------------------------------------------------------------------- a function


def _run(pickles: Sequence[Any], ctx: TFNodeContext, results: bool) -> tuple[Message, int]:
    """Run a function.

    Args:
        pickles: of the function and its first argument.
        ctx: its second argument.
        results: whether its result is sent to the driver.

    Returns:
        Its outcome, and the exit code for this process.
    """
    try:
        function, arguments = (pickle.loads(data) for data in pickles)
        if isinstance(arguments, list):
            sys.argv = arguments  # as programs for TensorFlowOnSpark expect it
        result = function(arguments, ctx)
        done = Message(MessageType.DONE, {}, [_pickled(result)] if results else [])
        _end_feeds()
        return done, 0
    except SystemExit as end:
        if end.code in (None, 0):
            _end_feeds()
            return Message(MessageType.DONE), 0
        return _failed(end)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is: the driver reports it
        return _failed(error)


def _end_feeds() -> None:
    """The function takes no more rows of the feeds that it has opened."""
    data_feed = sys.modules.get("launcher.feed.remote.data_feed")
    if data_feed is not None:
        data_feed.end_all()


def _pickled(result: object) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(result)
        check_size([data], "it")
    except Exception as error:
        text = f"the result of the function can't be sent to the driver: {type(error).__name__}: {error}"
        raise LaunchError(f"{text}; {_BACK}") from error
    return data


def _failed(error: BaseException) -> tuple[Message, int]:
    """Print the exception that a function has raised, and make a message of it."""
    code = error.code if isinstance(error, SystemExit) else 1
    exited = isinstance(error, SystemExit)
    frames = error.__traceback__ and error.__traceback__.tb_next  # without `_run`
    shown = "" if exited else "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    if not isinstance(code, int):
        code, shown = 1, str(code)
    sys.stdout.flush()
    print(shown, file=sys.stderr, flush=True)
    raised = "".join(traceback.format_exception_only(type(error), error)).strip()
    fields = {"raised": raised, "traceback": shown, "exit": exited}
    return Message(MessageType.RAISED, fields, _pickled_error(error)), code & 0xFF


def _pickled_error(error: BaseException) -> Sequence[bytes]:
    """The exception, if it can be pickled and made again; the driver has its text anyway."""
    if isinstance(error, SystemExit):
        return []
    try:
        import cloudpickle

        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there
        return []
    return [data]


# ---------------------------------------------------------------------- instances


def _serve(connector: Connector, work: Message) -> None:
    """Run instances until the driver sends no other."""
    for name in _OF_CLUSTERS:
        os.environ.pop(name, None)
    free = Message(MessageType.FREE, {"number": None})
    while True:
        order = request(connector, free)
        number = order.fields.get("number")
        if order.type is not MessageType.START or number is None:
            return
        free = _instance(work, order)


def _instance(work: Message, order: Message) -> Message:
    """Run one instance in a fork; its outcome."""
    sys.stdout.flush()
    sys.stderr.flush()
    number = order.fields["number"]
    with open(os.memfd_create("outcome"), "w+b") as file:
        pid = os.fork()
        if pid == 0:
            context = _context_of_instance(work.fields, number)
            message, code = _run([*work.pickles, *order.pickles], context, results=True)
            pickle.dump([message.type.value, message.fields, message.pickles], file)
            file.flush()
            _leave(message, code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ending = {"number": number, "exit": [code, None] if code >= 0 else [None, -code]}
        file.seek(0)
        try:
            name, fields, pickles = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):  # it has ended without
            return Message(MessageType.FREE, ending)
    return Message(MessageType.FREE, {**ending, "outcome": [name, fields]}, pickles)


def _context_of_instance(fields: Mapping[str, Any], number: int) -> TFNodeContext:
    """A cluster of one."""
    output = os.environ.get("OUTPUT_DIR", "")
    if output:
        output = os.path.join(output, str(number))
        os.makedirs(output, exist_ok=True)
    return TFNodeContext(
        number, "worker", 0, working_dir=os.getcwd(), num_workers=fields["instances"], output_dir=output
    )
