"""Passwords and signed queries of URLs are used, and nowhere seen: in no output, file or command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seeing import ROOT

#: What must not be seen, and how it is written in URLs.
_PASSWORD, _SIGNATURE = "pa55/w0rd+x", "5igna/ture=="
_WRITTEN = "pa55%2Fw0rd%2Bx", "5igna%2Fture%3D%3D"
#: A web server that shows a file to those who know both secrets.
_SERVER = f"""
import base64, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer()
    def do_GET(self):
        self.answer()
    def answer(self):
        word = base64.b64encode(b"me:{_PASSWORD}").decode()
        query = parse_qs(urlsplit(self.path).query)
        is_known = self.headers["Authorization"] == "Basic " + word
        is_known = is_known and query == dict(signature=["{_SIGNATURE}"])
        if self.path.startswith("/later") and self.command == "GET":
            is_known = False
        body = b"a\\nb\\n" if is_known else b""
        self.send_response(200 if is_known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
#: Reads rows by a URL that is right, then by wrong ones. Each task prints the command lines of all processes
#: that contain a secret.
_DRIVER = """
import json, os, sys
from launcher import InputMode, LaunchError, TextFiles, TFCluster

def work(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        rows = feed.next_batch(10)
        lines = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                    lines.append(file.read())
            except OSError:
                pass
        print("SEEN", [line for line in lines if any(secret in line for secret in args)], flush=True)
        feed.batch_results(rows)

good, *bad, secrets = json.load(sys.stdin)
with TFCluster.run(work, secrets, 1, input_mode=InputMode.FEED, run_dir="run") as cluster:
    assert list(cluster.inference(TextFiles(good))) == ["a", "b"]
for number, url in enumerate(bad):
    try:
        with TFCluster.run(work, secrets, 1, input_mode=InputMode.FEED, run_dir=f"run{number}") as cluster:
            sys.exit("no error, but " + str(list(cluster.inference(TextFiles(url)))))
    except LaunchError as error:
        print("ERROR", error)
"""


@pytest.fixture
def server() -> Iterator[int]:
    """The port of the server."""
    command, pipe = [sys.executable, "-"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(_SERVER)
        process.stdin.close()
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.timeout(180)
@pytest.mark.promise("no password and no signed query of a URL is printed, kept or in a command line")
def test_secrets_of_sources_are_nowhere(server: int, home: Path, tmp_path: Path):
    password, signature = _WRITTEN
    good = f"http://me:{password}@127.0.0.1:{server}/file?signature={signature}"
    # Denied to the task that reads, denied at once, no files, no such host, no such store, no such port.
    bad = [
        good.replace("/file", "/later"),
        f"{good}x",
        f"http://me:{password}@127.0.0.1:{server}/*?signature={signature}",
    ]
    bad += [f"https://me:{password}@no-such-host.invalid/file?{signature}", f"s3://me:{_PASSWORD}@bucket/x"]
    bad += [f"hdfs://me:{password}@127.0.0.1:1/x"]
    secrets = [_PASSWORD, _SIGNATURE, *_WRITTEN]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", _DRIVER], input=json.dumps([good, *bad, secrets]),
        capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=150,
    )  # fmt: skip
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert "SEEN []" in printed and not re.search(r"SEEN \[.+\]", printed), printed
    errors = [line for line in printed.splitlines() if line.startswith("ERROR")]
    assert len(errors) == len(bad) and f"http://***@127.0.0.1:{server}/file" in printed
    for secret in [*secrets, "pa55"]:
        assert secret not in printed
        for top in (tmp_path, home):
            for path in filter(Path.is_file, top.rglob("*")):
                assert secret.encode() not in path.read_bytes(), path
