"""Asking ``nvidia-smi``, where there is one, without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.inquiry import Inquiry
from launcher.agent.old_spawn import CannotStart, Spawner

if TYPE_CHECKING:
    from typing import Tuple

_COMMAND = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")
#: Seconds it may take: it loads the driver where nothing else has.
PATIENCE = 15.0


def ask_for_gpus(spawner: Spawner) -> Inquiry:
    """Start it, if there is one."""
    try:
        pid, output, _ = spawner.spawn(_COMMAND, {})
    except CannotStart:
        return Inquiry(None, None, PATIENCE)
    return Inquiry(pid, output, PATIENCE)


def read_gpus(said: bytes) -> Tuple[str, ...]:
    """What it said, a line a GPU."""
    lines = said.decode("utf-8", "replace").splitlines()
    return tuple(line.strip() for line in lines if line[:1].isdigit())
