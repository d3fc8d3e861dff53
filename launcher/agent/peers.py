"""Can the tasks of this host reach those of other hosts? Checked before any task starts.

Nothing listens on the held ports yet, so a refused connection is the good answer: the route is open. A
child of the agent does this, since looking up a name may block.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import time
from typing import Dict, List, Mapping, Sequence, Tuple

#: Seconds for all connections, and for the child as a whole.
CONNECT, SECONDS = 3.0, 6.0
_OPEN = (0, errno.ECONNREFUSED)


def print_unreachable(addresses: Sequence[str]) -> None:
    """In a child: print those that can't be reached as JSON."""
    os.write(1, json.dumps(unreachable(addresses)).encode("ascii"))


def read_unreachable(answer: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """The addresses that can't be reached, and why, from what the child printed."""
    try:
        found = json.loads(answer)
    except ValueError:  # it was killed: its time was up
        return dict.fromkeys(addresses, f"no answer in {SECONDS:.0f} s")
    return {str(address): str(why) for address, why in found.items()}


def unreachable(addresses: Sequence[str], seconds: float = CONNECT) -> Dict[str, str]:
    """Connect to all at once; the addresses (``host:port``, IPv6 in brackets) that can't be reached, and why.

    A name may have several addresses: one that can be reached is enough, as for gRPC.
    """
    reasons: Dict[str, str] = {}
    reached = set()
    selector = selectors.DefaultSelector()
    for address in addresses:
        try:
            for family, where in _resolved(address):
                code, connecting = _begin(family, where)
                if connecting is not None:
                    selector.register(connecting, selectors.EVENT_WRITE, address)
                elif code in _OPEN:
                    reached.add(address)
                else:
                    reasons[address] = _explain(code)
        except (socket.gaierror, UnicodeError):
            reasons[address] = "its name is unknown here"
    until = time.monotonic() + seconds
    while selector.get_map():
        left = until - time.monotonic()
        ready = selector.select(max(0.0, left))
        if not ready and left <= 0.0:  # after a last look: this process may have been suspended
            break
        for key, _ in ready:
            selector.unregister(key.fileobj)
            code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
            key.fileobj.close()  # type: ignore[union-attr]
            if code in _OPEN:
                reached.add(key.data)
            else:
                reasons[key.data] = _explain(code)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
        reasons.setdefault(key.data, "no answer: a firewall may drop what is sent there")
    return {address: why for address, why in reasons.items() if address not in reached}


def _resolved(address: str) -> List[Tuple[int, object]]:
    """The families and socket addresses of ``host:port``."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _begin(family: int, where: object) -> Tuple[int, "socket.socket | None"]:
    """The result of connecting, and the socket if that is not known yet."""
    try:
        connecting = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # no IPv6 here
        return error.errno or errno.EAFNOSUPPORT, None
    connecting.setblocking(False)
    code = connecting.connect_ex(where)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS:
        return code, connecting
    connecting.close()
    return code, None


def _explain(code: int) -> str:
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "there is no way to it"
    return os.strerror(code)
