"""Decides what ``launch clean`` may remove from engines, queues and clusters.

An object may be removed only if its launcher has provably ended, or if the user names its run with
``--foreign``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from launcher.agent.identity import Fate, fate_of, is_alive, read_owner
from launcher.common.record import Record
from launcher.common.text import join_names, sanitize_host_text
from launcher.config.settings import Settings
from launcher.job import Host

if TYPE_CHECKING:
    from launcher.backends.connections import ProgramRunner

#: The largest number of objects of a run that a line for the user names.
_MAX_NAMED_OBJECTS = 5


def is_dead(owner: str) -> bool:
    """Return whether a label names a process of this user that has ended beyond doubt."""
    found = read_owner(owner)
    return found is not None and found[1] == os.getuid() and fate_of(found[0]) is Fate.DEAD


class Cleaning:
    """Decides about the objects that launches of this user have left. Any thread may use it.

    Args:
        foreign: The names of runs of which everything is removed, unless their launcher is alive on this
            machine.
    """

    def __init__(self, foreign: Collection[str] = ()) -> None:
        self._foreign = frozenset(foreign)
        self._found: set[str] = set()
        self._alive: set[str] = set()
        #: The objects whose launcher may be alive, by run and machine.
        self._unknown: dict[tuple[str, str], list[str]] = {}

    def may_remove(self, run: str, owner: str, name: str) -> bool:
        """Decide whether an object may be removed.

        An object of another user, or of a launcher that is alive on this machine, never may. An object of a
        run in ``--foreign``, or of a launcher that has surely ended, may. Every other object is left alone,
        because its launcher may run on another machine.

        Args:
            run: The name of the object's run.
            owner: The object's label that names the launcher process. Empty if there is no such label.
            name: The name of the object for the user.

        Returns:
            Whether it may be removed. If not, `notes` or `faults` may say why.
        """
        found = read_owner(owner)
        if found is not None and found[1] != os.getuid():
            return False
        if found is not None and is_alive(found[0]):
            self._alive.add(run)
            return False
        if run in self._foreign:
            self._found.add(run)
            return True
        if found is not None and fate_of(found[0]) is Fate.DEAD:
            return True
        machine = "an unknown machine" if found is None else found[0].machine
        self._unknown.setdefault((run, machine), []).append(name)
        return False

    def notes(self) -> Iterable[str]:
        """Yield a line for each run of which something was left alone."""
        for (run, machine), names in sorted(self._unknown.items()):
            run, machine = sanitize_host_text(run), sanitize_host_text(machine)
            if machine == os.uname().nodename:
                machine = f"another {machine}, or on this one before it was restarted"
            what = join_names(sorted(map(sanitize_host_text, names)), _MAX_NAMED_OBJECTS)
            why = f"left alone, because the launcher of {run}, on {machine}, may still run"
            yield f"{what}: {why}; `launch clean --foreign {run}` removes what this run has left"

    def faults(self) -> Iterable[str]:
        """Yield a line for each run of ``--foreign`` of which nothing could be removed."""
        for run in sorted(self._foreign - self._found):
            if run in self._alive:
                yield f"--foreign {run}: its launcher runs on this machine; `launch stop {run}` stops it"
            else:
                expected = "expected the whole name of a run of this user"
                yield f"--foreign {run}: nothing of this run is there; {expected}"


class CleanRequest(Record):
    """What ``launch clean`` asks a backend to remove."""

    settings: Settings
    #: What decides whether an object may be removed.
    cleaning: Cleaning
    #: The hosts from which to remove objects. Empty for this machine.
    named_hosts: tuple[Host, ...]
    #: What runs programs on these hosts.
    programs: ProgramRunner
    #: Whether only to say what would be removed.
    dry_run: bool
