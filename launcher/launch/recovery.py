"""How lost hosts are recovered, as a session tells its orchestrator, which it imports only later."""

from collections.abc import Callable

from launcher.common.record import Record
from launcher.job import Placement


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
