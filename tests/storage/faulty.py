"""An HTTP proxy in front of a store, which fails when it is told: a program of the tests.

It prints its port. Lines of its input say how it behaves from then on: ``well``; ``busy``: it answers 503;
``cut``: it closes connections in the middle of each answer of some size; ``silent``: it answers nothing.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: How it behaves, and how many requests have felt it.
_STATE = {"mode": "well", "felt": "0"}
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
#: Answers of this size are cut.
_CUT_FROM = 1 << 20


class FaultyProxy(BaseHTTPRequestHandler):
    """Passes on requests to the server of the command line."""

    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        mode = _STATE["mode"]
        if mode == "busy":
            self._answer(503, {"Content-Type": "application/xml"}, b"" if self.command == "HEAD" else _BUSY)
            return
        while _STATE["mode"] == "silent":
            time.sleep(0.2)
        connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = {name: value for name, value in answer.getheaders() if name != "Transfer-Encoding"}
        if self.command == "HEAD":
            content = b""
        else:
            kept["Content-Length"] = str(len(content))
        if mode == "cut" and len(content) >= _CUT_FROM:
            content = content[: len(content) // 2]
            self.close_connection = True
        self._answer(answer.status, kept, content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on


if __name__ == "__main__":
    server = ThreadingHTTPServer((sys.argv[2], 0), FaultyProxy)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    for line in sys.stdin:
        _STATE["mode"] = line.strip()
        print(line.strip(), flush=True)
