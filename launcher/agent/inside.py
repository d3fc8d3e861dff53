"""What runs in a container: its first process, and how the host ends it all where the engine can't.

The processes of a container are processes of its host, too, and carry a mark that whoever started the
container knows (`launcher.model.watermark`). So they can be ended while their engine hangs, or is gone.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from launcher.agent.__main__ import main as agent_main
from launcher.model.container import ENDED_THERE, GOES_ON, UNSEEN
from launcher.processes import kernel, sweep

if TYPE_CHECKING:
    from typing import Any, Collection, List, Mapping, NoReturn

    from launcher.processes.kernel import Process

#: Seconds to end in good order, as after ``docker stop``, and to be killed.
FAREWELL, KILLING = 2.0, 3.0
_LOOK = 0.05


def main(arguments: Mapping[str, Any]) -> NoReturn:
    """Be the guardian of the agent, and carry the mark, as all that comes after does; does not return.

    Args:
        arguments: ``host``, its name in the plan; ``mark``, the number of the agent.
    """
    mark = int(arguments["mark"])
    sweep.carry_mark(mark)
    agent_main(str(arguments["host"]), str(mark))


def end(marks: Collection[int], farewell: float = FAREWELL) -> str:
    """On the host: end all that carries one of these marks, in good order at first.

    Args:
        marks: of what is in containers, and of nothing else.
        farewell: seconds for that.

    Returns:
        `ENDED_THERE`; `GOES_ON`: some of it can't be killed; `UNSEEN`: there is none, so it is over, or not
        to be seen from here.
    """
    found = _found(marks)
    if not found:
        return UNSEEN
    pids = {process.pid for process in found}
    for process in found:
        if farewell and process.parent not in pids:  # the guardian, who passes it on
            kernel.send(process, signal.SIGTERM)
    until = time.monotonic() + farewell
    while time.monotonic() < until and _found(marks):
        time.sleep(_LOOK)
    left = [pid for mark in marks for pid in sweep.sweep(mark, KILLING)]
    return GOES_ON if left else ENDED_THERE


def is_seen(mark: int) -> bool:
    """On the host: whether there is something that carries this mark."""
    return bool(_found([mark]))


def _found(marks: Collection[int]) -> List[Process]:
    marked = sweep.marked()
    return [process for mark in marks for process in marked.get(mark, [])]


def kill(arguments: Mapping[str, Any]) -> int:
    """An errand: end what is in containers of this machine whose engine does not do it.

    Args:
        arguments: ``marks``, their numbers.

    Returns:
        Exit status: 0: it was ended; 1: some of it goes on; 2: there is nothing to be seen.
    """
    return (ENDED_THERE, GOES_ON, UNSEEN).index(end([int(mark) for mark in arguments["marks"]]))
