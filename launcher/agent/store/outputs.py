"""Errand: a folder of its own for what each task of a run makes, on its host, until the run is over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.store.home import Lock, open_store
from launcher.agent.store.talk import speak
from launcher.agent.store.work import Run
from launcher.model.luggage import OUTPUTS, check_path

if TYPE_CHECKING:
    from typing import Any, Dict

    from launcher.agent.store.talk import Talk


def make(arguments: Dict[str, Any]) -> int:
    """Errand: ``{"job": its name, "names": [...], "mode": 448}``; the answer has their paths, in order."""
    return speak(_make, arguments)


def _make(talk: Talk, arguments: Dict[str, Any]) -> None:
    store = open_store()
    with Lock(f"{store.root}/lock") as busy, Lock(store.place_lock) as lock:
        busy.share(talk.alive)
        lock.take(talk.alive)
        run = Run(store, str(arguments["job"]))
        mode = int(arguments["mode"])
        paths = [_made(f"{run.folder}/{OUTPUTS}", str(name), mode) for name in arguments["names"]]
        run.used()
    talk.tell(done=paths)


def _made(top: str, name: str, mode: int) -> str:
    """A folder; those above it are for us alone."""
    check_path(name)
    path = f"{top}/{name}"
    os.makedirs(top, mode=0o700, exist_ok=True)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)
    return path
