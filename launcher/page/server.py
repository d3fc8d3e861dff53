"""Serves the page of a run on the loopback interface, until Ctrl-C, or until the run has ended.

The main thread watches the run, and another one serves the viewers. So nothing that a viewer does holds up
the watching, and the job knows nothing of either.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from launcher.backends.watcher import RunWatcher
from launcher.common.errors import LaunchError
from launcher.page.app import PageApp
from launcher.page.viewers import MAX_VIEWERS
from launcher.threads import start_function

#: The longest wait for a change of the run.
_LOOK_SECONDS = 0.4
#: The shortest pause between two changes of the page.
_PAUSE_SECONDS = 0.3
#: The pause while nobody looks at the page.
_IDLE_SECONDS = 5.0
#: How long viewers have at the end to receive the last change.
_LAST_SECONDS = 1


def listen(port: int) -> socket.socket:
    """Return a socket of the loopback interface for the page.

    Args:
        port: The port. 0 for any that is free.

    Raises:
        LaunchError: The port is not free, or needs more rights.
    """
    try:
        return socket.create_server(("127.0.0.1", port), backlog=MAX_VIEWERS)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise LaunchError(f"cannot listen on port {port} of 127.0.0.1: {reason}") from error


@contextmanager
def serving(app: PageApp, listener: socket.socket) -> Iterator[None]:
    """Open a context in which another thread serves a page.

    Args:
        app: The page.
        listener: Where it is served. It is closed at the end.
    """
    config = uvicorn.Config(
        app.asgi,
        log_config=None,  # A log of requests would contain the token.
        access_log=False,
        log_level="critical",
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    server = uvicorn.Server(config)
    # uvicorn serves the page in a thread, while the caller follows the run.
    thread = start_function(server.run, [listener], name="page")
    try:
        yield
    finally:
        app.viewers.close()
        server.should_exit = True
        thread.join(2 * _LAST_SECONDS)


def follow(app: PageApp, watcher: RunWatcher, *, until_end: bool) -> None:
    """Show a run on its page as it changes, until a signal raises an exception or the run has ended.

    The pauses save CPU time: a short one while somebody looks at the page, and otherwise one that ends when a
    browser asks for the page.

    Args:
        app: The page, which has shown the run once.
        watcher: Watches the run.
        until_end: Whether to return when the run has ended. Otherwise its end is shown like any other change.
    """
    viewers = app.viewers
    while True:
        # A browser that opens the page after a pause gets what this finds now.
        view = watcher.look(_LOOK_SECONDS if viewers.count else 0.0)
        app.show(view)
        if view.has_ended and until_end:
            return
        if viewers.count:
            time.sleep(_PAUSE_SECONDS)
        else:
            viewers.wanted.wait(_IDLE_SECONDS)
            viewers.wanted.clear()
