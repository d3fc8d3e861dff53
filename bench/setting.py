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
    """What is measured and how often, with a folder for temporary files (in memory if there is a tmpfs)."""

    contenders: Sequence[Contender]
    rounds: int
    quick: bool
    scratch: Path
    #: What launch did that it must never do. One fault makes the bench fail. Being slow is no fault.
    faults: list[str]
    #: The launch to measure.
    launch: str = "launch"
    #: Another launch to measure beside it.
    before: str | None = None
    #: The names of the other programs to measure, or None for all.
    peers: Sequence[str] | None = None

    @property
    def present(self) -> list[Contender]:
        """The contenders that can be measured."""
        return [contender for contender in self.contenders if not contender.missing]

    def turns(self, rounds: int | None = None) -> Iterator[tuple[int, Contender]]:
        """Yield each contender once in each round, so that what disturbs the machine disturbs all alike.

        Every second round has the reverse order, because a run can be slower or faster after another one.

        Args:
            rounds: The number of rounds. By default it is that of the setting.

        Yields:
            The number of the round, from 0, and the contender.
        """
        for number in range(self.rounds if rounds is None else rounds):
            for contender in self.present[:: -1 if number % 2 else 1]:
                yield number, contender

    def folder(self, name: str) -> Path:
        """Make a new folder for one run, and return its path.

        From now on `launch` keeps its logs below it, too.
        """
        number = sum(1 for _ in self.scratch.iterdir())
        folder = self.scratch / f"{number}-{name}"
        folder.mkdir()
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        return folder

    def rows(self, row: Callable[[Contender], Sequence[str]], columns: int) -> list[list[str]]:
        """Return a row for each contender. That of a missing one says so.

        Args:
            row: Returns the cells of a contender after its name.
            columns: The number of these cells.
        """
        lost = ["MISSING", *["-"] * (columns - 1)]
        return [[one.name, *(lost if one.missing else row(one))] for one in self.contenders]

    def check_floor(self, what: str, floor: Sequence[float], own: Mapping[str, Sequence[float]]) -> None:
        """Add a fault for each contender that needs clearly less than the floor, which then is no floor.

        Args:
            what: What was measured, for the message.
            floor: The seconds of each run of the floor.
            own: The seconds of each run without a fault, by the name of the contender.
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
        """Add a fault of launch. The faults of other contenders do not count."""
        if contender.name == LAUNCH:
            self.faults.append(f"launch: {text}")
