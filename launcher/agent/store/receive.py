"""Errand of a sync: say what is missing, take it in, make the trees, put them in their places.

::

    host                                          launcher
                                                  {job, limit, trees: [{number, manifest, size,
                                                                      earlier, name, remote}]}
    {need: "manifests", of: [[0, 16, signature]]} stream: these manifests, or what makes
                                                  them of earlier ones (`luggage.manifests`)
    {need: "contents", tree: 0, which: "0-7,9",   stream: the contents of these entries,
     squeeze: true}                               squeezed if the host says that it can unpack that
    ...                                           (until nothing is missing)
    {done: paths}

``{bad: paths}`` instead says that these contents were others than the manifest says: files that changed on
the way. ``{failed: text}`` says that it can't be done, and why.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.store import place, spare
from launcher.agent.store.blobs import Blobs
from launcher.agent.store.home import Failed, Lock, Store, check_room, open_store
from launcher.agent.store.talk import speak
from launcher.agent.store.tree import Sources, build, remove, set_folder_modes
from launcher.agent.store.work import Run, clean_up
from launcher.model.delta import Base
from launcher.model.luggage import FILE, LuggageError, check_path, entries_of, spell
from launcher.model.shrinking import can_squeeze

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

    from launcher.agent.store.talk import Talk
    from launcher.model.luggage import Data, Entry

#: How often contents may turn out to be damaged or gone before it is the disk's fault.
_ROUNDS = 4


def sync(arguments: Dict[str, Any]) -> int:
    """Errand: see above."""
    return speak(_sync, arguments)


def _sync(talk: Talk, arguments: Dict[str, Any]) -> None:
    store = open_store()
    with Lock(f"{store.root}/lock") as lock:
        if lock.alone():
            clean_up(store, talk)
        lock.share(talk.alive)
        visit = _Visit(talk, store, str(arguments["job"]))
        try:
            paths = [visit.bring(tree, *visit.manifest(tree)) for tree in visit.trees(arguments["trees"])]
        except _Changed as changed:
            talk.tell(bad=changed.paths)
            return
        if visit.took and lock.alone():
            visit.blobs.prune(int(arguments["limit"]))
    talk.tell(done=paths)


class _Changed(Exception):
    """Contents were others than the manifest says."""

    def __init__(self, paths: List[str]) -> None:
        super().__init__(paths)
        self.paths = paths


class _Visit:
    """One sync, from the host's side."""

    def __init__(self, talk: Talk, store: Store, job: str) -> None:
        self._talk = talk
        self._store = store
        self._job = job
        self.blobs = Blobs(store)
        #: Whether anything was added to the cache.
        self.took = False

    def trees(self, trees: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """The same, when their manifests are here: told as changes of earlier ones, or else as a whole."""
        for base in (self._earlier, _nothing):
            lacking = [one for one in trees if not self._is_known(one)]
            if lacking:
                self._take_manifests(lacking, [base(one) for one in lacking])
        return trees

    def _is_known(self, tree: Dict[str, Any]) -> bool:
        return self.blobs.has(tree["manifest"], tree["size"]) and bool(self.blobs.read(tree["manifest"]))

    def _earlier(self, tree: Dict[str, Any]) -> Base:
        """The latest of its earlier manifests that is here."""
        return Base(next(filter(None, map(self.blobs.read, tree["earlier"])), b""))

    def _take_manifests(self, trees: List[Dict[str, Any]], bases: List[Base]) -> None:
        of = [[tree["number"], base.each, base.signature] for tree, base in zip(trees, bases)]
        self._talk.tell(need="manifests", of=of)
        for tree, base in zip(trees, bases):
            self._take(tree["manifest"], base.patched(self._talk.stream, tree["size"]))

    def _take(self, content: str, pieces: Iterable[Data]) -> bool:
        self.took = True
        return self.blobs.add(content, pieces)

    def manifest(self, tree: Dict[str, Any]) -> Tuple[bytes, List[Entry]]:
        """A manifest as it is, and what it lists."""
        manifest = self.blobs.read(tree["manifest"])
        if not manifest:
            raise Failed(f"{self._store.blobs} does not keep what is written to it; is the disk well?")
        return manifest, entries_of(manifest)

    def bring(self, tree: Dict[str, Any], manifest: bytes, entries: List[Entry]) -> str:
        """Get what is missing of a tree, and put it in its place.

        Returns:
            Its path.
        """
        target: _Target
        if tree["remote"] is None:
            target = _RunFolder(self._store, self.blobs, self._job, tree["name"], tree["manifest"])
        else:
            target = _Remote(self.blobs, place.place_named(tree["remote"]), tree["manifest"])
        for _ in range(_ROUNDS):
            self._fetch(tree, entries, target)
            with target.lock() as lock:
                lock.take(self._talk.alive)
                found = target.put(manifest, entries, self._talk)
            if found is not None:
                return target.path
        raise Failed(f"{self._store.blobs} does not keep what is written to it; is the disk well?")

    def _fetch(self, tree: Dict[str, Any], entries: List[Entry], target: _Target) -> None:
        sources = target.sources(self._talk.alive)
        lacking: Dict[str, int] = {}
        for index, entry in enumerate(entries):
            if entry.kind == FILE and entry.content not in lacking and not sources.have(entry):
                lacking[entry.content] = index
        if not lacking:
            return
        wanted = [entries[index] for index in lacking.values()]
        check_room(self._store.root, sum(entry.size for entry in wanted))
        which = spell(lacking.values())
        self._talk.tell(need="contents", tree=tree["number"], which=which, squeeze=can_squeeze())
        stream = self._talk.stream
        bad = [entry.path for entry in wanted if not self._take(entry.content, stream(entry.size))]
        if bad:
            raise _Changed(bad[:100])


def _nothing(_: Dict[str, Any]) -> Base:
    return Base(b"")


class _Target:
    """Where a tree is to go."""

    path: str

    def lock(self) -> Lock:
        """What to hold meanwhile."""
        raise NotImplementedError

    def sources(self, alive: Callable[[], None]) -> Sources:
        """Where its files can come from, as far as that can be seen without the lock."""
        raise NotImplementedError

    def put(self, manifest: bytes, entries: Sequence[Entry], talk: Talk) -> Optional[bool]:
        """Make the tree and put it there.

        Returns:
            ``None``: contents are missing.
        """
        raise NotImplementedError


class _RunFolder(_Target):
    """A folder of this run."""

    def __init__(self, store: Store, blobs: Blobs, job: str, name: str, manifest: str) -> None:
        check_path(name)
        if "/" in name:
            raise LuggageError(f"{name!r} can't be the name of a folder")
        self._store, self._blobs, self._job, self._name = store, blobs, job, name
        self._manifest = manifest
        self.path = f"{store.work}/{job}/{name}"

    def lock(self) -> Lock:
        return Lock(self._store.place_lock)

    def sources(self, alive: Callable[[], None]) -> Sources:
        found = spare.find(self._store, self._name)
        return Sources(self._blobs, alive, found.tree, found.files)

    def put(self, manifest: bytes, entries: Sequence[Entry], talk: Talk) -> Optional[bool]:
        run = Run(self._store, self._job)
        if run.trees.get(self._name) == self._manifest and os.path.isdir(self.path):
            run.used()  # another host, which shares this home, has made it
            return True
        new, old = self._store.new(), spare.take(self._store, self._name)
        sources = Sources(self._blobs, talk.alive, old.tree, old.files, spare=True)
        try:
            if _build(new, entries, sources, self.path, talk):
                return None
            set_folder_modes(entries, new)
            run.settle(self._name, self._manifest, new, talk.alive)
        finally:
            remove(new, talk.pulse)
            remove(old.folder, talk.pulse)
        return True


class _Remote(_Target):
    """A folder that the user named."""

    def __init__(self, blobs: Blobs, path: str, manifest: str) -> None:
        self._blobs, self.path, self._manifest = blobs, path, manifest

    def lock(self) -> Lock:
        return place.claim(self.path)

    def sources(self, alive: Callable[[], None]) -> Sources:
        with self.lock() as lock:
            lock.take(alive)
            return self._sources(place.look(self.path, alive), alive)

    def _sources(self, standing: place.Standing, alive: Callable[[], None]) -> Sources:
        return Sources(self._blobs, alive, standing.path, standing.brought, stays=True)

    def put(self, manifest: bytes, entries: Sequence[Entry], talk: Talk) -> Optional[bool]:
        standing = place.look(self.path, talk.alive)
        if place.is_unchanged(standing, self._manifest):
            return True
        place.check_unused(standing)
        new = place.beside(standing)
        try:
            if _build(new, entries, self._sources(standing, talk.alive), self.path, talk):
                return None
            place.settle(standing, new, entries, manifest, talk.alive)
        finally:
            remove(new, talk.pulse)
        return True


def _build(new: str, entries: Sequence[Entry], sources: Sources, path: str, talk: Talk) -> Set[str]:
    check_room(os.path.dirname(path), sum(entry.size for entry in entries if not sources.can_link(entry)))
    return build(entries, new, sources, talk.alive)
