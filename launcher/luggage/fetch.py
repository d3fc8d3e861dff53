"""What is fetched from one host, over as many connections as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from launcher.luggage.landing import Arrival, Landing
from launcher.luggage.meter import Meter, VisitCount
from launcher.luggage.progress import counted
from launcher.luggage.requests import Wanted
from launcher.luggage.talk import Conversation
from launcher.model.luggage import FILE, PLAIN, Entry, Frames, LuggageError, understood
from launcher.model.shrinking import unpacked
from launcher.text import listed


class Said(NamedTuple):
    """Something to be said about one thing that was wanted."""

    item: int
    text: str


class Fetch:
    """All of it. A context manager for each connection: what was half there at its end is not seen.

    Args:
        host: its name.
        wanted: what is to come from it, by number.
        meter: counts it.
    """

    def __init__(self, host: str, wanted: Sequence[Wanted], meter: Meter) -> None:
        self._host = host
        self._wanted = wanted
        self._visit_count = VisitCount(meter)
        self._frames = Frames()
        self._landing: Landing | None = None
        self._item = 0
        self._entry: Entry | None = None
        self._arrival: Arrival | None = None
        #: The file that comes could not be written: what comes of it is passed over.
        self._skips = False
        self._over = False
        #: Items of which all has come, and the files that have come of others: path, size, time.
        self._done: set[int] = set()
        self._had: dict[int, list[tuple[str, int, int]]] = {}
        self.files = self.size = 0
        self._remarks: list[Said] = []
        self._failures: list[Said] = []
        #: The folders here that files arrived in.
        self.into: set[str] = set()

    @property
    def gained(self) -> tuple[int, int]:
        """Rises with what need not come again."""
        return len(self._done), self.files

    @property
    def remarks(self) -> list[str]:
        """What was not there or could not be read, and what need not come and could not be written here."""
        spare = (text for item, text in self._failures if self._wanted[item].spare)
        return [*(text for _, text in self._remarks), *spare]

    @property
    def failures(self) -> list[str]:
        """What could not be written here."""
        return [text for item, text in self._failures if not self._wanted[item].spare]

    def order(self) -> list[dict[str, Any]]:
        """What is still wanted, as the host is told."""
        return [
            {"number": number, "base": one.base, "path": one.path, "had": self._had.get(number, [])}
            for number, one in enumerate(self._wanted)
            if number not in self._done
        ]

    def missing(self) -> str:
        """What was not fetched, in words."""
        left = [one for number, one in enumerate(self._wanted) if number not in self._done]
        names = listed([f"{one.path!r} of {one.task}" for one in left])
        came = f" ({counted(self.files, 'file')} came)" if self.files else ""
        return f"not fetched: {names}{came}" if left else ""

    @property
    def lacks(self) -> bool:
        """Whether something has not come that must."""
        return any(not one.spare for number, one in enumerate(self._wanted) if number not in self._done)

    def take_all(self, talk: Conversation) -> None:
        """Take what comes, until the host says that it was all.

        Raises:
            TransportError: the host failed, or the connection broke.
        """
        try:
            while not self._over:
                for kind, payload in self._frames.feed(unpacked(*talk.hear())):
                    self._take(kind, payload)
        except (LuggageError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise talk.broken(error) from error
        self._leave()
        self._done.update(range(len(self._wanted)))

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PLAIN:
            self._content(payload)
            return
        said: dict[str, Any] = understood(payload)
        if "over" in said:
            self._over = True
        elif "end" in said:
            self._end(said)
        elif "total" in said:
            self._enter(said["item"])
            self._visit_count.expect(said["total"][1])
        elif "entry" in said:
            self._enter(said["item"])
            self._begin(Entry(*said["entry"]))
        else:
            self._remark(said["item"], str(said["remark"]))

    def _remark(self, item: int, text: str) -> None:
        self._remarks.append(Said(item, f"{self._host}: {self._wanted[item].task}: {text}"))

    def _enter(self, item: int) -> None:
        if self._landing is None or item != self._item:
            self._leave()
            self._item, self._landing = item, Landing(self._wanted[item].into)

    def _leave(self) -> None:
        """One thing that was wanted is complete."""
        if self._landing is None:
            return
        with self._landing:
            try:
                self._landing.finish()
            except OSError as error:
                self._failed(".", error)
        self._landing = None
        self._done.add(self._item)
        self._had.pop(self._item, None)

    def _begin(self, entry: Entry) -> None:
        assert self._landing is not None
        self._abandon()  # of the one before nothing more comes
        self._skips = False
        self._entry = entry
        try:
            if entry.kind == FILE:
                self._arrival = self._landing.file(entry)
            else:
                self._landing.put(entry)
        except OSError as error:
            self._failed(entry.path, error)
            self._skips = True

    def _content(self, data: bytes) -> None:
        self._visit_count.move(len(data))
        if self._skips:
            return
        if self._arrival is None:
            raise LuggageError("content of nothing")
        assert self._entry is not None
        try:
            self._arrival.write(data)
        except OSError as error:
            self._failed(self._entry.path, error)
            self._abandon()
            self._skips = True

    def _end(self, said: dict[str, Any]) -> None:
        arrival, self._arrival = self._arrival, None
        if not said["end"]:
            self._remark(self._item, str(said["remark"]))
            if arrival is not None:
                arrival.abandon()
            return
        if arrival is None:
            return
        assert self._entry is not None
        try:
            arrival.complete(said["end"])
        except OSError as error:
            self._failed(self._entry.path, error)
            return
        self._count(arrival)

    def _count(self, arrival: Arrival) -> None:
        assert self._entry is not None
        path, size, mtime = self._entry.path, self._entry.size, self._entry.mtime
        self._had.setdefault(self._item, []).append((path, size, mtime))
        self.into.add(self._wanted[self._item].into)
        self.files += 1
        self.size += arrival.size

    def _failed(self, path: str, error: OSError) -> None:
        """Nothing of the host's: it can't be written here."""
        into = self._wanted[self._item].into
        text = f"{self._host}: {path!r} can't be put into {into}: {error.strerror}"
        self._failures.append(Said(self._item, text))

    def _abandon(self) -> None:
        if self._arrival is not None:
            self._arrival.abandon()
            self._arrival = None

    def __enter__(self) -> Fetch:
        self._frames = Frames()
        # What was said of things that come again will be said again.
        self._remarks = [said for said in self._remarks if said.item in self._done]
        self._failures = [said for said in self._failures if said.item in self._done]
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()
        self._visit_count.drop()
        if self._landing is not None:
            self._landing.__exit__()
            self._landing = None
