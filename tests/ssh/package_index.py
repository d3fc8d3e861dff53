"""A package index on the network of the lab, with wheels that are made here."""

from __future__ import annotations

import base64
import http.server
import threading
import zipfile
from pathlib import Path

USER, PASSWORD = "reader", "s3cret-of-the-index"


class PackageIndex:
    """Serves wheels to whoever has the password. A context.

    Args:
        folder: for the wheels.
        address: to listen on.
    """

    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._files: list[str] = []
        #: Addresses of hosts that get nothing.
        self.refused: set[str] = set()
        #: Addresses of hosts that get no answer.
        self.silent: set[str] = set()
        self._closed = threading.Event()
        #: The address of each request, and its path.
        self.requests: list[tuple[str, str]] = []
        #: Files are sent when it is set.
        self.open = threading.Event()
        self.open.set()
        self._server = http.server.ThreadingHTTPServer((address, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="index")
        port = self._server.server_address[1]
        self.options = (
            f"--index-url http://{USER}:{PASSWORD}@{address}:{port}/simple/\n--trusted-host {address}\n"
        )

    def __enter__(self) -> PackageIndex:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(
        self,
        name: str,
        version: str = "1.0",
        needs: tuple[str, ...] = (),
        platform: str = "any",
        size: int = 0,
    ) -> None:
        """Add a package for Python 3.9 with one module of its name, which has a ``version``, and ``size``."""
        file = f"{name}-{version}-py3-none-{platform}.whl"
        info = f"{name}-{version}.dist-info"
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.9\n"
        members = {
            f"{name}.py": f"version = {version!r}\n" + " " * size,
            f"{info}/METADATA": meta + "".join(f"Requires-Dist: {need}\n" for need in needs),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-{platform}\n",
        }
        members[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*members, f"{info}/RECORD"])
        with zipfile.ZipFile(self._folder / file, "w", zipfile.ZIP_DEFLATED) as wheel:
            for path, text in members.items():
                wheel.writestr(path, text)
        self._files.append(file)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        index = self
        given = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index.requests.append((self.client_address[0], self.path))
                if self.client_address[0] in index.silent:
                    index._closed.wait(300)
                    self.close_connection = True
                elif self.client_address[0] in index.refused:
                    self._answer(403, b"")
                elif self.headers.get("Authorization") != given:
                    self._answer(401, b"")
                elif self.path.startswith("/simple/"):
                    name = self.path.split("/")[2].replace("-", "_")
                    links = "".join(
                        f'<a href="/files/{file}" data-requires-python="&gt;=3.9">{file}</a>'
                        for file in index._files
                        if file.startswith(f"{name}-")
                    )
                    self._answer(200 if links else 404, f"<!DOCTYPE html><body>{links}".encode(), "text/html")
                else:
                    index.open.wait(60)
                    self._answer(200, (index._folder / self.path.split("/")[2]).read_bytes())

            def do_HEAD(self) -> None:
                self.do_GET()

            def _answer(self, code: int, data: bytes, kind: str = "application/octet-stream") -> None:
                self.send_response(code)
                if code == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
