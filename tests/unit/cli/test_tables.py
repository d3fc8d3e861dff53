"""Tables, and numbers in words."""

from __future__ import annotations

import pytest

from launcher.cli.tables import print_table
from launcher.text import printable


def test_what_a_terminal_would_act_on_is_escaped():
    assert printable("plain é") == "plain é"
    assert printable("a\x1b[31m\nb\udcff") == "a\\x1b[31m\\nb\\udcff"


def test_no_markup_no_wrapping_and_no_empty_column(capsys: pytest.CaptureFixture[str]):
    print_table(["a", "empty", "b"], [["[red]x[/red]", "", "y" * 500], [":smile:", "", "z"]])
    out = capsys.readouterr().out
    cells = [line.split() for line in out.splitlines()]
    assert cells == [["a", "b"], ["[red]x[/red]", "y" * 500], [":smile:", "z"]]


def test_on_a_terminal_nothing_is_folded_and_one_column_cropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["20261120-070912-aaaaa", "x" * 50], ["b", "short"]]
    print_table(["run", "command"], rows, crop="command")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [[rows[0][0], "x" * 16 + "…"], ["b", "short"]]
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["run", "command"], rows, crop="command")
    assert capsys.readouterr().out.splitlines()[1].split() == [rows[0][0], "x" * 11 + "…"]
    print_table(["run", "command"], rows)
    assert capsys.readouterr().out.splitlines()[1].split() == rows[0]
