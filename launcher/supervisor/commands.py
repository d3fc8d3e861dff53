"""The commands of the state machine: what it asks the launcher to do.

Commands to agents, and those that renderers show, are in `launcher.common.events`. The others are here,
because hosts have no use for them. `launcher.launch.orchestrator` executes all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import Record
from launcher.job import Placement


class TimerKind(enum.Enum):
    """The purpose of a timer. The values are public, because the text of a `Timer` contains them."""

    NOTICE = "notice"  #: When it fires, the user is told what the job waits for.
    READY = "ready"  #: Limits how long agents may take to start and to hold ports for their tasks.
    #: Limits how long the other hosts may take to answer after one host failed before the first start.
    OTHER_HOSTS = "rest"
    CHECK = "check"  #: Limits how long hosts may try to connect to each other.
    START = "start"  #: Limits how long agents may take to start tasks.
    SILENCE = "silence"  #: The next tick, at which tasks that print nothing are looked for.
    JOB = "job"  #: The time limit of the job itself.
    RESTART = "restart"  #: The next step of one restart, whose number is the key.
    PLACE = "place"  #: The time within which more hosts may be lost by the same cause.
    HOST_RETURN = "return of"  #: The next attempt to use a lost host again, whose name is the key.
    DRAIN = "drain"  #: The time that tasks have to finish after the job is done.
    ANSWER = "answer"  #: Limits how long hosts may take to answer that they stop their tasks.
    END = "end"  #: Limits how long agents may take to stop their tasks.
    CLOSE = "close"  #: Limits how long agents may take to close.


class Timer(Record):
    """A timer of the state machine.

    Its text is public, because `launcher.common.events.TimeUp` contains it.
    """

    kind: TimerKind
    #: Tells timers of one kind apart: the number of a restart, or the name of a host. Otherwise empty.
    key: str = ""

    def __str__(self) -> str:
        """Return the public text of the timer, as in ``end`` or ``return of node1``."""
        return f"{self.kind.value} {self.key}".rstrip()


class SetTimer(Record):
    """The command to call `Machine.time_up` with a timer later.

    It replaces an earlier one for the same timer.
    """

    timer: Timer
    seconds: float


class CancelTimer(Record):
    """The command to remove a timer, if it is set."""

    timer: Timer


class CheckNetwork(Record):
    """The command to let hosts try to connect to each other's ports (`launcher.common.events.TryPeers`)."""

    #: The ports that each host tries, by the name of the host and the task that the port belongs to.
    peers: Mapping[str, Mapping[TaskId, int]]


class MakePlan(Record):
    """The command to make the plan of the job and to call `Machine.handle_plan`. Every port is known now."""

    ports: Mapping[TaskId, int]


class MoveTasks(Record):
    """The command to run the tasks on the hosts of this placement from their next start on."""

    placement: Placement


class SaveResults(Record):
    """The command to copy the results of tasks to a URL, and to call `Machine.handle_saved` then."""

    #: The key of the restart in which they start again.
    restart: str
    #: The tasks. Those on lost hosts are not among them.
    tasks: frozenset[TaskId]


class StartAgent(Record):
    """The command to start a new agent on a lost host.

    The event `AgentReady` or `AgentLost` is the answer.
    """

    host: str


class CloseLink(Record):
    """The command to close the link to the agent of a host. An agent that still runs then stops its tasks."""

    host: str


Command: TypeAlias = (
    events.AgentCommand
    | events.Tell
    | events.TaskMoved
    | events.Restarting
    | SetTimer
    | CancelTimer
    | CheckNetwork
    | MakePlan
    | MoveTasks
    | SaveResults
    | StartAgent
    | CloseLink
)
