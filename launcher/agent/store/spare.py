"""Trees of runs that are over: the next run of the same folder takes their files, instead of making new ones.

Making a file costs more than all else that a sync does on a host, by far so on a home that is on the network.
Tasks may have changed what was theirs, so a file is taken again only if size, permissions and times are
those it was made with, the time of its last change of any kind (which nobody can set) included.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from launcher.agent.store.home import Store
from launcher.agent.store.tree import is_as_brought, remove
from launcher.model.luggage import FILE, FOLDER, Entry, digest_of

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Sequence

#: How many are kept, and how many bytes of all of them.
MOST, LIMIT = 4, 512 * 1024**2


class Spare(NamedTuple):
    """A tree that is to spare."""

    #: Its folder; the tree is in ``tree`` within.
    folder: str
    #: Its files that are as they were made.
    files: Sequence[Entry] = ()

    @property
    def tree(self) -> str:
        """Where the files are."""
        return f"{self.folder}/tree"


def find(store: Store, name: str) -> Spare:
    """The spare tree of a folder of this name; one without files if there is none."""
    folder = _folder(store, name)
    try:
        with open(f"{folder}/notes", encoding="ascii") as file:
            notes = json.load(file)
        files = [Entry(*row) for row in notes["files"]]
        built = int(notes["built"])
    except (OSError, ValueError, KeyError, TypeError):
        return Spare(folder)
    return Spare(folder, [entry for entry in files if is_untouched(f"{folder}/tree", entry, built)])


def take(store: Store, name: str) -> Spare:
    """The same, and nobody else has it any more. Only for whoever has the place lock."""
    found, new = find(store, name), store.new()
    try:
        os.rename(found.folder, new)
    except FileNotFoundError:
        return Spare(new)
    return found._replace(folder=new)


def park(
    store: Store, name: str, tree: str, entries: Sequence[Entry], built: int, alive: Callable[[], None]
) -> None:
    """Keep a tree whose run is over, if it is not too big. Only for whoever has the place lock.

    Args:
        store: where.
        name: of its folder.
        tree: where it is; it is moved.
        entries: what it was made of.
        built: when it was complete, by the file system's clock, nanoseconds since 1970.
        alive: called often.
    """
    if sum(entry.size for entry in entries) > LIMIT:
        return
    files = _strip(tree, entries, built, alive)
    new, folder = store.new(), _folder(store, name)
    os.makedirs(store.spare, mode=0o700, exist_ok=True)
    os.mkdir(new, 0o700)
    os.rename(tree, f"{new}/tree")
    with open(f"{new}/notes", "w", encoding="ascii") as file:
        json.dump({"files": files, "built": built, "size": sum(entry.size for entry in files)}, file)
    remove(folder, alive)
    os.rename(new, folder)
    _prune(store, alive)


def is_untouched(root: str, entry: Entry, built: int) -> bool:
    """Whether nobody has changed this file since the tree was complete."""
    return is_as_brought(root, entry) and os.lstat(f"{root}/{entry.path}").st_ctime_ns <= built


def _strip(root: str, entries: Sequence[Entry], built: int, alive: Callable[[], None]) -> List[Entry]:
    """Remove whatever is not as it was made; folders can be written to afterwards.

    Returns:
        The files that are left.
    """
    wanted: Dict[str, Entry] = {entry.path: entry for entry in entries}
    left: List[Entry] = []
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        alive()
        os.chmod(f"{root}/{folder}", 0o700)
        with os.scandir(f"{root}/{folder}") as items:
            for item in items:
                path = f"{folder}/{item.name}" if folder else item.name
                entry = wanted.get(path)
                if entry is not None and entry.kind == FOLDER and item.is_dir(follow_symlinks=False):
                    ahead.append(path)
                elif entry is not None and entry.kind == FILE and is_untouched(root, entry, built):
                    left.append(entry)
                else:
                    remove(item.path, alive)
    return left


def _folder(store: Store, name: str) -> str:
    return f"{store.spare}/{digest_of(os.fsencode(name))[:16]}"


def _prune(store: Store, alive: Callable[[], None]) -> None:
    """Let the oldest go until the rest is within the limits."""
    found = sorted((os.stat(path).st_mtime_ns, path) for path in _all(store))
    sizes = {path: _size(path) for _, path in found}
    for _, path in found:
        if len(sizes) <= MOST and sum(sizes.values()) <= LIMIT:
            return
        remove(path, alive)
        del sizes[path]


def _all(store: Store) -> List[str]:
    return [f"{store.spare}/{name}" for name in os.listdir(store.spare)]


def _size(folder: str) -> int:
    try:
        with open(f"{folder}/notes", encoding="ascii") as file:
            return int(json.load(file)["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
