"""Results of all partitions, put in the order of the rows; bounded.

All of it is called by who holds the lock of the feeder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from launcher.feed.share import Share

#: Bytes of results that may wait to be taken, a row counting so many more: beyond, no more rows are sent.
MOST_RESULTS, ROW = 32 << 20, 64


class Answers:
    """See the module."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}
        self._next = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether so many results lie here that no more rows should be sent, but those that are next."""
        return self._bytes >= MOST_RESULTS

    def expect(self, share: Share) -> None:
        """Results of this partition will come."""
        self._shares[share.number] = share

    def came(self, share: Share, results: list[object], size: int) -> bool:
        """Results of a partition, of so many bytes.

        Returns:
            Whether some are new: they are not when another task gave them before it was lost.
        """
        new = share.answer(results)
        if not new:
            return False
        share.result_bytes += size + ROW * new
        self._bytes += size + ROW * new
        return True

    def permits(self, number: int) -> bool:
        """Whether rows of this partition may be sent."""
        return not self.full or (number == self._next and not self.head())

    def head(self) -> list[object]:
        """The results that are next, as far as they have come."""
        share = self._shares.get(self._next)
        return share.results if share is not None else []

    def take(self) -> list[object]:
        """The same; they are here no longer."""
        share = self._shares[self._next]
        found, share.results = share.results, []
        self._bytes -= share.result_bytes
        share.result_bytes = 0
        return found

    def advance(self, unfinished: Container[int]) -> bool:
        """Go on to the partition that is next, past those of which all was taken; whether there were any."""
        before = self._next
        while (
            (share := self._shares.get(self._next)) and share.number not in unfinished and not share.results
        ):
            del self._shares[self._next]
            self._next += 1
        return self._next != before

    def all_taken(self, many: int) -> bool:
        """Whether of so many partitions nothing is left."""
        return self._next >= many
