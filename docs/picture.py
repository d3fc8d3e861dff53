"""Records a launch in a terminal of 100 columns as docs/terminal.svg. `make picture` runs it.

The recording is the screen after the job. One text is replaced: the folder of runs is ``~/.local/state``.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pty
import re
import shlex
import struct
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "launch --ps 1 --workers 2 --flags examples/mnist_dist/mnist_dist.py --train_steps 300"
COLUMNS, LINES = 100, 200
#: Colours that pyte and rich name differently.
_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}
#: A font that rich would load from another server.
_FONT_FACE = re.compile(r"\s*@font-face {.*?}", re.S)


def main() -> int:
    """Record the command, and write the picture."""
    with tempfile.TemporaryDirectory() as state:
        output, code = recorded(shlex.split(COMMAND)[1:], state)
        output = output.replace(state.encode(), b"~/.local/state")
    if code:
        sys.stdout.buffer.write(output)
        print(f"picture: {COMMAND} exited with {code}; expected 0", file=sys.stderr)
        return 1
    path = ROOT / "docs" / "terminal.svg"
    path.write_text(picture(screen_lines(output)), encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")
    return 0


def recorded(arguments: list[str], state: str) -> tuple[bytes, int]:
    """Run ``launch`` in a terminal.

    Args:
        arguments: of ``launch``.
        state: the folder for its runs.

    Returns:
        The bytes that it wrote, and its exit code.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.chdir(ROOT)
        environ = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": state}
        environ.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "launcher", *arguments], environ)
    output = io.BytesIO()
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as EIO
            break
        output.write(data)
    return output.getvalue(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def screen_lines(output: bytes) -> list[Text]:
    """The lines of the screen after this output, with the command above them."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(output)
    lines = [Text.assemble(("$ ", "bright_black"), (COMMAND, "bold"))]
    for row in range(screen.cursor.y + 1):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        for style, alike in itertools.groupby(cells, _style):
            line.append("".join(cell.data for cell in alike), style)
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    return lines


def _style(cell: pyte.screens.Char) -> Style:
    """The style of a character."""
    colour = _COLOURS.get(cell.fg, cell.fg)
    if re.fullmatch(r"[0-9a-f]{6}", colour):
        colour = f"#{colour}"
    return Style(color=re.sub(r"^bright(?=[a-z])", "bright_", colour), bold=cell.bold, reverse=cell.reverse)


def picture(lines: list[Text]) -> str:
    """The SVG of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, soft_wrap=True)
    svg = _FONT_FACE.sub("", console.export_svg(title="launch", unique_id="launch"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
