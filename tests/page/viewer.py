"""A browser without a screen: what it asks a page, and what it gets."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tests.conftest import COMMAND, Launch, Started


class Answer(NamedTuple):
    """What a server has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Viewer:
    """A viewer of a page, by the address that ``launch page`` has printed.

    Args:
        url: The address with its token.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.port is not None
        self.port, self.origin = parts.port, f"http://{parts.netloc}"
        self.token = urllib.parse.parse_qs(parts.query)["token"][0]
        self.folder, self.cookie = "", ""
        first = self.ask(f"/?token={self.token}")
        assert first.status == 200 and "set-cookie" not in first.headers
        self.folder = f"/{first.text.partition('url=')[2].partition('/')[0]}"
        second = self.ask(f"/?token={self.token}")
        assert second.status == 200 and 'content="0;url=./"' in second.text
        self.set_cookie = second.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]

    def act(self, path: str, **headers: str | None) -> Answer:
        """Send a request that changes the run, as the page does."""
        return self.ask(path, method="POST", **headers)

    def ask(
        self, path: str, *, method: str | None = None, cookie: str | None = None, **headers: str | None
    ) -> Answer:
        """Ask for a path, as the page does.

        Args:
            path: What stands after the folder of the page. Outside of it for `/metrics`.
            method: The method of HTTP. None for GET.
            cookie: The cookie. None for that of the viewer.
            headers: Others, with underscores for dashes. None leaves one out.
        """
        known = {"cookie": self.cookie if cookie is None else cookie, "origin": self.origin}
        sent = {**known, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                method or "GET",
                path if path == "/metrics" else self.folder + path,
                headers={name: value for name, value in sent.items() if value},
            )
            answer = connection.getresponse()
            lower = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, lower, answer.read())
        finally:
            connection.close()

    @contextmanager
    def events(self) -> Iterator[Iterator[dict[str, Any]]]:
        """Open the stream of changes, and yield each as it comes."""
        with self.stream() as connection, connection.makefile("rb") as file:
            yield (json.loads(line[6:]) for line in file if line.startswith(b"data: "))

    def stream(self) -> socket.socket:
        """Ask for the changes, without reading the answer."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = f"GET {self.folder}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {self.cookie}\r\n\r\n"
        connection.sendall(head.encode())
        return connection


def viewer_of(page: Started, *, shared: bool = False) -> Viewer:
    """Return a viewer of a page when that has printed its address, the one that only reads or the other."""
    pattern = rf"{'only to read' if shared else 'page of .*'}: (http://\S+)\n"
    page.until(lambda it: re.search(pattern, it.out + it.err))
    found = re.search(pattern, page.out + page.err)
    assert found
    return Viewer(found[1])


def page_of(launch: Launch, *words: str) -> tuple[Started, Viewer]:
    """Start ``launch page`` with these words, and return it with its viewer."""
    page = launch.start("page", *words)
    return page, viewer_of(page)


_CLONE_NEWNET = 0x40000000


@contextmanager
def in_network(enter: Sequence[str]) -> Iterator[None]:
    """Let this thread connect to what listens in the network of a cluster.

    Args:
        enter: The beginning of a command there: ``nsenter --net=PATH --``, or nothing if it is this network.
    """
    paths = [word.removeprefix("--net=") for word in enter if word.startswith("--net=")]
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        for path in paths:
            own, there = (os.open(name, os.O_RDONLY) for name in ("/proc/thread-self/ns/net", path))
            stack.callback(os.close, own)
            stack.callback(os.close, there)
            stack.callback(libc.setns, own, _CLONE_NEWNET)
            assert libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield


def followed_elsewhere(launch: Launch, name: str, enter: Sequence[str], environ: Mapping[str, str]) -> str:
    """Restart worker/0 of a run elsewhere from its page, and return the last verdict there.

    Its tasks print steps for some time.
    """
    page = launch.start("page", "--until-end", name, command=(*enter, *COMMAND), env=environ)
    with in_network(enter):
        viewer = viewer_of(page)
        with viewer.events() as events:
            for event in events:
                rows = {row["task"]: row for row in event.get("tasks", ())}
                if rows.get("worker/0", {}).get("step", 0) > 3:
                    break
        html = viewer.ask("/").text
        assert "runs: 2 of 2 tasks" in html and "worker/1" in html
        assert "step 3 loss" in viewer.ask("/log?task=worker/1").json["text"]
        restarted = viewer.act("/restart?task=worker/0")
        assert restarted.status in (200, 202), restarted.text
        verdict, attempts = "", set[int]()
        with viewer.events() as events:
            for event in events:
                attempts |= {row["attempt"] for row in event.get("tasks", ()) if row["task"] == "worker/0"}
                verdict = event.get("verdict", verdict)
                if event.get("ended_at"):
                    break
    page.wait(60, code=0)
    assert max(attempts) == 2
    return verdict
