"""Facts and orders as bytes: what goes through the pipe between launcher and agent.

::

    agent -> launcher:  MAGIC, then frames
    launcher -> agent:  frames

    frame:   length of the payload (u32, little endian), kind (u8), payload
    MESSAGE: JSON, {"is": "TaskStarted", ...the record's fields}
    OUTPUT:  length of the task's name (u8), attempt (u16), the name, raw bytes

Output is by far the most of it, so it travels raw. Strings that came from bytes which are not
UTF-8 (odd file names) keep them as lone surrogates, as in PEP 383. The agent always travels with
the launcher that started it, so both ends speak the same version; MAGIC carries it all the same,
and lets a reader pass over what a login shell printed before.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from launcher import events
from launcher.errors import WireError
from launcher.job import TaskId

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple, Union

    Message = Union[events.Event, events.Command]

VERSION = 1
MAGIC = b"\n<tf-launcher agent, wire %d>\n" % VERSION
#: How much an agent's host may print before MAGIC, in bytes.
MAX_NOISE = 64 * 1024
#: Bounds one frame's payload, in bytes. Output comes in chunks far below it.
MAX_PAYLOAD = 64 * 1024 * 1024

_HEAD = struct.Struct("<IB")
_OUTPUT_HEAD = struct.Struct("<BH")
_MESSAGE, _OUTPUT = 1, 2
_MAX_NAME = 255


_FACTS = (
    events.AgentReady,
    events.HostGpus,
    events.PortsHeld,
    events.PortsRefused,
    events.PeersTried,
    events.TaskStarted,
    events.TaskNotStarted,
    events.TaskSignalled,
    events.TaskExited,
    events.TaskGone,
    events.AgentClosed,
)
_ORDERS = (
    events.HoldPorts,
    events.TryPeers,
    events.StartTask,
    events.StopTasks,
    events.HoldOutput,
    events.CloseAgent,
)

_FROM_LAUNCHER: Dict[str, Any] = {record.__name__: record for record in _ORDERS}
_FROM_AGENT: Dict[str, Any] = {record.__name__: record for record in _FACTS}


def encode(message: Message) -> bytes:
    """One frame with this fact or order. Output goes through `encode_output`."""
    fields = {"is": type(message).__name__, **message._asdict()}
    payload = json.dumps(fields, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"{fields['is']} of {len(payload)} bytes is more than a frame can hold")
    return _HEAD.pack(len(payload), _MESSAGE) + payload


def output_head(task: TaskId, attempt: int, size: int) -> bytes:
    """What comes before ``size`` bytes of a task's output.

    Raises:
        WireError: the task's name is longer than 255 bytes, or there is too much output.
    """
    name = task.encode("utf-8", "surrogatepass")
    if len(name) > _MAX_NAME or _OUTPUT_HEAD.size + len(name) + size > MAX_PAYLOAD:
        raise WireError(f"{size} bytes of {task[:80]!r} are more than a frame can hold")
    return (
        _HEAD.pack(_OUTPUT_HEAD.size + len(name) + size, _OUTPUT)
        + _OUTPUT_HEAD.pack(len(name), attempt)
        + name
    )


class Decoder:
    """Bytes in any pieces -> the messages in them.

    Args:
        host: whose output this is (an output frame does not say).
        magic: whether it comes from an agent: MAGIC first, then facts only; else orders only.
    """

    def __init__(self, host: str, magic: bool = False) -> None:
        self._host = host
        self._awaits_magic = magic
        self._records = _FROM_AGENT if magic else _FROM_LAUNCHER
        self._rest = b""

    @property
    def noise(self) -> bytes:
        """What came instead of MAGIC so far."""
        return self._rest if self._awaits_magic else b""

    def feed(self, data: bytes) -> List[Message]:
        """The messages that these bytes complete.

        Raises:
            WireError: what came is not ours.
        """
        self._rest = self._rest + data if self._rest else data
        if self._awaits_magic and not self._find_magic():
            return []
        messages, used = self._split()
        self._rest = self._rest[used:]
        return messages

    def _find_magic(self) -> bool:
        at = self._rest.find(MAGIC, 0, MAX_NOISE + len(MAGIC))
        if at < 0:
            if len(self._rest) >= MAX_NOISE + len(MAGIC):
                raise WireError(f"no agent answered, but {self._rest[:200]!r}...")
            return False
        self._rest = self._rest[at + len(MAGIC) :]
        self._awaits_magic = False
        return True

    def _split(self) -> Tuple[List[Message], int]:
        messages: List[Message] = []
        data, at, end = self._rest, 0, len(self._rest)
        while end - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            if size > MAX_PAYLOAD or kind not in (_MESSAGE, _OUTPUT):
                raise WireError(f"a frame of kind {kind} and {size} bytes can't be")
            start = at + _HEAD.size
            if end - start < size:
                break
            at = start + size
            if kind == _OUTPUT:
                messages.append(self._output(data, start, at))
            else:
                messages.append(self._message(data[start:at]))
        return messages, at

    def _output(self, data: bytes, start: int, end: int) -> events.TaskOutput:
        try:
            length, attempt = _OUTPUT_HEAD.unpack_from(data[start : start + _OUTPUT_HEAD.size])
            start += _OUTPUT_HEAD.size + length
            name = data[start - length : start].decode("utf-8", "surrogatepass")
        except (struct.error, UnicodeDecodeError) as error:
            raise WireError(f"output of nobody: {data[start : min(end, start + 200)]!r}") from error
        if start > end:
            raise WireError(f"output that ends within the task's name: {name!r}")
        return events.TaskOutput(self._host, TaskId(name), attempt, data[start:end])

    def _message(self, payload: bytes) -> Message:
        try:
            fields = json.loads(payload)
            record = self._records[fields.pop("is")]
            for name in fields.keys() & _SHAPES.keys():
                fields[name] = _SHAPES[name](fields[name])
            message: Message = record(**fields)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"a message that can't be read: {payload[:200]!r}") from error
        return message


#: JSON knows neither tuples nor task names: fields that need them back.
_SHAPES: Dict[str, Callable[[Any], Any]] = {
    "task": TaskId,
    "tasks": lambda names: tuple(map(TaskId, names)),
    "ports": lambda ports: {TaskId(name): port for name, port in ports.items()},
    "addresses": tuple,
    "argv": tuple,
    "gpus": tuple,
    "unkillable": tuple,
    "ladder": lambda rungs: tuple((rung[0], rung[1]) for rung in rungs),
}
