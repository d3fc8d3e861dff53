"""``TFParallel``: independent instances of a function, each in a process of its own, some at a time.

User programs call `TFParallel.run`. Tasks of one launch serve as slots: each asks for an instance, runs it in
a forked process, and reports its result. An instance must never see what another one has left in memory.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.api.cluster import read_function
from launcher.api.remote.worker import Message
from launcher.api.run import RunOptions, context_fault, read_options
from launcher.api.tasks import FunctionJob, TaskHandle, dumps, ending_text, with_outcome
from launcher.common import arguments
from launcher.common.arguments import Arguments, named_arguments
from launcher.common.errors import JobFailed, LaunchError, TaskFailed
from launcher.common.record import Record
from launcher.common.text import Waiting, escape_controls, join_names, plural, shortened
from launcher.config.hostfile import read_hosts
from launcher.job import MAX_TASKS
from launcher.supervisor.restart_policy import cannot_import

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CALLER = "TFParallel.run"
#: More instances than any program needs. An iterator with more items is taken for an endless one.
_MAX_INSTANCES = 1_000_000
#: How long a slot may take to exit after it was told to.
_SLOT_EXIT_SECONDS = 5.0
_SLOT_POLL_SECONDS = 0.02
#: How much of the argument of an instance a message shows.
_MAX_SHOWN_CHARACTERS = 200


class TFParallel:
    """Runs independent instances of a function. Its only method is `run`."""

    @staticmethod
    @named_arguments(_CALLER, RunOptions.__annotations__, context_fault)
    def run(
        map_fun: Any,
        tf_args: Any,
        num_executors: int | None = None,
        use_barrier: bool = True,
        *,
        at_once: int | None = None,
        return_exceptions: bool = False,
        **options: Unpack[RunOptions],
    ) -> list[Any]:
        """Run instances of a function, each in a process of its own, and return their results.

        Each instance calls ``map_fun(args, ctx)`` with an item of ``tf_args``:

        ::

            losses = TFParallel.run(train, [{"rate": rate} for rate in (0.1, 0.01, 0.001)], at_once=2)

        Args:
            map_fun: The function. It may be a closure or come from a notebook. ``ctx`` is a `TFNodeContext`,
                whose ``worker_num`` is the number of the instance, from 0.
            tf_args: The arguments, one item for each instance. With ``num_executors``, the one argument of
                all instances.
            num_executors: The number of instances, as TensorFlowOnSpark expects it. By default there is one
                for each item of ``tf_args``.
            use_barrier: Ignored, because instances do not wait for each other.
            at_once: The number of instances that run at the same time. By default it is the number of slots
                of the hosts, or the number of cores of this machine.
            return_exceptions: Whether the result of an instance that fails is its exception. By default the
                first failure stops all instances and is raised.
            options: Where and how the instances run: ``hosts``, ``docker``, ``env``, ``gpus``, ``workdir``,
                ``python``, ``venv``, ``grace``, ``timeout``, ``stall``, ``preload``, ``sync``, ``collect``,
                ``run_dir``, ``quiet`` and ``options``, as in `TFCluster.run`. ``restarts`` is how many times
                in all an instance that failed is run again.

        Returns:
            The results of the instances, in the order of their arguments. An empty list if there are no
            arguments.

        Raises:
            InputError: An argument is wrong, or cannot be sent to the instances. Nothing was started.
            TaskFailed: An instance has failed.
            JobFailed: The job has failed, or a result cannot be read in this program.
        """
        call = Arguments(_CALLER)
        read_function(call, map_fun, tf_args)
        if num_executors is None:
            items = call.read("tf_args", tf_args, _items)
        else:
            count = call.read("num_executors", num_executors, arguments.whole(0, _MAX_INSTANCES))
            items = [tf_args] * (count or 0)
        at_once = call.optional("at_once", at_once, arguments.whole(1, MAX_TASKS))
        return_exceptions = call.optional("return_exceptions", return_exceptions, arguments.flag, False)
        read = read_options(call, options)
        call.check()
        if not items:
            return []
        # Without hosts, this machine runs one instance on each core that this process may use.
        slots, hosts = at_once or len(os.sched_getaffinity(0)), read.get("hosts")
        if at_once is None and hosts is not None:  # a host without a number of slots has one
            slots = sum(host.slots or 1 for host in read_hosts(os.fspath(hosts)))
        # These names are for the message about an argument that cannot be pickled.
        named_items = {f"the arguments of instance {number}": item for number, item in enumerate(items)}
        function, *pickled = dumps(_CALLER, {"map_fun": map_fun, **named_items})
        instances = _Instances(function, pickled, read, min(slots, len(items)), return_exceptions)
        return instances.results()


def _items(value: Any) -> list[Any]:
    """Read the arguments of all instances from any iterable.

    Raises:
        ValueError: The value is not iterable, or does not end. The message says what was expected.
    """
    expected = f"expected a list of at most {_MAX_INSTANCES:,} arguments, or num_executors="
    try:
        items = list(islice(value, _MAX_INSTANCES + 1))
    except TypeError:  # it is not iterable
        raise ValueError(expected) from None
    if len(items) > _MAX_INSTANCES:
        raise ValueError(expected)
    return items


def _shown(pickled: bytes) -> str:
    """Return the pickled argument of an instance in a short form, for a message that names the instance."""
    try:
        return shortened(escape_controls(repr(pickle.loads(pickled))), _MAX_SHOWN_CHARACTERS)
    except Exception:  # noqa: BLE001 - classes of the user can raise anything
        return "arguments that cannot be shown"


class _SlotReport(Record):
    """What a slot reports when it is free: which instance has ended, if any."""

    #: The number of the start of the slot itself, from 1.
    slot_attempt: int
    #: The number of the instance that has ended, or None if the slot has run none yet.
    number: int | None
    #: The number of the attempt of that instance.
    attempt: int


class _Instances(FunctionJob):
    """The instances of one `TFParallel.run`, and the slots that run them.

    Threads of the slots' connections call `answer`. A lock guards what they share.

    Args:
        function: The pickled function.
        arguments: The pickled argument of each instance.
        options: Where and how the slots run.
        slots: The number of slots.
        goes_on: Whether the result of an instance that fails is its error, so that the other instances
            continue.
    """

    def __init__(
        self, function: bytes, arguments: Sequence[bytes], options: RunOptions, slots: int, goes_on: bool
    ) -> None:
        """Prepare the slots, of which none is started before `results`. All instances wait for one."""
        work = {"slot": True, "instances": len(arguments), "function": function}
        max_restarts = options.get("restarts") or 0
        # A slot fails only if the job is to stop, or if its process was killed. In the latter case it alone
        # starts again, if restarts are allowed.
        options = {**options, "on_failure": "stop", "restart": "task" if max_restarts else None}
        super().__init__({"worker": {"count": slots}}, options, job=None, work=work)
        #: How many times failed instances were run again, all together.
        self._restarts = 0
        #: How many times they may be run again, all together.
        self._max_restarts = max_restarts
        self._arguments = arguments
        self._failures_are_results = goes_on
        #: Guards the attributes below, which the threads of all slots change.
        self._lock = threading.Lock()
        #: The result or error of each instance, once it has ended for good.
        self._futures: list[Future[Any]] = [Future() for _ in arguments]
        #: The numbers of the instances that no slot runs yet.
        self._waiting = deque(range(len(arguments)))
        #: How many times each instance was sent to a slot.
        self._attempts = [0] * len(arguments)
        #: The last report of each slot, and the number of the instance that the slot received in return.
        self._answered: dict[str, tuple[_SlotReport, int | None]] = {}
        #: The slot of the instance whose failure ends the job, and the exit code with which this slot is to
        #: exit. None if there is no such failure.
        self._failed: tuple[TaskHandle, int] | None = None

    def results(self) -> list[Any]:
        """Run all instances, and return what they returned, in their order.

        Raises:
            LaunchError: An instance has failed, or the job.
        """
        self.start()
        try:
            # A future is done when its instance has ended for good, or the job has.
            for future in wait(self._futures, return_when=FIRST_EXCEPTION).done:
                future.result()  # raises the failure
            self.driver.wait(60.0)  # The slots and the launcher exit by themselves. `close` stops late ones.
        finally:
            # This stops the slots that still run, unless `launch` does so because one of them has failed.
            self.close(ends_itself=self._wait_for_failed_slot())
        results = [future.result() for future in self._futures]
        failed = [number for number, result in enumerate(results) if isinstance(result, LaunchError)]
        if failed:  # The user wants failures among the results.
            names, first = join_names([*map(str, failed)]), str(results[failed[0]]).partition("\n")[0]
            count = f"{len(failed)} of {plural(len(results), 'instance')} failed"
            self.say_unless_quiet(f"{count} (number {names}); the first: {first}")
        return results

    def _wait_for_failed_slot(self) -> bool:
        """Wait a moment until the slot whose instance has failed has exited. Return whether it has.

        In this case `launch` stops the job by itself, and says why.
        """
        # None means that no instance has failed in a way that stops the job.
        if self._failed is None:
            return False
        slot, _ = self._failed
        waiting = Waiting()
        while not slot.ending and waiting.seconds < _SLOT_EXIT_SECONDS:
            if self.driver.over.wait(_SLOT_POLL_SECONDS):
                break
        return bool(slot.ending)

    def job_ended(self) -> None:
        """Let each instance without a result fail with the error of the job."""
        error = self.error or JobFailed("the job finished before its instances", self.run_dir)
        with self._lock:
            for future in self._futures:
                if not future.done():
                    future.set_exception(error)

    def task_ended(self, task: TaskHandle, ending: str) -> None:
        """Let another slot run the instance of a slot that the user has stopped (``launch stop``)."""
        with self._lock:
            _, number = self._answered.get(task.name, (None, None))
            if task.dismissed and number is not None and not self._futures[number].done():
                del self._answered[task.name]  # If the slot starts again, it has run nothing yet.
                self._waiting.appendleft(number)

    def answer(self, task: TaskHandle, attempt: int, message: Message) -> Message:
        """Handle the report of a slot that is free, and return the next instance for it.

        A slot is a task that runs one instance after another.

        - An old report, of a process of the slot that has died meanwhile: it is told to exit.
        - The same report once more, because the connection has broken: it receives the same answer.
        - A new report: the result in it is kept, and the slot receives the next instance that waits.

        Args:
            task: The slot.
            attempt: The number of the start of the slot. A slot that has died may start again.
            message: The report: which instance has ended, and how.

        Returns:
            The number of the instance, its attempt and its arguments. If the number is None, the slot exits
            with the ``code`` of the message.
        """
        report = _SlotReport(attempt, message["number"], message["attempt"])
        # Without a number the slot has just started. Unpickling a result may take long, so it needs no lock.
        result = None if report.number is None else self._result(task, report.number, message)
        with self._lock:
            # Before its first report, a slot has an empty one that is older than any other.
            last_report, number = self._answered.get(task.name, (_SlotReport(0, None, 0), None))
            if attempt < last_report.slot_attempt:  # a late report of a process that has died
                return {"number": None, "attempt": 0, "code": 0}
            if report != last_report:
                # The slot may have died while it ran this instance, and have started again.
                if attempt > last_report.slot_attempt and number is not None:
                    self._waiting.appendleft(number)
                if report.number is not None:
                    self._keep_result(task, report.number, result, message)
                number = self._waiting.popleft() if self._waiting else None
                self._answered[task.name] = report, number
                if number is not None:
                    self._attempts[number] += 1
            # If no instance waits, the slot exits. A slot whose instance has failed exits with its code. So
            # `launch` stops the job and names the failure.
            if number is None:
                code = self._failed[1] if self._failed is not None and self._failed[0] is task else 0
                return {"number": None, "attempt": 0, "code": code}
            instance = {"number": number, "attempt": self._attempts[number]}
            return {**instance, "arguments": self._arguments[number]}

    def _keep_result(self, task: TaskHandle, number: int, result: Any, message: Message) -> None:
        """Keep the result of an instance that has ended, or let the instance run again if it has failed.

        - It has failed, and may be restarted: it waits for a slot again.
        - It has failed for good, and the user wants exceptions: all waiting instances are dropped, and the
          slot exits with the code of the failure, so that `launch` stops the job.
        - It has succeeded, or failures are results: its result, or its error, is kept.

        Args:
            task: The slot.
            number: The number of the instance.
            result: The result, or the error that `_result` has returned.
            message: The report of the slot.
        """
        if self._futures[number].done():  # The job has ended meanwhile.
            return
        # A module that cannot be imported the first time will not be there the next time either.
        is_hopeless = message["attempt"] == 1 and cannot_import(message.get("traceback", "").encode())
        if isinstance(result, TaskFailed) and self._restarts < self._max_restarts and not is_hopeless:
            self._restarts += 1
            self._waiting.append(number)
            failure = str(result).partition("\n")[0]
            of_limit = f"attempt {message['attempt'] + 1}, restart {self._restarts} of {self._max_restarts}"
            self.say_unless_quiet(f"{failure}; it runs again ({of_limit})")
        elif isinstance(result, LaunchError) and not self._failures_are_results:
            self._waiting.clear()
            # 0 if the instance has succeeded, and its result cannot be read here.
            code = message["code"]
            # With a limit of restarts `launch` would start the slot again, so the slot must not fail.
            if code and not self._max_restarts:
                # The code is -n if signal n killed the instance. A shell makes 128 + n of that.
                self._failed = task, code if code > 0 else 128 - code
            elif code:
                failure = str(result).partition("\n")[0]
                used = f"restart {self._max_restarts} of {self._max_restarts} is used"
                self.say_unless_quiet(f"{failure}; it runs no more ({used})")
            self._futures[number].set_exception(result)
        else:
            self._futures[number].set_result(result)

    def _result(self, task: TaskHandle, number: int, message: Message) -> Any:
        """Return the result of an instance, or the error that describes its failure.

        Args:
            task: The slot that has run the instance.
            number: The number of the instance.
            message: The report of the slot.
        """
        # -n if signal n has killed the instance.
        returncode: int = message["code"]
        if returncode:
            code, signal = (returncode, None) if returncode > 0 else (None, -returncode)
            name = f"instance {number} ({task.name}, with {_shown(self._arguments[number])})"
            text, lines = f"{name} {ending_text(code, signal)}", self.last_lines(task.name)
            # The traceback is empty here. `with_outcome` adds the traceback of an exception.
            error = TaskFailed(text, task.name, task.host, code, signal, "", lines, self.run_dir)
            return with_outcome(error, name, message)
        try:
            # Without a result the function has called ``sys.exit(0)``, or its process ended so.
            return pickle.loads(message["result"]) if "result" in message else None
        except Exception as error:  # noqa: BLE001 - classes of the user can raise anything
            text = f"the result of instance {number} cannot be read here: {type(error).__name__}: {error}"
            return JobFailed(text, self.run_dir)
