"""What is being done about a host that is not connected yet, for whoever waits for it."""

from __future__ import annotations


class Progress:
    """Written by the thread that dials, read by the one that tells.

    Args:
        host: its name.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        #: ``10.0.0.3:22``, once the configuration is read.
        self.where = ""
        self.doing = "waiting for its turn"
        self.attempt = 1

    def __str__(self) -> str:
        doing = f"{self.where}: {self.doing}" if self.where else self.doing
        again = f", {_ordinal(self.attempt)} attempt" if self.attempt > 1 else ""
        return f"{self.host} ({doing}{again})"


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")
