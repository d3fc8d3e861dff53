"""How the process ends, whatever the command line does; and the scripts that complete its words."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from types import ModuleType
from typing import IO

import pytest

from launcher.cli import completion, hosts
from tests.unit.cli.conftest import Call

#: Runs ``launcher.__main__`` with a command line of the test's.
ENTRY = """
import sys, types
fake = types.ModuleType("launcher.cli.main")
exec(f"def main(argv):\\n    {sys.argv.pop()}", fake.__dict__)
sys.modules["launcher.cli.main"] = fake
from launcher.__main__ import main
main()
"""


def entry(body: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the entry point where the command line is ``body``."""
    argv = [sys.executable, "-c", ENTRY, "a", body]
    return subprocess.run(argv, text=True, check=False, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("body", "code", "out", "err"),
    [
        ("print(*argv); return 7", 7, "a\n", ""),
        ("raise SystemExit(2)", 2, "", ""),
        ("raise SystemExit", 0, "", ""),
        ("raise KeyboardInterrupt", 130, "", ""),
        ("raise BrokenPipeError", 0, "", ""),
    ],
)
def test_how_it_ends(body: str, code: int, out: str, err: str):
    ended = entry(body)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, err)


def test_a_fault_of_ours_is_shown():
    ended = entry("print(1); return 1 // 0")
    assert ended.returncode == 125
    assert ended.stdout == "1\n"
    assert ended.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")


def test_output_that_cannot_be_written_is_no_success():
    with open("/dev/full", "w") as full:
        ended = entry("print(1); return 0", stdout=full)
    assert ended.returncode == 125
    assert "launch: can't write the output: [Errno 28]" in ended.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    ended = entry("print(1); return 0", stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with one command."""
    fake = ModuleType("launcher.cli.main")

    def build_parser() -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog="launch")
        hosts.add_arguments(parser.add_subparsers().add_parser("hosts", help=hosts.SUMMARY))
        return parser

    vars(fake)["build_parser"] = build_parser
    monkeypatch.setitem(sys.modules, "launcher.cli.main", fake)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(parser: None, call: Call, capsys: pytest.CaptureFixture[str], shell: str):
    assert call(completion, shell) == 0
    script = capsys.readouterr().out
    assert "launch" in script
    assert completion._FILES[shell] in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)


def test_where_shtab_looks_for_files():
    import shtab

    assert shtab.FILE.items() >= completion._FILES.items()
