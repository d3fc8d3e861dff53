"""What a host may do wrong: each message with each field wrong, at each moment; as bytes for `pretender`."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from launcher.common import events, protocol
from tests.soak.pretender import MOMENTS

#: In the place of a field: it is left out.
_MISSING = object()
_FACTS = {
    "hostname": "node1", "addresses": ["10.0.0.1"], "cpus": 4, "memory": 1 << 33, "python": "3.11.7",
    "executable": "/usr/bin/python3", "user": 0,
}  # fmt: skip
#: A right value of each field.
RIGHT: dict[str, Any] = {
    "at": 1.7e9, "pid": 7, "facts": _FACTS, "gpus": ["0, A100, 80 GiB"], "why": "no reason",
    "text": "a notice", "ports": {"{{task}}": 40000}, "unreachable": {"node1:1": "no answer"},
    "task": "{{task}}", "attempt": 1, "code": 1, "signal": 15, "processes": 1, "states": "SR",
    "memory": {"{{task}}": 1 << 20}, "peak_rss": 4096, "cpu_s": 0.5, "oom": "",
    "gpu": {"{{task}}": 50}, "gpu_memory": {"{{task}}": 1 << 20},
    "leftovers": 0, "unkillable": [4711], "session": "0" * 32, "received": 0, "count": 0,
    "command": 1, "size": 1, "status": 0, "stderr": "", "path": "a/file", "kind": "f", "mode": 0o644,
    "mtime_ns": 1, "target": "", "paths": ["/tmp"], "missing": False,
}  # fmt: skip
_NOT_WHOLE: list[Any] = [
    None, True, "1", 1.5, [], {}, [1], 2**64, -(2**64), 10**400, float("nan"), float("inf"), 1e300,
]  # fmt: skip
_NOT_TEXT: list[Any] = [None, True, 1, 1.5, [], {}, ["x"]]
_ODD: list[Any] = [None, [5], {}]
_NO_TASK = [*_NOT_TEXT, "", "worker/9", "ps/0", "worker/00", "../../x", "worker/0\n", "WORKER/0", "x" * 9999]
#: Other wrong values of fields, by name.
_WRONG: dict[str, list[Any]] = {
    "at": [None, True, "1", [], {}, -1, -1e9, 1e11, 1e300, 10**400, float("nan"), float("-inf")],
    "cpu_s": [None, True, "1", [], {}, -1, 1e11, 1e300, float("nan"), float("inf")],
    "pid": [0, -1, 2**22 + 1], "attempt": [-1, 0, 2, 2**62 + 1], "code": [-1, 256, 2**62],
    "signal": [0, -7, 65, 99999],
    "processes": [-1, 2**22 + 1], "peak_rss": [-1, 2**62 + 1], "leftovers": [-5, 2**22 + 1], "received": [-1],
    "count": [-1, 1], "command": [-1], "size": [-1, 2**62 + 1], "status": [-65, 256], "mode": [-1, 0o1000],
    "mtime_ns": [2**62 + 1],
    "gpus": [None, 1, "x", {}, [None], [1], [[]], ["x"] * 1001],
    "unkillable": [None, 1, "x", {}, [None], ["x"], [0], [-1], [2**22 + 1], [1] * 300_000],
    "paths": [None, 1, "x", {}, [None], [1], ["x"] * 1001, ["x" * 5000]],
    "ports": [
        None, 1, "x", [], {"worker/9": 40000}, {"": 40000}, {"{{task}}": None}, {"{{task}}": "1"},
        {"{{task}}": 0}, {"{{task}}": -5}, {"{{task}}": 65536}, {"{{task}}": 1.5},
        {"{{task}}": True}, {"{{task}}": [1]},
    ],
    "memory": [
        None, 1, "x", [], {"ps/9": 1}, {"{{task}}": -1}, {"{{task}}": "1"}, {"{{task}}": 2**63},
        {"{{task}}": 0.5},
    ],
    "gpu": [
        None, 1, "x", [], {"ps/9": 1}, {"{{task}}": -1}, {"{{task}}": "1"}, {"{{task}}": 101},
        {"{{task}}": float("nan")},
    ],
    "gpu_memory": [None, 1, "x", [], {"ps/9": 1}, {"{{task}}": -1}, {"{{task}}": 2**63}],
    "unreachable": [None, 1, "x", [], {"a": None}, {"a": 1}, {str(n): "x" for n in range(1000)}],
    "missing": [None, 0, 1, "x", [], {}],
    "states": ["x" * 2_000_000], "session": ["x" * 65, ""], "stderr": ["x" * 70_000],
    "path": ["", "..", "../x", "/etc/x", "a/../../x", "a//b", ".", "a\0b", "x" * 5000],
    "target": ["a\0b", "x" * 5000], "kind": ["", "x", "fd"],
    "facts": [
        None, 1, "x", [], {},
        *({name: value for name, value in _FACTS.items() if name != left} for left in _FACTS),
        *({**_FACTS, name: wrong} for name in _FACTS for wrong in _ODD),
        *({**_FACTS, name: 5} for name in _FACTS if type(_FACTS[name]) is not int),
        {**_FACTS, "cpus": 0}, {**_FACTS, "memory": -1}, {**_FACTS, "user": -1}, {**_FACTS, "more": 1},
        {**_FACTS, "addresses": ["10.0.0.1"] * 1001}, {**_FACTS, "addresses": "10.0.0.1"},
    ],
}  # fmt: skip
_TEXTS = ("why", "text", "states", "oom", "stderr", "path", "target", "kind", "session")
#: Texts that may not reach the user as they are.
_FORGED = "x\nlaunch: forged\nlaunch: first to fail: forged\n"
NASTY = [
    _FORGED, "\x1b[31mforged\x07", "x" * 500_000, "\ud800", "‮forged", "\r\x1b[2Klaunch: forged", "", "\0",
]  # fmt: skip
#: The moments of messages of an honest agent.
_MOMENT_OF = {
    "AgentReady": "ready", "PortsHeld": "held", "TaskStarted": "started", "TaskOutput": "printed",
    "TaskExited": "exited", "TaskGone": "gone", "AgentClosed": "closed",
}  # fmt: skip
_FROM_AGENT = (
    *get_args(events.AgentEvent), protocol.CommandData, protocol.CommandCredit, protocol.CommandEnded,
)  # fmt: skip
_CONTROL = (protocol.Hello, protocol.Ack, protocol.Refused)


class Case(NamedTuple):
    """What a host does, and how the launch must end."""

    name: str
    moment: str
    raw: bytes
    instead: str = ""
    #: The host must count as lost: else the job may also come to its own end.
    wrong: bool = True
    quits: bool = False
    endless: bool = False
    #: More words of the command line.
    words: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `pretender`."""
        raw = base64.b64encode(self.raw).decode()
        how = {"instead": self.instead, "quits": self.quits, "endless": self.endless}
        return {"moment": self.moment, "raw": raw, **how}


