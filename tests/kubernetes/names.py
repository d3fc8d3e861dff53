"""A DNS for a cluster that has none: the names of pods behind headless Services, from the API's Endpoints.

    python names.py ADDRESS

It listens on port 53 of the address, and asks kubectl. Only what the tests need: A records over UDP.
"""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys


@functools.cache
def known(host: str, service: str, namespace: str) -> str:
    """The address of the pod behind a Service of a namespace.

    Raises:
        LookupError: There is none yet, or the API server is busy: the client asks for the name again.
    """
    argv = ["kubectl", f"--namespace={namespace}", "get", "endpoints", service, "-o", "json"]
    done = subprocess.run(argv, capture_output=True)
    subsets = json.loads(done.stdout).get("subsets", ()) if done.returncode == 0 else ()
    for subset in subsets:
        for pod in (*subset.get("addresses", ()), *subset.get("notReadyAddresses", ())):
            if pod.get("hostname") == host:
                return str(pod["ip"])
    raise LookupError


def address(name: list[str]) -> str | None:
    """The address of ``HOST.SERVICE.NAMESPACE.svc.cluster.local``."""
    if name[3:] != ["svc", "cluster", "local"]:
        return None
    try:
        return known(*name[:3])
    except LookupError:
        return None


def answer(query: bytes) -> bytes:
    """The answer to a query (RFC 1035, 4.1): its address, no address, or no such name."""
    name, at = [], 12
    while query[at]:
        name.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    question = query[12 : at + 5]
    is_a = question[-4:-2] == b"\0\1"
    found = address(name)
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
    while True:
        query, client = server.recvfrom(512)
        server.sendto(answer(query), client)


if __name__ == "__main__":
    main()
