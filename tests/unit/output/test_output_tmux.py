"""What the panes' titles say, without a tmux."""

from __future__ import annotations

import shutil

import pytest

from launcher import events
from launcher.job import RunPaths, TaskId
from launcher.output.base import Opening
from launcher.output.tmux import Tmux
from launcher.report import Failure, Reason
from tests.unit.output.output_samples import failed, placement, report

W1 = TaskId("worker/1")


class Said(Tmux):
    """Keeps the commands that tmux would be given."""

    def __init__(self) -> None:
        super().__init__("mnist", False)
        self._panes = {W1: "%1"}
        self.commands: list[tuple[str, ...]] = []

    def _run(self, *words: str) -> str:
        self.commands.append(words)
        return ""


@pytest.fixture
def tmux(monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    return Said()


def exited(code: int | None, signal: int | None) -> events.TaskExited:
    return events.TaskExited("node1", 2.0, W1, 1, code, signal, 1, 0.1)


def test_who_was_stopped_is_called_so(tmux: Said):
    tmux.on(events.TaskSignalled("node1", 1.0, W1, 1, 15, 1))
    tmux.on(exited(None, 15))
    tmux.on(exited(3, None))
    tmux.on(events.TaskStarted("node1", 1.0, W1, 2, 7))
    tmux.on(exited(None, 15))
    said = [words[-1] for words in tmux.commands]
    assert said == ["stopped", "stopped, exit code 3", "pid 7", "killed by SIGTERM"]


def test_the_bar_names_who_failed(tmux: Said):
    failure = Failure(Reason.EXIT, W1, "node1", 1.0, "exit code 7")
    tmux._tell_end(report(failed("worker/1"), failure=failure, exit_code=7))
    assert tmux.commands[-1][-1] == " job over: failed: worker/1, exit code 7; q leaves "


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"node1": "worker/0 worker/1"}, []),
        ({"node1": "worker/0", "node2": "worker/1"}, [" on node1", " on node2"]),
    ],
)
def test_a_title_begins_with_what_is_news(
    tmux: Said, monkeypatch: pytest.MonkeyPatch, hosts: dict[str, str], said: list[str]
):
    """Narrow panes cut the end off; and where there is one host, nobody asks where."""
    monkeypatch.setattr(tmux, "_start", lambda *_: None)
    tmux.begin(Opening("mnist", placement(**hosts), RunPaths("/runs/1"), 100.0))
    settings = {words[-2]: words[-1] for words in tmux.commands if words[0] == "set"}
    assert settings["pane-border-format"].split() == ["#{@task}", "#{@state}#{@host}"]
    assert [words[-1] for words in tmux.commands if "@host" in words] == said
