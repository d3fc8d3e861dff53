"""How lost hosts are recovered, as a session tells its orchestrator.

It is a module of its own because a session imports the orchestrator only while the agents start.
"""

from collections.abc import Callable

from launcher.common.record import Record
from launcher.job import Placement


class Recovery(Record):
    """The way in which the tasks of a lost host move to other hosts, or to a new container in its place."""

    #: The planned placement, with the standby hosts that can be used.
    placement: Placement
    #: Returns a placement with the folders of this launch on its hosts.
    with_folders: Callable[[Placement], Placement]
    #: Seconds from the loss of a host until its tasks have ended.
    seconds_until_tasks_ended: float
    #: Makes a lost host usable again, and blocks until it is. Raises TransportError if that is not possible
    #: now.
    recover: Callable[[str], None]
