"""The first step to a host: what is known of it when the time is up."""

from __future__ import annotations

import socket
import threading

import pytest

from launcher.transport.ssh import tcp


def test_a_connection_that_came_while_we_stood_still_is_taken():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert tcp._outcome(ours, 0.0, threading.Event()) == 0  # its time was over long ago


def test_what_has_not_come_in_time():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                ours.send(bytes(1 << 16))
        with pytest.raises(TimeoutError):
            tcp._outcome(ours, 0.0, threading.Event())


def test_nobody_wants_it_any_more():
    ours, theirs = socket.socketpair()
    stopping = threading.Event()
    stopping.set()
    with ours, theirs, pytest.raises(tcp.Stopped):
        tcp._outcome(ours, 0.0, stopping)
