"""Runs functions of the user's program in a task: one function, or as a slot one instance after another.

`launcher.api.remote.start` calls `main`. A slot must import nothing of the user's: an instance is a fork of
it that takes a millisecond, and finds everything as a fresh process would.

Task and program exchange messages on connections that both have authenticated. Each message is a dict. What
belongs to the user (functions, arguments, results, exceptions) is in it as pickled bytes.

- The first message of the program, on the first connection of the task, is the work: ``slot``, ``fed``,
``numbers``, ``path``, the ``function`` and, unless the task is a slot, its ``arguments``. A slot finds the
number of ``instances`` instead.
- A task whose function has raised sends the outcome: the exit ``code``, the texts ``raised`` and
``traceback`` and, if it can be pickled, the ``exception``. The answer is empty.
- A slot that is free sends the ``number`` and ``attempt`` of the instance that it has run (a number of None
for none yet), the exit ``code`` of that instance (-n if signal n killed it), and its ``result`` or its
outcome. The answer contains the ``number``, ``attempt`` and ``arguments`` of the next instance. If the number
is None, the slot exits with the ``code`` of the answer.
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
from launcher.common.trusted_io import memory_file
from launcher.feed.remote import data_feed

if TYPE_CHECKING:
    from launcher.feed.remote.connect import DriverRoutes

#: How long a task tries to connect to the program again after a break.
_RECONNECT_SECONDS = 60.0
#: How many times a message is sent before the task gives up.
_MAX_ATTEMPTS = 10
#: How long a process may live on when its function has returned.
_RETURNED_SECONDS = 30.0
#: How long a process may live on when its function has raised.
_RAISED_SECONDS = 3.0
#: Variables of a task in a cluster. They are removed for an instance, which belongs to no cluster.
_CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC", "TASK_ADDRESS")
_RESULT_ADVICE = "return texts, numbers, arrays; write models and the like to files, say below ctx.output_dir"
#: A message between task and program, as described at the head of this module.
Message = Mapping[str, Any]


def request(connector: DriverRoutes, message: Message) -> Message:
    """Send the program a message on a connection of its own, and return the answer.

    If the connection breaks, the message is sent again, so the program may receive it twice.

    Args:
        connector: The routes to the program.
        message: The message.

    Raises:
        OSError: The program cannot be reached any longer.
    """
    for _ in range(_MAX_ATTEMPTS):
        # A "member" connection carries messages, and no rows. ``again`` says that it is not the first one of
        # this process, on which the program would send modules and work.
        sock = connector.connect("member", _RECONNECT_SECONDS, again=True)
        with Connection(sock.detach()) as channel, suppress(OSError, EOFError):
            channel.send(message)
            answer: Message = channel.recv()
            return answer
    raise OSError(f"the connection to the driver broke {_MAX_ATTEMPTS} times")


def main(sock: socket.socket, connector: DriverRoutes) -> None:
    """Run the work that the program sends on this connection, then exit.

    - A slot of `TFParallel` runs one instance after another.
    - A node of `TFCluster` calls the function once. If that has raised an exception, the program is told so.
      A parameter server then waits until it is stopped, because other nodes use it.

    Args:
        sock: The connection of `launcher.api.remote.start`.
        connector: The routes to the program, for further messages.

    Raises:
        SystemExit: Always, with the exit code of the task.
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
    # The working folder, as in a Python at a terminal.
    sys.path.append("")
    if work["slot"]:
        sys.exit(_serve_as_slot(connector, work))
    outcome = _run(work["function"], work["arguments"], _context(work, connector), with_result=False)
    if "raised" in outcome:
        try:
            request(connector, outcome)
        except OSError as error:
            print(f"the outcome of the function cannot be sent to the driver: {error}", file=sys.stderr)
    elif not outcome["code"] and task.startswith("ps/"):
        while True:  # a parameter server stays until it is stopped, even without anything to do
            signal.pause()
    _leave(outcome["code"])


def _context(work: Message, connector: DriverRoutes) -> TFNodeContext:
    """Return the ``ctx`` of this task, the second argument of its function.

    Args:
        work: What the program has sent: among other things the ``numbers`` of all nodes by the names of their
            tasks, and whether they are ``fed`` with rows.
        connector: The routes to the program, and the name of this task.
    """
    task, numbers = connector.hello["task"], work["numbers"]
    role, _, index = task.rpartition("/")
    # The cluster may also contain roles of a job file, whose tasks run programs. They are no nodes.
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
    """Exit, even if a thread that the user's code has started never ends.

    A daemon thread kills the process after some seconds if it has not exited by then.

    Raises:
        SystemExit: Always, with this code.
    """
    seconds = _RAISED_SECONDS if code else _RETURNED_SECONDS

    def kill_later() -> None:
        """Wait, then name the threads that keep the process alive, and kill it."""
        time.sleep(seconds)
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
        text = f"the process does not exit {seconds:g}s after its function (threads: {', '.join(threads)})"
        print(f"{text}: it is killed", file=sys.stderr, flush=True)
        os._exit(code)

    threading.Thread(target=kill_later, daemon=True).start()
    sys.exit(code)


