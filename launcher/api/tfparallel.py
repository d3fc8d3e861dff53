"""``TFParallel``: many instances of one function, each alone in a process of its own, some at a time."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.api.arguments import check, count_faults, place_faults
from launcher.api.ends import End
from launcher.api.failures import task_failed
from launcher.api.members import Member
from launcher.api.payload import dumps, plain
from launcher.api.session import Handlers, Session
from launcher.api.talk import Said, Word
from launcher.api.wanted import Path_, Place
from launcher.errors import Fault, InputError, JobFailed, LaunchError, TaskFailed
from launcher.feed.listener import Peer
from launcher.feed.remote.own_modules import by_value

#: Who speaks of wrong arguments.
_RUN = "TFParallel.run"
#: Slots of a host that does not say how many it has.
_SLOTS = 1
#: Seconds for reading a hostfile; and for the result of an instance to arrive after its end.
_READING, _ARRIVING = 30.0, 10.0


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
        hosts: Path_ | None = None,
        docker: str | None = None,
        env: Mapping[str, str] | None = None,
        workdir: Path_ | None = None,
        python: Path_ | None = None,
        grace: float | None = None,
        timeout: float | None = None,
        run_dir: Path_ | None = None,
        quiet: bool = False,
        options: Sequence[str] = (),
    ) -> list[Any]:
        """Run ``map_fun(args, ctx)`` for each of some arguments, and return the results in their order.

        ::

            losses = TFParallel.run(train, [{"rate": rate} for rate in (0.1, 0.01, 0.001)], at_once=2)

        Args:
            map_fun: a closure, or from a notebook, if you like. ``ctx.worker_num`` is the instance's number.
            tf_args: what the instances get, one each. With ``num_executors`` all of them get the same one:
                this.
            num_executors: so many instances, as TensorFlowOnSpark has it.
            use_barrier: kept for programs that have it: no instance waits for another.
            at_once: how many run at the same time; default: one for each slot of the hosts, or each core of
                this machine.
            return_exceptions: an instance that fails has its exception in the list; else the first failure
                ends all.
            hosts, docker, env, workdir, python, grace, timeout, run_dir, quiet, options: as `TFCluster.run`.

        Raises:
            InputError: what is asked for can't be.
            TaskFailed: an instance has failed.
            JobFailed: the job has failed.
        """
        place = Place(
            hosts, docker, None, env or {}, workdir, python, "stop", grace, timeout, run_dir, quiet, options
        )  # fmt: skip
        counts = {"num_executors": (num_executors, 0), "at_once": (at_once, 1)}
        given = [(name, *count) for name, count in counts.items() if count[0] is not None]
        faults = [fault for one in given for fault in count_faults(_RUN, *one)]
        if num_executors is None and not isinstance(tf_args, Iterable):
            what = f"tf_args is a {type(tf_args).__name__}"
            faults.append(Fault(_RUN, what, "expected a list, of what each instance gets; or num_executors="))
        check(_RUN, map_fun, tf_args, [*faults, *place_faults(_RUN, place._asdict())])
        every = list(tf_args) if num_executors is None else [tf_args] * num_executors
        if not every:
            return []
        with by_value():
            pickles = [plain(one, f"the arguments of instance {number}") for number, one in enumerate(every)]
        slots = min(_slots(hosts) if at_once is None else at_once, len(every))
        search = _Search(dumps(map_fun, "the function"), pickles, place, slots, return_exceptions)
        return search.results()


def _slots(hosts: Path_ | None) -> int:
    """How many instances there is room for.

    Raises:
        InputError: the hosts can't be read; with all that is wrong with them.
    """
    if hosts is None:
        return len(os.sched_getaffinity(0))
    words = [sys.executable, "-m", "launcher", "hosts", "--json", str(hosts)]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=_READING, check=False)
    except subprocess.TimeoutExpired as error:
        expected = "is its file on a network that does not answer?"
        raise InputError([Fault(str(hosts), f"not read within {_READING:g} s", expected)]) from error
    if ended.returncode:
        raise InputError([Fault("", ended.stderr.strip().removeprefix("launch: "))])
    return sum(host["slots"] or _SLOTS for host in json.loads(ended.stdout))


class _Search:
    """The instances of one `TFParallel.run`.

    Args:
        function: pickled.
        arguments: pickled, of each instance.
        place: where the slots are.
        slots: how many.
        patient: failures are results.
    """

    def __init__(
        self, function: bytes, arguments: Sequence[bytes], place: Place, slots: int, patient: bool
    ) -> None:
        self._arguments = arguments
        self._patient = patient
        self._lock = threading.Lock()
        self._waiting = deque(range(len(arguments)))
        self._outcomes: dict[int, Any] = {}
        self._instances: dict[int, Member] = {}
        self._failure: LaunchError | None = None
        #: Of each slot the instance that it has ended last, and the one that it was given then.
        self._given: dict[str, tuple[int | None, int | None]] = {}
        #: Set when there is nothing to wait for any more.
        self._over = threading.Event()
        numbers = {f"worker/{index}": index for index in range(slots)}
        path = list(sys.path) if place.is_here else []
        facts = {"slot": True, "path": path, "numbers": numbers, "instances": len(arguments)}
        handlers = Handlers(_refuse, self._said, self._ended, self._failed, self._instance)
        work = Said(Word.WORK, facts, [function])
        self._session = Session({"worker": {"count": slots}}, place, work, handlers)

    def results(self) -> list[Any]:
        """Wait for all of them.

        Raises:
            LaunchError: one has failed, or the job.
        """
        try:
            while not self._over.wait(1.0):
                if self._session.over and not self._over.wait(1.0):
                    raise JobFailed("the job has ended before its instances", self._session.run_dir)
            if self._failure is None:
                self._session.wait(60.0)
        finally:
            self._session.close()
            for member in self._instances.values():
                member.close()
        if self._failure is not None:
            self._session.raising(self._failure)
            raise self._failure
        return [self._outcomes[number] for number in range(len(self._arguments))]

    # ------------------------------------------------------------------ called by the session's threads

    def _instance(self, guest: Peer) -> None:
        number = guest.hello.get("number")
        if (
            guest.purpose != "instance"
            or not isinstance(number, int)
            or not 0 <= number < len(self._arguments)
        ):
            guest.sock.close()
            return
        with self._lock:
            name = f"instance {number}"
            member = self._instances.setdefault(
                number, Member(name, b"", Said(Word.WORK), lambda member, said: None)
            )
        member.come(guest)

    def _said(self, slot: Member, said: Said) -> None:
        """A slot is free: its first time, or because an instance is over."""
        if said.word is not Word.ENDED:
            return
        number = said.facts["number"]
        if number is not None and number not in self._outcomes:
            self._take(slot, number, said)
        following = self._following(slot.name, number)
        pickles = [] if following is None else [self._arguments[following]]
        slot.say(Said(Word.START, {"number": following}, pickles))

    def _following(self, slot: str, number: int | None) -> int | None:
        """The instance that a slot is to run after another; the same again if it asks again."""
        with self._lock:
            asked, following = self._given.get(slot, (-1, None))
            if asked != number:
                following = self._waiting.popleft() if self._waiting and not self._over.is_set() else None
                self._given[slot] = number, following
            return following

    def _take(self, slot: Member, number: int, said: Said) -> None:
        """Keep how an instance went."""
        member = self._instances.get(number)
        if member is not None:
            (member.replied if said.facts["code"] == 0 else member.silent).wait(_ARRIVING)
        outcome = member.outcome if member is not None else None
        if outcome is not None and outcome.word is Word.DONE and said.facts["code"] == 0:
            result = self._loaded(number, outcome)
        else:
            result = self._failure_of(slot, number, said, outcome)
        if isinstance(result, LaunchError) and not self._patient:
            self._failed(result)
        if member is not None:
            member.outcome = None  # results may be large
        self._outcomes[number] = result
        if len(self._outcomes) == len(self._arguments):
            self._over.set()

    def _loaded(self, number: int, outcome: Said) -> Any:
        """What an instance has returned; or why that can't be had here."""
        try:
            return pickle.loads(outcome.pickles[0]) if outcome.pickles else None
        except Exception as error:  # noqa: BLE001 - whatever unpickling it raises is why
            what = f"the result of instance {number} can't be read here: {type(error).__name__}: {error}"
            return JobFailed(what, self._session.run_dir)

    def _failure_of(self, slot: Member, number: int, said: Said, outcome: Said | None) -> TaskFailed:
        end = End(slot.name, "", said.facts["code"], said.facts["signal"])
        lines = self._session.last_lines(slot.name)
        return task_failed(end, outcome, lines, self._session.run_dir, f"instance {number} ({slot.name})")

    def _ended(self, end: End) -> None:
        return

    def _failed(self, error: LaunchError) -> None:
        with self._lock:
            if self._failure is None and not self._over.is_set():
                self._failure = error
        self._over.set()


def _refuse(guest: Peer) -> None:
    """Instances are fed by nobody."""
    guest.sock.close()
