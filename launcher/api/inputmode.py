"""Who brings the rows; and what a program of TensorFlowOnSpark may say that can't be."""

from __future__ import annotations

import enum
from typing import Any

from launcher.errors import Fault, InputError


class InputMode(enum.IntEnum):
    """Where the rows come from."""

    TENSORFLOW = 0  #: the function reads them itself
    SPARK = 1  #: the program feeds them: `TFCluster.train` and `TFCluster.inference`
    FEED = 1  #: the same, by its own name


def check_run(map_fun: Any, driver_ps_nodes: bool, input_mode: int) -> None:
    """Find what can't be.

    Raises:
        InputError: something can't; all of it at once.
    """
    who = "TFCluster.run"
    faults = check_function(who, map_fun)
    if driver_ps_nodes:
        what = "driver_ps_nodes=True: parameter servers run where hosts= has room for them"
        faults.append(Fault(who, what, "expected False; roles: [ps] in a hostfile keeps hosts for them"))
    if input_mode not in tuple(InputMode):
        what = f"input_mode={input_mode!r} is none"
        faults.append(Fault(who, what, "expected InputMode.TENSORFLOW or InputMode.SPARK"))
    if faults:
        raise InputError(faults)


def check_function(who: str, map_fun: Any) -> list[Fault]:
    """What is wrong with the function that is to be run."""
    if callable(map_fun):
        return []
    what = f"map_fun is a {type(map_fun).__name__}"
    return [Fault(who, what, "expected the function first: there is no SparkContext any more")]
