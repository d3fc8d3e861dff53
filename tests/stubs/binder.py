"""Serves on its own port, as TensorFlow does, and tries to take those of the others.

``binder.py {ps_hosts} {worker_hosts}``
"""

import _socket as socket
import os
import sys
import time

ADDRESSES = [address for word in sys.argv[1:] for address in word.split(",") if address]
OURS = {int(address.rpartition(":")[2]) for address in ADDRESSES}


def fresh():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def serve(port):
    """What a server does: SO_REUSEADDR, bind, listen."""
    server = fresh()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen(100)
    return server


def stolen(ports):
    """Ports of the job that a plain bind gets, and those of them that the kernel hands out."""
    found = []
    for port in ports:
        try:
            fresh().bind(("0.0.0.0", port))
            found.append(port)
        except OSError:
            continue
    for _ in range(20):
        taken = fresh()
        taken.bind(("127.0.0.1", 0))
        found += [taken.getsockname()[1]] if taken.getsockname()[1] in OURS else []
    return found


def serves(server, host, port):
    """Connect to ourselves; connections that came before that, to meet, wait."""
    client = fresh()
    early: list[int] = []
    client.connect((host, port))
    while True:
        accepted, address = server._accept()
        if address == client.getsockname():
            os.close(accepted)
            client.close()
            return early
        early.append(accepted)


def meet(server, first, early):
    """Wait until every task has come this far: no port is given back before."""
    if server.getsockname()[1] == first:
        for accepted in early + [server._accept()[0] for _ in range(len(OURS) - 1 - len(early))]:
            os.close(accepted)
        return
    end = time.monotonic() + 80
    while time.monotonic() < end:
        client = fresh()
        try:
            client.connect((FIRST_HOST, first))
            client.recv(1)
            return
        except OSError:
            time.sleep(0.01)


FIRST_HOST, _, FIRST = ADDRESSES[0].rpartition(":")
host, _, number = os.environ["TASK_ADDRESS"].rpartition(":")
held = stolen(OURS)
listening = serve(int(number))
early = serves(listening, host, int(number))
held += stolen(OURS)
meet(listening, int(FIRST), early)
if held:
    sys.exit(f"got ports that are held: {held}")
