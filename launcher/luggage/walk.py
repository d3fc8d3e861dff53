"""Which files of a folder travel, and what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from launcher.errors import Fault, JobError
from launcher.luggage.copies import Copies
from launcher.luggage.hashes import Hashes, Stamp, now, stamp_of
from launcher.luggage.ignore import GIT_FOLDER, RULE_FILES, Rules, read_rules
from launcher.luggage.leftout import Ignored, is_worth_noting
from launcher.model.luggage import (
    FILE,
    FOLDER,
    LINK,
    MAX_ENTRIES,
    MAX_MANIFEST,
    SYNC_MARK,
    Entry,
    digest,
    digest_of,
    manifest_of,
)

_PIECE = 1024 * 1024
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
    hashes.save()
    manifest = manifest_of(look.entries)
    if len(manifest) > MAX_MANIFEST:
        raise _too_many(root)
    entries = sorted(look.entries)
    vanished = sorted(look.vanished)
    return Tree(
        root, entries, manifest, digest_of(manifest), look.left_out, look.ignored, look.copies, vanished
    )


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
        ahead: list[tuple[bytes, tuple[tuple[Rules, ...], ...]]] = [(b"", above)]
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
                (_own(self._root, folder, name, names, start), *known) if name in names else known
                for name, known in zip(map(str.encode, RULE_FILES), rules, strict=True)
            )
            for item in items:
                path = folder + b"/" + item.name if folder else item.name
                if self._take(item, path, start, rules):
                    ahead.append((path, rules))
            if len(self.entries) > MAX_ENTRIES:
                raise _too_many(os.fsdecode(self._root))

    def _take(
        self, item: os.DirEntry[bytes], path: bytes, start: bytes, rules: tuple[tuple[Rules, ...], ...]
    ) -> bool:
        """Note one thing that was found.

        Returns:
            Whether it is a folder to look into.
        """
        if item.name in (GIT_FOLDER.encode(), SYNC_MARK.encode()) or item.path in self._without:
            return False
        is_folder = item.is_dir(follow_symlinks=False)
        name = os.fsdecode(path)
        rule_file = _ignored_by(start + path, is_folder, rules)
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
            found = None if name in self._restless else _read_twice(path)
            stamp, content = found or self.copies.take(name, path)
            if found is not None:
                self._hashes.put(name, stamp, content, began)
        return Entry(name, FILE, stat.S_IMODE(status.st_mode) & 0o777, stamp.size, stamp.mtime, content)


def _read_twice(path: bytes) -> tuple[Stamp, str] | None:
    """A file's digest; one that changes meanwhile gets a second chance.

    Returns:
        ``None``: it changed both times.

    Raises:
        OSError: it can't be read.
    """
    for _ in range(2):
        before, content, after = _read(path)
        if before == after:
            return after, content
    return None


def _read(path: bytes) -> tuple[Stamp, str, Stamp]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = stamp_of(os.fstat(fd))
        seen = digest()
        while piece := os.read(fd, _PIECE):
            seen.update(piece)
        return before, seen.hexdigest(), stamp_of(os.fstat(fd))
    finally:
        os.close(fd)


def _ignored_by(path: bytes, is_folder: bool, rules: tuple[tuple[Rules, ...], ...]) -> str:
    """The kind of rule file that leaves it out; empty: none does.

    The last kind wins; of one kind, the file in the deepest folder.
    """
    for name, kind in zip(reversed(RULE_FILES), reversed(rules), strict=True):
        for one in kind:
            verdict = one.verdict(path, is_folder)
            if verdict is not None:
                return name if verdict else ""
    return ""


def _own(root: bytes, folder: bytes, name: bytes, names: set[bytes], start: bytes) -> Rules:
    """The rules in a folder's own rule file."""
    path = b"/".join(filter(None, (root, folder, name)))
    depth = len(start) + (len(folder) + 1 if folder else 0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Rules(depth)  # a link counts for nothing, as in git; what can't be read fails as a file
    with open(fd, "rb") as file:
        return read_rules(file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b"", depth)


def rules_above(root: bytes) -> tuple[tuple[tuple[Rules, ...], ...], bytes]:
    """The rules in the folders above, up to the top of the git repository that the folder is in.

    Returns:
        For each kind of rule file, the deepest folder first; and what leads from the top of the repository
        to the folder, with a slash at its end. Nothing, if it is in none, or is ignored itself.
    """
    none: tuple[tuple[tuple[Rules, ...], ...], bytes] = (tuple(() for _ in RULE_FILES), b"")
    above = list(_up_to_repository(root))
    if not above:
        return none
    top = above[-1]
    rules: tuple[tuple[Rules, ...], ...] = none[0]
    for folder in reversed(above):
        inside = folder[len(top) + 1 :]
        rules = tuple(
            (_own(top, inside, name, {name}, b""), *known)
            for name, known in zip(map(str.encode, RULE_FILES), rules, strict=True)
        )
        below = root[len(folder) + 1 :].split(b"/")[0]
        if _ignored_by(inside + b"/" + below if inside else below, True, rules):
            return none
    return rules, root[len(top) + 1 :] + b"/"


def _up_to_repository(root: bytes) -> Iterator[bytes]:
    """The folders above, from the nearest to the top of the repository; none if there is no repository."""
    if os.path.lexists(root + b"/" + GIT_FOLDER.encode()):
        return
    above: list[bytes] = []
    folder = os.path.dirname(root)
    while folder != b"/":
        above.append(folder)
        if os.path.lexists(folder + b"/" + GIT_FOLDER.encode()):
            yield from above
            return
        folder = os.path.dirname(folder)


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
