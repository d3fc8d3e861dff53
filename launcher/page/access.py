"""Decides who may see the page, and what they may do there.

The page is served on the loopback interface, where every user of this machine can connect, and where any site
in the user's browser can send requests. So each request needs a token, which moves from the address into a
cookie, and the names of the server and of the requesting page are compared. The page never contains a token.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_COOKIE = "launch-page"
_METRICS = "/metrics"
_FORBIDDEN = "Open the address with the token that `launch` has printed"
#: With these headers a browser loads only files of the page itself. Elements may contain styles, because
#: uPlot, which draws the graphs, writes them there.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Right(enum.Enum):
    """What the holder of a token may do."""

    READ = "read"
    #: Also stop and restart tasks.
    ACT = "act"


class Access:
    """The tokens of one page, and the names by which it may be reached.

    Args:
        allowed_hosts: Further names of the server, such as that of a proxy.
        metrics_token: The token of ``/metrics``. Empty if nobody may read the metrics.
        is_shared: Whether there is a second token, which can only read.
    """

    def __init__(self, allowed_hosts: Collection[str], metrics_token: str, *, is_shared: bool) -> None:
        """Make new tokens. Whoever knows one of them may see the page."""
        self._allowed_hosts = {name.lower() for name in allowed_hosts}
        self._metrics_token = metrics_token
        #: The token with which a viewer may also act, as `Right.ACT` says.
        self.token = secrets.token_urlsafe()
        #: The token with which a viewer can only read. Empty if there is no such token.
        self.read_token = secrets.token_urlsafe() if is_shared else ""
        #: Servers on other ports of this machine, perhaps of other users, get the same cookies. So the page
        #: is in a folder whose name they cannot guess, and its cookie is for this folder.
        self.folder = f"/{secrets.token_urlsafe()}"

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """Return an app that refuses requests that are not allowed, and lets the given app answer all others.

        The given app finds what the viewer may do, a `Right`, as ``request.state.right``.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_guarded(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(_HEADERS)
                await send(message)

            refused = self._answer(Request(scope))
            # The given app knows only the paths below the folder.
            if scope["path"] != _METRICS:
                scope["root_path"] = self.folder
            await (refused or app)(scope, receive, send_guarded)

        return answer

    def _answer(self, request: Request) -> Response | None:
        """Return a refusal of a request, or the answer to one with a token. None if the app shall answer.

        Every request must name this server. ``/metrics`` needs its own token, and the folder of the page
        needs the cookie. A request that changes something also needs `Right.ACT`, and must come from this
        page.
        """
        headers, path = request.headers, request.scope["path"]
        if not self._is_own_host(headers):
            return _refusal("this name of the server is not allowed: see `launch page --allow-host`")
        if path == _METRICS:
            return None if self._may_read_metrics(headers) else _refusal(_FORBIDDEN)
        token = request.query_params.get("token")
        if token is not None and path in ("/", f"{self.folder}/"):
            return self._answer_token(path, token)
        is_inside = path.startswith(f"{self.folder}/")
        right = self._right_of(request.cookies.get(_COOKIE, "")) if is_inside else None
        if right is None:
            return _refusal(_FORBIDDEN)
        if request.method not in ("GET", "HEAD"):
            if right is not Right.ACT:
                return _refusal("this address only allows to read")
            if not self._is_own_origin(headers):
                return _refusal("the request comes from another page")
        request.state.right = right
        return None

    def _answer_token(self, path: str, token: str) -> Response:
        """Move a token from the address into a cookie: lead to the folder of the page, and there to the page.

        A browser that another site has sent here would follow redirects without the cookie (``samesite``). So
        each step is a page of its own, which loads the next one. The cookie names no path, so it is for the
        folder of the page, also where a proxy puts other folders before that.
        """
        if self._right_of(token) is None:
            return _refusal(_FORBIDDEN)
        target = f"{self.folder[1:]}/?token={token}" if path == "/" else "./"
        # Without an icon, a browser asks for one that nobody may get.
        icon = '<!doctype html><link rel="icon" href="data:,">'
        response = HTMLResponse(f'{icon}<meta http-equiv="refresh" content="0;url={target}">')
        if path != "/":
            response.set_cookie(_COOKIE, token, path=None, httponly=True, samesite="strict")
        return response

    def _right_of(self, token: str) -> Right | None:
        """Return what the holder of a token may do. None if it is no token of this page."""
        rights = ((self.token, Right.ACT), (self.read_token, Right.READ))
        # Both tokens are compared in any case, so that the time of the answer tells nothing.
        found = [right for known, right in rights if _are_equal(token, known)]
        return found[0] if found else None

    def _may_read_metrics(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request for ``/metrics`` has the token of ``--token-file``."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _are_equal(token.strip(), self._metrics_token)

    def _is_own_host(self, headers: Mapping[str, str]) -> bool:
        """Return whether the browser means this page by the name of its server.

        The owner of any domain can let it point to this machine (DNS rebinding).
        """
        name = _host_in(f"//{headers.get('host', '')}")
        return name in _LOOPBACK_NAMES or name in self._allowed_hosts

    def _is_own_origin(self, headers: Mapping[str, str]) -> bool:
        """Return whether this page itself sends a request, and not another one in the same browser."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        origin, host = headers.get("origin", ""), headers.get("host", "")
        # A proxy may have changed the name of the server in the request.
        return origin == f"http://{host}" or _host_in(origin) in self._allowed_hosts


def _refusal(text: str) -> Response:
    """Return the answer to a request that is not allowed."""
    return PlainTextResponse(f"{text}\n", 403)


def _are_equal(given: str, known: str) -> bool:
    """Return whether a token is the known one, which may be empty if there is none."""
    return bool(known) and secrets.compare_digest(given.encode(errors="replace"), known.encode())


def _host_in(url: str) -> str:
    """Return the name of the server in a URL. Empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
