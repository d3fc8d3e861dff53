"""Runs functions of the driver's program in a task: one, or, as a slot, one instance after another.

Task and driver exchange messages on connections that both have authenticated:

- The first message of the driver, on the task's first connection, is the work: ``slot``, ``numbers``,
  ``path`` and so on; pickles: the function and, unless the task is a slot, its arguments.
- A task whose function has raised sends the outcome: ``raised`` and ``traceback``; pickle: the exception, if
  it can be pickled. The answer is empty.
- A slot that is free sends the ``number`` of the instance that it ran (``None``: of none yet), its exit
  ``code`` (-n: signal n) and the fields of its outcome; pickle: the result, or the exception. The answer has
  the ``number`` of the next instance (``None``: the slot ends); pickle: its arguments.

A slot imports nothing of the user's, so an instance is a fork of it that takes a millisecond and finds
everything as a fresh process would.
"""

from __future__ import annotations

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


class Message(NamedTuple):
    """One message: fields that are sent as JSON, and pickles."""

    fields: Mapping[str, Any] = {}
    pickles: Sequence[Any] = ()


def send(sock: socket.socket, message: Message) -> None:
    """Send a message; returns when the kernel has all of it.

    Raises:
        OSError: the connection is lost.
    """
    send_frame(sock, _KIND, [json.dumps(message.fields).encode(), *message.pickles])


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
    return Message(json.loads(bytes(buffers[0])), buffers[1:])


def request(connector: Connector, message: Message) -> Message:
    """Send the driver a message on a connection of its own, and wait for the answer.

    After a break the message is sent again: the driver may get it twice.

    Raises:
        OSError: the driver can't be reached any more.
    """
    for _ in range(_TRIES):
        with connector.connect("member", _RECONNECT, again=True) as sock:
            try:
                send(sock, message)
                answer = receive(sock)
            except OSError:
                continue
        if answer is not None:  # relayed connections end in order when their network breaks
            return answer
    raise OSError("the connection to the driver breaks again and again")


def main(sock: socket.socket, connector: Connector) -> None:
    """Run the work that the driver sends on this connection, then end the process.

    Raises:
        SystemExit: always.
    """
    task = connector.hello["task"]
    with sock:
        work = receive(sock)
    if work is None:
        sys.exit(f"{task}: the program that drives the job sends no work")
    for folder in work.fields["path"]:  # modules of the program are found as in the driver
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
    sys.path.append("")
    if work.fields["slot"]:
        _serve(connector, work)
        sys.exit(0)
    outcome, code = _run(work.pickles, TFNodeContext.of_task(work.fields, connector), results=False)
    if outcome.fields:
        try:
            request(connector, outcome)
        except OSError as error:
            print(f"the outcome of the function can't be sent to the driver: {error}", file=sys.stderr)
    elif not code and task.startswith("ps/"):
        while True:  # a parameter server stays until it is stopped, also without anything to do
            signal.pause()
    _leave(code)


def _leave(code: int) -> None:
    """End the process, also where a thread of the user's would keep it for ever.

    Raises:
        SystemExit: always.
    """
    seconds = _RAISED if code else _RETURNED

    def end() -> None:
        time.sleep(seconds)
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
        text = f"the process does not end {seconds:g} s after its function (threads: {', '.join(threads)})"
        print(f"{text}: it is ended", file=sys.stderr, flush=True)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
    sys.exit(code)


def _run(pickles: Sequence[Any], ctx: TFNodeContext, results: bool) -> tuple[Message, int]:
    """Run a function.

    Args:
        pickles: of the function and its first argument.
        ctx: its second argument.
        results: whether its result is sent to the driver.

    Returns:
        Its outcome, with fields if it has raised an exception, and the exit code for this process.
    """
    try:
        function, arguments = (pickle.loads(data) for data in pickles)
        if isinstance(arguments, list):
            sys.argv = arguments  # as programs for TensorFlowOnSpark expect it
        result = function(arguments, ctx)
        done = Message({}, [_pickled(result)] if results else [])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code:
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr, flush=True)
            return Message(), code & 0xFF
        done = Message()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is: the driver reports it
        return _failed(error), 1
    data_feed = sys.modules.get("launcher.feed.remote.data_feed")
    if data_feed is not None:  # it takes no more rows of the feeds that it has opened
        data_feed.end_all()
    return done, 0


def _pickled(result: object) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(result)
        check_size([data], "it")
    except Exception as error:
        text = f"the result of the function can't be sent to the driver: {type(error).__name__}: {error}"
        raise LaunchError(f"{text}; {_BACK}") from error
    return data


def _failed(error: BaseException) -> Message:
    """Print the exception that a function has raised, and make a message of it."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # without `_run`
    shown = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    sys.stdout.flush()
    print(shown, file=sys.stderr, flush=True)
    raised = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        import cloudpickle

        pickles = [cloudpickle.dumps(error)]
        pickle.loads(pickles[0])  # some exceptions can be pickled, and not made again
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there: the driver has its text
        pickles = []
    return Message({"raised": raised, "traceback": shown}, pickles)


def _serve(connector: Connector, work: Message) -> None:
    """Run instances until the driver sends no other."""
    for name in _OF_CLUSTERS:
        os.environ.pop(name, None)
    answer = request(connector, Message({"number": None}))
    while answer.fields["number"] is not None:
        answer = request(connector, _instance(work, answer))


def _instance(work: Message, order: Message) -> Message:
    """Run one instance in a fork; the message about its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    number = order.fields["number"]
    with open(os.memfd_create("outcome"), "w+b") as file:
        pid = os.fork()
        if pid == 0:
            context = TFNodeContext.of_instance(number, work.fields["instances"])
            outcome, code = _run([*work.pickles, *order.pickles], context, results=True)
            pickle.dump([outcome.fields, outcome.pickles], file)
            file.flush()
            _leave(code)
        ended = {"number": number, "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}
        file.seek(0)
        try:
            fields, pickles = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):  # it has ended without
            return Message(ended)
    return Message({**ended, **fields}, pickles)
