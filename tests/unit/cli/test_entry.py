"""How the process ends, whatever the command line does; and the scripts that complete its words."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
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


#: What a module runs where Python can raise nothing.
DROPPED = """
import signal, time
class Thing:
    def __del__(self):
        try:
            {}
        finally:
            print("dropped", flush=True)
Thing()
"""


def dropping(tmp_path: Path, raising: str, then: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point where a destructor raises, and then something else happens."""
    (tmp_path / "body.py").write_text(DROPPED.format(raising) + then)
    return entry(f"import runpy; runpy.run_path({str(tmp_path / 'body.py')!r}); return 0")


@pytest.mark.parametrize(
    ("raising", "code"), [("signal.raise_signal(signal.SIGINT)", 130), ("raise SystemExit(143)", 143)]
)
def test_an_end_that_python_drops_is_none_the_less_one(tmp_path: Path, raising: str, code: int):
    ended = dropping(tmp_path, raising, "time.sleep(60); print('late')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "dropped\n", "")


def test_a_dropped_ctrl_c_counts_for_a_job_that_has_begun_meanwhile(tmp_path: Path):
    then = """
import select
from launcher.signals import Signals
with Signals() as signals:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    select.select([signals.fd], [], [], 60)
    print(signals.read() == [signal.SIGINT])
"""
    later = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    ended = dropping(tmp_path, f"{later}; signal.raise_signal(signal.SIGINT)", then)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "dropped\nTrue\n", "")


def test_what_else_is_dropped_is_shown(tmp_path: Path):
    ended = dropping(tmp_path, "1 // 0", "")
    assert ended.returncode == 0
    assert ended.stderr.startswith("Exception ignored in: ")
    assert "ZeroDivisionError" in ended.stderr


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
