"""A cluster program in small: a ps keeps a sum, to which workers add. No TensorFlow: it is quick to test."""

import argparse
import socketserver
import sys
import threading
import time
from http.client import HTTPException
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer


class Server(socketserver.ThreadingMixIn, SimpleXMLRPCServer):
    """Keeps the sum, a thread for each worker."""

    daemon_threads = True
    total = 0
    lock = threading.Lock()

    def add(self, number: int) -> int:
        """The new sum."""
        with self.lock:
            self.total += number
            return self.total


def serve(address: str) -> None:
    """What a ps does, until it is stopped."""
    host, _, port = address.rpartition(":")
    server = Server((host, int(port)), logRequests=False)
    server.register_function(server.add)
    print("serving at", address)
    server.serve_forever()


def added(ps: ServerProxy, patience: float) -> object:
    """Add one; give up when the ps cannot be reached within the time limit."""
    until = time.monotonic() + patience
    while True:
        try:
            return ps.add(1)
        except (OSError, HTTPException):
            if time.monotonic() > until:
                sys.exit("the ps is lost")
            time.sleep(0.05)


def work(address: str, steps: int) -> None:
    """What a worker does. The ps may take some time to come up."""
    ps = ServerProxy(f"http://{address}")
    for step in range(1, steps + 1):
        total = added(ps, patience=20.0 if step == 1 else 0.5)
        print(f"step {step}, the sum is {total}")
        time.sleep(0.01)


def main() -> None:
    """The classic flags."""
    parser = argparse.ArgumentParser()
    for name in ("--ps_hosts", "--worker_hosts", "--job_name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    address = args.ps_hosts.split(",")[0]
    if args.job_name == "ps":
        serve(address)
    else:
        work(address, args.steps)


main()
