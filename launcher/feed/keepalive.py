"""Connections whose other end has vanished without a word must break by themselves.

Part of what a task runs before anything of ours is there: see `launcher.feed.arriving`.
"""

from __future__ import annotations

import socket

#: Seconds of silence before it is asked whether the other end is there; between two questions; questions.
_IDLE, _BETWEEN, _PROBES = 10, 5, 4
#: Seconds that what was sent may stay unconfirmed, or not taken because the task holds everything up.
_UNCONFIRMED = 120


def keep_alive(sock: socket.socket) -> None:
    """Let a TCP connection break some time after its network did; others know by themselves."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE),
        ("TCP_KEEPINTVL", _BETWEEN),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNCONFIRMED * 1000),
        ("TCP_NODELAY", 1),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
