"""Runs functions of the driver's program in a task: one, or, as a slot, one instance after another.

Task and driver exchange messages on connections that both have authenticated. Each is a dict; what is the
user's (functions, arguments, results, exceptions) is in it as pickled bytes.

- The first message of the driver, on the task's first connection, is the work: ``slot``, ``numbers``,
  ``path``, the ``function`` and, unless the task is a slot, its ``arguments``.
- A task whose function has raised sends the outcome: exit ``code``, ``raised``, ``traceback`` and, if it can
  be pickled, the ``exception``. The answer is empty.
- A slot that is free sends the ``number`` and ``attempt`` of the instance that it ran (``None``: of none
  yet), its exit ``code`` (-n: signal n), and its ``result`` or its outcome. The answer has the ``number`` and
  ``attempt`` of the next instance and its ``arguments``. If the answer is ``None``, the slot exits with
  this ``code``.

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
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Mapping

from launcher.api.remote.node import TFNodeContext
from launcher.common.errors import LaunchError
from launcher.feed.remote import data_feed

if TYPE_CHECKING:
    from launcher.feed.remote.connect import DriverRoutes

#: Seconds in which a broken connection to the driver has to be made again, and attempts to send a message.
_RECONNECT_SECONDS = 60.0
_MAX_ATTEMPTS = 10
#: Seconds that a process may take to end when its function has returned, or has raised.
_RETURNED_SECONDS = 30.0
_RAISED_SECONDS = 3.0
#: Variables of a task of a cluster; an instance is in no cluster, and has none of them.
_CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC", "TASK_ADDRESS")
_RESULT_ADVICE = "return texts, numbers, arrays; write models and the like to files, say below ctx.output_dir"
#: A message between task and driver, see above.
Message = Mapping[str, Any]


def request(connector: DriverRoutes, message: Message) -> Message:
    """Send the driver a message on a connection of its own, and wait for the answer.

    After a break the message is sent again: the driver may get it twice.

    Raises:
        OSError: the driver can't be reached any more.
    """
    for _ in range(_MAX_ATTEMPTS):
        sock = connector.connect("member", _RECONNECT_SECONDS, again=True)
        with Connection(sock.detach()) as channel, suppress(OSError, EOFError):
            channel.send(message)
            answer: Message = channel.recv()
            return answer
    raise OSError("the connection to the driver breaks again and again")


def main(sock: socket.socket, connector: DriverRoutes) -> None:
    """Run the work that the driver sends on this connection, then end the process.

    Raises:
        SystemExit: always.
    """
    task = connector.hello["task"]
    try:
        with Connection(sock.detach()) as channel:
            work: Message = channel.recv()
    except (OSError, EOFError):
        sys.exit(f"{task}: the program that drives the job sends no work")
    for folder in work["path"]:  # modules of the program are found as in the driver
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
    sys.path.append("")
    if work["slot"]:
        sys.exit(_serve(connector, work))
    outcome = _run(work["function"], work["arguments"], _context(work, connector), results=False)
    if "raised" in outcome:
        try:
            request(connector, outcome)
        except OSError as error:
            print(f"the outcome of the function can't be sent to the driver: {error}", file=sys.stderr)
    elif not outcome["code"] and task.startswith("ps/"):
        while True:  # a parameter server stays until it is stopped, even without anything to do
            signal.pause()
    _leave(outcome["code"])


def _context(work: Message, connector: DriverRoutes) -> TFNodeContext:
    """The ``ctx`` of this task."""
    task, numbers = connector.hello["task"], work["numbers"]
    role, _, index = task.rpartition("/")
    roles = {name.rpartition("/")[0] for name in numbers}
    cluster = json.loads(os.environ.get("CLUSTER_SPEC") or "{}")
    return TFNodeContext(
        numbers[task],
        role,
        int(index),
        {name: addresses for name, addresses in cluster.items() if name in roles},
        working_dir=os.getcwd(),
        mgr=connector if work["fed"] else None,
        output_dir=os.environ.get("OUTPUT_DIR", ""),
    )


def _leave(code: int) -> None:
    """End the process, even where a thread of the user's would keep it for ever.

    Raises:
        SystemExit: always.
    """
    seconds = _RAISED_SECONDS if code else _RETURNED_SECONDS

    def end() -> None:
        time.sleep(seconds)
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
        text = f"the process does not exit {seconds:g}s after its function (threads: {', '.join(threads)})"
        print(f"{text}: it is killed", file=sys.stderr, flush=True)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
    sys.exit(code)


def _run(function: bytes, arguments: bytes, ctx: TFNodeContext, results: bool) -> Message:
    """Run a function.

    Args:
        function, arguments: pickled; the arguments are its first one.
        ctx: its second argument.
        results: whether its result is sent to the driver.

    Returns:
        Its outcome; ``code`` is the exit code for this process.
    """
    done: dict[str, Any] = {"code": 0}
    try:
        call, first = pickle.loads(function), pickle.loads(arguments)
        if isinstance(first, list):
            sys.argv = first  # as programs for TensorFlowOnSpark expect it
        result = call(first, ctx)
        if results:
            done["result"] = _pickled(result)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code:
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr, flush=True)
            return {"code": code & 0xFF}
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is: the driver reports it
        return _failed(error)
    data_feed.end_all()  # it takes no more rows of the feeds that it has opened
    return done


def _dumps(value: object) -> bytes:
    from launcher.feed.remote import code  # noqa: PLC0415 - cloudpickle: not for tasks without a result

    return code.dumps(value)


def _pickled(result: object) -> bytes:
    try:
        return _dumps(result)
    except Exception as error:
        text = f"the result of the function can't be sent to the driver: {type(error).__name__}: {error}"
        raise LaunchError(f"{text}; {_RESULT_ADVICE}") from error


def _failed(error: BaseException) -> Message:
    """Print the exception that a function has raised, and make a message of it."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # without `_run`
    shown = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    sys.stdout.flush()
    print(shown, file=sys.stderr, flush=True)
    raised = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        exception = _dumps(error)
        pickle.loads(exception)  # some exceptions can be pickled, and not made again
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there: the driver has its text
        exception = None
    return {"code": 1, "raised": raised, "traceback": shown, "exception": exception}


def _serve(connector: DriverRoutes, work: Message) -> int:
    """Run instances until the driver sends no other.

    Returns:
        The exit code of the slot: that of its last instance, if the failure of this one ends the job.
    """
    for name in _CLUSTER_VARIABLES:
        os.environ.pop(name, None)
    answer = request(connector, {"number": None, "attempt": 0})
    while answer["number"] is not None:
        answer = request(connector, _instance(work, answer))
    return int(answer["code"])


def _instance(work: Message, order: Message) -> Message:
    """Run one instance in a fork; the message about its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    number, attempt, outcome = order["number"], order["attempt"], {}
    with open(os.memfd_create("outcome"), "w+b") as file:
        pid = os.fork()
        if pid == 0:
            output, instances = os.environ.get("OUTPUT_DIR", ""), work["instances"]
            os.environ["LAUNCH_ATTEMPT"] = str(attempt)
            if output:
                output = os.path.join(output, str(number))
                os.makedirs(output, exist_ok=True)
            ctx = TFNodeContext(
                number, "worker", working_dir=os.getcwd(), num_workers=instances, output_dir=output
            )
            done = _run(work["function"], order["arguments"], ctx, results=True)
            pickle.dump(done, file)
            file.flush()
            _leave(done["code"])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        file.seek(0)
        with suppress(EOFError, pickle.UnpicklingError):  # it has ended without
            outcome = pickle.load(file)
    return {**outcome, "number": number, "attempt": attempt, "code": code}
