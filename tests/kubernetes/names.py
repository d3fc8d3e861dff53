"""A DNS for a cluster that has none: the names of pods behind headless Services, from the API's Endpoints.

    python names.py ADDRESS

It listens on port 53 of the address, and asks kubectl. Only what the tests need: A records over UDP.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any

_SUFFIX = ["svc", "cluster", "local"]
#: Seconds for which Endpoints are not asked for again.
_FRESH = 0.5


class Names:
    """The addresses of the pods behind Services."""

    def __init__(self) -> None:
        self._asked = -_FRESH
        self._found: dict[tuple[str, ...], str] = {}

    def address(self, name: list[str]) -> str | None:
        """The address of ``HOST.SERVICE.NAMESPACE.svc.cluster.local``."""
        if len(name) != 6 or name[3:] != _SUFFIX:
            return None
        if time.monotonic() > self._asked + _FRESH:
            done = subprocess.run(
                ["kubectl", "get", "endpoints", "--all-namespaces", "-o", "json"], capture_output=True
            )
            if done.returncode == 0:  # else the API server is busy: the client asks for the name again
                self._found = _addresses(json.loads(done.stdout))
            self._asked = time.monotonic()
        return self._found.get(tuple(name[:3]))


def _addresses(endpoints: Any) -> dict[tuple[str, ...], str]:
    return {
        (pod["hostname"], each["metadata"]["name"], each["metadata"]["namespace"]): pod["ip"]
        for each in endpoints["items"]
        for subset in each.get("subsets", ())
        for pod in (*subset.get("addresses", ()), *subset.get("notReadyAddresses", ()))
        if "hostname" in pod
    }


def answer(query: bytes, names: Names) -> bytes:
    """The answer to a query (RFC 1035, 4.1): its address, no address, or no such name."""
    name, at = [], 12
    while query[at]:
        name.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    question = query[12 : at + 5]
    is_a = question[-4:-2] == b"\0\1"
    found = names.address(name)
    code, count = (0 if found else 3), int(bool(found and is_a))
    head = query[:2] + bytes([0x85, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0])
    record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(found) if found and is_a else b""
    return head + question + record


def main() -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # A test beside this one may have a server, too: it knows the same.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((sys.argv[1], 53))
    print("ready", flush=True)
    names = Names()
    while True:
        query, client = server.recvfrom(512)
        server.sendto(answer(query, names), client)


if __name__ == "__main__":
    main()
