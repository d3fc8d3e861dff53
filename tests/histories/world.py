"""A world of hosts in which anything happens that can happen, in any order that it can happen in.

Each host is a model of the real agent: its events leave in order, its commands come in order, and both are
on their way for any time. What happens next is read from a tape of numbers, so that a failing history
can be shrunk.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.events import Event, StopSequence
from launcher.supervisor import Phase, commands
from launcher.supervisor.commands import Command
from tests.histories.host_events import FIRST_PORT, HostEvents
from tests.histories.script import SimulatedJob

ABANDONED: StopSequence = ((15, 1.0), (9, 5.0))
#: What bounds the wait of each phase.
BOUNDS = {Phase.STARTUP: "ready", Phase.DRAINING: "drain", Phase.STOPPING: "end", Phase.CLOSING: "close"}

Action = Callable[[], object]


class ModelTask:
    """A task as its agent sees it: its process lives or has exited, and may have left something behind."""

    def __init__(self, command: events.StartTask) -> None:
        self.command = command
        self.alive = True
        self.signalled = False
        self.leftovers = 0
        self.steps: deque[tuple[int, float]] = deque()


class ModelAgent:
    """The agent of a host: what it may do next, and what is on its way to it and from it."""

    def __init__(self, host: str, now: Callable[[], float]) -> None:
        self.host = host
        self.inbox: deque[Command] = deque()
        self.outbox: deque[Event] = deque()
        self.tasks: dict[TaskId, ModelTask] = {}
        #: All tasks that it was told to start, or to hold ports for.
        self.own: dict[TaskId, None] = {}
        self.closing = self.over = False
        self._events = HostEvents(host, now)
        self._report(self._events.ready())

    def _report(self, event: Event) -> None:
        self.outbox.append(event)

    def actions(self) -> Iterator[Action]:
        """Everything that can happen on this host now."""
        if self.over:
            return
        if self.inbox:
            yield self._execute
        for name, task in self.tasks.items():
            yield from self._of_task(name, task)
        if self.closing and not self.tasks:
            yield self._close

    def lies(self) -> Iterator[Action]:
        """Events that an honest agent would not send, or not now."""
        if self.over:
            return
        report = self._events
        lies = [report.ready(), report.closed(), report.refused(), report.refused(code=127)]
        for task in itertools.product(self.own, (1, 2)):
            lies += [
                report.started(*task), report.not_started(*task), report.signalled(*task),
                report.exited(*task, code=0), report.gone(*task), report.gone(*task, unkillable=[4711]),
                report.output(*task), report.held({task[0]: FIRST_PORT}),
            ]  # fmt: skip
        yield from (functools.partial(self._report, event) for event in lies)

    def accidents(self) -> Iterator[Action]:
        """What ends an agent unasked, and what it can't do."""
        if self.inbox and not self.over:
            yield lambda: self._execute(refuse=True)
        if not self.over:
            yield lambda: self.die(len(self.outbox))
            yield lambda: self.die(len(self.outbox) // 2)
            yield self.abandon

    def _of_task(self, name: TaskId, task: ModelTask) -> Iterator[Action]:
        if task.alive:
            yield lambda: self._exit(name, task, 0, None)
            yield lambda: self._exit(name, task, 7, None)
            yield lambda: self._exit(name, task, None, 9)
            yield lambda: self._exit(name, task, 0, None, leaves=2)
        else:
            yield lambda: self._gone(name)
        if task.steps:
            yield lambda: self._next_step(name, task)

    # What agents do ---------------------------------------------------------------------------------

    def _execute(self, refuse: bool = False) -> None:
        command = self.inbox.popleft()
        if isinstance(command, events.HoldPorts) and refuse:
            self._report(self._events.refused())
        elif isinstance(command, events.HoldPorts):
            self.own.update(dict.fromkeys(command.tasks))
            self._report(self._events.held({task: FIRST_PORT + n for n, task in enumerate(command.tasks)}))
        elif isinstance(command, events.StartTask) and refuse:
            self._report(self._events.not_started(command.task, command.attempt))
        elif isinstance(command, events.StartTask):
            self.tasks[command.task] = ModelTask(command)
            self._report(self._events.started(command.task, command.attempt))
            if self.closing:
                self._end((command.task,), ABANDONED)
        elif isinstance(command, events.StopTasks):
            self._end(command.tasks, command.steps)
        else:
            self.abandon()

    def _end(self, tasks: Sequence[TaskId], steps: StopSequence) -> None:
        for name in tasks:
            task = self.tasks.get(name)
            if task is not None and (task.alive or task.leftovers):
                task.steps = deque(steps)
                self._signal(name, task)

    def _signal(self, name: TaskId, task: ModelTask) -> None:
        signal, _ = task.steps[0]
        task.signalled = task.signalled or task.alive
        self._report(self._events.signalled(name, task.command.attempt, signal))

    def _next_step(self, name: TaskId, task: ModelTask) -> None:
        """The step's time is up: the next one, or there is nothing more that we could do."""
        task.steps.popleft()
        if task.steps:
            self._signal(name, task)
        else:
            self._gone(name, unkillable=(4711,))

    def _exit(
        self, name: TaskId, task: ModelTask, code: int | None, signal: int | None, leaves: int = 0
    ) -> None:
        task.alive = False
        self._report(self._events.exited(name, task.command.attempt, code, signal))
        task.leftovers = leaves
        if leaves and not task.steps:
            self._end((name,), task.command.steps)

    def _gone(self, name: TaskId, unkillable: tuple[int, ...] = ()) -> None:
        task = self.tasks.pop(name)
        self._report(self._events.gone(name, task.command.attempt, task.leftovers, unkillable))

    def abandon(self) -> None:
        """A command to close, or SIGTERM from outside: end everything, then itself."""
        if not self.closing:
            self.closing = True
            self._end(tuple(self.tasks), ABANDONED)

    def _close(self) -> None:
        self.over = True
        self._report(self._events.closed())

    def die(self, arrives: int) -> None:
        """It is killed, or its host is cut off: so many of its last events still arrive."""
        self.over = True
        while len(self.outbox) > arrives:
            self.outbox.pop()
        self._report(self._events.lost())


class World:
    """A job among its hosts. Checks all the while that nothing is ordered that must not be.

    Args:
        simulated: the job.
        skews: how wrong the clocks of the hosts are, in seconds.
        lies: the agents may send anything: then only the end of the job is checked.
    """

    def __init__(self, simulated: SimulatedJob, skews: Sequence[float] = (), lies: bool = False) -> None:
        self.simulated = simulated
        self._lies = lies
        self._time = 100.0
        hosts = [host.name for host in simulated.placement.agent_hosts()]
        wrong = dict(zip(hosts, skews, strict=False))
        self.agents = {host: ModelAgent(host, self._clock(wrong.get(host, 0.0))) for host in hosts}
        self._lost: set[str] = set()
        self._closing = False
        self._attempts: dict[TaskId, int] = {}
        #: Tasks that may be alive on lost hosts; and, by timer, hosts that were lost before it was set.
        self._alive_there: dict[str, set[TaskId]] = {}
        self._waited_for: dict[str, set[str]] = {}
        #: Tasks that are to start again, as programs are told: by the attempt before.
        self._restarting: dict[TaskId, int] = {}
        #: Tasks whose results were copied since they have started.
        self._saved_tasks: set[TaskId] = set()
        #: Whether a host was lost, perhaps with results.
        self._has_lost = False
        #: The last one of each attempt of a task.
        self.moves: dict[tuple[TaskId, int], events.TaskMoved] = {}
        self._carry(simulated.begin())

    def _clock(self, skew: float) -> Callable[[], float]:
        def now() -> float:
            self._time += 0.01
            return self._time + skew

        return now

    def actions(self) -> list[Action]:
        """Everything that keeps the world going."""
        agents = [*self.agents.values()]
        events = [action for agent in agents for action in (*agent.actions(), *self._arrivals(agent))]
        return [*events, *self._copies()]

    def _copies(self) -> list[Action]:
        """The results of tasks that are to start again are copied."""
        return [functools.partial(self._saved, restart) for restart in self.simulated.saving]

    def _saved(self, restart: str) -> None:
        self._saved_tasks |= self.simulated.saving[restart]
        self._carry(self.simulated.saved(restart))
        self._check_waits()

    def _arrivals(self, agent: ModelAgent) -> Iterator[Action]:
        """The next event of an agent arrives."""
        if agent.outbox:
            yield lambda: self._take(agent.outbox.popleft())

    def surprises(self) -> list[Action]:
        """Everything else that can happen."""
        agents = [*self.agents.values()]
        accidents = [accident for agent in agents for accident in agent.accidents()]
        timers = [functools.partial(self.time_up, timer) for timer in self.simulated.timers]
        lies = [lie for agent in agents if self._lies for lie in agent.lies()]
        asked = [self._ctrl_c, self._ctrl_c, self._restart, self._stop_tasks, self._read_steps]
        return [*accidents, *timers, *asked, *lies]

    def _restart(self) -> None:
        """The user asks for a restart of the first task and the last one."""
        tasks = [placed.task for placed in self.simulated.placement.tasks]
        self._take(events.RestartAsked(self._time, (tasks[0], tasks[-1])))

    def _stop_tasks(self) -> None:
        """The user stops the first task and the last one."""
        tasks = [placed.task for placed in self.simulated.placement.tasks]
        self._take(events.TaskStopAsked(self._time, (tasks[0], tasks[-1])))

    def _read_steps(self) -> None:
        """The logs were read: the first task has made steps, and the last one in its second attempt."""
        tasks = [placed.task for placed in self.simulated.placement.tasks]
        self._take(events.StepsRead(self._time, {tasks[-1]: 2, tasks[0]: 1}))

    def _ctrl_c(self) -> None:
        self._time += 1.0
        self._take(events.StopAsked(self._time, 2, "Ctrl-C"))

    def time_up(self, timer: str) -> None:
        """A timer runs out; that of the looks so often that silent tasks are found."""
        if self.simulated.timers[timer] >= (self.simulated.tasks_end or 0.0):
            for host in self._waited_for.get(timer, ()):
                self._alive_there.pop(host, None)
        for _ in range(11 if timer == "silence" else 1):
            if timer in self.simulated.timers:
                self._take(events.TimeUp(self._time, timer))

    def _take(self, event: Event) -> None:
        was_over = self.simulated.exit_code is not None
        if isinstance(event, get_args(events.AgentEvent)):
            event = self._verified(event)
        given = self.simulated.take(event)
        if isinstance(event, events.AgentReady):
            self._lost.discard(event.host)
        assert not (was_over and given), f"commands after the end: {given}"
        self._carry(given)
        self._check_waits()

    def _verified(self, event: Any) -> Event:
        """The event; in place of one that its host may not send the loss of the host."""
        try:
            self.simulated.machine.verify(event)
        except ProtocolError as error:
            assert self._lies, error
            return events.AgentLost(event.host, self._time, str(error))
        return event

    def _carry(self, given: Sequence[Command]) -> None:
        for command in given:
            if isinstance(command, events.Restarting):
                for task, attempt in command.attempts.items():
                    assert self._lies or attempt == self._attempts[task]
                    self._restarting[task] = attempt
            elif isinstance(command, events.TaskMoved):
                self.moves[command.task, command.attempt] = command
                if not command.restarting and command.attempt == self._restarting.get(command.task):
                    del self._restarting[command.task]
                continue
            host = getattr(command, "host", None)
            if isinstance(command, commands.SetTimer):
                self._waited_for[str(command.timer)] = set(self._lost)
            if host is None:
                continue
            if isinstance(command, commands.StartAgent):
                ended = self._alive_there.pop(host, None)
                assert self._lies or host in self._lost and (not ended or self.simulated.tasks_end == 0.0)
                self.agents[host] = ModelAgent(host, self._clock(0.0))
                continue
            assert host not in self._lost, f"{host} is lost, and yet: {command}"
            self._check_start(command)
            if isinstance(command, commands.CloseLink):
                self._lost.add(host)
                self._has_lost = True
                self._alive_there[host] = set(self.agents[host].tasks)
                self.agents[host].over = True
                self.agents[host].outbox.clear()
            else:
                self.agents[host].inbox.append(command)

    def _check_start(self, command: Command) -> None:
        """No start after the stop of the job; never two attempts of a task at the same time."""
        self._closing = self._closing or isinstance(command, events.CloseAgent)
        if isinstance(command, events.StartTask) and not self._lies:
            assert not self._closing and self.simulated.machine.phase in (Phase.RUNNING, Phase.STARTUP)
            agents = [agent for agent in self.agents.values() if agent.host not in self._lost]
            assert not any(command.task in agent.tasks for agent in agents)
            assert not any(command.task in tasks for tasks in self._alive_there.values())
            self._attempts[command.task] = self._attempts.get(command.task, 0) + 1
            assert command.attempt == self._attempts[command.task]
            if self.simulated.job.output_to and command.attempt > 1 and not self._has_lost:
                assert command.task in self._saved_tasks
                self._saved_tasks.discard(command.task)
            assert not any(command.task in tasks for tasks in self.simulated.saving.values())
            assert self._restarting.pop(command.task, 0) == command.attempt - 1
            assert not self.simulated.machine.state.tasks[command.task].is_dismissed

    def _check_waits(self) -> None:
        bound = BOUNDS.get(self.simulated.machine.phase)
        assert bound is None or bound in self.simulated.timers, f"{self.simulated.machine.phase} has no end"

    def start(self) -> None:
        """Every task is started, and none has ended."""
        while ready := [action for agent in self.agents.values() for action in self._deliveries(agent)]:
            ready[0]()

    def _deliveries(self, agent: ModelAgent) -> Iterator[Action]:
        yield from self._arrivals(agent)
        if agent.inbox and not agent.over:
            yield agent._execute

    def settle(self) -> None:
        """No more surprises: every agent does what it must, and only what can't go on runs into its timer."""
        for _ in range(10_000):
            if self.simulated.exit_code is not None:
                assert self._lies or not self._restarting
                return
            sound = [action for agent in self.agents.values() for action in self._sound(agent)]
            if ready := [*sound, *self._copies()]:
                ready[0]()
                continue
            bounds = [timer for timer in self.simulated.timers if timer not in ("notice", "job", "silence")]
            assert bounds, f"stuck in {self.simulated.machine.phase}"
            self.time_up(bounds[0])
        raise AssertionError("it never ends")

    def _sound(self, agent: ModelAgent) -> Iterator[Action]:
        yield from self._deliveries(agent)
        for name, task in agent.tasks.items() if not agent.over else ():
            if not task.alive:
                yield functools.partial(agent._gone, name)
            elif task.signalled:
                yield functools.partial(agent._exit, name, task, None, 15)
            elif name.role not in ("ps", "evaluator", "board"):
                yield functools.partial(agent._exit, name, task, 0, None)
        if agent.closing and not agent.tasks and not agent.over:
            yield agent._close
