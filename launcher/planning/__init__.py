"""Planning: job and hosts in, the plan out. Pure: nothing here asks the machine anything.

Two steps, because ports come in between: `place` says who runs where, the agents then hold
a port for each task, and `assemble` makes the commands and environments that name those ports.
"""

from __future__ import annotations

from launcher.planning.assembly import assemble
from launcher.planning.commands import check_program_args
from launcher.planning.placement import place

__all__ = ["assemble", "check_program_args", "place"]
