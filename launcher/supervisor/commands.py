"""What the state machine of a job commands the launcher to do.

Commands to agents, and those that renderers show, are in `launcher.common.events`. The others are here,
because hosts have no use for them. `launcher.launch.orchestrator` carries all of them out.
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
    """What a timer is for. The values are public: `Timer` has them in its text."""

    NOTICE = "notice"  #: the user is told what the job waits for
    READY = "ready"  #: agents start and hold ports for their tasks
    OTHER_HOSTS = "rest"  #: a host has failed before the first start, and the others may still answer
    CHECK = "check"  #: hosts try to connect to each other
    START = "start"  #: tasks are started
    SILENCE = "silence"  #: the next look for tasks that print nothing
    JOB = "job"  #: the job's own time limit
    RESTART = "restart"  #: a step of one restart; the key is its number
    PLACE = "place"  #: more hosts may be lost by the same cause
    HOST_RETURN = "return of"  #: a lost host may be usable again; the key is its name
    DRAIN = "drain"  #: the job is done, and tasks have time to finish
    ANSWER = "answer"  #: hosts answer that they stop their tasks
    END = "end"  #: agents stop their tasks
    CLOSE = "close"  #: agents close


class Timer(Record):
    """A timer of the state machine. Its text is public: `launcher.common.events.TimeUp` has it."""

    kind: TimerKind
    #: Tells timers of one kind apart: the number of a restart, the name of a host.
    key: str = ""

    def __str__(self) -> str:
        """Return the text, ``end`` or ``return of node1``."""
        return f"{self.kind.value} {self.key}".rstrip()


class SetTimer(Record):
    """Call `Machine.time_up` with this timer after these seconds; a second command replaces the first."""

    timer: Timer
    seconds: float


class CancelTimer(Record):
    """Remove a timer, if it is set."""

    timer: Timer


class CheckNetwork(Record):
    """Let hosts try to connect to the ports that others hold (`launcher.common.events.TryPeers`)."""

    #: For each host the tasks whose ports it tries, with the ports.
    peers: Mapping[str, Mapping[TaskId, int]]


class MakePlan(Record):
    """Make the plan, because every port is held, and call `Machine.handle_plan`."""

    ports: Mapping[TaskId, int]


class MoveTasks(Record):
    """From their next start on, run the tasks on the hosts of this placement."""

    placement: Placement


class StartAgent(Record):
    """Start a new agent on a lost host. `AgentReady` or `AgentLost` is the answer."""

    host: str


class CloseLink(Record):
    """Close the link to the agent of a host. An agent that still runs ends its tasks then."""

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
    | StartAgent
    | CloseLink
)
