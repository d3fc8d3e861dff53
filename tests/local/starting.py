"""What a Ctrl-C may show that comes while the command starts."""

from __future__ import annotations

import re
import signal

from tests.conftest import Ended, Started
from tests.local.seeing import ROOT, soon

#: Of a traceback: a file of ours, and a line in it. The package's own is run when nothing of ours is yet.
_FRAME = re.compile(r'File ".*/launcher/(?!__init__)([^"]*)", line (\d+)')
#: The line of the command from which on a Ctrl-C is ours.
_MAIN = "__main__.py"
_LINES = (ROOT / "launcher" / _MAIN).read_text().splitlines()
_HEARD = 1 + [line.strip() for line in _LINES].index("_signal.signal(_signal.SIGINT, _leave)")
#: In what Python says that could not come up, or could not begin with us.
_WORDS = ("runpy", "site", "Fatal Python error: init")
#: Python itself can drop one, before a line of ours is run: it says so, and goes on.
_DROPPED = "Exception ignored in"


def press_ctrl_c(started: Started) -> None:
    """Once; once more if Python says that it has dropped the first."""
    started.send(signal.SIGINT)
    soon(lambda: started.process.poll() is not None or _DROPPED in started.err)
    if started.process.poll() is None:
        started.send(signal.SIGINT)


def ended_by_ctrl_c(ended: Ended) -> None:
    """Whenever it came: 130, and no traceback of ours.

    Before our first line it is Python's: that ends by the signal itself, or with 1, and says that it could
    not import ``site`` or ``runpy``, or come up.
    """
    assert not [frame for frame in _FRAME.findall(ended.err) if not _is_before_ours(*frame)], ended.err
    pythons = ended.code == 1 and any(word in ended.err for word in _WORDS)
    assert ended.code in (128 + signal.SIGINT, -signal.SIGINT) or pythons, (ended.code, ended.err)


def _is_before_ours(file: str, line: str) -> bool:
    """Whether it is a line of the command that is run before it hears a Ctrl-C."""
    return file == _MAIN and int(line) <= _HEARD
