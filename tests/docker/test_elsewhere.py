"""An engine on another machine, behind ``ssh://`` or TLS, as ``DOCKER_HOST`` or a context name it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.engine import BASE
from tests.docker.host_engines import DockerHost, Site

#: Their tasks see nothing of this machine.
OPTIONS = ["--docker", BASE, "--no-mount", "--workers", "2", "--"]
WHERE = ["sh", "-c", "echo up on $(hostname)"]


@pytest.fixture
def over_ssh(two_hosts: Site, hosts: list[DockerHost], tmp_path: Path) -> dict[str, str]:
    """What makes `docker`, and so us, use the engine of the first host; `ssh` knows the lab."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {two_hosts[0].ssh_config} "$@"\n')
    ssh.chmod(0o755)
    return {"DOCKER_HOST": "ssh://node1", "PATH": f"{ssh.parent}:{os.environ['PATH']}"}


@pytest.fixture
def over_tls(hosts: list[DockerHost], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The same, by certificates."""
    host = hosts[0]
    folder = certificates(tmp_path / "certificates", host.host.address)
    host.stop()
    host.host.run(["mkdir", "/run/tls"])
    for path in folder.glob("*.pem"):
        host.host.there(f"/run/tls/{path.name}").write_bytes(path.read_bytes())
    files = [f"--tls{name}=/run/tls/{name}.pem" for name in ("cacert", "cert", "key")]
    host.start("--tlsverify", *files, "-H", "unix:///run/docker.sock", "-H", "tcp://0.0.0.0:2376")
    variables = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
    yield {"DOCKER_HOST": f"tcp://{host.host.address}:2376", **variables}
    host.host.run(["rm", "-r", "/run/tls"])
    host.stop()
    host.start()


def certificates(folder: Path, address: str) -> Path:
    """Of an authority, and one of it that is good for both ends."""
    assert shutil.which("openssl"), "no openssl here: apt-get install openssl"
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-x509"]
    ca = ["-subj", "/CN=lab", "-keyout", "ca-key.pem", "-out", "ca.pem"]
    its = ["-subj", "/CN=it", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-keyout", "key.pem"]
    its += ["-out", "cert.pem", "-addext", f"subjectAltName=IP:{address}"]
    its += ["-addext", "extendedKeyUsage=serverAuth,clientAuth"]
    for args in (ca, [*its, "-addext", "basicConstraints=critical,CA:FALSE"]):
        argv = ["openssl", "req", *key, *args]
        done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr.decode()
    (folder / "cacert.pem").write_bytes((folder / "ca.pem").read_bytes())
    return folder


def check(launch: Launch, env: dict[str, str]) -> None:
    """A job there: it runs, and nothing of it is left."""
    ended = launch(*OPTIONS, *WHERE, env=env, timeout=60)
    assert ended.code == 0, ended.err
    assert {line for line in ended.out.splitlines() if "up on" in line} == {
        "worker/0 | up on worker-0",
        "worker/1 | up on worker-1",
    }
    assert launch("clean", env=env, timeout=60).out == "nothing to remove\n"


def test_over_ssh(over_ssh: dict[str, str], launch: Launch):
    check(launch, over_ssh)


def test_a_context_with_tls(over_tls: dict[str, str], launch: Launch):
    folder = over_tls["DOCKER_CERT_PATH"]
    there = f"host={over_tls['DOCKER_HOST']},ca={folder}/ca.pem,cert={folder}/cert.pem,key={folder}/key.pem"
    made = {"HOME": str(launch.home), "PATH": os.environ["PATH"]}
    for args in (["create", "lab", "--docker", there], ["use", "lab"]):
        argv = ["docker", "context", *args]
        assert subprocess.run(argv, env=made, capture_output=True, timeout=30).returncode == 0
    check(launch, {})
