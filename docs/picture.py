"""Records trainings: one that succeeds as docs/terminal.svg, one that fails as docs/failure.svg, and as
docs/page.png the page of one of whose workers one is killed and one is slow.

`make picture` runs it. A recording is the screen after the job. Only the home folder has another name, and
lines of tasks are left out where there are many.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "mnist_dist"
#: The picture of a training that succeeds, and of one in which a worker lacks its part of the data.
SUCCESS = ("terminal.svg", "launch --ps 1 --workers 2 --flags mnist_dist.py --train_steps 300", 0)
FAILURE = ("failure.svg", "launch --workers 3 train.py", 1)
#: The training whose page is shown. It is stopped in the end.
WATCHED = "launch --name mnist --ps 1 --workers 3 --restarts 1 --flags mnist_dist.py --train_steps 1000000"
#: Letters and lines need few colours, and each of them takes space.
COLOURS = 128
PAGE_SIZE = {"width": 1080, "height": 980}
COLUMNS, LINES = 80, 400
#: How many lines of output a picture shows before the end of the job.
_OUTPUT_LINES = 10
#: The first line about the end of the job: the header of the table of tasks.
_END_OF_JOB = re.compile("TASK +HOST +PORT")
#: Colours that pyte and rich name differently.
_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}
#: A font that rich would load from another server.
_FONT_FACE = re.compile(r"\s*@font-face {.*?}", re.S)


def main() -> int:
    """Record the commands, and write the pictures."""
    for name, command, expected in (SUCCESS, FAILURE):
        with tempfile.TemporaryDirectory() as home:
            if expected:
                write_failing_program(Path(home))
            output, code = recorded(shlex.split(command)[1:], home, folder=home if expected else str(EXAMPLE))
            output = output.replace(home.encode(), b"/home/me")
        if code != expected:
            sys.stdout.buffer.write(output)
            print(f"picture: {command} exited with {code}; expected {expected}", file=sys.stderr)
            return 1
        path = ROOT / "docs" / name
        path.write_text(picture(screen_lines(command, output)), encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    with tempfile.TemporaryDirectory() as home:
        record_page(home, ROOT / "docs" / "page.png")
    print("written: docs/page.png")
    return 0


def record_page(home: str, path: Path) -> None:
    """Run a training, kill a worker and halt another one, and write a picture of its page as PNG.

    Args:
        home: The home folder, where its run is.
        path: The file of the picture.
    """
    launch, environ = [sys.executable, "-m", "launcher"], environment(home)
    with contextlib.ExitStack() as stack:

        def start(arguments: list[str], output: int) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*launch, *arguments], cwd=EXAMPLE, env=environ, stdout=output, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start(["-q", *shlex.split(WATCHED)[1:]], subprocess.DEVNULL)
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        stack.callback(browser.close)
        # The launcher needs a moment to make the folder of the run.
        while not (runs := [*Path(home).glob(".local/state/tf-launcher/runs/*/plan.json")]):
            time.sleep(0.1)
        served = start(["page", "--no-browser", "mnist"], subprocess.PIPE)
        assert served.stdout is not None
        page = browser.new_page(viewport=PAGE_SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.set_default_timeout(180_000)
        page.goto(re.findall(r"http://\S+", served.stdout.readline())[0])
        page.get_by_role("heading", name="Steps per second").wait_for()
        page.wait_for_timeout(20_000)

        def send(signum: int, task: str) -> None:
            command = [*launch, "ps", "--json", str(runs[0].parent)]
            listed = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
            (pid,) = (fields["pid"] for fields in json.loads(listed.stdout) if fields["task"] == task)
            os.kill(pid, signum)

        send(signal.SIGKILL, "worker/1")
        page.wait_for_timeout(20_000)
        send(signal.SIGSTOP, "worker/2")
        stack.callback(send, signal.SIGCONT, "worker/2")
        page.locator("h1", has_text="slow").wait_for()
        page.wait_for_timeout(2_000)
        screenshot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        screenshot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def write_failing_program(folder: Path) -> None:
    """Write a program of strategies.md whose workers open their parts of the data. One is missing."""
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0]
    at_step = "    if step % 100 == 0:\n"
    shard = "    if step == 250:\n        open(f'shards/part-{strategy.cluster_resolver.task_id}.csv')\n"
    (folder / "train.py").write_text(program.replace(at_step, shard + at_step), encoding="utf-8")
    (folder / "shards").mkdir()
    for worker in range(2):
        (folder / "shards" / f"part-{worker}.csv").touch()


def recorded(arguments: list[str], home: str, folder: str) -> tuple[bytes, int]:
    """Run ``launch`` in a terminal.

    Args:
        arguments: of ``launch``.
        home: the home folder, where its runs are.
        folder: the folder in which it runs.

    Returns:
        The bytes that it wrote, and its exit code.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "launcher", *arguments], environment(home))
    output = io.BytesIO()
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as EIO
            break
        output.write(data)
    return output.getvalue(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def environment(home: str) -> dict[str, str]:
    """Return the environment of ``launch`` with a home folder. The data of MNIST are in the cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    environ = {**os.environ, "TERM": "xterm-256color", "HOME": home, "XDG_CACHE_HOME": cache}
    for name in ("NO_COLOR", "XDG_STATE_HOME"):
        environ.pop(name, None)
    return environ


def screen_lines(command: str, output: bytes) -> list[Text]:
    """The lines of the screen after this output, with the command above them."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(output)
    lines = [Text.assemble(("$ ", "bright_black"), (command, "bold"))]
    for row in range(screen.cursor.y + 1):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        for style, alike in itertools.groupby(cells, _style):
            line.append("".join(cell.data for cell in alike), style)
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    return shortened(lines)


def shortened(lines: list[Text]) -> list[Text]:
    """Leave out lines of tasks before the end of the job, if there are many, and say how many."""
    end = next(index for index, line in enumerate(lines) if _END_OF_JOB.match(line.plain))
    dropped = end - 1 - _OUTPUT_LINES
    if dropped < 2:
        return lines
    return [
        *lines[: end - dropped],
        Text(f"... {dropped} more lines of output ...", "bright_black"),
        *lines[end:],
    ]


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
