"""What went wrong, in words: from what the engine says, and from what the SDK raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import DockerException

from launcher.errors import TransportError
from launcher.transport.docker import engine
from launcher.transport.docker.engine import Where, explained, find
from launcher.transport.docker.faults import mismatch, start_fault
from launcher.transport.docker.settings import Container, size

IT = Container("worker-0", "img", "python3")
HERE = Where("unix:///run/it.sock", "DOCKER_HOST")
RUNC = "OCI runtime create failed: container_linux.go:380: starting container process caused: "


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{RUNC}exec: python3: executable file not found in $PATH", "there is no python3 in the image"),
        ("invalid mount config: bind source path does not exist: /a b", "there is no /a b on"),
        ('could not select device driver "" with capabilities: [[gpu]]', "NVIDIA Container Toolkit"),
        ('The container name "/x" is already in use by container "1"', "of its name is there already"),
        ("exec /usr/bin/python3: exec format error", "not for this kind of machine"),
        ("something new", "something new"),
    ],
)  # fmt: skip
def test_a_container_that_does_not_start(said: str, told: str):
    assert told in start_fault(said, IT)


def test_an_image_for_another_kind_of_machine():
    image = {"Architecture": "arm64", "RepoTags": ["img:1"]}
    told = mismatch(image, "x86_64")
    assert told.startswith("img:1 is for arm64, the engine's machine is amd64")
    assert start_fault(RUNC + "exec format error", IT._replace(architecture=told)) == told
    assert mismatch({"Architecture": "amd64"}, "x86_64") == ""
    assert mismatch({"Architecture": "arm64"}, "aarch64") == ""
    assert mismatch({}, "x86_64") == ""


def wrapped(error: Exception) -> Exception:
    """As urllib3, requests and the SDK wrap it, one in the other."""
    try:
        try:
            raise requests.ConnectionError("Connection aborted.", error)
        except requests.ConnectionError as inner:
            raise DockerException(f"Error while fetching server API version: {inner}") from inner
    except DockerException as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FileNotFoundError(2, "No such file or directory"),
            "there is no Docker engine at unix:///run/it.sock",
        ),
        (PermissionError(13, "Permission denied"), "this user may not use the Docker engine"),
        (ConnectionRefusedError(111, "refused"), "no Docker engine answers at"),
    ],
)
def test_an_engine_that_can_not_be_reached(error: Exception, told: str):
    assert told in explained(wrapped(error), HERE)


def test_an_engine_that_is_too_slow_or_odd():
    assert "does not answer within 60 s" in explained(requests.ReadTimeout("read"), HERE)
    assert "can't be used: odd" in explained(DockerException("odd"), HERE)


@pytest.mark.parametrize(
    ("version", "info", "told"),
    [
        ("1.24", {}, "is too old: its API is 1.24, 1.30 is needed"),
        ("1.41", {"OSType": "windows"}, "runs windows containers"),
    ],
)
def test_an_engine_that_will_not_do(version: str, info: dict[str, Any], told: str):
    with pytest.raises(TransportError, match=told):
        engine._check(version, info, HERE)


def test_where_the_engine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find({}).address == "unix:///var/run/docker.sock"
    assert find({"DOCKER_HOST": "tcp://a:1"}) == Where("tcp://a:1", "DOCKER_HOST", None)
    assert find({"DOCKER_HOST": "tcp://a:1"}).is_socket
    with pytest.raises(TransportError, match="there is no Docker context 'lab'"):
        find({"DOCKER_CONTEXT": "lab"})
    with pytest.raises(TransportError, match="only unix://, tcp:// and ssh:// are understood"):
        find({"DOCKER_HOST": "npipe:////./pipe/x"})
    assert not find({"DOCKER_HOST": "ssh://a"}).is_socket
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").touch()
    behind_tls = {"DOCKER_HOST": "tcp://a:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    assert not find(behind_tls).is_socket
    with pytest.raises(TransportError, match="DOCKER_HOST and DOCKER_CERT_PATH: "):
        find({**behind_tls, "DOCKER_CERT_PATH": "/no/such"})


def test_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    name = "cd5bf8b4d5e0b9a8e5a2a4d0e1c8f5a4"
    from docker.context.config import get_context_id

    folder = tmp_path / "contexts" / "meta" / get_context_id(name)
    folder.mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": name}))
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": "unix:///lab.sock"}}}
    (folder / "meta.json").write_text(json.dumps(meta))
    found = find({})
    assert (found.address, found.source) == ("unix:///lab.sock", f"the Docker context {name!r}")
    assert find({"DOCKER_HOST": "unix:///mine.sock"}).address == "unix:///mine.sock"
    (folder / "meta.json").write_text("{")
    with pytest.raises(TransportError, match="can't be read"):
        find({})


@pytest.mark.parametrize(
    ("count", "text"),
    [(100, "100 bytes"), (64 << 20, "64 MiB"), (3 << 29, "1.5 GiB"), (2 << 10, "2 KiB")],
)
def test_sizes(count: int, text: str):
    assert size(count) == text
