"""A web server with a text file of ten gigabytes, ``/huge.txt``, which is nowhere: a program of the tests.

``python -m tests.storage.huge ADDRESS`` prints its port, and serves until its input ends.
"""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINE = b"x" * 1023 + b"\n"
LINES = 10_000_000
_SIZE = LINES * len(LINE)
_BLOCK = 1024 * LINE


class HugeFile(BaseHTTPRequestHandler):
    """Sends any range of the file."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        end = min(int(found[2] or _SIZE) + 1, _SIZE) if found else _SIZE
        self.send_response_only(206 if found else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        if found:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{_SIZE}")
        self.end_headers()
        while self.command == "GET" and start < end:
            piece = _BLOCK[start % len(_BLOCK) :][: end - start]
            self.wfile.write(piece)
            start += len(piece)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer((sys.argv[1], 0), HugeFile)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
