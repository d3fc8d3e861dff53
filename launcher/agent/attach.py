"""An errand: brings a new connection to the porter that lives here, and stays while it is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.agent.door import await_release, knock
from launcher.stream import refusal

if TYPE_CHECKING:
    from typing import Any, Mapping


def main(arguments: Mapping[str, Any]) -> int:
    """Hand our stdin and stdout to the porter, and wait until it lets go of them.

    Args:
        arguments: ``token`` of the porter, ``attempt`` (a number that rises with each connection), ``age``:
            seconds since the porter was started.

    Returns:
        Exit status: 1 if there is no such porter; the connection says so too.
    """
    door = knock(str(arguments["token"]), int(arguments["attempt"]), 0, 1)
    if door is None:
        _refuse(float(arguments["age"]))
        return 1
    said = await_release(door)
    if said:
        sys.stderr.write(f"{said}\n")
    return 0


def _refuse(age: float) -> None:
    up = _uptime()
    restarted = f": the host was restarted {up:.0f} s ago" if 0 < up < age else ""
    sys.stdout.buffer.write(refusal(f"its agent ended while the connection was down{restarted}"))
    sys.stdout.buffer.flush()


def _uptime() -> float:
    """Seconds since this host was started; 0: not known."""
    try:
        with open("/proc/uptime", "rb") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
