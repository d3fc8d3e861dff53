"""What all measurements share: the contenders, the number of rounds, folders, and the list of faults.

`bench.run` makes a `Setting`, and passes it to each measurement.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.contenders import LAUNCH, Contender

#: A contender that takes less than this part of the floor's time has beaten it: the rest is noise.
_NOISE = 0.93


class Setting(NamedTuple):
    """What is measured, how often, and where files of the moment go (memory, where there is a tmpfs)."""

    contenders: Sequence[Contender]
    rounds: int
    quick: bool
    scratch: Path
    #: What must never be; one makes the bench fail. Slow is no fault.
    faults: list[str]
    #: The launch to measure.
    launch: str = "launch"
    #: Another launch to measure beside it.
    before: str | None = None
    #: The other programs to measure; ``None``: all.
    peers: Sequence[str] | None = None

    @property
    def present(self) -> list[Contender]:
        """Those that can be measured."""
        return [contender for contender in self.contenders if not contender.missing]

    def turns(self, rounds: int | None = None) -> Iterator[tuple[int, Contender]]:
        """Round by round each contender once: what disturbs the machine disturbs all alike.

        Each second round has the reverse order: a run can be slower or faster because of the one before.
        """
        for number in range(self.rounds if rounds is None else rounds):
            for contender in self.present[:: -1 if number % 2 else 1]:
                yield number, contender

    def folder(self, name: str) -> Path:
        """A new folder for one run. From now on `launch` keeps its logs below it, too."""
        number = sum(1 for _ in self.scratch.iterdir())
        folder = self.scratch / f"{number}-{name}"
        folder.mkdir()
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        return folder

    def rows(self, row: Callable[[Contender], Sequence[str]], columns: int) -> list[list[str]]:
        """A row for each contender, loud where one is missing."""
        lost = ["MISSING", *["-"] * (columns - 1)]
        return [[one.name, *(lost if one.missing else row(one))] for one in self.contenders]

    def check_floor(self, what: str, floor: Sequence[float], own: Mapping[str, Sequence[float]]) -> None:
        """Note contenders that need less than the floor: then it is none.

        Args:
            what: was measured.
            floor: seconds of each of its runs.
            own: those of each contender, in runs without a fault.
        """
        for name, values in own.items():
            if not values or not floor or min(values) >= min(floor):
                continue
            median, base = statistics.median(values), statistics.median(floor)
            if median < _NOISE * base:
                self.faults.append(
                    f"{what}: {name} takes {median:.3f} s, and the floor {base:.3f} s: no floor"
                )

    def fault(self, contender: Contender, text: str) -> None:
        """Note what launch must never do (peers may)."""
        if contender.name == LAUNCH:
            self.faults.append(f"launch: {text}")
