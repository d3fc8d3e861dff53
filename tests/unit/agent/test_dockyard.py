"""The errand that speaks to a host's Docker engine: with a ``docker`` that says what a test wants."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import dockyard
from launcher.agent.dockyard import _folders, _Yard
from launcher.agent.probe_work import Commands


class Host:
    """Its ``docker`` prints ``out``, ends with ``code`` and notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.commands = Commands()
        self.yard = _Yard(self.commands, {**os.environ, "PATH": str(folder)})

    def docker(self, out: str, code: int = 0) -> None:
        """What it does from now on."""
        (self._folder / "out").write_text(out)
        script = f'#!/bin/sh\necho "$@" >>{self._folder}/asked\n/bin/cat {self._folder}/out\nexit {code}\n'
        (self._folder / "docker").write_text(script)
        (self._folder / "docker").chmod(0o755)

    @property
    def asked(self) -> str:
        """Its last arguments."""
        return (self._folder / "asked").read_text().splitlines()[-1]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Without a ``docker`` so far."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return Host(tmp_path)


LOOK: dict[str, Any] = {"do": "look", "owner": "o", "labels": ["o", "k"]}


def test_an_engine_and_what_is_left_there(host: Host):
    info = {"ServerVersion": "24", "OSType": "linux", "Architecture": "x86_64", "SecurityOptions": [], "x": 1}
    host.docker("WARNING: No swap limit support\n" + json.dumps(info) + "\nid1\tname1\tme\t\t.\nodd\n")
    found = host.yard.look(LOOK)
    assert found["info"] == {name: value for name, value in info.items() if name != "x"}
    assert found["found"] == [["id1", "name1", "me", ""]]
    assert found["user"] == f"{os.getuid()}:{os.getgid()}"
    assert host.asked.startswith("ps -a --no-trunc --filter label=o --format {{.ID}}")


def test_what_is_left_that_can_not_be_listed_is_not_nothing(host: Host, tmp_path: Path):
    info = json.dumps({"ServerVersion": "24"})
    script = f"#!/bin/sh\n[ $1 = info ] && echo '{info}' && exit\necho odd\nexit 1\n"
    (tmp_path / "docker").write_text(script)
    (tmp_path / "docker").chmod(0o755)
    found = host.yard.look(LOOK)
    assert (found["fault"], found["state"]) == ("odd", "failed")
    assert "found" not in found


def test_no_engine(host: Host):
    found = host.yard.look(LOOK)
    assert (found["state"], found["path"]) == ("missing", os.environ["PATH"])
    host.docker('{"ServerVersion":"","ServerErrors":["Cannot connect"]}', 1)
    assert host.yard.look(LOOK)["fault"] == "Cannot connect"
    host.docker('{"ServerVersion":""}\nCannot connect', 1)
    assert "Cannot connect" in host.yard.look(LOOK)["fault"]


def test_images(host: Host):
    host.docker("amd64\n")
    assert host.yard.image({"image": "img"}) == {"architecture": "amd64"}
    assert host.asked == "image inspect --format {{.Architecture}} -- img"
    host.docker("Error response from daemon: No such image: img:latest\n", 1)
    assert host.yard.image({"image": "img"}) == {"architecture": ""}
    host.docker("odd", 1)
    assert host.yard.image({"image": "img"}) == {"fault": "odd"}
    host.docker("", 1)
    assert host.yard.pull({"image": "img"}) == {
        "fault": "the docker command there failed, and did not say why"
    }
    host.docker("", 0)
    assert host.yard.pull({"image": "img"}) == {"fault": ""}


def test_removal(host: Host):
    host.docker("id1\n")
    assert host.yard.remove({"ids": ["id1", "id2"]}) == {"fault": ""}
    assert host.asked == "rm --force --volumes -- id1 id2"
    host.docker("Error: No such container: id1\n", 1)
    assert host.yard.remove({"ids": ["id1"]}) == {"fault": ""}
    host.docker("busy", 1)
    assert host.yard.remove({"ids": ["id1"]}) == {"fault": "busy"}


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "it").mkdir()
    found = _folders({"paths": ["~/it", "~/none", str(tmp_path), "/no/such"]})
    assert found == {"there": {"~/it": f"{tmp_path}/it", str(tmp_path): str(tmp_path)}}


def test_the_errand_ends_with_its_stdin(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def served(steps: Any, commands: Any, reading: int, writing: int) -> int:
        asked.append((sorted(steps), reading, writing))
        return 0

    monkeypatch.setattr(dockyard, "serve", served)
    assert dockyard.main({"env": {}}) == 0
    assert asked == [(["folders", "image", "look", "pull", "remove"], 0, 1)]


def test_an_engine_that_does_not_answer(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is asked for ever, nor is it pulled from for an hour."""
    for name in ("_ANSWER", "_PULSE"):
        monkeypatch.setattr(dockyard, name, 0.2)
    (tmp_path / "docker").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "docker").chmod(0o755)
    found = host.yard.look(LOOK)
    assert found["state"] == "slow"
    hangs = "its Docker engine does not answer: is it stopped, or stuck?"
    for said in (found, host.yard.image({"image": "img"}), host.yard.pull({"image": "img"})):
        assert said["fault"].startswith(hangs)
    host.commands.end_all()


def test_a_pull_that_takes_its_time(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dockyard, "_PULSE", 0.05)
    (tmp_path / "docker").write_text("#!/bin/sh\n[ $1 = pull ] || exit 0\n/bin/sleep 0.4\necho no; exit 1\n")
    (tmp_path / "docker").chmod(0o755)
    assert host.yard.pull({"image": "img"}) == {"fault": "no"}
