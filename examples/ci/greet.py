"""A cluster program to be tested: every worker greets the ps by its name, and the ps answers where it is.

Only the standard library, so that the test takes seconds; a program that trains is tested in the same way.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import time


class Answer(socketserver.StreamRequestHandler):
    """One greeting."""

    def handle(self) -> None:
        """Answer with the name of the machine we are on."""
        name = self.rfile.readline().decode().strip()
        self.wfile.write(f"{socket.gethostname()} greets {name}\n".encode())


class Server(socketserver.ThreadingTCPServer):
    """Serves where the launcher holds a port for us: with SO_REUSEADDR, as TensorFlow's server has it."""

    allow_reuse_address = True
    daemon_threads = True


def serve(address: str) -> None:
    """What a ps does: it never exits."""
    host, _, port = address.rpartition(":")
    Server((host, int(port)), Answer).serve_forever()


def greet(address: str, patience: float = 30.0) -> None:
    """What a worker does; the ps may still be starting."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection((host, int(port)), 5) as line:
                line.sendall(f"{socket.gethostname()}\n".encode())
                answer = line.makefile().readline().strip()
                break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    print(answer)
    if answer != f"{host} greets {socket.gethostname()}" or host == socket.gethostname():
        sys.exit("this is not two machines")


if __name__ == "__main__":
    if os.environ["JOB_NAME"] == "ps":
        serve(os.environ["TASK_ADDRESS"])
    else:
        greet(json.loads(os.environ["CLUSTER_SPEC"])["ps"][0])
