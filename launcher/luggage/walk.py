"""Which files of a folder travel, and what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from typing import NamedTuple

from launcher.errors import Fault, JobError
from launcher.luggage.copies import Copies
from launcher.luggage.hashes import Hashes, now, stamp_of
from launcher.luggage.ignore import GIT_FOLDER, RULE_FILES
from launcher.luggage.leftout import Ignored, is_worth_noting
from launcher.luggage.reading import read_twice
from launcher.luggage.rulefiles import RulesByKind, ignored_by, own_rules, rules_above
from launcher.model.luggage import (
    FILE,
    FOLDER,
    LINK,
    MAX_ENTRIES,
    MAX_MANIFEST,
    SYNC_MARK,
    Entry,
    digest_of,
    manifest_of,
)

#: How many paths a message names.
_MOST_NAMED = 20


class Tree(NamedTuple):
    """A folder as it travels."""

    #: Absolute.
    root: str
    entries: Sequence[Entry]
    manifest: bytes
    #: The manifest's digest.
    digest: str
    #: Paths of what can't travel: sockets, pipes, devices.
    left_out: Sequence[str]
    #: What the ignore rules left out at the top levels, as far as anybody may wonder about it.
    ignored: Sequence[Ignored] = ()
    #: Of files that change all the time.
    copies: Copies | None = None
    #: Paths of what was there, and was gone when it was looked at.
    vanished: Sequence[str] = ()
    #: Digests of other manifests that it had before, the latest first: a host may have one of them.
    earlier: Sequence[str] = ()

    @property
    def files(self) -> int:
        """How many files."""
        return sum(entry.kind == FILE for entry in self.entries)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(entry.size for entry in self.entries)


class Unreadable(NamedTuple):
    """Something that should travel and can't be read."""

    path: str
    why: str


def walk(
    root: str, without: Sequence[str] = (), trusted: bool = True, restless: Collection[str] = ()
) -> Tree:
    """Look at a folder, and read what is new in it.

    Args:
        root: absolute, links resolved.
        without: absolute paths that do not travel, whatever the rules say: the run's own folder.
        trusted: whether what is remembered of the last time counts.
        restless: files in it that change all the time: what travels of them is a copy. So it is with others
            that change while they are read.

    Raises:
        JobError: something can't be read: all of that at once.
    """
    hashes = Hashes(root, trusted)
    look = _Look(root, frozenset(map(os.fsencode, without)), hashes, frozenset(restless))
    look.everywhere()
    if look.vanished:  # folders among them were noted before they were looked into
        look.entries = [entry for entry in look.entries if entry.path not in look.vanished]
    if look.unreadable:
        raise _error(root, look.unreadable)
    manifest = manifest_of(look.entries)
    if len(manifest) > MAX_MANIFEST:
        raise _too_many(root)
    name = digest_of(manifest)
    earlier = [one for one in hashes.manifests if one != name]
    hashes.save(name)
    entries, vanished = sorted(look.entries), sorted(look.vanished)
    return Tree(root, entries, manifest, name, look.left_out, look.ignored, look.copies, vanished, earlier)


class _Look:
    """One walk. Paths are bytes here, as the system has them."""

    def __init__(
        self, root: str, without: frozenset[bytes], hashes: Hashes, restless: frozenset[str]
    ) -> None:
        self._root = os.fsencode(root)
        self._without = without
        self._hashes = hashes
        self._restless = restless
        self.copies = Copies()
        self.vanished: list[str] = []
        self.entries: list[Entry] = []
        self.left_out: list[str] = []
        self.ignored: list[Ignored] = []
        self.unreadable: list[Unreadable] = []

    def everywhere(self) -> None:
        """Look into the folder, and all that are in it and travel."""
        above, start = rules_above(self._root)
        ahead: list[tuple[bytes, RulesByKind]] = [(b"", above)]
        while ahead:
            folder, rules = ahead.pop()
            try:
                with os.scandir(self._root + b"/" + folder) as found:
                    items = list(found)
            except OSError as error:
                self._failed(folder, error)
                continue
            names = {item.name for item in items}
            rules = tuple(
                (own_rules(self._root, folder, name, start), *known) if name in names else known
                for name, known in zip(map(str.encode, RULE_FILES), rules, strict=True)
            )
            for item in items:
                path = folder + b"/" + item.name if folder else item.name
                if self._take(item, path, start, rules):
                    ahead.append((path, rules))
            if len(self.entries) > MAX_ENTRIES:
                raise _too_many(os.fsdecode(self._root))

    def _take(self, item: os.DirEntry[bytes], path: bytes, start: bytes, rules: RulesByKind) -> bool:
        """Note one thing that was found.

        Returns:
            Whether it is a folder to look into.
        """
        if item.name in (GIT_FOLDER.encode(), SYNC_MARK.encode()) or item.path in self._without:
            return False
        is_folder = item.is_dir(follow_symlinks=False)
        name = os.fsdecode(path)
        rule_file = ignored_by(start + path, is_folder, rules)
        if rule_file:
            if is_worth_noting(name, len(self.ignored)):
                self.ignored.append(Ignored(name, is_folder, rule_file))
            return False
        try:
            status = item.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                self.entries.append(self._file(item.path, name, status))
            elif stat.S_ISLNK(status.st_mode):
                self.entries.append(Entry(name, LINK, content=os.fsdecode(os.readlink(item.path))))
            elif is_folder:
                self.entries.append(Entry(name, FOLDER, stat.S_IMODE(status.st_mode) & 0o777))
            else:
                self.left_out.append(name)
        except OSError as error:
            self._failed(path, error)
        return is_folder

    def _failed(self, path: bytes, error: OSError) -> None:
        if path and isinstance(error, FileNotFoundError):
            self.vanished.append(os.fsdecode(path))
            return
        self.unreadable.append(Unreadable(os.fsdecode(path) or ".", error.strerror or str(error)))

    def _file(self, path: bytes, name: str, status: os.stat_result) -> Entry:
        stamp = stamp_of(status)
        content = None if name in self._restless else self._hashes.get(name, stamp)
        if content is None:
            began = now()
            found = None if name in self._restless else read_twice(path)
            stamp, content = found or self.copies.take(name, path)
            if found is not None:
                self._hashes.put(name, stamp, content, began)
        return Entry(name, FILE, stat.S_IMODE(status.st_mode) & 0o777, stamp.size, stamp.mtime, content)


def travels(tree: Tree, path: str) -> bool:
    """Whether a folder of the tree travels, given relative to it."""
    return not path or any(entry.path == path and entry.kind == FOLDER for entry in tree.entries)


def _error(root: str, unreadable: Sequence[Unreadable]) -> JobError:
    advice = f"make them readable, or leave them out with a line in {os.path.join(root, RULE_FILES[-1])}"
    some = sorted(unreadable)[:_MOST_NAMED]
    faults = [Fault("--sync", f"{os.path.join(root, path)!r} can't be read: {why}") for path, why in some]
    more = len(unreadable) - len(some)
    last = Fault("--sync", f"and {more} more" if more else f"nothing of {root!r} travels", advice)
    return JobError([*faults, last])


def _too_many(root: str) -> JobError:
    advice = f"expected a smaller folder, or lines in {os.path.join(root, RULE_FILES[-1])}"
    return JobError([Fault("--sync", f"{root!r} holds more than {MAX_ENTRIES} files", advice)])
