"""Who brings the rows; and what a program of TensorFlowOnSpark may say that can't be."""

from __future__ import annotations

import enum
from typing import Any

from launcher.errors import Fault


class InputMode(enum.IntEnum):
    """Where the rows come from."""

    TENSORFLOW = 0  #: the function reads them itself
    SPARK = 1  #: the program feeds them: `TFCluster.train` and `TFCluster.inference`
    FEED = 1  #: the same, by its own name


def mode_faults(who: str, driver_ps_nodes: bool, input_mode: Any) -> list[Fault]:
    """What a program of TensorFlowOnSpark may say that can't be."""
    faults = []
    if driver_ps_nodes:
        what = "driver_ps_nodes=True: parameter servers run where hosts= has room for them"
        faults.append(Fault(who, what, "expected False; roles: [ps] in a hostfile keeps hosts for them"))
    if input_mode not in tuple(InputMode):
        what = f"input_mode={input_mode!r} is none"
        faults.append(Fault(who, what, "expected InputMode.TENSORFLOW or InputMode.SPARK"))
    return faults
