"""How containers end: the engine's own events, heard by one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import urllib3
from docker.errors import APIError

from launcher.transport.docker.engine import FAULTS, Engine
from launcher.transport.docker.settings import End

#: Events that tell of an end, or of what leads there.
_EVENTS = ["die", "oom", "disconnect"]
#: What the stream of events may end with; the SDK does not translate what breaks in the middle.
_BREAKS = (*FAULTS, urllib3.exceptions.HTTPError, ValueError, AttributeError)
#: Seconds that the engine's clock may be ahead of ours, or the events of a second be cut off.
_MARGIN = 5
#: Seconds for an event to come; then the container itself is looked at.
_EVENT = 2.0


class Watch(threading.Thread):
    """Hears how the containers of a job end.

    Args:
        engine: theirs.
        tell: gets a line for the user when one is cut off from the job's network; called by this thread.
    """

    def __init__(self, engine: Engine, tell: Callable[[str], None]) -> None:
        super().__init__(name="docker-events", daemon=True)
        self._engine = engine
        self._tell = tell
        self._hosts: dict[str, str] = {}
        self._ended: dict[str, End] = {}
        self._starved: set[str] = set()
        self._news = threading.Condition()
        #: The job runs: who is disconnected from its network now is worth a word.
        self.attentive = False
        #: No more events will come, though nobody asked for that: the engine is gone.
        self.broken = False
        self._closing = False
        since = int(time.time()) - _MARGIN
        what = {"event": _EVENTS, "type": ["container", "network"]}
        self._events = engine.asked(
            "the engine does not tell of its containers",
            lambda: engine.client.events(since=since, filters=what, decode=True),
        )

    def add(self, container: str, host: str) -> None:
        """This container (its id) is the host of this name."""
        with self._news:
            self._hosts[container] = host

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            for event in self._events:
                self._heard(event)
        except _BREAKS:
            pass
        with self._news:
            self.broken = not self._closing
            self._news.notify_all()

    def _heard(self, event: dict[str, Any]) -> None:
        actor = event.get("Actor") or {}
        details = actor.get("Attributes") or {}
        if event.get("Type") == "network":
            self._cut_off(self._hosts.get(details.get("container", "")))
            return
        with self._news:
            host = self._hosts.get(actor.get("ID", ""))
            if host is None:
                return
            if event.get("Action") == "oom":
                self._starved.add(host)
            else:
                code = details.get("exitCode", "")
                self._ended[host] = End(int(code) if code.isdigit() else None)
                self._news.notify_all()

    def _cut_off(self, host: str | None) -> None:
        """A container that ends is disconnected too, right after its end."""
        with self._news:
            ended = host is None or host in self._ended
        if self.attentive and not ended:
            self._tell(f"{host}: its container was disconnected from the job's network")

    def wait(self, host: str, container: str, seconds: float) -> End | None:
        """How the container of ``host`` ended; ``None``: it did not, in time."""
        deadline = time.monotonic() + seconds
        while True:
            with self._news:
                left = deadline - time.monotonic()
                self._news.wait_for(lambda: self._is_over(host), max(0.0, min(left, _EVENT)))
                if host in self._ended:
                    return self._told(host)
                if self.broken or self._engine.hangs:
                    return None
            found = self._look(host, container)
            if found is not None and found.code is None:
                return self._told_by_now(host) or found
            if found is not None or left <= _EVENT:
                return found

    def _told(self, host: str) -> End:
        """As its events have it."""
        return self._ended[host]._replace(out_of_memory=host in self._starved)

    def _told_by_now(self, host: str) -> End | None:
        """It was removed, so the engine has told its end: that was not heard yet."""
        with self._news:
            self._news.wait_for(lambda: self._is_over(host), _EVENT)
            return self._told(host) if host in self._ended else None

    def _is_over(self, host: str) -> bool:
        """Whether nothing more will be heard of it."""
        return host in self._ended or self.broken or self._engine.hangs

    def _look(self, host: str, container: str) -> End | None:
        """No event came: the container itself may say how it is."""
        try:
            state = self._engine.client.inspect_container(container)["State"]
        except APIError as error:
            return End(None, host in self._starved) if error.status_code == 404 else None
        except FAULTS:
            return None
        if state["Running"] or state["Status"] == "created":
            return None
        return End(state["ExitCode"], bool(state.get("OOMKilled")) or host in self._starved)

    def close(self) -> None:
        """Stop listening."""
        self.attentive = False
        with self._news:
            self._closing = True
        try:
            self._events.close()
        except _BREAKS:  # it is closed by its other end
            pass
        if self.is_alive():
            self.join(_EVENT)
