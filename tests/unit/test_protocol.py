"""Frames, their checks, and connections that break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.common import events, protocol
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.protocol import Decoder, MessageChannel, Refused, encode, swap
from launcher.common.validation import RANGES
from launcher.findings import HostInspection
from tests.conftest import examples
from tests.histories.host_events import HostEvents
from tests.soak import cases
from tests.soak.pretender import TASK

WORKER = TaskId("worker/0")
AGENT = HostEvents("node1", lambda: 1.5)
FROM_AGENT = [
    AGENT.ready(),
    AGENT.held({WORKER: 4000}),
    events.SignalSent(host="node1", at=1.0, task=WORKER, signal=15, states="SR"),
    events.Measured("node1", 1.0, {WORKER: 1 << 40}),
    AGENT.exited(WORKER, signal=9, oom="kernel log"),
    AGENT.gone(WORKER, leftovers=3, unkillable=(5, 6)),
    AGENT.output(WORKER, data=b"\xff\x00line\n"),
    protocol.CommandData(3, b""),
]
FROM_LAUNCHER = [
    events.HoldPorts("node1", (WORKER,)),
    events.StartTask(
        host="node1", task=WORKER, attempt=1, argv=("a", "b"), env={"K": "v"}, workdir=None,
        steps=((15, 2.0), (9, 5.0)),
    ),
    events.StopTasks("node1", (WORKER,), ((15, 2.0),)),
    events.SignalTask(host="node1", task=WORKER, signal=15, all=True),
    protocol.RunCommand(1, "a:b", {"deep": [1, {"er": None}]}),
]  # fmt: skip


def joined(message: Any) -> bytes:
    """A frame in one piece."""
    return b"".join(encode(message))


@pytest.mark.parametrize("cut", [1, 3, 17, 10_000])
def test_messages_come_out_as_they_went_in_whatever_the_pieces(cut: int):
    for from_agent, messages in ((True, FROM_AGENT), (False, FROM_LAUNCHER)):
        decoder = Decoder(from_agent=from_agent, host="node1")
        data = b"".join(map(joined, messages * 2))
        found = [m for start in range(0, len(data), cut) for m in decoder.feed(data[start : start + cut])]
        assert found == messages * 2
        assert [type(message) for message in found] == [type(message) for message in messages * 2]


def test_a_message_to_many_hosts_is_encoded_once():
    message = events.SetCluster("", {"worker": ("node1:1",)}, ())
    frames = [encode(message)[0] for _ in range(1000)]
    assert len(set(map(id, frames))) == 1
    assert Decoder(from_agent=False).feed(bytes(frames[0])) == [message]
    assert encode(events.SetCluster("", {"ps": ()}, ())) != frames[:1]


def test_what_no_agent_may_send_is_an_error_of_the_protocol():
    """Each message with each field wrong, and bytes that are no message. Attempts are for the supervisor."""
    taken = set()
    for case in (*cases.wrong_messages(), *cases.wrong_frames()):
        try:
            Decoder(from_agent=True, host="node1", tasks={"worker/0"}).feed(
                case.raw.replace(TASK, b"worker/0")
            )
        except ProtocolError:
            continue
        if case.wrong and not case.quits:
            taken.add(case.name.split()[1])
    assert taken == {"attempt"}


@pytest.mark.parametrize("field", ["path", "target"])
def test_a_path_that_no_file_can_have(field: str):
    fields = {"path": "out", "kind": "l", "target": "here", field: "\ud800"}
    with pytest.raises(ProtocolError):
        Decoder(from_agent=True, only=protocol.FILE_RECORDS).feed(cases.frame(protocol.FileEntry, fields))


def test_every_number_of_an_agent_has_limits():
    def names(record: Any) -> Iterator[str]:
        for name, hint in get_type_hints(record).items():
            if hasattr(hint, "_fields"):
                yield from names(hint)
            elif "int" in str(hint) or "float" in str(hint):
                yield name

    records = [*protocol._AGENT_RECORDS, *protocol.FILE_RECORDS, HostInspection]
    assert {name for record in records for name in names(record)} <= RANGES.keys()


def test_texts_for_users_are_one_line_and_short():
    notice = {"at": 1.0, "text": "\x1b[31mx\nlaunch: forged\n"}
    refused = {"at": 1.0, "why": "x" * 61_000}
    data = cases.frame(events.HostNotice, notice) + cases.frame(events.PortsRefused, refused)
    shown, cut = Decoder(from_agent=True, host="node1").feed(data)
    assert shown.text == r"\x1b[31mx\nlaunch: forged"
    assert len(cut.why) == 2000


def test_a_message_that_is_too_large_is_not_sent():
    with pytest.raises(ProtocolError):
        encode(protocol.CommandData(1, bytes(protocol.MAX_FRAME_BYTES)))


class Pair:
    """A launcher's and an agent's channel, and the bytes under way between them."""

    def __init__(self) -> None:
        self.ends = [
            MessageChannel(lambda: Decoder(from_agent=True, host="node1"), "secret", greets=True),
            MessageChannel(lambda: Decoder(from_agent=False, host="node1"), "secret"),
        ]
        self.under_way = [b"", b""]
        self.received: list[list[Any]] = [[], []]
        self.now = 0.0
        self.attempt = 0
        self.connect()

    def connect(self) -> None:
        """Break the connection, lose what is under way, make another one."""
        self.attempt += 1
        self.under_way = [b"", b""]
        for end in self.ends:
            end.connect(self.attempt, self.now)

    def move(self, end: int, count: int) -> None:
        """Write so many bytes at one end, and read them at the other one."""
        self.now += 0.01
        data = b"".join(self.ends[end].output(self.now))[:count]
        self.ends[end].sent(len(data))
        messages = self.ends[1 - end].receive(data)
        self.received[1 - end] += messages
        self.ends[1 - end].note_handled(len(messages), self.now)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 500)),
        st.tuples(st.just("move"), st.integers(0, 1), st.integers(1, 900)),
        st.tuples(st.just("break"), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=examples(200))
@given(actions)
# The first message of an end has arrived, and the connection breaks before its acknowledgement.
@example([("move", 0, 900), ("move", 1, 900), ("send", 0, 1), ("move", 0, 900), ("break", 0, 0)])
@example([("move", 0, 900), ("move", 1, 900), ("send", 1, 1), ("move", 1, 900), ("break", 0, 0)])
def test_nothing_is_lost_doubled_or_reordered_when_connections_break(steps: list[tuple[str, int, int]]):
    pair, sent = Pair(), [list[Any](), list[Any]()]
    for action, end, size in steps:
        if action == "send":
            command = len(sent[end])
            sent[end].append(protocol.CommandData(command, bytes(size)))
            pair.ends[end].send(sent[end][-1])
        elif action == "move":
            pair.move(end, size)
        else:
            pair.connect()
    for _ in range(200):
        pair.move(0, 100_000)
        pair.move(1, 100_000)
    assert pair.received == [sent[1], sent[0]]
    assert [end.pending for end in pair.ends] == [0, 0]
    assert all(end.is_idle for end in pair.ends)


def test_events_overtake_output_but_not_what_is_on_the_wire():
    channel = MessageChannel(lambda: Decoder(from_agent=False))
    output = events.TaskOutput(host="", task=WORKER, attempt=1, data=bytes(200_000))
    gone = events.TaskGone(host="", at=1.0, task=WORKER, attempt=1)
    for _ in range(4):
        channel.send(output, bulk=True)
    channel.send(gone, bulk=True)
    first = b"".join(channel.output(0.0))
    channel.sent(10)
    channel.send(events.AgentClosed("", 2.0))
    first, rest = first[:10] + b"".join(channel.output(0.0)), b""
    channel.sent(len(first) - 10)
    while channel.output(0.0):
        data = b"".join(channel.output(0.0))
        channel.sent(len(data))
        rest += data
    names = [type(message).__name__ for message in Decoder(from_agent=True).feed(first + rest)]
    assert names == ["TaskOutput", "TaskOutput", "AgentClosed", "TaskOutput", "TaskOutput", "TaskGone"]
    assert channel.pending == 0


def test_output_that_is_held_lets_events_pass():
    channel = MessageChannel(lambda: Decoder(from_agent=False))
    channel.held = True
    channel.send(events.TaskOutput(host="", task=WORKER, attempt=1, data=b"x"), bulk=True)
    assert not channel.output(0.0)
    channel.send(events.AgentClosed("", 2.0))
    assert len(channel.output(0.0)) == 1


def test_another_session_is_refused_and_a_refusal_is_passed_on():
    end = MessageChannel(lambda: Decoder(from_agent=True), "secret", greets=True)
    end.connect(1, 0.0)
    with pytest.raises(ProtocolError):
        end.receive(joined(protocol.Hello("other", 1, 0)))
    end.connect(2, 0.0)
    assert end.receive(joined(Refused("no agent"))) == [Refused("no agent")]
    with pytest.raises(ProtocolError):
        end.receive(joined(events.AgentClosed("", 1.0)))


@given(st.lists(st.sampled_from([b"\n", b"\xff", b"a line", b"\0"])).map(b"".join), st.integers(0, 40))
def test_swapped_bytes(data: bytes, cut: int):
    """However they are cut, each piece by itself gives its bytes again; text has no newline on its way."""
    pieces = swap(data[:cut]) + swap(data[cut:])
    assert pieces == swap(data)
    assert swap(pieces) == data
    assert b"\xff" in data or b"\n" not in pieces
