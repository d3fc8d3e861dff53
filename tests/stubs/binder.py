"""Serves on its own port, as TensorFlow does, and tries to take the ports of all the others."""

import _socket as socket
import json
import os
import sys
import time

OURS = {int(address.rpartition(":")[2]) for addresses in json.loads(os.environ["CLUSTER_SPEC"]).values()
        for address in addresses}  # fmt: skip


def fresh():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def serve(port):
    """What a server does: SO_REUSEADDR, bind, listen."""
    server = fresh()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen(5)
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


host, _, number = os.environ["TASK_ADDRESS"].rpartition(":")
held = stolen(OURS)
listening = serve(int(number))
client = fresh()
client.connect((host, int(number)))
held += stolen(OURS)
time.sleep(0.05)
if held:
    sys.exit(f"got ports that are held: {held}")
