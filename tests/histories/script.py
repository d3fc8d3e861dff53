"""Histories as text: events separated by ``;``, 10 ms apart unless they have a time.

::

    up                          every agent is ready and holds its ports, every task has started
    reaches node1 | reaches node1 all but node2:4001
    ready node1 | held node1 | refused node1 | lacks node1 | closed node1
    lost node1 | taken node1 | over node1
    closed                      every agent that is not lost
    worker/0 starts | cannot start 127 | exits 7 | dies 9 | out of memory | gone | left 3 | unkillable 4711
    worker/0 finishes 0         exits, and is gone
    worker/0 gets 15            a signal of ours
    worker/0 ends               as commanded: gets 15, dies of it, is gone
    worker/0,worker/1 ends      each of them
    Ctrl-C | SIGTERM | SIGHUP | SIGQUIT | SIGUSR2 | closed pipe | stop --now
    restart worker/0 | stop worker/0,ps/0 | says worker/0 TEXT
    time up end                 a timer
    silence 11                  so many looks for silent tasks
    output delayed              the reader is slow, or a connection is broken
    steps worker/0,worker/1     the logs were read (--progress): the steps of these have changed, or of none
    no steps                    they are not read any longer
    ... @ 5.5                   at this time, though earlier events may have a later one
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Event
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.config.values import exit_codes
from launcher.job import (
    SERVICE_ROLES,
    Host,
    JobSpec,
    OnFailure,
    Placement,
    Plan,
    Policy,
    Program,
    ProgramKind,
    Role,
)
from launcher.scheduler.placement import place
from launcher.scheduler.plan import make_plan
from launcher.supervisor import JobState, Machine, Phase, Timer, commands
from launcher.supervisor.commands import Command
from launcher.supervisor.restart_policy import RestartPolicy
from tests.histories.host_events import FIRST_PORT, HostEvents
from tests.histories.invariants import validate

CommandKind = TypeVar("CommandKind", bound=Command)

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")
SIGNALS = {
    "Ctrl-C": 2, "SIGTERM": 15, "SIGHUP": 1, "SIGQUIT": 3, "SIGPWR": 30, "SIGUSR1": 10, "SIGUSR2": 12,
    "SIGXCPU": 24, "closed pipe": 13, "stop --now": 15,
}  # fmt: skip
#: Events that are several.
_PARTS = {"ends": ("gets 15", "dies 15", "gone"), "finishes": ("exits {}", "gone")}
#: Events of a task: what its host reports, by the numbers that follow.
_TASK_EVENTS: Mapping[str, Callable[[HostEvents, TaskId, Sequence[int]], Event]] = {
    "starts": lambda host, task, _: host.started(task),
    "cannot start": lambda host, task, numbers: host.not_started(task, code=numbers[0]),
    "exits": lambda host, task, numbers: host.exited(task, code=numbers[0]),
    "dies": lambda host, task, numbers: host.exited(task, signal=numbers[0]),
    "out of memory": lambda host, task, _: host.exited(task, signal=9, oom="oom_kill 1"),
    "gets": lambda host, task, numbers: host.signalled(task, signal=numbers[0]),
    "gone": lambda host, task, _: host.gone(task),
    "left": lambda host, task, numbers: host.gone(task, leftovers=numbers[0]),
    "unkillable": lambda host, task, numbers: host.gone(task, unkillable=numbers),
}
#: When a script's first event happened.
START = 1.0


class Step(NamedTuple):
    """An event (``None``: the beginning) and the commands it led to, in order, but for `TaskMoved`."""

    event: Any
    commands: tuple[Command, ...]


class Replay(NamedTuple):
    """What came of a history."""

    #: The beginning, then a step an event.
    steps: tuple[Step, ...]
    #: What became of tasks, in order.
    moves: tuple[events.TaskMoved, ...]
    #: How it ended, or how it stands after the last event.
    report: Report
    #: Timers that are set, with their seconds.
    timers: Mapping[str, float]
    #: ``None``: it has not ended.
    exit_code: int | None

    @property
    def commands(self) -> tuple[Command, ...]:
        """All commands, in order."""
        return tuple(command for step in self.steps for command in step.commands)

    @property
    def notices(self) -> tuple[str, ...]:
        """The notices for the user, in order."""
        return tuple(notice.text for notice in self.all(events.Tell))

    def all(self, kind: type[CommandKind]) -> tuple[CommandKind, ...]:
        """All commands of one kind, in order."""
        return tuple(command for command in self.commands if isinstance(command, kind))


class SimulatedJob:
    """One job, supervised by the real machine; its commands are only recorded.

    Args:
        job: what to run.
        placement: the host of each task.
        tasks_end: seconds from the loss of a host until its tasks have ended; ``None``: tasks do not move.
        check: the hosts try whether they reach each other.
        managed: see `StopRequests`.
    """

    def __init__(
        self, job: JobSpec, placement: Placement, tasks_end: float | None = None, *,
        check: bool = False, managed: bool = False,
    ) -> None:  # fmt: skip
        self.job = job
        self.placement = placement
        self.tasks_end = tasks_end
        policy = RestartPolicy(job, placement, lambda: 0.0)
        state = JobState(
            job, placement, checks_network=check, restart_policy=policy, seconds_until_tasks_ended=tasks_end,
            managed=managed,
        )  # fmt: skip
        self.machine = Machine("job", state)
        self.plan: Plan | None = None
        #: Timers that are set by their texts, with their seconds.
        self.timers: dict[str, float] = {}
        #: The tasks whose results are being copied, by their restarts.
        self.saving: dict[str, frozenset[TaskId]] = {}
        self._timer_of: dict[str, Timer] = {}

    @property
    def exit_code(self) -> int | None:
        """That of launch when the job is over."""
        return self.machine.state.exit_code if self.machine.phase is Phase.OVER else None

    def begin(self) -> tuple[Command, ...]:
        """The first commands."""
        return self._execute(self.machine.begin())

    def take(self, event: Event) -> tuple[Command, ...]:
        """The commands that this event leads to; checks the state of the job then.

        Raises:
            ValueError: a timer runs out that is not set.
        """
        if isinstance(event, events.TimeUp):
            if self.timers.pop(event.timer, None) is None:
                raise ValueError(f"timer {event.timer!r} is not set: {', '.join(self.timers) or 'none'} is")
            done = self._execute(self.machine.time_up(self._timer_of[event.timer], event.at))
        else:
            done = self._execute(self.machine.handle(event))
        validate(self.machine.state)
        return done

    def saved(self, restart: str) -> tuple[Command, ...]:
        """The commands that follow when the results of tasks were copied."""
        del self.saving[restart]
        done = self._execute(self.machine.handle_saved(restart))
        validate(self.machine.state)
        return done

    def _execute(self, given: Iterable[Command]) -> tuple[Command, ...]:
        done: list[Command] = []
        for command in given:
            done.append(command)
            if isinstance(command, commands.SetTimer):
                self.timers[str(command.timer)] = command.seconds
                self._timer_of[str(command.timer)] = command.timer
            elif isinstance(command, commands.CancelTimer):
                self.timers.pop(str(command.timer), None)
            elif isinstance(command, commands.SaveResults):
                self.saving[command.restart] = command.tasks
            elif isinstance(command, commands.MoveTasks):
                self.placement = command.placement
            elif isinstance(command, commands.MakePlan):
                self.plan = make_plan(self.job, self.placement, command.ports)
                done.extend(self._execute(self.machine.handle_plan(self.plan)))
        return tuple(done)


class Script:
    """Reads histories of one job.

    Args:
        job: what is run.
        where: on which hosts.
        tasks_end, options: see `SimulatedJob`.
    """

    def __init__(self, job: JobSpec, where: Iterable[Host], tasks_end: float = 80.0, **options: bool) -> None:
        self.job = job
        self.placement: Placement = place(job, tuple(where))
        self._tasks_end, self._options = tasks_end, options
        self._clock = _clock(START)
        #: Hosts that are lost, and hosts that were and have an agent again.
        self._lost: set[str] = set()
        self._back: set[str] = set()

    @property
    def host_of(self) -> dict[str, str]:
        """The host of each task now."""
        return {placed.task: placed.host.name for placed in self.placement.tasks}

    def simulated(self) -> SimulatedJob:
        """The job, before it begins."""
        return SimulatedJob(self.job, self.placement, self._tasks_end, **self._options)

    def play(self, text: str) -> Replay:
        """Give the events of this history to the real machine.

        Raises:
            ValueError: a timer runs out that is not set.
            launcher.supervisor.InvalidTransitionError: the events contradict each other.
        """
        simulated = self.simulated()
        steps, moves = [Step(None, simulated.begin())], []
        for event in self.events_of(text):
            found = simulated.take(event)
            moves += [each for each in found if isinstance(each, events.TaskMoved)]
            steps.append(Step(event, tuple(each for each in found if not isinstance(each, events.TaskMoved))))
            self.placement = simulated.placement
        times = [step.event.at for step in steps if hasattr(step.event, "at")]
        report = simulated.machine.report(min(times, default=0.0), max(times, default=0.0))
        return Replay(tuple(steps), tuple(moves), report, dict(simulated.timers), simulated.exit_code)

    def events_of(self, text: str) -> Iterator[Event]:
        """The events of a history."""
        for part in filter(None, (part.strip() for part in text.split(";"))):
            event, _, at = part.partition("@")
            yield from self._part(event.strip(), _clock(float(at), 0.0) if at else self._clock)

    def _part(self, text: str, now: Callable[[], float]) -> Iterator[Event]:
        first, _, rest = text.partition(" ")
        if text == "up":
            yield from self._up(now)
        elif text == "closed":
            agents = [host for host in self._hosts() if host not in self._lost | self._back]
            yield from (events.AgentClosed(host, now()) for host in [*agents, *sorted(self._back)])
        elif text in SIGNALS:
            yield events.StopAsked(now(), SIGNALS[text], text, at_once=text == "stop --now")
        elif first == "restart":
            yield events.RestartAsked(now(), tuple(map(TaskId, rest.split(","))))
        elif first == "stop":
            yield events.TaskStopAsked(now(), tuple(map(TaskId, rest.split(","))))
        elif first == "says":
            task, _, words = rest.partition(" ")
            yield events.TaskOutput(self.host_of[task], task=TaskId(task), attempt=1, data=words.encode())
        elif text == "output delayed":
            yield events.OutputDelayed(now())
        elif first == "steps":
            yield events.StepsRead(now(), {TaskId(task): 1 for task in rest.split(",") if task})
        elif text == "no steps":
            yield events.StepsRead(now(), {}, given_up=True)
        elif first == "silence":
            yield from (events.TimeUp(now(), "silence") for _ in range(int(rest)))
        elif text.startswith("time up "):
            yield events.TimeUp(now(), text.removeprefix("time up "))
        elif "/" in first:
            for task in first.split(","):
                yield from self._task(TaskId(task), rest, now)
        else:
            yield self._agent(first, rest, now)

    def _hosts(self) -> list[str]:
        return [host.name for host in self.placement.agent_hosts()]

    def _up(self, now: Callable[[], float]) -> Iterator[Event]:
        yield from (self._agent("ready", host, now) for host in self._hosts())
        yield from (self._agent("held", host.name, now) for host in self.placement.hosts())
        for task in self.host_of:
            yield from self._task(TaskId(task), "starts", now)

    def _agent(self, verb: str, host: str, now: Callable[[], float]) -> Event:
        host, _, address = host.partition(" all but ")
        report = HostEvents(host, now)
        if verb == "ready":
            if host in self._lost:
                self._lost.remove(host)
                self._back.add(host)
            return report.ready()
        if verb == "held":
            tasks = enumerate(self.host_of.items())
            return report.held({TaskId(task): FIRST_PORT + n for n, (task, where) in tasks if where == host})
        if verb == "reaches":  # all it tried, but for the address that follows
            return events.PeersTried(host, now(), {address: "no answer"} if address else {})
        if verb == "refused":
            return report.refused()
        if verb == "lacks":  # the environment of its tasks
            return report.refused("there is no environment 'tf'", code=127)
        if verb == "closed":
            return report.closed()
        assert verb in ("lost", "taken", "over"), verb  # by a cluster: for others, with all others
        self._lost.add(host)
        self._back.discard(host)
        return report.lost(all_gone=verb == "over", preempted=verb == "taken")

    def _task(self, task: TaskId, text: str, now: Callable[[], float]) -> Iterator[Event]:
        verb = (re.match(r"[a-z ]*[a-z]", text) or [text])[0]
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if verb in _PARTS:
            for part in _PARTS[verb]:
                yield from self._task(task, part.format(*numbers), now)
        else:
            yield _TASK_EVENTS[verb](HostEvents(self.host_of[task], now), task, numbers)


#: Words of a role in a setup.
_ROLE_WORDS: dict[str, Callable[[str], Any]] = {
    "drain": float, "restart": str, "memory": int,
    "retryable": lambda text: tuple(map(exit_codes, text.split())),
}  # fmt: skip
#: Words of a setup that are settings of the policy.
_POLICY: dict[str, Callable[[str], Any]] = {
    "grace": float, "timeout": float, "restarts": int, "restart": str, "stall": float, "done-when": str
}  # fmt: skip


def script(setup: str) -> Script:
    """Return a reader of histories of the job of a setup.

    ::

        worker 2, ps 1, hosts 2, slots 1, spares s1 s2, containers, managed, check, continue, saves, grace 0

    A ps or evaluator is a service, as the command line has it. Words of a role: ``evaluator 1 drain 60``,
    ``board 1 sidecar``, ``ps 1 restart job``, ``ps 1 retryable 3 128-255``, ``worker 2 memory 8`` (bytes).
    """
    words = dict(part.partition(" ")[::2] for part in setup.split(", "))
    names = [name for name in _POLICY if name in words]
    policy = {name.replace("-", "_"): _POLICY[name](words.pop(name)) for name in names}
    on_failure = OnFailure.STOP if words.pop("continue", None) is None else OnFailure.CONTINUE
    tasks_end = 80.0 if words.pop("containers", None) is None else 0.0
    options = {name: words.pop(name, None) is not None for name in ("check", "managed")}
    where = hosts(int(words.pop("hosts", 1)), int(words.pop("slots", 0)) or None)
    spares = tuple(Host(name, spare=True) for name in words.pop("spares", "").split())
    output_to = "" if words.pop("saves", None) is None else "s3://bucket/results"
    roles = tuple(_role(*role) for role in words.items())
    spec = JobSpec(roles, policy=Policy(on_failure, **policy), output_to=output_to)
    return Script(spec, where + spares, tasks_end, **options)


def play(setup: str, history: str) -> Replay:
    """Return what came of a history of the job of a setup; see `script` and `Script.play`."""
    return script(setup).play(history)


def hosts(count: int, slots: int | None = None) -> tuple[Host, ...]:
    """``node1``, ``node2``..."""
    return tuple(Host(f"node{number}", slots=slots) for number in range(1, count + 1))


def _role(name: str, text: str) -> Role:
    number, word, value = [*text.split(" ", 2), "", ""][:3]
    role = Role(name, int(number), PROGRAM, service=name in SERVICE_ROLES, sidecar=word == "sidecar")
    return replace(role, **{word: _ROLE_WORDS[word](value)}) if word in _ROLE_WORDS else role


def _clock(start: float, step: float = 0.01) -> Callable[[], float]:
    """A clock that advances with each look."""
    times = itertools.count(start, step)
    return lambda: next(times)


def states(replay: Replay) -> dict[str, str]:
    """``{"worker/0": "failed: exit"}``: state and reason of each task."""
    return {
        task.task: f"{task.state.value}: {task.reason.value}" if task.reason else task.state.value
        for task in replay.report.tasks
    }


def after(replay: Replay, last: int = 1) -> tuple[Any, ...]:
    """The commands that the last events led to."""
    return tuple(command for step in replay.steps[-last:] for command in step.commands)


class Case(NamedTuple):
    """A line of a table of `cases`."""

    setup: str
    history: str
    code: int
    states: str


#: States and reasons as `cases` has them, and stop sequences.
_SHORT = {
    "succeeded": "succeeded: exit", "failed": "failed: exit", "stopped": "stopped: stopped",
    "lost": "lost: host lost", "stalled": "failed: stalled", "never": "cancelled: never started",
}  # fmt: skip
_SEQUENCES = {"TERM": ((15, 10.0), (6, 2.0), (9, 5.0)), "KILL": ((9, 5.0),)}


def cases(file: str) -> list[Any]:
    """The cases of a file beside this one, as parameters of a test.

    ::

        # a comment
        NAME = stands for this text in the cases below
        SETUP: HISTORY; with indented
            lines of more
            -> EXIT CODE | state of each task

    `script` says what a setup is. In the place of states the stop sequences of a job that need not be over:
    TERM, KILL; ``-`` for none.
    """
    table = (Path(__file__).parent / file).read_text()
    found, names = [], dict[str, str]()
    for block in re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", table).strip()):
        text = re.sub(r"[A-Z]\w*", lambda word: names.get(word[0], word[0]), " ".join(block.split()))
        if definition := re.fullmatch(r"([A-Z]\w+) = (.*)", text):
            names[definition[1]] = definition[2]
            continue
        text, _, outcome = text.partition(" -> ")
        setup, _, history = text.partition(":")
        code, _, ends = outcome.partition(" | ")
        found.append(pytest.param(Case(setup, history, int(code), ends), id=text))
    return found


def check(case: Case, snapshot: SnapshotAssertion) -> None:
    """Compare the end of a history with the one in its table, and what the user is told with the snapshot."""
    replay = play(case.setup, case.history)
    failure = replay.report.failure
    assert replay.report.exit_code == case.code
    assert (failure is None) == (case.code == 0)
    if set(case.states.split()) <= {*_SEQUENCES, "-"}:
        sequences = [_SEQUENCES[name] for name in case.states.split() if name != "-"]
        assert [stop.steps for stop in replay.all(events.StopTasks)] == sequences
        assert bool(replay.all(events.StartTask)) == case.history.strip().startswith("up")
    else:
        expected = [_SHORT.get(state, state) for state in case.states.split(", ")]
        assert list(states(replay).values()) == expected
        assert replay.exit_code == case.code
        assert not {"end", "start", "ready", "job", "silence"} & set(replay.timers)
    assert "\n".join([*replay.notices, *([f"failure: {failure.text}"] if failure else [])]) == snapshot