def frame(record: Any, fields: object, data: bytes = b"", code: int | None = None) -> bytes:
    """A frame, whatever is in it."""
    number = protocol._CODES[record] if code is None else code
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<BII", number, len(text), len(data)) + text + data


def message(record: Any, **changes: Any) -> bytes:
    """A frame with right fields but for these."""
    return frame(record, {**fields_of(record), **changes}, _data(record))


def fields_of(record: Any) -> dict[str, Any]:
    """Right fields of a message."""
    fields = {name: RIGHT[name] for name in record._fields if name not in ("host", "data")}
    if record is events.TaskExited:
        fields["signal"] = None
    if record is events.TaskNotStarted:
        fields["code"] = 126
    if record is events.Measured:
        fields["cpu_s"] = {"{{task}}": 0.5}
    return fields


def _data(record: Any) -> bytes:
    return b"data" if record._fields[-1:] == ("data",) else b""


def _wrong(record: Any, name: str) -> Iterator[Any]:
    right = fields_of(record)[name]
    yield _MISSING
    if name == "task":
        yield from _NO_TASK
    elif name in _TEXTS:
        yield from _NOT_TEXT
    elif type(right) is int and name != "at":
        yield from _NOT_WHOLE
    elif right is None:
        yield from (True, "1", 1.5, [], {})
    for value in _WRONG.get(name, ()):
        if (record, name, value) not in ((events.SignalSent, "signal", 0), (events.Measured, "cpu_s", {})):
            yield value


