"""Facts and orders survive the pipe in any pieces, and nothing else gets through it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import events, wire
from launcher.errors import WireError
from launcher.job import TaskId

#: Strings as `os.fsdecode` makes them: any bytes, those that are not UTF-8 as lone surrogates.
TEXTS = st.text(max_size=20) | st.binary(max_size=20).map(
    lambda data: data.decode("utf-8", "surrogateescape")
)
TASKS = st.builds(TaskId.of, st.text("abcps_-", min_size=1, max_size=8), st.integers(0, 10_000))
NUMBERS = st.integers(0, 1 << 53)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
LADDERS = st.lists(st.tuples(st.integers(1, 64), TIMES), max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


#: What each field of a record may hold, by its name; all else is a string.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "at": TIMES,
    "pid": NUMBERS,
    "facts": st.dictionaries(TEXTS, JSON, max_size=4),
    "gpus": tuples(TEXTS),
    "ports": st.dictionaries(TASKS, st.integers(1, 65535), max_size=4),
    "task": TASKS,
    "attempt": st.integers(1, 65535),
    "signal": st.none() | st.integers(1, 64),
    "processes": NUMBERS,
    "code": st.none() | st.integers(0, 255),
    "peak_rss": NUMBERS,
    "cpu_s": TIMES,
    "leftovers": NUMBERS,
    "unkillable": tuples(NUMBERS),
    "tasks": tuples(TASKS),
    "argv": tuples(TEXTS),
    "env": st.dictionaries(TEXTS, TEXTS, max_size=4),
    "workdir": st.none() | TEXTS,
    "addresses": tuples(TEXTS),
    "unreachable": st.dictionaries(TEXTS, TEXTS, max_size=4),
    "on": st.booleans(),
    "venv": st.none() | TEXTS,
    "script": st.none() | TEXTS,
    "ladder": LADDERS,
}
STRINGS = {"host", "why", "oom"}

FACTS = (
    events.AgentReady, events.HostGpus, events.PortsHeld, events.PortsRefused, events.TaskStarted,
    events.TaskNotStarted, events.TaskSignalled, events.TaskExited, events.TaskGone, events.AgentClosed,
    events.PeersTried,
)  # fmt: skip
ORDERS = (
    events.HoldPorts, events.TryPeers, events.StartTask, events.StopTasks, events.HoldOutput,
    events.CloseAgent,
)  # fmt: skip


def records(kinds: Iterable[Any]) -> st.SearchStrategy[Any]:
    """Any of these records, with anything in its fields."""
    return st.one_of(
        [st.builds(kind, **{name: FIELDS.get(name, TEXTS) for name in kind._fields}) for kind in kinds]
    )


OUTPUTS = st.builds(
    events.TaskOutput, st.just("node1"), TASKS, st.integers(1, 65535), st.binary(max_size=300)
)


def frame(message: Any) -> bytes:
    """The bytes of a message, output included."""
    if isinstance(message, events.TaskOutput):
        return wire.output_head(message.task, message.attempt, len(message.data)) + message.data
    return wire.encode(message)


def decoded(data: bytes, magic: bool = False) -> list[Any]:
    return list(wire.Decoder("node1", magic).feed(data))


def received(message: Any) -> list[Any]:
    """What comes out at whoever gets such messages."""
    from_agent = type(message) not in ORDERS
    return decoded((wire.MAGIC if from_agent else b"") + frame(message), from_agent)


def test_every_field_is_known_here():
    fields = {name for kind in (*FACTS, *ORDERS) for name in kind._fields}
    assert fields == {*FIELDS, *STRINGS}


@settings(deadline=None, max_examples=300)
@given(records((*FACTS, *ORDERS)) | OUTPUTS)
def test_round_trip(message: Any):
    (again,) = received(message)
    assert again == message and type(again) is type(message)
    for name, value in message._asdict().items():
        assert type(getattr(again, name)) is type(value), name


@settings(deadline=None)
@given(records(FACTS))
def test_task_names_come_back_as_such(message: Any):
    (again,) = received(message)
    if "task" in again._fields:
        assert isinstance(again.task, TaskId)
    if isinstance(again, events.PortsHeld):
        assert all(isinstance(task, TaskId) for task in again.ports)


@settings(deadline=None)
@given(
    st.one_of(
        st.tuples(st.lists(records(FACTS) | OUTPUTS, max_size=8), st.just(True)),
        st.tuples(st.lists(records(ORDERS), max_size=8), st.just(False)),
    ),
    st.lists(st.integers(1, 200), min_size=1),
)
def test_any_pieces_give_the_same_messages(said: tuple[list[Any], bool], sizes: list[int]):
    messages, from_agent = said
    data = (wire.MAGIC if from_agent else b"") + b"".join(map(frame, messages))
    decoder, got, at, turn = wire.Decoder("node1", from_agent), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        got += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert got == messages
    assert decoder.noise == b""


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(1, 500))
def test_what_a_login_shell_prints_first_is_passed_over(noise: bytes, size: int):
    closed = events.AgentClosed("node1", 1.5)
    data = noise + wire.MAGIC + frame(closed)
    decoder = wire.Decoder("node1", magic=True)
    got = [message for at in range(0, len(data), size) for message in decoder.feed(data[at : at + size])]
    assert got == [closed]


def test_noise_is_kept_for_the_user():
    decoder = wire.Decoder("node1", magic=True)
    decoder.feed(b"Permission denied")
    decoder.feed(b" (publickey).\n")
    assert decoder.noise == b"Permission denied (publickey).\n"


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_noise_has_a_bound_whatever_the_pieces(size: int):
    def feed(noise: int) -> list[Any]:
        data = b"x" * noise + wire.MAGIC + frame(events.AgentClosed("node1", 1.5))
        decoder = wire.Decoder("node1", magic=True)
        return [message for at in range(0, len(data), size) for message in decoder.feed(data[at : at + size])]

    assert len(feed(wire.MAX_NOISE)) == 1
    with pytest.raises(WireError, match="no agent answered, but b'xxx"):
        feed(wire.MAX_NOISE + 1)


# ---------------------------------------------------------------------- what is not ours


def message(payload: bytes, kind: int = 1) -> bytes:
    """A frame of this payload."""
    return struct.pack("<IB", len(payload), kind) + payload


GARBAGE = {
    "another kind": message(b"", 3),
    "kind 0": message(b"{}", 0),
    "too large": struct.pack("<IB", wire.MAX_PAYLOAD + 1, 1),
    "text": b"Connection closed by remote host\n",
    "no JSON": message(b"{"),
    "not UTF-8": message(b'{"is":"\xff"}'),
    "no object": message(b"[1]"),
    "a string": message(b'"AgentClosed"'),
    "nobody": message(b"{}"),
    "unknown": message(b'{"is":"Sing"}'),
    "not a name": message(b'{"is":[1]}'),
    "a fact that does not travel": message(b'{"is":"TimeUp","at":1,"timer":"x"}'),
    "a field too few": message(b'{"is":"AgentClosed","host":"a"}'),
    "a field too many": message(b'{"is":"AgentClosed","host":"a","at":1,"mood":"good"}'),
    "tasks that are none": message(b'{"is":"HoldPorts","host":"a","tasks":7}'),
    "ports that are none": message(b'{"is":"PortsHeld","host":"a","at":1,"ports":[1]}'),
    "a ladder without rungs": message(b'{"is":"StopTasks","host":"a","tasks":[],"ladder":[[]]}'),
    "very deep": message(b"[" * 1_000_000),
    "a very long number": message(b"1" * 100_000),
    "output without a head": message(b"\x01", 2),
    "output without a head, and more": message(b"\x01", 2) + frame(events.AgentClosed("a", 1.0)),
    "output that ends within its name": message(b"\x09\x01\x00work", 2),
    "output that ends within its name, and more": message(b"\x09\x01\x00work", 2) + b"x" * 20,
    "output of a name that is none": message(b"\x02\x01\x00\xff\xfe", 2),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_an_error(data: bytes):
    with pytest.raises(WireError) as caught:
        decoded(data)
    assert len(str(caught.value)) < 1000


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_no_bytes_give_anything_but_messages_or_an_error(data: bytes):
    for magic in (False, True):
        try:
            decoded(wire.MAGIC + data if magic else data, magic)
        except WireError:
            pass


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([1, 2]), st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_no_payload_gives_anything_but_messages_or_an_error(kind: int, payload: bytes):
    try:
        decoded(message(payload, kind))
    except WireError:
        pass


@settings(deadline=None)
@given(records(ORDERS))
def test_an_agent_gives_no_orders(order: Any):
    with pytest.raises(WireError):
        decoded(wire.MAGIC + frame(order), magic=True)


def test_a_fact_from_the_launcher_is_none():
    with pytest.raises(WireError):
        decoded(frame(events.AgentClosed("node1", 1.5)))


def test_what_does_not_fit_a_frame_is_not_sent():
    with pytest.raises(WireError, match="StartTask of .* bytes is more than a frame can hold"):
        wire.encode(events.StartTask("a", TaskId("w/0"), 1, ("x" * wire.MAX_PAYLOAD,), {}, None, ()))
    with pytest.raises(WireError):
        wire.output_head(TaskId("w" * 256), 1, 1)
    with pytest.raises(WireError):
        wire.output_head(TaskId("w/0"), 1, wire.MAX_PAYLOAD)


# ---------------------------------------------------------------------- the format, byte by byte

WORKER, PS = TaskId("worker/0"), TaskId("ps/1")

#: A change here is another VERSION: agents and launchers of two versions must not understand each other.
FROZEN: list[tuple[Any, int, bytes]] = [
    (
        events.AgentReady("node1", 1.5, 42, {"cpus": 8}),
        71,
        b'{"is":"AgentReady","host":"node1","at":1.5,"pid":42,"facts":{"cpus":8}}',
    ),
    (
        events.HostGpus("node1", 1.5, ("0, H200, 141 GB",)),
        68,
        b'{"is":"HostGpus","host":"node1","at":1.5,"gpus":["0, H200, 141 GB"]}',
    ),
    (
        events.PortsHeld("node1", 1.5, {WORKER: 4000, PS: 4001}),
        80,
        b'{"is":"PortsHeld","host":"node1","at":1.5,"ports":{"worker/0":4000,"ps/1":4001}}',
    ),
    (
        events.PortsRefused("node1", 1.5, "none left"),
        63,
        b'{"is":"PortsRefused","host":"node1","at":1.5,"why":"none left"}',
    ),
    (
        events.TaskStarted("node1", 1.5, WORKER, 1, 4711),
        85,
        b'{"is":"TaskStarted","host":"node1","at":1.5,"task":"worker/0","attempt":1,"pid":4711}',
    ),
    (
        events.TaskNotStarted("node1", 1.5, WORKER, 1, 127, "caf\udce9: not found"),
        117,
        b'{"is":"TaskNotStarted","host":"node1","at":1.5,"task":"worker/0","attempt":1,"code":'
        b'127,"why":"caf\\udce9: not found"}',
    ),
    (
        events.TaskSignalled("node1", 1.5, WORKER, 1, 15, 3),
        102,
        b'{"is":"TaskSignalled","host":"node1","at":1.5,"task":"worker/0","attempt":1,"signal"'
        b':15,"processes":3}',
    ),
    (
        events.TaskExited("node1", 1.5, WORKER, 1, None, 9, 1024, 0.25, "oom_kill 1"),
        144,
        b'{"is":"TaskExited","host":"node1","at":1.5,"task":"worker/0","attempt":1,"code":null'
        b',"signal":9,"peak_rss":1024,"cpu_s":0.25,"oom":"oom_kill 1"}',
    ),
    (
        events.TaskGone("node1", 1.5, WORKER, 1, 2, (4712,)),
        105,
        b'{"is":"TaskGone","host":"node1","at":1.5,"task":"worker/0","attempt":1,"leftovers":2'
        b',"unkillable":[4712]}',
    ),
    (
        events.AgentClosed("node1", 1.5),
        44,
        b'{"is":"AgentClosed","host":"node1","at":1.5}',
    ),
    (
        events.PeersTried("node1", 1.5, {"node2:4": "no"}),
        74,
        b'{"is":"PeersTried","host":"node1","at":1.5,"unreachable":{"node2:4":"no"}}',
    ),
    (
        events.TryPeers("node1", ("node2:4",)),
        56,
        b'{"is":"TryPeers","host":"node1","addresses":["node2:4"]}',
    ),
    (
        events.HoldPorts("node1", (WORKER, PS)),
        61,
        b'{"is":"HoldPorts","host":"node1","tasks":["worker/0","ps/1"]}',
    ),
    (
        events.StartTask(
            "node1", WORKER, 1, ("python3", "caf\u00e9.py"), {"A": "b"}, None, ((15, 10.0), (9, 5.0))
        ),
        183,
        b'{"is":"StartTask","host":"node1","task":"worker/0","attempt":1,"argv":["python3","ca'
        b'f\\u00e9.py"],"env":{"A":"b"},"workdir":null,"ladder":[[15,10.0],[9,5.0]],"venv":null,"script":null}',
    ),
    (
        events.StopTasks("node1", (WORKER, PS), ((9, 5.0),)),
        80,
        b'{"is":"StopTasks","host":"node1","tasks":["worker/0","ps/1"],"ladder":[[9,5.0]]}',
    ),
    (
        events.HoldOutput("node1", True),
        44,
        b'{"is":"HoldOutput","host":"node1","on":true}',
    ),
    (
        events.CloseAgent("node1"),
        34,
        b'{"is":"CloseAgent","host":"node1"}',
    ),
]


@pytest.mark.parametrize(("message", "size", "payload"), FROZEN, ids=lambda value: type(value).__name__)
def test_frames_are_frozen(message: Any, size: int, payload: bytes):
    data = bytes([size, 0, 0, 0, 1]) + payload
    assert wire.encode(message) == data
    assert received(message) == [message]


def test_every_message_is_frozen():
    assert {type(message) for message, _, _ in FROZEN} == {*FACTS, *ORDERS}


def test_output_and_the_beginning_are_frozen():
    assert wire.MAGIC == b"\n<tf-launcher agent, wire 1>\n"
    data = b"\x10\0\0\0\x02\x08\x03\0worker/0\0\xff\r\nx"
    output = events.TaskOutput("node1", WORKER, 3, b"\0\xff\r\nx")
    assert frame(output) == data
    assert received(output) == [output]
