"""The side that reaches out: what becomes of a connection to each peer; see `launcher.agent.probe_listen`."""

from __future__ import annotations

import errno
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent.probe_listen import LARGE, read_line
from launcher.agent.probe_names import bare
from launcher.agent.probe_work import together

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Sequence, Tuple

    Json = Dict[str, Any]

#: Connections that are made at a time.
_AT_ONCE = 16
_PINGS = 3
#: Where ``struct tcp_info`` (linux/tcp.h) counts segments that were sent again (``tcpi_total_retrans``), and
#: has the shortest round trip in microseconds (``tcpi_min_rtt``), which a busy CPU hardly makes longer.
_TCP_INFO_SIZE, _RETRANSMITS, _MIN_RTT = 152, 100, 148
_NO_RTT = 0xFFFFFFFF
#: What the kernel says where it knows that there is no way; a blackhole route says EINVAL.
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EADDRNOTAVAIL)


def connect(request: Mapping[str, Any]) -> List[Json]:
    """Connect to peers; one result for each, in their order.

    Args:
        request: ``peers``, each with ``address``, ``port`` and ``token``; ``challenge``; ``seconds`` for each
            connection and ``all_seconds`` for all.
    """
    jobs = [partial(_reach, peer, request) for peer in request["peers"]]
    results = together(jobs, request["all_seconds"], _AT_ONCE)
    return [result or _result("timed out") for result in results]


def _result(result: str, why: str = "", **measured: Any) -> Json:
    return {"result": result, "why": why, **measured}


def _reach(peer: Mapping[str, Any], request: Mapping[str, Any]) -> Json:
    """What became of one connection."""
    started = time.monotonic()
    try:
        line = socket.create_connection((bare(peer["address"]), peer["port"]), request["seconds"])
    except (OSError, UnicodeError) as error:
        return _failed(error)
    connected = time.monotonic() - started
    with line:
        result = _talk(line, peer["token"], request, started + request["seconds"])
    result["connect_s"] = round(connected, 6)
    return result


def _failed(error: Exception) -> Json:
    """A connection that never was, in the words of the check."""
    why = getattr(error, "strerror", None) or str(error)
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return _result("unknown name", why)
    if isinstance(error, socket.timeout) or getattr(error, "errno", None) == errno.ETIMEDOUT:
        return _result("timed out")
    if isinstance(error, ConnectionRefusedError):
        return _result("refused", why)
    code = getattr(error, "errno", None)
    if code == errno.EINVAL:
        why = "its routing table forbids it"
    return _result("no route" if code in _NO_ROUTE else "failed", why)


def _talk(line: socket.socket, token: str, request: Mapping[str, Any], deadline: float) -> Json:
    """Find out who answers, how fast, and whether large packets get through."""
    trips: List[float] = []
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _until(line, deadline)
        line.sendall(request["challenge"].encode("ascii") + b"\n")
        if read_line(line) != token.encode("ascii") + b"\n":
            return _result("somebody else", "another program answers there", rtt_s=None)
        trips.extend(_ping(line, deadline) for _ in range(_PINGS))
        large = _large(line, deadline)
    except OSError as error:
        return _broken(error, trips)
    retransmits, shortest = _kernels_view(line)
    measured: Json = {"rtt_s": round(min([*trips, *shortest]), 6), "retransmits": retransmits}
    if not large:
        return _result("cut off", "it was closed from there", **measured)
    return _result("ok", **measured)


def _broken(error: OSError, trips: Sequence[float]) -> Json:
    """It got as far as being connected."""
    rtt = round(min(trips), 6) if trips else None
    if not isinstance(error, socket.timeout):
        return _result("cut off", error.strerror or str(error), rtt_s=rtt)
    if len(trips) == _PINGS:
        return _result("stuck", "small packets arrive, large ones do not", rtt_s=rtt)
    return _result("timed out", "it is accepted, and then nothing comes", rtt_s=rtt)


def _until(line: socket.socket, deadline: float) -> None:
    line.settimeout(max(0.001, deadline - time.monotonic()))


def _ping(line: socket.socket, deadline: float) -> float:
    """Seconds of a round trip."""
    _until(line, deadline)
    started = time.monotonic()
    line.sendall(b"p")
    if not line.recv(1):
        raise ConnectionResetError(errno.ECONNRESET, "it was closed from there")
    return time.monotonic() - started


def _large(line: socket.socket, deadline: float) -> bool:
    """Whether all of a large answer comes."""
    line.sendall(b"b")
    missing = LARGE
    while missing:
        _until(line, deadline)
        data = line.recv(missing)
        if not data:
            return False
        missing -= len(data)
    return True


def _kernels_view(line: socket.socket) -> Tuple[int, List[float]]:
    """Segments of ours that had to be sent again, and the shortest round trip in seconds if it has one."""
    try:
        info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    except OSError:
        return 0, []
    if len(info) < _TCP_INFO_SIZE:  # older than Linux 4.6
        return 0, []
    retransmits, shortest = (struct.unpack_from("I", info, at)[0] for at in (_RETRANSMITS, _MIN_RTT))
    return retransmits, [shortest / 1e6] if 0 < shortest < _NO_RTT else []