def _run(function: bytes, arguments: bytes, ctx: TFNodeContext, with_result: bool) -> Message:
    """Call the user's function, and return the message about how it ended.

    - It returns, or exits with 0: the code is 0.
    - It exits with another code (``sys.exit``): that is the code.
    - It raises an exception: the code is 1, and the message describes the exception.

    Args:
        function: The pickled function.
        arguments: The pickled first argument of the function.
        ctx: The second argument.
        with_result: Whether the message contains the pickled result.

    Returns:
        The message. Its ``code`` is the exit code for this process. With an exception it contains ``raised``,
        ``traceback`` and ``exception``.
    """
    message: dict[str, Any] = {"code": 0}
    try:
        call, first_argument = pickle.loads(function), pickle.loads(arguments)
        if isinstance(first_argument, list):
            sys.argv = first_argument  # programs for TensorFlowOnSpark expect this
        result = call(first_argument, ctx)
        if with_result:
            message["result"] = _pickled_result(result)
    except SystemExit as exit_:
        # As Python itself does: None is success, a number is the code, and anything else is printed.
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if code:
            if not isinstance(exit_.code, int):
                print(exit_.code, file=sys.stderr, flush=True)
            # The kernel keeps only this byte of an exit code.
            return {"code": code & 0xFF}
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the program reports any of them
        return _failure_message(error)
    data_feed.end_all()  # the function reads no more rows
    return message


def _dumps(value: object) -> bytes:
    """Pickle a value by cloudpickle, which is imported only now, because most tasks do not need it."""
    from launcher.feed.remote import code  # noqa: PLC0415 - cloudpickle: not for tasks without a result

    return code.dumps(value)


def _pickled_result(result: object) -> bytes:
    """Pickle the result of the user's function.

    Raises:
        LaunchError: It cannot be pickled. The error says what to return instead.
    """
    try:
        return _dumps(result)
    except Exception as error:
        text = f"the result of the function cannot be sent to the driver: {type(error).__name__}: {error}"
        raise LaunchError(f"{text}; {_RESULT_ADVICE}") from error


def _failure_message(error: BaseException) -> Message:
    """Print the exception that the user's function has raised, and return the message about it."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # the user need not see `_run`
    shown = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    sys.stdout.flush()
    print(shown, file=sys.stderr, flush=True)
    raised = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        exception = _dumps(error)
        pickle.loads(exception)  # some exceptions can be pickled, but not unpickled
    except Exception:  # noqa: BLE001 - classes of the user can raise anything, and the text is known
        exception = None
    return {"code": 1, "raised": raised, "traceback": shown, "exception": exception}


def _serve_as_slot(connector: DriverRoutes, work: Message) -> int:
    """Run one instance after another, as the program sends them, until it sends no other one.

    Args:
        connector: The routes to the program.
        work: The work of this task, with the function of all instances.

    Returns:
        The exit code of the slot. It is that of the last instance if the failure of this instance stops the
        job.
    """
    for name in _CLUSTER_VARIABLES:
        os.environ.pop(name, None)
    # This slot is free, and has run no instance yet.
    answer = request(connector, {"number": None, "attempt": 0})
    while answer["number"] is not None:
        answer = request(connector, _instance(work, answer))
    return int(answer["code"])


def _instance(work: Message, order: Message) -> Message:
    """Run one instance in a fork of this process, and wait for its end.

    So an instance finds no state of an earlier one, and its crash does not end the slot.

    Args:
        work: The work of the slot.
        order: The program's message with the number, attempt and arguments of the instance.

    Returns:
        The message about the end of the instance.
    """
    # What is buffered here would be printed by the fork once more.
    sys.stdout.flush()
    sys.stderr.flush()
    number, attempt, outcome = order["number"], order["attempt"], {}
    # The fork inherits this file in memory, and writes its message there.
    with open(memory_file("outcome"), "w+b") as file:
        pid = os.fork()
        if pid == 0:  # This is the fork, which `_leave` ends.
            output, instances = os.environ.get("OUTPUT_DIR", ""), work["instances"]
            os.environ["LAUNCH_ATTEMPT"] = str(attempt)
            # The folder for results, if there is one, is that of the slot. In it each instance has a folder.
            if output:
                output = os.path.join(output, str(number))
                os.makedirs(output, exist_ok=True)
            ctx = TFNodeContext(
                number, "worker", working_dir=os.getcwd(), num_workers=instances, output_dir=output
            )
            message = _run(work["function"], order["arguments"], ctx, with_result=True)
            pickle.dump(message, file)
            file.flush()
            _leave(message["code"])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Both processes share the position in the file, which is at its end now.
        file.seek(0)
        with suppress(EOFError, pickle.UnpicklingError):  # an instance that is killed writes no outcome
            outcome = pickle.load(file)
    return {**outcome, "number": number, "attempt": attempt, "code": code}
