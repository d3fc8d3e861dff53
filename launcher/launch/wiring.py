"""What a `launcher.launch.session.Session` gives its `launcher.launch.orchestrator.Orchestrator`.

The session imports this module at its start, but the orchestrator only while the agents start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.backends.connections import Fleet
from launcher.common.record import Record
from launcher.event_loop import EventLoop
from launcher.job import JobSpec, Placement
from launcher.launch.host_hints import HostHints
from launcher.launch.interrupts import Interrupts
from launcher.launch.tensorboard import TensorBoardSidecar
from launcher.messages import MessageQueue
from launcher.output.renderers import RunInfo

if TYPE_CHECKING:
    from launcher.launch.display import Display


class Recovery(Record):
    """How the tasks of a lost host move to others, or to a new container in its place."""

    #: The planned placement, with the standby hosts that can be used.
    placement: Placement
    #: Gives a placement the folders of this launch.
    with_folders: Callable[[Placement], Placement]
    #: Seconds from the loss of a host until its tasks have ended.
    seconds_until_tasks_ended: float
    #: Makes a lost host usable again; blocks. Raises TransportError: not now.
    recover: Callable[[str], None]


class Wiring(Record):
    """What an orchestrator works with. It is always made by keywords."""

    #: Drives the links.
    loop: EventLoop
    spec: JobSpec
    #: Gives the link to the agent of a host.
    fleet: Fleet
    display: Display
    #: For the renderers of the display.
    run_info: RunInfo
    interrupts: Interrupts
    #: What the user is told while the job runs.
    messages: MessageQueue
    #: How lost hosts are recovered. None if their tasks can't start again.
    recovery: Recovery | None = None
    #: Gives hints about other machines. None if there are none.
    hints: HostHints | None = None
    #: None if the job has no TensorBoard.
    board: TensorBoardSidecar | None = None
    #: Whether the hosts connect to each other before the tasks start.
    check_network: bool = False
    #: An inherited pipe from which `Orchestrator` reads commands. None if there is none.
    commands_fd: int | None = None
