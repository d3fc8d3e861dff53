"""What a probe says of other runs: of folders, each run once, where the store has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent.probe_leftovers import leftovers


def test_a_run_with_notes_and_folders_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert leftovers()["folders"] == []
    (tmp_path / "tf-launcher/work/job1/tree").mkdir(parents=True)
    (tmp_path / "tf-launcher/work/.job1").touch()
    (tmp_path / "tf-launcher/work/.job2").touch()
    assert leftovers()["folders"] == ["job1", "job2"]


def test_a_relative_cache_counts_for_nothing_as_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    (tmp_path / "here/tf-launcher/work/wrong").mkdir(parents=True)
    (tmp_path / "home/.cache/tf-launcher/work/right").mkdir(parents=True)
    assert leftovers()["folders"] == ["right"]


def test_no_home_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert leftovers()["folders"] == []
