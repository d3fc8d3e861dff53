"""Folders of runs: made by a sync, used by the tasks, removed at the end of the run, or when it is long dead.

Home folders are shared between machines, so several hosts may use one folder of a run: the first that
comes makes it. Nobody can see from here whether the launcher of a run still lives, nor what happens on other
machines. So a folder that nobody finished goes only when this machine has seen twice, a day apart, that no
process of that run is left, and no other machine uses it.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from launcher.agent.store import spare
from launcher.agent.store.blobs import Blobs
from launcher.agent.store.home import Lock, Store, jobs, open_store, store_of_user
from launcher.agent.store.place import exchange, uses
from launcher.agent.store.talk import speak
from launcher.agent.store.tree import remove
from launcher.model.luggage import LuggageError, check_path, entries_of

if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from launcher.agent.store.talk import Talk

#: Seconds between the two looks that must both find nobody.
_QUARANTINE = 24 * 3600.0


class Run:
    """The folder of one run, and what is known about it. Only for whoever has the place lock.

    Args:
        store: where.
        job: the run's name.
    """

    def __init__(self, store: Store, job: str) -> None:
        check_path(job)
        if "/" in job or job.startswith("."):
            raise LuggageError(f"{job!r} can't be the name of a run")
        self.folder = f"{store.work}/{job}"
        self.job = job
        self._store = store
        self._notes = f"{store.work}/.{job}"
        known = self._read()
        #: Digest of the manifest of each tree, and when it was complete (file system's clock, nanoseconds).
        self.trees: Dict[str, str] = dict(known.get("trees", {}))
        self.built: Dict[str, int] = dict(known.get("built", {}))
        #: Names of the machines that use it, and when each first found nobody of the run there (0: never).
        self.machines: Dict[str, float] = dict(known.get("machines", {}))

    def _read(self) -> Dict[str, Any]:
        try:
            with open(self._notes, encoding="ascii") as file:
                found = json.load(file)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, **machines: float) -> None:
        """Write down what is known; this machine uses it."""
        self.machines.update(machines)
        new = self._store.new()
        with open(new, "w", encoding="ascii") as file:
            json.dump({"trees": self.trees, "built": self.built, "machines": self.machines}, file)
        os.replace(new, self._notes)

    def used(self) -> None:
        """This machine uses it now."""
        self.note(**{_machine(): 0.0})

    def settle(self, name: str, manifest: str, new: str, alive: Callable[[], None]) -> None:
        """Put a complete new tree in its place."""
        path = f"{self.folder}/{name}"
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.trees[name] = manifest
        self.built[name] = self._clock()
        if os.path.lexists(path):
            exchange(new, path)
            remove(new, alive)
        else:
            os.rename(new, path)
        self.used()

    def _clock(self) -> int:
        """What time it is for the file system."""
        path = self._store.new()
        os.mkdir(path)
        try:
            return os.stat(path).st_ctime_ns
        finally:
            os.rmdir(path)

    def park(self, alive: Callable[[], None]) -> None:
        """The run is over as it should be: keep its trees for the next, and what they held besides goes."""
        blobs = Blobs(self._store)
        for name, manifest in self.trees.items():
            entries = entries_of(blobs.read(manifest) or b"[]")
            if entries and os.path.isdir(f"{self.folder}/{name}"):
                spare.park(
                    self._store, name, f"{self.folder}/{name}", entries, self.built.get(name, 0), alive
                )
        self.remove(alive)

    def remove(self, alive: Callable[[], None]) -> None:
        """Away with it: first out of sight, then for good."""
        new = self._store.new()
        try:
            os.rename(self.folder, new)
        except FileNotFoundError:
            pass
        try:
            os.unlink(self._notes)
        except FileNotFoundError:
            pass
        remove(new, alive)

    def is_dead(self, now: float) -> bool:
        """Whether nobody can want it any more; notes what this machine sees."""
        machine = _machine()
        if uses(self.folder, self.job):
            if self.machines.get(machine):
                self.used()
            return False
        since = self.machines.get(machine, 0.0)
        if not 0 < since <= now:
            self.note(**{machine: now})
            return False
        if now - since < _QUARANTINE:
            return False
        return all(0 < other <= now - _QUARANTINE for other in self.machines.values())


def _machine() -> str:
    return os.uname().nodename


def clean_up(store: Store, talk: Talk) -> None:
    """Remove what runs and syncs left that were killed. Only for whoever has the store alone."""
    for name in os.listdir(store.tmp):
        remove(f"{store.tmp}/{name}", talk.alive)
    with Lock(store.place_lock) as lock:
        lock.take(talk.alive)
        for job in jobs(store):
            run = Run(store, job)
            if run.is_dead(time.time()):
                run.remove(talk.alive)
            talk.alive()


def finish(arguments: Dict[str, Any]) -> int:
    """Errand: the run is over, remove its folders. ``{"job": its name}``."""
    return speak(_finish, arguments)


def _finish(talk: Talk, arguments: Dict[str, Any]) -> None:
    discard(str(arguments["job"]), talk.pulse, keep=True)
    talk.tell(done=True)


def discard(job: str, alive: Callable[[], None], keep: bool = False) -> None:
    """Remove the folders of a run that is over, whoever knows that it is. None may be there.

    Args:
        job: its name.
        alive: called often.
        keep: whether its trees may be kept for the next run.

    Raises:
        OSError, Failed: something of it can't be removed.
    """
    if not os.path.isdir(store_of_user().work):
        return
    store = open_store()
    with Lock(store.place_lock) as lock:
        lock.take(alive)
        run = Run(store, job)
        run.park(alive) if keep else run.remove(alive)
    for folder in (store.work, store.tmp):
        try:
            os.rmdir(folder)
        except OSError:
            continue  # another run's are in there
