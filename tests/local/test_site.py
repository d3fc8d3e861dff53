"""The site of ``make docs`` has every option, every key and every public name; its faults are errors."""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher import backends, testing
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS
from launcher.config import table
from launcher.config.hostfile import HOST, HOSTFILE
from launcher.config.jobfile import ROLE
from launcher.config.settings import SourceKind

#: Limit for a build of the site, which takes 5 s of a processor while other tests use it.
_SECONDS = 400
pytestmark = pytest.mark.timeout(_SECONDS + 30)

TOP = Path(__file__).resolve().parents[2]
#: What pages are made from, or link to.
FOLDERS = ("docs", "launcher", "hostfiles", "examples", "bench")


def build(top: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(top)}
    argv = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    return subprocess.run(argv, cwd=top, env=environ, capture_output=True, text=True, timeout=_SECONDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site that ``make docs`` has built; a new one, if a source is newer."""
    suffixes = (".md", ".py", ".yaml", ".svg", ".css")
    sources = [path for name in FOLDERS for path in (TOP / name).rglob("*") if path.suffix in suffixes]
    newest = max(path.stat().st_mtime for path in [*sources, TOP / "mkdocs.yml"])
    built = TOP / "site" / "index.html"
    if built.exists() and built.stat().st_mtime > newest:
        return built.parent
    folder = tmp_path_factory.mktemp("site")
    done = build(TOP, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def terms(page: Path) -> str:
    """The terms that a page of the reference defines."""
    return html.unescape("\n".join(re.findall(r"<dt>(.*?)</dt>", page.read_text(encoding="utf-8"), re.S)))


def test_the_reference_has_every_option_of_every_command(site: Path):
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    missing = []
    for name in COMMANDS:
        section = page.partition(f'id="launch-{name}"')[2].partition("<h2")[0]
        for action in command_parser(name)._actions:
            if action.help != argparse.SUPPRESS:
                missing += [
                    f"launch {name} {option}"
                    for option in action.option_strings
                    if not re.search(rf"<code>[^<]*(?<![\w-]){option}(?![\w-])", section)
                ]
    assert missing == []


def test_the_reference_has_every_key(site: Path):
    host, job = (terms(site / "reference" / page) for page in ("hostfile.html", "jobfile.html"))
    sections = backends.sections()
    rows = (*table.ROWS, *(row for section in sections for row in section.rows))
    keys = [row.key for row in rows if SourceKind.JOB_FILE in row.given_in]
    missing = [key for key in (*HOSTFILE, *HOST) if f"<code>{key}</code>" not in host]
    missing += [
        key
        for key in (*keys, *ROLE, *(section.name for section in sections))
        if f"<code>{key}</code>" not in job
    ]
    assert missing == []


def test_the_reference_has_every_public_name(site: Path):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    names = [f"launcher.{name}" for name in launcher.__all__]
    names += [f"launcher.testing.{name}" for name in testing.__all__]
    assert [name for name in names if f'id="{name}"' not in page] == []


def test_the_first_page_is_the_readme_with_the_version(site: Path):
    page = (site / "index.html").read_text(encoding="utf-8")
    first = page.partition('id="why-not')[0]
    assert f"Version {launcher.__version__}" in first
    assert "pip install ." in first and "No ports to choose" in first
    assert 'href="start.html"' in first
