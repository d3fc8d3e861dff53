"""The launcher of a test's cluster: a process of its own, that ends with the tests at the latest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.runs import process
from launcher.testing.processes import look_at

#: What is added to the number of a signal that ended it, for its exit code.
_BY_SIGNAL = 128


class LauncherProcess(process.LauncherProcess):
    """A launcher whose output goes to a file.

    Args:
        words: its arguments.
        environment: all of it.
        output: the file for its stdout and stderr; must not exist.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self._output = output
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            super().__init__(words, environment, out, out)
        finally:
            os.close(out)
        started = look_at(self.pid)  # a zombie at the least: nobody but us takes its end
        #: Its pid and when it started, as the labels of what it makes begin.
        self.identity = f"{self.pid}:{started.start if started else ''}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it, rather than itself."""
        return (self.exit_code or 0) > _BY_SIGNAL

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text("utf-8", "replace")
