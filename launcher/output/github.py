"""The annotation of a failure for GitHub Actions, which shows it beside the line of the program.

The console writes it at the end of a job that has failed, if ``GITHUB_ACTIONS`` is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from launcher.common.report import Failure

_FRAME = r'  File "([^"]+)", line (\d+)'


def annotation(failure: Failure, traceback: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the line that annotates a failure, a command of GitHub Actions.

    Args:
        failure: The first failure of the job.
        traceback: The last traceback of the task that failed. Empty if there is none.
        environ: The variables of this process. ``GITHUB_WORKSPACE`` is the folder of the repository.
    """
    properties = {"title": failure.text.partition(": ")[0]}
    # The last frame in a file of the repository is where to look, not one in a library that it called.
    workspace = os.path.join(environ.get("GITHUB_WORKSPACE") or os.getcwd(), "")
    frames = [frame for frame in (re.match(_FRAME, line) for line in traceback) if frame]
    own = [each for each in frames if each[1].startswith(workspace) and "/site-packages/" not in each[1]]
    if own:
        properties |= {"file": own[-1][1].removeprefix(workspace), "line": own[-1][2]}
    lines = [failure.text, *traceback[-1:], *(f"hint: {hint}" for hint in failure.hint.splitlines())]
    fields = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::error {fields}::{_escaped(chr(10).join(lines))}\n"


def _escaped(text: str, more: str = "") -> str:
    """Return a text without characters that end a command or a property, in the escapes of GitHub.

    Args:
        text: The text.
        more: Characters to escape beside the percent sign and line ends.
    """
    return re.sub(f"[%\r\n{more}]", lambda found: f"%{ord(found[0]):02X}", text)
