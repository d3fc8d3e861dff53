"""Connections without the job's key: what they send is never unpickled, and they keep no task out."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher import TFCluster
from launcher.feed import listener as listener_module
from launcher.feed.listener import MAX_PENDING, FeedPeer, Listener
from launcher.feed.remote.connect import GREETING, ConnectError, DriverRoutes
from tests.seeing import soon
from tests.told import Told

pytestmark = pytest.mark.timeout(180)
KEY = b"k" * 32
HELLO = {"task": "worker/0", "attempt": 1, "python": [3, 11], "pid": 1}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


class Lab:
    """A listener, the peers that it accepted, and what it tells the user."""

    def __init__(self, folder: Path) -> None:
        self.peers: list[FeedPeer] = []
        self.told = Told()
        self.listener = Listener(KEY, str(folder), ["127.0.0.1"])
        self.listener.listen_on_network()
        self.listener.serve(self.peers.append)

    def connector(self, **hello: Any) -> DriverRoutes:
        return DriverRoutes([f"unix:{self.listener.path}"], "", KEY, {**HELLO, **hello})

    def raw(self) -> socket.socket:
        return raw(self.listener)


def raw(listener: Listener) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(15)
    sock.connect(listener.path)
    return sock


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.told:
        yield made
    made.listener.close()
    for peer in made.peers:
        peer.sock.close()


def test_the_driver_must_prove_that_it_has_the_key(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "pretend"))
        listening.listen()

        def pretend() -> None:
            sock, _ = listening.accept()
            sock.sendall(GREETING + os.urandom(32))
            sock.recv(64)
            sock.sendall(os.urandom(32))
            sock.recv(100)
            sock.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ConnectError, match="does not have the key of this job"):
            DriverRoutes([f"unix:{tmp_path}/pretend"], "", KEY, HELLO).connect("member", timeout=0.0)
        thread.join(10)


def test_a_long_hello_is_not_read(lab: Lab):
    with lab.connector(more="x" * 5000).connect("member", timeout=0.0) as sock:
        sock.settimeout(10)
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            pass
    assert soon(lambda: lab.told.lines) and not lab.peers
    assert "a hello of 5" in lab.told.lines[0]


def test_silent_connections_keep_no_task_out(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_module, "HANDSHAKE_TIMEOUT_SECONDS", 60)
    crowd = [lab.raw() for _ in range(MAX_PENDING + 10)]
    try:
        with lab.connector().connect("member"):
            soon(lambda: lab.peers)
        assert len(lab.told.lines) == 1 and f"more than {MAX_PENDING}" in lab.told.lines[0]
    finally:
        for sock in crowd:
            sock.close()


@pytest.mark.parametrize("drip", [False, True])
def test_a_handshake_has_a_time_limit(lab: Lab, drip: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_module, "HANDSHAKE_TIMEOUT_SECONDS", 0.3)
    with lab.raw() as sock:
        sock.recv(1000)
        if drip:
            sock.sendall(b"x")
        assert sock.recv(1000) == b""


def test_a_job_with_other_connections_to_its_socket(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """They are there before any of its tasks."""
    real = Listener.serve
    socks: list[socket.socket] = []

    def with_others(listener: Listener, on_peer: Any) -> None:
        real(listener, on_peer)
        for data in (pickle.dumps(Bomb(tmp_path / "exploded")) * 50, b"GET / HTTP/1.1\r\n\r\n" * 20, b""):
            sock = raw(listener)
            sock.sendall(data)
            socks.append(sock)

    patch = pytest.MonkeyPatch()
    patch.setattr(Listener, "serve", with_others)
    try:
        TFCluster.run(lambda args, ctx: Path(args, str(ctx.task_index)).touch(), str(tmp_path), 2).shutdown()
    finally:
        patch.undo()
        for sock in socks:
            sock.close()
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists() and not (tmp_path / "exploded").exists()
    assert capfd.readouterr().err.count("rejected a connection with a wrong key") == 1


def test_a_full_socket_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has the name of one of ours, and may be another user's."""
    folder = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    theirs = Path(folder) / "tf-launcher-api-theirs"
    theirs.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(theirs / "feed.sock"))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                sock.connect(str(theirs / "feed.sock"))
        TFCluster.run(lambda args, ctx: Path(args, str(ctx.task_index)).touch(), str(tmp_path), 1).shutdown()
    assert (tmp_path / "0").exists()