def _wrong_fields(record: Any) -> Iterator[tuple[str, bytes, bool]]:
    """A message with each of its fields wrong: about it, the frame, and whether it is wrong for certain."""
    for field in fields_of(record):
        for number, value in enumerate(_wrong(record, field)):
            changed = {**fields_of(record), field: value}
            if value is _MISSING:
                del changed[field]
            # A message of a remote command that is not there, or without a field that has a default.
            optional = value is _MISSING and field in record._field_defaults
            odd = field == "code" and value is None and record is events.TaskExited
            yield (
                f"{record.__name__} {field} {number}",
                frame(record, changed, _data(record)),
                odd or not optional,
            )


def wrong_messages() -> Iterator[Case]:
    """Each message of an agent, with each field wrong."""
    for record in _FROM_AGENT:
        name = record.__name__
        moment, instead = _MOMENT_OF.get(name, "started"), name if name in _MOMENT_OF else ""
        right, data = fields_of(record), _data(record)
        for about, raw, wrong in _wrong_fields(record):
            yield Case(about, moment, raw, instead, wrong)
        others: dict[str, Any] = {
            "more": {**right, "more": 1},
            "much more": {**right, "x" * 100_000: 1},
            "host": {**right, "host": "node1"},
            "long": json.dumps(right).encode() + b" " * (1 << 21),
            "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        }
        no_objects = [[], [1], 1, None, "x", b"", b"{", b"\xff", b"[" * 100_000, b"{}x", b"NaN"]
        others.update((f"not an object {number}", other) for number, other in enumerate(no_objects))
        for about, fields in others.items():
            yield Case(f"{name} {about}", moment, frame(record, fields, data), instead)
        if not data:
            yield Case(f"{name} data", moment, frame(record, right, b"data"), instead)
    yield Case("TaskExited both", "exited", message(events.TaskExited, signal=9), "TaskExited")
    yield Case("TaskExited none", "exited", message(events.TaskExited, code=None), "TaskExited")
    yield Case("TaskNotStarted 0", "held", message(events.TaskNotStarted, code=0))


def nasty_texts() -> Iterator[Case]:
    """Texts that could forge lines of launch, or change a terminal."""
    for number, text in enumerate(NASTY):
        for record in (*_FROM_AGENT, protocol.Refused):
            for field in (name for name in ("why", "text", "oom", "states") if name in record._fields):
                moment = {"TaskNotStarted": "held", "PortsRefused": "ready"}.get(record.__name__, "started")
                about = f"{record.__name__} {field} nasty {number}"
                yield Case(about, moment, message(record, **{field: text}), wrong=False)
        facts = {**_FACTS, "python": text, "hostname": text, "executable": text, "addresses": [text]}
        ready = message(events.AgentReady, facts=facts)
        yield Case(f"AgentReady facts nasty {number}", "ready", ready, "AgentReady", wrong=False)
        tried = message(events.PeersTried, unreachable={text or "a": text})
        yield Case(f"PeersTried nasty {number}", "held", tried, wrong=False)
        gpus = message(events.HostGpus, gpus=[text] * 9)
        yield Case(f"HostGpus nasty {number}", "started", gpus, wrong=False)


def wrong_order() -> Iterator[Case]:
    """Each message at each moment, once, twice and for another attempt."""
    for moment in MOMENTS:
        for record in (*_FROM_AGENT, *_CONTROL):
            name, raw = record.__name__, message(record)
            yield Case(f"{name} once after {moment}", moment, raw, wrong=False)
            yield Case(f"{name} twice after {moment}", moment, raw * 2, wrong=False)
            if {"attempt", "task"} <= fields_of(record).keys():
                wrong = moment != "closed"  # nothing is read after that
                yield Case(
                    f"{name} attempt 7 after {moment}", moment, message(record, attempt=7), wrong=wrong
                )


def wrong_frames() -> Iterator[Case]:
    """Bytes that are no messages of an agent."""
    commands = (*get_args(events.AgentCommand), *protocol.FILE_RECORDS, protocol.Ping, protocol.RunCommand)
    for number, record in enumerate(commands):
        about = f"direction {record.__name__}"
        yield Case(about, MOMENTS[number % 4], frame(record, {}))
        yield Case(f"{about} host", "started", frame(record, {"host": "x", "tasks": []}))
    known = len(protocol._RECORDS)
    for code in (known, known + 1, 100, 254, 255):
        yield Case(f"type {code}", "started", frame(protocol.Ack, {"count": 0}, code=code))
    for sizes in ((2**31, 0), (0, 2**31), (2**32 - 1, 2**32 - 1), (4 << 20, 1), (1 << 21, 0)):
        yield Case(f"sizes {sizes}", "started", struct.pack("<BII", 5, *sizes) + bytes(1 << 20))
    chance = random.Random(22)
    for number in range(60):
        raw = b"\xff" + chance.randbytes(chance.randrange(9, 3000))
        yield Case(f"random {number}", MOMENTS[number % 5], raw)
    whole = message(events.TaskExited)
    for number in range(30):
        cut = whole[: 1 + number * (len(whole) - 1) // 30]
        yield Case(f"cut {number}", "started", cut, quits=True)
    for moment in MOMENTS:
        yield Case(f"quits {moment}", moment, b"", quits=True, wrong=moment != "closed")


def floods() -> Iterator[Case]:
    """Many messages that are right each by itself."""
    for record, times in ((events.HostNotice, 5000), (events.AgentReady, 100), (events.Measured, 5000)):
        wrong = record is not events.Measured
        yield Case(f"many {record.__name__}", "started", message(record) * times, wrong=wrong)
    forms = (b'{"task":"{{task}}","attempt":1}' + b" " * number for number in range(4000))
    raw = b"".join(frame(events.TaskOutput, form, b"x") for form in forms)
    yield Case("many forms of TaskOutput", "started", raw, wrong=False)
    lists = frame(events.HostGpus, b'{"at":1,"gpus":[' + b"[]," * 300_000 + b"[]]}")
    yield Case("a large list", "started", lists)


def endless() -> list[Case]:
    """Floods that end with the job."""
    fields, words = b'{"task":"{{task}}","attempt":1}', ("--timeout", "2")
    output = frame(events.TaskOutput, fields, bytes(60_000))
    floods = {"endless output": output, "endless signals": message(events.TaskSignalled)}
    return [
        Case(name, "started", raw, wrong=False, endless=True, words=words) for name, raw in floods.items()
    ]


def here() -> list[Case]:
    """All cases for an agent with a pipe."""
    return [*wrong_messages(), *nasty_texts(), *wrong_order(), *wrong_frames(), *floods()]


def _files(entry: str, words: tuple[str, ...]) -> Iterator[Case]:
    def case(about: str, raw: bytes, wrong: bool = False) -> Case:
        return Case(f"{entry} {about}", entry, raw, wrong=wrong, words=words)

    for record in protocol.FILE_RECORDS:
        for about, raw, wrong in _wrong_fields(record):
            yield case(about, raw, wrong)
        for field in (name for name in ("text", "why", "path", "target") if name in record._fields):
            link = {"kind": "l", "size": 0} if field == "target" else {}
            for number, text in enumerate(NASTY):
                raw = message(record, **link, **{field: text}) + message(protocol.FilesDone, paths=[])
                yield case(f"{record.__name__} {field} nasty {number}", raw)
    order = protocol.FILE_RECORDS
    for number, records in enumerate((order, order[::-1], order[:1] * 3, order[3:4] * 2, ())):
        yield case(f"order {number}", b"".join(map(message, records)))
    linked = message(protocol.FileEntry, path="out", kind="l", size=0, target="/tmp")
    below = message(protocol.FileEntry, path="out/escaped") + frame(protocol.FileData, {}, b"x")
    yield case("a link and a file in it", linked + below)


def files() -> list[Case]:
    """Cases of the remote commands that copy files."""
    collect = _files("launcher.agent.files:send", ("--collect", "out"))
    return [*collect, *_files("launcher.agent.files:receive", ("--sync", "."))]


CHECK = "launcher.agent.checks:main"


def checks() -> list[Case]:
    """Cases of ``launch check``: answers about the host, its clock, and its connections to two hosts."""
    gpus = {"state": "ok", "output": "", "list": [{"index": "0", "uuid": "GPU-1", "name": "A100"}]}
    python = {
        "asked": "python3", "path": "/usr/bin/python3", "state": "ok", "output": "", "version": "3.11.7",
    }  # fmt: skip
    folders = {"workdir": {"path": "/root", "free": 1 << 40, "why": ""}}
    more = {"available": 1 << 30, "environment": {}, "gpus": gpus, "folders": folders, "task_python": python}
    facts: dict[str, Any] = {"agent": _FACTS, **more}
    look, clock = {"facts": facts, "port": 40000, "why": ""}, {"at": 1.7e9}
    connected = [{"result": "ok", "why": "", "address": "10.0.0.1"}] * 2
    answers: list[tuple[Any, ...]] = []
    others: list[Any] = [
        b"", b"{\n", b"[" * 99_999 + b"\n", b"\xff\n", b"x" * (5 << 20), [], 1, None, {}, {**look, "more": 1},
    ]  # fmt: skip
    for other in others:
        answers += [(other,), (look, other), (look, clock, other)]
    odd: list[Any] = [None, [5], {}, -1, True]
    answers += [({**look, name: value},) for name in look for value in odd]
    wrong_facts = [{each: value for each, value in facts.items() if each != name} for name in facts]
    for name in facts:
        values = (-1, [5], "x") if name == "available" else (5, [5], "x")
        wrong_facts += [{**facts, name: value} for value in values]
    wrong_facts += [{**facts, "agent": value} for value in _WRONG["facts"]]
    answers += [({**look, "facts": wrong},) for wrong in wrong_facts]
    answers += [(look, {"at": at}) for at in _WRONG["at"]]
    wrong_pairs: list[Any] = [None, 5, [], [5], connected[:1], connected * 2, [{}, {}]]
    answers += [(look, clock, {"pairs": pairs}) for pairs in wrong_pairs]
    answers += [({**look, "port": 0, "why": text},) for text in NASTY]
    found = [_check(number, each) for number, each in enumerate(answers)]
    for text in NASTY:
        bad = {"asked": text, "path": text[:4000], "state": "failed", "output": text[:2000], "version": text}
        names = {**gpus, "list": [{"index": text, "uuid": text, "name": text}]}
        nasty = {**facts, "agent": {**_FACTS, "python": text}, "task_python": bad, "gpus": names}
        nasty["folders"] = {"workdir": {"path": text[:4000], "free": 0, "why": text}}
        pair = {"result": text, "why": text, "address": text}
        told = ({**look, "facts": nasty}, clock, {"pairs": [pair, pair]})
        found.append(_check(len(found), told, wrong=False))
    return found


def _check(number: int, answers: tuple[Any, ...], wrong: bool = True) -> Case:
    """A case of ``launch check``: a line for each answer; bytes as they are."""
    lines = (each if type(each) is bytes else json.dumps(each).encode() + b"\n" for each in answers)
    return Case(f"check {number}", CHECK, b"".join(lines), wrong=wrong)
