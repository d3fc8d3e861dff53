"""``python -m tensorboard.main``: a page with the title and the folder; its options are TensorBoard's."""

from __future__ import annotations

import argparse
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for option in ("--logdir", "--host", "--port", "--reload_multifile"):
    parser.add_argument(option, required=True)
args = parser.parse_args()


class Page(BaseHTTPRequestHandler):
    """The page."""

    def do_GET(self) -> None:
        """Send it."""
        text = f"<title>TensorBoard</title>{os.path.realpath(args.logdir)}"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *words: object) -> None:
        """Print nothing."""


ThreadingHTTPServer((args.host, int(args.port)), Page).serve_forever()
