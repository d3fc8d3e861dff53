"""Errand of a collect: find what is wanted, and send it.

Arguments: ``{job, squeeze, wanted: [{number, base, path, had: [[path, size, mtime]]}]}``; whether the
launcher can unpack what is squeezed; and what it had before, over a connection that broke, which does not
come again unless it has changed. What goes to the launcher is a stream of frames within the stream, so that
many small files are shrunk together:

::

    {item: 0, total: [files, bytes]}            what is wanted was found ...
    {item: 0, remark: text}                     ... or something about it must be said
    {item: 0, entry: [path, kind, mode, ...]}   after a file come PLAIN frames with its content, then
    {end: digest}                               the digest of what was sent, or
    {end: "", remark: text}                     why it could not be read to its end
    {over: true}

A tree is sent as it is, with links as links; only what the user named itself may be a link to what is meant.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from typing import TYPE_CHECKING

from launcher.agent.store.home import resolved, store_of_user
from launcher.agent.store.talk import speak
from launcher.agent.store.work import Run
from launcher.model.luggage import (
    FILE,
    FOLDER,
    LINK,
    MAX_ENTRIES,
    PLAIN,
    SYNC_MARK,
    Entry,
    digest,
    framed,
    tell,
)
from launcher.model.shrinking import can_squeeze

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Set, Tuple

    from launcher.agent.store.talk import Talk

_PIECE = 256 * 1024
#: Remarks about one thing that was wanted; more of them help nobody.
_MOST_REMARKS = 20


def collect(arguments: Dict[str, Any]) -> int:
    """Errand: see above."""
    return speak(_collect, arguments)


def _collect(talk: Talk, arguments: Dict[str, Any]) -> None:
    _stay(str(arguments["job"]))
    talk.squeezes = bool(arguments["squeeze"]) and can_squeeze()
    for wanted in arguments["wanted"]:
        _Item(talk, wanted["number"], wanted["had"]).send(wanted["base"], wanted["path"])
    talk.put(tell(over=True))
    talk.flush()


def _stay(job: str) -> None:
    """The run's folders are in use still."""
    store = store_of_user()
    if os.path.isdir(f"{store.work}/{job}"):
        Run(store, job).used()


class _Item:
    """One thing that is wanted.

    Args:
        talk: takes it.
        number: what the launcher calls it.
        had: files of it that came before: path, size, time.
    """

    def __init__(self, talk: Talk, number: int, had: Iterable[Iterable[Any]] = ()) -> None:
        self._talk = talk
        self._number = number
        self._had = frozenset(map(tuple, had))
        self._remarks = 0

    def send(self, base: str, path: str) -> None:
        """Find it and send it."""
        base = resolved(base)
        entries: List[Tuple[str, Entry]] = []
        found = _found(base, path)
        if not found:
            self._remark(f"{path!r} is not there (looked in {base})")
        for source, name in found:
            for one in self._entries(source, name):
                if len(entries) == MAX_ENTRIES:
                    self._remark(f"{path!r} holds more than {MAX_ENTRIES} files: the others are left out")
                    break
                if (one[1].path, one[1].size, one[1].mtime) not in self._had:
                    entries.append(one)
        files = [entry for _, entry in entries if entry.kind == FILE]
        self._tell(total=[len(files), sum(entry.size for entry in files)])
        for source, entry in entries:
            self._send(source, entry)

    def _tell(self, **what: Any) -> None:
        self._talk.put(tell(item=self._number, **what))

    def _remark(self, text: str) -> None:
        self._remarks += 1
        if self._remarks <= _MOST_REMARKS:
            self._tell(remark=text)
        elif self._remarks == _MOST_REMARKS + 1:
            self._tell(remark="there is more of this kind")

    def _entries(self, source: str, name: str) -> Iterator[Tuple[str, Entry]]:
        """A file or a tree, folders before what is in them.

        Args:
            source: where it is.
            name: how it is to be called; empty: only what is in it is wanted.
        """
        ahead = [(source, name)]
        for path, relative in ahead:  # it grows
            self._talk.alive()
            try:
                status = os.stat(path) if path == source and os.path.exists(path) else os.lstat(path)
                entry = _entry(path, relative, status)
                if entry is None:
                    self._remark(f"{path} is neither file, folder nor link: left out")
                    continue
                inside = sorted(os.listdir(path)) if entry.kind == FOLDER else []
            except OSError as error:
                self._remark(f"{path}: {error.strerror}")
                continue
            if relative:
                yield path, entry
            prefix = f"{relative}/" if relative else ""
            ahead += [(f"{path}/{item}", prefix + item) for item in inside if item != SYNC_MARK]

    def _send(self, source: str, entry: Entry) -> None:
        if entry.kind != FILE:
            self._tell(entry=entry)
            return
        try:
            fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._remark(f"{source}: {error.strerror}")
            return
        try:
            self._tell(entry=entry)
            self._send_content(fd, source)
        finally:
            os.close(fd)

    def _send_content(self, fd: int, source: str) -> None:
        seen = digest()
        try:
            while True:
                piece = os.read(fd, _PIECE)
                if not piece:
                    break
                seen.update(piece)
                self._talk.put(framed(PLAIN, piece))
        except OSError as error:
            self._talk.put(tell(end="", remark=f"{source}: {error.strerror}"))
            return
        self._talk.put(tell(end=seen.hexdigest()))


def _found(base: str, path: str) -> List[Tuple[str, str]]:
    """What a path or a pattern means: where each thing is, and how it is to be called.

    What a pattern finds keeps the folders that the pattern left open: ``runs/*/model`` gives ``a/model``,
    ``b/model``.
    """
    path = resolved(path) if path.startswith("~") else path
    whole = os.path.normpath(os.path.join(base, path))
    if os.path.lexists(whole):
        named = os.path.basename(path.rstrip("/"))
        named = "" if named in (".", "..") else named
        return [(whole, named or ("" if os.path.isdir(whole) else os.path.basename(whole)))]
    return _matching(base, path) if glob.has_magic(path) else []


def _matching(base: str, pattern: str) -> List[Tuple[str, str]]:
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    top = os.path.join(base, "/".join(parts[:fixed]) or "/"[: pattern.startswith("/")])
    found = list(_below(top.rstrip("/") or "/", parts[fixed:]))
    names = ((one, os.path.relpath(one, top)) for one in _without_nested(found))
    return [(one, "" if name == "." else name) for one, name in names]


def _below(folder: str, parts: List[str]) -> Iterator[str]:
    """What matches below a folder, as glob has it; but ``**`` follows no links: they may lead in circles."""
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _below(folder, rest)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if first == "**":
            if not name.startswith(".") and os.path.isdir(path) and not os.path.islink(path):
                yield from _below(path, parts)
            elif not rest and not name.startswith("."):
                yield path
        elif _is_meant(name, first) and (not rest or os.path.isdir(path)):
            yield from _below(path, rest)


def _is_meant(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _without_nested(paths: List[str]) -> List[str]:
    """``**`` finds a folder and what is in it: once is enough."""
    kept: Set[str] = set()
    for path in sorted({os.path.normpath(path) for path in paths}, key=lambda path: path.count("/")):
        above = path
        while above not in kept and above != "/":
            above = os.path.dirname(above)
        if above == "/":
            kept.add(path)
    return sorted(kept)


def _entry(path: str, relative: str, status: os.stat_result) -> Any:
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISREG(status.st_mode):
        return Entry(relative, FILE, mode, status.st_size, status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return Entry(relative, FOLDER, mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(relative, LINK, content=os.readlink(path))
    return None
