"""``TFParallel``: many instances of one function, each alone in a process of its own, some at a time."""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from launcher.api.cluster import check_function
from launcher.api.remote.worker import Message, MessageType
from launcher.api.run import Options, Path_, count_faults, option_faults
from launcher.api.serialize import dumps
from launcher.api.tasks import TaskHandle, Tasks, ending_text, with_outcome
from launcher.config.hostfile import read_hosts
from launcher.errors import Fault, JobFailed, LaunchError, TaskFailed
from launcher.feed.remote.codec import by_value

if TYPE_CHECKING:
    from typing_extensions import Unpack

_RUN = "TFParallel.run"


class TFParallel:
    """Runs independent instances of a function; see `run`."""

    @staticmethod
    def run(
        map_fun: Any,
        tf_args: Any,
        num_executors: int | None = None,
        use_barrier: bool = True,
        *,
        at_once: int | None = None,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> list[Any]:
        """Run ``map_fun(args, ctx)`` for each of some arguments, and return the results in their order.

        ::

            losses = TFParallel.run(train, [{"rate": rate} for rate in (0.1, 0.01, 0.001)], at_once=2)

        Args:
            map_fun: may be a closure, or come from a notebook. ``ctx.worker_num`` is the instance's number,
                from 0.
            tf_args: the arguments, one for each instance. With ``num_executors``: the one argument of all of
                them.
            num_executors: number of instances, as TensorFlowOnSpark has it.
            use_barrier: ignored: instances do not wait for each other.
            at_once: number of instances that run at the same time; default: one for each slot of the hosts,
                or each core of this machine.
            return_exceptions: the result of an instance that fails is its exception; default: the first
                failure ends all and is raised.
            options: ``hosts``, ``docker``, ``env``, ``gpus``, ``workdir``, ``python``, ``grace``,
                ``timeout``, ``run_dir``, ``quiet``, ``options``: as those of `TFCluster.run`.

        Returns:
            What the instances returned.

        Raises:
            InputError: an argument is wrong, or can't be sent to the instances; nothing was started.
            TaskFailed: an instance has failed.
            JobFailed: the job has failed, or a result can't be read here.
        """
        faults = [] if num_executors is None else count_faults(_RUN, "num_executors", num_executors)
        faults += [] if at_once is None else count_faults(_RUN, "at_once", at_once, 1)
        if num_executors is None and not isinstance(tf_args, Iterable):
            text = f"tf_args is a {type(tf_args).__name__}"
            faults.append(Fault(_RUN, text, "expected a list of arguments, or num_executors="))
        check_function(_RUN, map_fun, tf_args, [*faults, *option_faults(_RUN, options)])
        every = list(tf_args) if num_executors is None else [tf_args] * num_executors
        if not every:
            return []
        slots = _slots(options.get("hosts")) if at_once is None else int(at_once)
        function = dumps(_RUN, "map_fun", map_fun)
        with by_value():  # once for all of them
            arguments = [
                dumps(_RUN, f"the arguments of instance {number}", value)
                for number, value in enumerate(every)
            ]
        return _Search(function, arguments, options, min(slots, len(every)), return_exceptions).results()


def _slots(hosts: Path_ | None) -> int:
    """Number of instances for which there are slots; a host without a number of slots has one.

    Raises:
        HostfileError: the hosts are wrong; all faults at once.
    """
    if hosts is None:
        return len(os.sched_getaffinity(0))
    return sum(host.slots or 1 for host in read_hosts(os.fspath(hosts)))


class _Search:
    """The instances of one `TFParallel.run`.

    Args:
        function: pickled.
        arguments: pickled, of each instance.
        options: where the slots are.
        slots: how many.
        goes_on: failures are results.
    """

    def __init__(
        self, function: bytes, arguments: Sequence[bytes], options: Options, slots: int, goes_on: bool
    ) -> None:
        self._arguments = arguments
        self._goes_on = goes_on
        self._lock = threading.Lock()
        self._waiting = deque(range(len(arguments)))
        self._results: dict[int, Any] = {}
        self._failure: LaunchError | None = None
        #: Of each slot the instance that it has reported last, and the next one, which it was given then.
        self._given: dict[str, tuple[int | None, int | None]] = {}
        self._done = threading.Event()
        fields = {"slot": True, "instances": len(arguments)}
        stops: Options = {**options, "on_failure": "stop"}
        roles = {"worker": {"count": slots}}
        self._tasks = Tasks(roles, stops, None, fields, [function], self._failed, answer=self._answer)
        self._tasks.start()

    def results(self) -> list[Any]:
        """Wait for all of them.

        Raises:
            LaunchError: an instance has failed, or the job.
        """
        try:
            while not self._done.wait(1.0):
                if self._tasks.driver.over.is_set() and not self._done.wait(1.0):
                    raise JobFailed("the job has ended before its instances", self._tasks.run_dir)
            if self._failure is None:
                self._tasks.driver.wait(60.0)
        finally:
            self._tasks.close()
        if self._failure is not None:
            raise self._failure
        return [self._results[number] for number in range(len(self._arguments))]

    # ------------------------------------------------------------------ called in threads of the tasks

    def _answer(self, slot: TaskHandle, message: Message) -> Message:
        """A slot is free: at its start, or because an instance has ended."""
        number = message.fields["number"]
        if number is not None and number not in self._results:
            self._take(slot, number, message)
        following = self._next(slot.name, number)
        pickles = [] if following is None else [self._arguments[following]]
        return Message(MessageType.START, {"number": following}, pickles)

    def _next(self, slot: str, number: int | None) -> int | None:
        """The instance that a slot runs next; the same one if its message comes twice."""
        with self._lock:
            reported, following = self._given.get(slot, (-1, None))
            if reported != number:
                following = self._waiting.popleft() if self._waiting and not self._done.is_set() else None
                self._given[slot] = number, following
            return following

    def _take(self, slot: TaskHandle, number: int, message: Message) -> None:
        code, signal = message.fields["exit"]
        outcome = None
        if "outcome" in message.fields:
            name, fields = message.fields["outcome"]
            outcome = Message(MessageType(name), fields, message.pickles)
        if outcome is not None and outcome.type is MessageType.DONE and code == 0:
            result = self._loaded(number, outcome)
        else:
            name, run_dir = f"instance {number} ({slot.name})", self._tasks.run_dir
            text, lines = f"{name} {ending_text(code, signal)}", self._tasks.last_lines(slot.name)
            error = TaskFailed(text, slot.name, slot.host, code, signal, "", lines, run_dir)
            result = with_outcome(error, name, outcome)
        if isinstance(result, LaunchError) and not self._goes_on:
            self._failed(result)
        self._results[number] = result
        if len(self._results) == len(self._arguments):
            self._done.set()

    def _loaded(self, number: int, outcome: Message) -> Any:
        try:
            return pickle.loads(outcome.pickles[0]) if outcome.pickles else None
        except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises there
            text = f"the result of instance {number} can't be read here: {type(error).__name__}: {error}"
            return JobFailed(text, self._tasks.run_dir)

    def _failed(self, error: LaunchError) -> None:
        with self._lock:
            if self._failure is None and not self._done.is_set():
                self._failure = error
        self._done.set()
