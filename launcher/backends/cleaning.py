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
    """Return whether a label names a launcher process of this user that has ended beyond doubt.

    Args:
        owner: The label of an object that a launch has made, which contains an `owner_text`.
    """
    process, uid = read_owner(owner) or (None, -1)  # No user has the id -1.
    return process is not None and uid == os.getuid() and fate_of(process) is Fate.DEAD


class Cleaning:
    """Decides about the objects that launches of this user have left. Any thread may use it.

    Args:
        foreign: The names of runs of which everything is removed, unless their launcher is alive on this
            machine.
    """

    def __init__(self, foreign: Collection[str] = ()) -> None:
        """Start without a decision. Of the runs in ``foreign`` everything may be removed."""
        #: The names of the runs of ``--foreign``.
        self._foreign = frozenset(foreign)
        #: The runs of ``--foreign`` of which at least one object may be removed.
        self._removed_runs: set[str] = set()
        #: The runs whose launcher is alive on this machine, so nothing of them may be removed.
        self._runs_with_live_launchers: set[str] = set()
        #: The objects whose launcher may be alive, by run and machine.
        self._undecided: dict[tuple[str, str], list[str]] = {}

    def may_remove(self, run: str, owner: str, name: str) -> bool:
        """Decide whether an object may be removed.

        An object of another user, or of a launcher that is alive on this machine, never may. An object of a
        run in ``--foreign``, or of a launcher that has surely ended, may. Every other object is left alone,
        because its launcher may run on another machine. The decision is remembered for `notes` and `faults`.

        Args:
            run: The name of the object's run.
            owner: The object's label that names the launcher process. Empty if there is no such label.
            name: The name of the object for the user.

        Returns:
            Whether it may be removed. If not, `notes` or `faults` may say why.
        """
        # Without a label that can be read, the object counts as one of this user.
        launcher, uid = read_owner(owner) or (None, os.getuid())
        if uid != os.getuid():
            return False
        if launcher is not None and is_alive(launcher):
            self._runs_with_live_launchers.add(run)
            return False
        if run in self._foreign:
            self._removed_runs.add(run)
            return True
        if launcher is not None and fate_of(launcher) is Fate.DEAD:
            return True
        machine = "an unknown machine" if launcher is None else launcher.machine
        self._undecided.setdefault((run, machine), []).append(name)
        return False

    def notes(self) -> Iterable[str]:
        """Yield a line for each run of which something was left alone because nobody knows its launcher."""
        for (run, machine), names in sorted(self._undecided.items()):
            run, machine = sanitize_host_text(run), sanitize_host_text(machine)
            # A launcher of this machine would be known to live or to have ended, unless the label is from
            # another machine with the same name, or from an earlier boot.
            if machine == os.uname().nodename:
                machine = f"another {machine}, or on this one before it was restarted"
            objects = join_names(sorted(map(sanitize_host_text, names)), _MAX_NAMED_OBJECTS)
            why = f"left alone, because the launcher of {run}, on {machine}, may still run"
            yield f"{objects}: {why}; `launch clean --foreign {run}` removes what this run has left"

    def faults(self) -> Iterable[str]:
        """Yield a line for each run of ``--foreign`` of which nothing could be removed."""
        for run in sorted(self._foreign - self._removed_runs):
            if run in self._runs_with_live_launchers:
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
