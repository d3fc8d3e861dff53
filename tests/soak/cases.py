"""What a host may do wrong: each message with each field wrong, at each moment; as bytes for `pretender`."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from launcher.common import events, protocol
from launcher.common.protocol import FILE_RECORDS, CommandCredit, CommandData, CommandEnded, FileEntry
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
    "leftovers": 0, "unkillable": [4711], "session": "0" * 32, "received": 0, "count": 0,
    "command": 1, "size": 1, "status": 0, "stderr": "", "path": "a/file", "kind": "f", "mode": 0o644,
    "mtime_ns": 1, "target": "", "paths": ["/tmp"], "missing": False,
}  # fmt: skip
_NOT_WHOLE: list[Any] = [
    None,
    True,
    "1",
    1.5,
    [],
    {},
    [1],
    2**64,
    -(2**64),
    10**400,
    float("nan"),
    float("inf"),
    1e300,
]
_NOT_TEXT: list[Any] = [None, True, 1, 1.5, [], {}, ["x"]]
_ODD: list[Any] = [None, [5], {}]
_NO_TASK: list[Any] = [
    *_NOT_TEXT,
    "",
    "worker/9",
    "ps/0",
    "worker/00",
    "../../x",
    "worker/0\n",
    "WORKER/0",
    "x" * 9999,
]
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
    _FORGED,
    "\x1b[31mforged\x07",
    "x" * 500_000,
    "\ud800",
    "‮forged",
    "\r\x1b[2Klaunch: forged",
    "",
    "\0",
]
#: Those of an honest agent in each moment.
_HONEST = {
    "ready": "AgentReady", "held": "PortsHeld", "started": "TaskStarted", "printed": "TaskOutput",
    "exited": "TaskExited", "gone": "TaskGone", "closed": "AgentClosed",
}  # fmt: skip
_MOMENT_OF = {name: moment for moment, name in _HONEST.items()}
_FROM_AGENT = (*get_args(events.AgentEvent), CommandData, CommandCredit, CommandEnded)
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


def frame(name: str, fields: object, data: bytes = b"", code: int | None = None) -> bytes:
    """A frame, whatever is in it."""
    number = next(number for record, number in protocol._CODES.items() if record.__name__ == name)
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<BII", number if code is None else code, len(text), len(data)) + text + data


def fields_of(record: Any) -> dict[str, Any]:
    """Right fields of a message."""
    fields = {name: RIGHT[name] for name in record._fields if name not in ("host", "data")}
    if record is events.TaskExited:
        fields["signal"] = None
    if record is events.TaskNotStarted:
        fields["code"] = 126
    if record is events.AgentReady:
        fields["pid"] = 7
    return fields


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
        if (record, name, value) != (events.SignalSent, "signal", 0):
            yield value


def _data(record: Any) -> bytes:
    return b"data" if record._fields[-1:] == ("data",) else b""


def wrong_messages() -> Iterator[Case]:
    """Each message of an agent, with each field wrong."""
    for record in _FROM_AGENT:
        name = record.__name__
        moment, instead = _MOMENT_OF.get(name, "started"), name if name in _MOMENT_OF else ""
        right, data = fields_of(record), _data(record)

        def case(about: str, raw: bytes, wrong: bool = True) -> Case:
            return Case(f"{name} {about}", moment, raw, instead, wrong)  # noqa: B023

        for field in right:
            for number, value in enumerate(_wrong(record, field)):
                changed = {**right, field: value}
                if value is _MISSING:
                    del changed[field]
                # A message of a remote command that is not there, or without a field that has a default.
                optional = value is _MISSING and field in record._field_defaults
                odd = field == "code" and value is None and record is events.TaskExited
                yield case(f"{field} {number}", frame(name, changed, data), wrong=odd or not optional)
        yield case("more", frame(name, {**right, "more": 1}, data))
        yield case("much more", frame(name, {**right, "x" * 100_000: 1}, data))
        yield case("host", frame(name, {**right, "host": "node1"}, data))
        yield from (
            case(f"not an object {number}", frame(name, other, data))
            for number, other in enumerate(
                [[], [1], 1, None, "x", b"", b"{", b"\xff", b"[" * 100_000, b"{}x", b"NaN"]
            )
        )
        yield case("long", frame(name, json.dumps(right).encode() + b" " * (1 << 21), data))
        yield case("deep", frame(name, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, data))
        if not data:
            yield case("data", frame(name, right, b"data"))
    both = {**fields_of(events.TaskExited)}
    yield Case("TaskExited both", "exited", frame("TaskExited", {**both, "signal": 9}), "TaskExited")
    yield Case("TaskExited none", "exited", frame("TaskExited", {**both, "code": None}), "TaskExited")
    yield Case(
        "TaskNotStarted 0", "held", frame("TaskNotStarted", {**fields_of(events.TaskNotStarted), "code": 0})
    )


def nasty_texts() -> Iterator[Case]:
    """Texts that could forge lines of launch, or change a terminal."""
    for record in (*_FROM_AGENT, protocol.Refused):
        for field in fields_of(record):
            if field in ("why", "text", "oom", "states"):
                for number, text in enumerate(NASTY):
                    moment = {"TaskNotStarted": "held", "PortsRefused": "ready"}.get(
                        record.__name__, "started"
                    )
                    raw = frame(record.__name__, {**fields_of(record), field: text})
                    yield Case(f"{record.__name__} {field} nasty {number}", moment, raw, wrong=False)
    for number, text in enumerate(NASTY):
        facts = {**_FACTS, "python": text, "hostname": text, "executable": text, "addresses": [text]}
        raw = frame("AgentReady", {**fields_of(events.AgentReady), "facts": facts})
        yield Case(f"AgentReady facts nasty {number}", "ready", raw, "AgentReady", wrong=False)
        raw = frame("PeersTried", {"at": 1.7e9, "unreachable": {text or "a": text}})
        yield Case(f"PeersTried nasty {number}", "held", raw, wrong=False)
        raw = frame("HostGpus", {"at": 1.7e9, "gpus": [text] * 9})
        yield Case(f"HostGpus nasty {number}", "started", raw, wrong=False)


def wrong_order() -> Iterator[Case]:
    """Each message at each moment, once, twice and for another attempt."""
    for moment in MOMENTS:
        for record in (*_FROM_AGENT, *_CONTROL):
            right = fields_of(record)
            raw = frame(record.__name__, right, _data(record))
            for about, sent in (("once", raw), ("twice", raw * 2)):
                yield Case(f"{record.__name__} {about} after {moment}", moment, sent, wrong=False)
            if "attempt" in right and "task" in right:
                late = frame(record.__name__, {**right, "attempt": 7}, _data(record))
                wrong = moment != "closed"  # nothing is read after that
                yield Case(f"{record.__name__} attempt 7 after {moment}", moment, late, wrong=wrong)


def wrong_frames() -> Iterator[Case]:
    """Bytes that are no messages of an agent."""
    known = len(protocol._RECORDS)
    for number, record in enumerate(
        (*get_args(events.AgentCommand), *FILE_RECORDS, protocol.Ping, protocol.RunCommand)
    ):
        moment = MOMENTS[number % 4]
        yield Case(f"direction {record.__name__}", moment, frame(record.__name__, {}))
        yield Case(
            f"direction {record.__name__} host", "started", frame(record.__name__, {"host": "x", "tasks": []})
        )
    for code in (known, known + 1, 100, 254, 255):
        yield Case(f"type {code}", "started", frame("Ack", {"count": 0}, code=code))
    for sizes in ((2**31, 0), (0, 2**31), (2**32 - 1, 2**32 - 1), (4 << 20, 1), (1 << 21, 0)):
        yield Case(f"sizes {sizes}", "started", struct.pack("<BII", 5, *sizes) + bytes(1 << 20))
    chance = random.Random(22)
    for number in range(60):
        yield Case(
            f"random {number}", MOMENTS[number % 5], b"\xff" + chance.randbytes(chance.randrange(9, 3000))
        )
    whole = frame("TaskExited", fields_of(events.TaskExited))
    for number in range(30):
        cut = whole[: 1 + number * (len(whole) - 1) // 30]
        yield Case(f"cut {number}", "started", cut, quits=True)
    for moment in MOMENTS:
        yield Case(f"quits {moment}", moment, b"", quits=True, wrong=moment != "closed")


def floods() -> Iterator[Case]:
    """Many messages that are right each by itself."""
    for record, times in ((events.HostNotice, 5000), (events.AgentReady, 100), (events.Measured, 5000)):
        raw = frame(record.__name__, fields_of(record)) * times
        yield Case(f"many {record.__name__}", "started", raw, wrong=record is not events.Measured)
    raw = b"".join(
        frame("TaskOutput", b'{"task":"{{task}}","attempt":1}' + b" " * n, b"x") for n in range(4000)
    )
    yield Case("many forms of TaskOutput", "started", raw, wrong=False)
    lists = frame("HostGpus", b'{"at":1,"gpus":[' + b"[]," * 300_000 + b"[]]}")
    yield Case("a large list", "started", lists)


def endless() -> list[Case]:
    """Floods that end with the job."""
    fields, words = b'{"task":"{{task}}","attempt":1}', ("--timeout", "2")
    output = Case("endless output", "started", frame("TaskOutput", fields, bytes(60_000)), words=words)
    signals = frame("TaskSignalled", fields_of(events.TaskSignalled))
    both = output, output._replace(name="endless signals", raw=signals)
    return [case._replace(wrong=False, endless=True) for case in both]


def here() -> list[Case]:
    """All cases for an agent with a pipe."""
    return [*wrong_messages(), *nasty_texts(), *wrong_order(), *wrong_frames(), *floods()]


def _files(entry: str, words: tuple[str, ...]) -> Iterator[Case]:
    entries = [
        "FileEntry",
        "FileNotice",
        "FilesFollow",
        "FilesDone",
        "FilesFailed",
        "FilesNeeded",
        "FileData",
    ]
    for record in FILE_RECORDS:
        right, data = fields_of(record), _data(record)
        for field in right:
            for number, value in enumerate(_wrong(record, field)):
                changed = {
                    name: each for name, each in {**right, field: value}.items() if each is not _MISSING
                }
                optional = value is _MISSING and field in record._field_defaults
                raw = frame(record.__name__, changed, data)
                yield Case(
                    f"{entry} {record.__name__} {field} {number}", entry, raw, wrong=not optional, words=words
                )
    for field in ("text", "why", "path", "target"):
        for number, text in enumerate(NASTY):
            for record in (record for record in FILE_RECORDS if field in record._fields):
                fields = {**fields_of(record), field: text}
                fields.update({"kind": "l", "size": 0} if field == "target" else {})
                raw = frame(record.__name__, fields) + frame("FilesDone", {"paths": []})
                yield Case(
                    f"{entry} {record.__name__} {field} nasty {number}", entry, raw, wrong=False, words=words
                )
    for number, names in enumerate((entries, entries[::-1], entries[:1] * 3, entries[2:3] * 2, [])):
        records = {record.__name__: record for record in FILE_RECORDS}
        raw = b"".join(frame(name, fields_of(records[name]), _data(records[name])) for name in names)
        yield Case(f"{entry} order {number}", entry, raw, wrong=False, words=words)
    link = frame(
        "FileEntry", {**fields_of(FileEntry), "path": "out", "kind": "l", "size": 0, "target": "/tmp"}
    )
    below = frame("FileEntry", {**fields_of(FileEntry), "path": "out/escaped"}) + frame("FileData", {}, b"x")
    yield Case(f"{entry} a link and a file in it", entry, link + below, wrong=False, words=words)


def files() -> list[Case]:
    """Cases of the remote commands that copy files."""
    collect = ("--collect", "out")
    return [
        *_files("launcher.agent.files:send", collect),
        *_files("launcher.agent.files:receive", ("--sync", ".")),
    ]


CHECK = "launcher.agent.checks:main"


def checks() -> list[Case]:
    """Cases of ``launch check``: answers about the host, its clock, and its connections to two hosts."""
    gpus = {"state": "ok", "output": "", "list": [{"index": "0", "uuid": "GPU-1", "name": "A100"}]}
    python = {
        "asked": "python3",
        "path": "/usr/bin/python3",
        "state": "ok",
        "output": "",
        "version": "3.11.7",
    }
    folders = {"workdir": {"path": "/root", "free": 1 << 40, "why": ""}}
    more = {"available": 1 << 30, "environment": {}, "gpus": gpus, "folders": folders, "task_python": python}
    facts: dict[str, Any] = {"agent": _FACTS, **more}
    look, clock = {"facts": facts, "port": 40000, "why": ""}, {"at": 1.7e9}
    connected = {"pairs": [{"result": "ok", "why": "", "address": "10.0.0.1"}] * 2}
    found: list[Case] = []
    value: Any
    other: Any
    pairs: Any

    def add(*answers: Any, wrong: bool = True) -> None:
        lines = b"".join(
            answer if type(answer) is bytes else json.dumps(answer).encode() + b"\n" for answer in answers
        )
        found.append(Case(f"check {len(found)}", CHECK, lines, wrong=wrong))

    for other in (
        b"",
        b"{\n",
        b"[" * 99_999 + b"\n",
        b"\xff\n",
        b"x" * (5 << 20),
        [],
        1,
        None,
        {},
        {**look, "more": 1},
    ):
        add(other)
        add(look, other)
        add(look, clock, other)
    for name in look:
        for value in (None, [5], {}, -1, True):
            add({**look, name: value})
    for name in facts:
        add({**look, "facts": {each: value for each, value in facts.items() if each != name}})
        for value in (5, [5], "x") if name != "available" else (-1, [5], "x"):
            add({**look, "facts": {**facts, name: value}})
    for value in _WRONG["facts"]:
        add({**look, "facts": {**facts, "agent": value}})
    for at in _WRONG["at"]:
        add(look, {"at": at})
    for pairs in (None, 5, [], [5], connected["pairs"][:1], connected["pairs"] * 2, [{}, {}]):
        add(look, clock, {"pairs": pairs})
    for text in NASTY:
        bad = {
            **python,
            "state": "failed",
            "output": text[:2000],
            "asked": text,
            "path": text[:4000],
            "version": text,
        }
        names = {**gpus, "list": [{"index": text, "uuid": text, "name": text}]}
        nasty = {**facts, "agent": {**_FACTS, "python": text}, "task_python": bad, "gpus": names}
        nasty["folders"] = {"workdir": {"path": text[:4000], "free": 0, "why": text}}
        pair = {"result": text, "why": text, "address": text}
        add({**look, "facts": nasty}, clock, {"pairs": [pair, pair]}, wrong=False)
        add({**look, "port": 0, "why": text})
    return found
