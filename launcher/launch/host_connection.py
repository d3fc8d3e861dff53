"""What the orchestrator knows about its connection to the agent of one host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.backends.connections import AgentLink
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace


class HostConnection:
    """The connection to the agent of one host.

    Args:
        host: The name of the host.
        link: The link to its agent.
    """

    def __init__(self, host: str, link: AgentLink) -> None:
        self.host = host
        self.link = link
        self.closed = False
        #: Whether something has come from the agent: it has run.
        self.answered = False
        #: Whether the agent runs on after the job, and the link stays open.
        self.stays = False
        #: Whether the supervisor has given the agent up: it does not answer, or does not obey.
        self.given_up = False
        #: When the link ended without AgentClosed, and until when (monotonic) to wait for the reason.
        self.lost_at = 0.0
        self.ask_until = 0.0
        #: Seconds that the host's clock is behind ours, by the event that was quickest so far.
        self._clock_behind = float("inf")

    def with_our_time(self, event: events.Event) -> events.Event:
        """Return the event with a time by this machine's clock, so that times of all hosts can be compared.

        The quickest event has the smallest difference of the clocks: the true one and its network delay.
        """
        if self.link.same_clock or isinstance(event, events.TaskOutput):
            return event
        self._clock_behind = min(self._clock_behind, events.now() - event.at)
        return replace(event, at=event.at + self._clock_behind)


def join_output(messages: Iterable[events.AgentEvent]) -> Iterator[events.AgentEvent]:
    """Yield the messages of a host, with what a task has printed between two other events in one."""
    printed: dict[tuple[str, TaskId, int], list[bytes]] = {}
    for message in (*messages, None):
        if isinstance(message, events.TaskOutput):
            key = (message.host, message.task, message.attempt)
            printed.setdefault(key, []).append(message.data)
            continue
        for key, pieces in printed.items():
            yield events.TaskOutput(*key, b"".join(pieces))
        printed.clear()
        if message is not None:
            yield message
