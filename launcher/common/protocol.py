"""Messages between the launcher and an agent, as bytes.

A frame is a message, little endian::

    type (u8), size of the fields (u32), size of the payload (u32), fields (JSON), payload

The fields are those of the message's record, without its host (a connection belongs to one host); the
payload is its field ``data``, raw bytes. `Decoder` checks types, ranges and lengths of every message
(`launcher.common.validation`), so that a wrong one is a `ProtocolError` where it is read.

On this machine frames go through a pipe. To another machine they survive broken connections: `MessageChannel`
counts events, commands and data in the order in which it puts them on the wire, keeps them until the other
end has acknowledged them, and sends the rest again on the next connection. Acknowledgements mean that the
application took the messages, so a slow reader holds up the writer (`WINDOW_BYTES`), and memory stays bounded
on both sides.

Strings that came from bytes which are not UTF-8 keep them as lone surrogates (PEP 383). Hosts with Python 3.8
import this module.

Events overtake output. An agent whose window is full stops reading the output of its tasks, but still sends
events.
"""

import json
import os
import struct
from collections import deque
from functools import lru_cache
from typing import Any, Callable, Collection, Dict, List, Optional, Tuple, Type, Union, get_args

from launcher.common import events
from launcher.common.errors import ProtocolError
from launcher.common.record import Record, as_dict
from launcher.common.text import sanitize_host_text
from launcher.common.validation import FieldReader

#: Bytes of one frame, at most; of the fields in a frame of an agent.
MAX_FRAME_BYTES = 4 * 1024 * 1024
_MAX_FIELDS_BYTES = 1024 * 1024
#: Bytes that an agent keeps for the launcher before it stops reading from its tasks.
WINDOW_BYTES = 8 * 1024 * 1024
#: Seconds between two pings.
PING_SECONDS = 2.0
#: Seconds that an agent waits for a new connection after one has closed, until the first ping says how many.
GRACE_SECONDS = 4.0
#: Bytes of a remote command that may be under way in one direction.
CREDIT_BYTES = 1024 * 1024

_HEAD = struct.Struct("<BII")
#: An acknowledgement is sent after so many messages, or so many seconds.
_MAX_UNACKNOWLEDGED = 16
_MAX_ACK_SECONDS = 0.25
#: Bytes of task output put on the wire together, at most: what comes later can be overtaken by an event.
_BATCH_BYTES = 256 * 1024
_MAX_BUFFERS = 256
#: See `swap`.
_SWAP_TABLE = bytes.maketrans(b"\n\xff", b"\xff\n")
#: Messages whose fields are kept, and the most bytes of these.
_MAX_CACHED_MESSAGES = 1024
_MAX_CACHED_BYTES = 256


class Hello(Record):
    """First message of both ends of a connection; the launcher greets first."""

    #: Secret that both ends know, so that a connection belongs to this agent.
    session: str
    #: Counts the launcher's connections: a late one does not replace a newer one.
    attempt: int
    #: Numbered messages received so far.
    received: int


class Refused(Record):
    """The agent has exited, or exits now; ``why`` is for the user."""

    why: str


class Ack(Record):
    """The application took so many numbered messages."""

    count: int


class Ping(Record):
    """Asks for an `Ack`."""

    #: Seconds that the agent waits for a new connection when this one closes.
    grace: float


class RunCommand(Record):
    """Run ``module:function(arguments)`` of ours in a child of the agent, with a byte pipe each way."""

    command: int
    entry: str
    arguments: Any


class CommandData(Record):
    """Bytes for the stdin of a remote command, or of its stdout; empty: the end of it."""

    command: int
    data: bytes


class CommandCredit(Record):
    """The reader took so many bytes of a remote command: the other end may send as many more."""

    command: int
    size: int


class CommandEnded(Record):
    """A remote command ended: its exit status (negative: the signal) and the end of its stderr."""

    command: int
    status: int
    stderr: str


class CloseCommand(Record):
    """The launcher needs a remote command no more: close its pipes, kill it if it does not end."""

    command: int


class FileEntry(Record):
    """A file, folder or symbolic link of a tree. A file's content follows in `FileData`."""

    #: Relative to the tree, with ``/``.
    path: str
    #: ``f`` a file, ``d`` a folder, ``l`` a symbolic link.
    kind: str
    #: Permission bits; 0 for a link.
    mode: int = 0
    #: Bytes; 0 for all but files.
    size: int = 0
    #: When a file was last changed, nanoseconds since 1970; 0 for anything else.
    mtime_ns: int = 0
    #: The target of a link.
    target: str = ""


class FileData(Record):
    """Bytes of the file that was announced last."""

    data: bytes


class FilesNeeded(Record):
    """For each entry of a tree's list, in its order: 1 if the host needs it, 0 if it has the same."""

    data: bytes


class FilesFollow(Record):
    """The requested entries follow: so many bytes of files."""

    size: int


class FileNotice(Record):
    """A line for the user about a requested path."""

    text: str
    #: Nothing is there.
    missing: bool = False


class FilesDone(Record):
    """All entries were sent; a command ends with the paths of the trees."""

    paths: Tuple[str, ...] = ()


class FilesFailed(Record):
    """The command can't go on; ``why`` is for the user."""

    why: str


#: From an agent with a pipe.
PIPED_RECORDS: Tuple[Type[Any], ...] = (Refused, *get_args(events.AgentEvent))
_AGENT_RECORDS = (Hello, Ack, *PIPED_RECORDS, CommandData, CommandCredit, CommandEnded)
_COMMAND_RECORDS = (RunCommand, CommandData, CommandCredit, CloseCommand)
_LAUNCHER_RECORDS = (Hello, Ack, Ping, *get_args(events.AgentCommand), *_COMMAND_RECORDS)
#: Between the launcher and a remote command that copies files, within the pipe of the command.
FILE_RECORDS = (FileEntry, FileData, FilesNeeded, FilesFollow, FileNotice, FilesDone, FilesFailed)
_RECORDS: Tuple[Type[Any], ...] = tuple(dict.fromkeys(_AGENT_RECORDS + _LAUNCHER_RECORDS + FILE_RECORDS))
_CODES = {record: code for code, record in enumerate(_RECORDS)}
#: What the fields of a record must be together.
_RULES: Dict[Any, Callable[[Any], bool]] = {
    events.PortsHeld: lambda held: len({*held.ports.values()}) == len(held.ports),
    events.TaskNotStarted: lambda event: event.code != 0,
    events.TaskSignalled: lambda event: event.signal != 0,
    events.TaskExited: lambda event: (event.code is None) != (event.signal is None) and event.signal != 0,
}

#: Any message; a record of this module or of `launcher.common.events`.
Message = Any
Buffer = Union[bytes, memoryview]


# ---------------------------------------------------------------------- one message


#: Python makes an encoder for each call of `json.dumps` with separators.
_compact = json.JSONEncoder(separators=(",", ":")).encode
#: The last message without data, and its frame: the same message may go to thousands of hosts.
_last: Tuple[Message, bytes] = (None, b"")


def encode(message: Message) -> List[Buffer]:
    """The frame of a message, as buffers for ``writev``.

    Raises:
        ProtocolError: it is larger than `MAX_FRAME_BYTES`.
    """
    global _last
    last, frame = _last
    if message is last:
        return [frame]
    record = type(message)
    has_data = record._fields[-1:] == ("data",)
    data = message.data if has_data else b""
    # A record is a tuple at run time, and there are very many of these: a slice is the cheapest key.
    fields = _cached_json(record, message[:-1]) if has_data else _json(record, message)
    if len(fields) + len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"{record.__name__} of {len(fields) + len(data)} bytes is larger than a frame ({MAX_FRAME_BYTES})"
        )
    frame = _HEAD.pack(_CODES[record], len(fields), len(data)) + fields
    if not has_data:
        _last = message, frame
    return [frame, data] if data else [frame]


def _json(record: Any, values: Tuple[Any, ...]) -> bytes:
    fields = dict(zip(record._fields, values))
    fields.pop("host", None)
    if "facts" in fields:
        fields["facts"] = as_dict(fields["facts"])
    return _compact(fields).encode("ascii")


_cached_json: Callable[[Any, Tuple[Any, ...]], bytes] = lru_cache(maxsize=_MAX_CACHED_MESSAGES)(_json)


class Decoder:
    """Decodes bytes, in pieces of any size, to messages, and checks each.

    Args:
        from_agent: whether an agent sends them; else a launcher does.
        host: name of the agent's host.
        tasks: the tasks of this host, the only ones that its messages may name; ``None``: any.
        only: the records allowed, instead of all of that sender's.
    """

    def __init__(
        self,
        from_agent: bool,
        host: str = "",
        tasks: Optional[Collection[str]] = None,
        only: Tuple[Type[Any], ...] = (),
    ) -> None:
        self._allowed = frozenset(only or (_AGENT_RECORDS if from_agent else _LAUNCHER_RECORDS))
        self._host = host
        self._most_fields = _MAX_FIELDS_BYTES if from_agent else MAX_FRAME_BYTES
        self._reader = FieldReader(not from_agent, tasks)
        self._rest = b""
        #: Fields of messages with a payload, which come again and again.
        self._seen: Dict[Tuple[int, bytes], Tuple[Any, ...]] = {}

    @property
    def has_part(self) -> bool:
        """Whether a part of a message has come."""
        return bool(self._rest)

    def feed(self, data: bytes) -> List[Message]:
        """The messages that these bytes complete.

        Raises:
            ProtocolError: they are not what this sender may send.
        """
        if self._rest:
            data = self._rest + data
        messages: List[Message] = []
        start, end = 0, len(data)
        while end - start >= _HEAD.size:
            code, size, payload = _HEAD.unpack_from(data, start)
            if code >= len(_RECORDS) or size > self._most_fields or size + payload > MAX_FRAME_BYTES:
                raise ProtocolError(f"a message of type {code} and {size + payload} bytes")
            middle = start + _HEAD.size + size
            if end - middle < payload:
                break
            fields = data[start + _HEAD.size : middle]
            start = middle + payload
            messages.append(self._message(code, fields, data[middle:start]))
        self._rest = data[start:]
        return messages

    def _message(self, code: int, fields: bytes, payload: bytes) -> Message:
        record = _RECORDS[code]
        values = self._seen.get((code, fields))
        if values is not None:
            return tuple.__new__(record, (*values, payload))  # in half the time: there are very many
        if record not in self._allowed:
            raise ProtocolError(f"{record.__name__} is not for this direction")
        values = self._checked(record, fields)
        if record._fields[-1:] == ("data",):
            if len(fields) <= _MAX_CACHED_BYTES:
                if len(self._seen) >= _MAX_CACHED_MESSAGES:
                    self._seen.clear()
                self._seen[code, fields] = values
            return record(*values, payload)
        if payload:
            raise ProtocolError(f"{record.__name__} with {len(payload)} bytes of data")
        message = record(*values)
        if record in _RULES and not _RULES[record](message):
            raise ProtocolError(f"{record.__name__}: its fields contradict each other: {fields[:200]!r}")
        return message

    def _checked(self, record: Type[Any], fields: bytes) -> Tuple[Any, ...]:
        try:
            values = self._reader.read(record, json.loads(fields))
        except (ValueError, RecursionError, ProtocolError) as error:
            raise ProtocolError(
                sanitize_host_text(f"{record.__name__}: {error}: {fields[:200]!r}")
            ) from error
        return (self._host, *values) if record._fields[:1] == ("host",) else values


def swap(data: bytes) -> bytes:
    """Swap newlines and the byte 0xff, which no text has; twice gives the same bytes again.

    It is for the pipes of programs that write line by line, as srun does: with newlines in the messages, the
    launcher would take three times the CPU time.
    """
    if b"\xff" not in data:
        return data.replace(b"\n", b"\xff")
    if b"\n" not in data:
        return data.replace(b"\xff", b"\n")
    return data.translate(_SWAP_TABLE)


# ---------------------------------------------------------------------- a connection that may break


class MessageChannel:
    """One end of an ordered stream of messages, over one connection after another.

    Args:
        decoder: makes the decoder of a new connection.
        session: see `Hello`; empty: a pipe on this machine, which does not break: nothing is numbered.
        greets: whether this end greets first and sends pings: the launcher.
    """

    def __init__(self, decoder: Callable[[], Decoder], session: str = "", greets: bool = False) -> None:
        self._make_decoder = decoder
        self._decoder = decoder()
        self._session = session
        self._greets = greets
        self._urgent: deque[List[Buffer]] = deque()
        self._bulk: deque[List[Buffer]] = deque()
        self._control: List[Message] = []
        self._wire: List[Buffer] = []
        #: Bytes that wait to be sent or to be acknowledged.
        self.pending = 0
        #: Task output waits here; events do not.
        self.held = False
        # Numbered messages: those on the wire and not acknowledged; of these, how many must be sent again.
        self._unacked: deque[List[Buffer]] = deque()
        self._again = 0
        self._acked = 0
        self._received = 0
        self._taken = 0
        self._acknowledged = 0
        self._ack_at: Optional[float] = None
        self._ping_at = 0.0
        self._attempt = 0
        #: What pings carry: set by the launcher, received by the agent.
        self.grace = GRACE_SECONDS
        #: What is written passes `swap`.
        self.swapped = False
        #: The other end has greeted on this connection.
        self.met = not session
        self.connected = not session

    # ------------------------------------------------------------------ the application

    def send(self, message: Message, bulk: bool = False) -> None:
        """Send a message. ``bulk`` ones keep their order among themselves; all others overtake them."""
        buffers = encode(message)
        (self._bulk if bulk else self._urgent).append(buffers)
        self.pending += sum(map(len, buffers))

    def took(self, count: int, now: float, at_once: bool = False) -> None:
        """The application took so many numbered messages of what `receive` returned.

        Args:
            count: how many.
            now: monotonic seconds.
            at_once: acknowledge them without waiting for more.
        """
        if self._session and count:
            self._taken += count
            if at_once or self._taken - self._acknowledged >= _MAX_UNACKNOWLEDGED:
                self._ack_at = now
            elif self._ack_at is None:
                self._ack_at = now + _MAX_ACK_SECONDS

    @property
    def is_idle(self) -> bool:
        """Nothing is left to send, and the other end took all of it."""
        return not (self._urgent or self._bulk or self._wire or self._control or self._unacked)

    # ------------------------------------------------------------------ the connection

    def connect(self, attempt: int, now: float) -> None:
        """There is a new connection in place of any other; the launcher counts them."""
        self.disconnect()
        self.connected = True
        self._attempt = attempt
        self._ping_at = now  # the agent needs `grace` soon
        if self._greets:
            self._control.append(Hello(self._session, attempt, self._received))

    def disconnect(self) -> None:
        """There is no connection."""
        self.connected = self.met = False
        self._decoder = self._make_decoder()
        self._control.clear()
        self._wire = []

    def greeted(self, hello: Hello) -> None:
        """The other end greeted; it has this many of our messages.

        Raises:
            ProtocolError: it belongs to another session, or can't have so many.
        """
        if self.met or hello.session != self._session:
            raise ProtocolError("a greeting that belongs to another session")
        self._again = 0
        self._acknowledge(hello.received)
        self._again = len(self._unacked)
        self.met = True
        if not self._greets:
            self._control.append(Hello(self._session, self._attempt, self._received))

    def receive(self, data: bytes) -> List[Message]:
        """The messages that these bytes complete, without those of the protocol itself; and `Refused`.

        Raises:
            ProtocolError: the connection is of no use.
        """
        messages: List[Message] = []
        for message in self._decoder.feed(data):
            kind = type(message)
            if kind is Refused or not self._session:
                messages.append(message)
            elif kind is Hello:
                self.greeted(message)
            elif not self.met:
                raise ProtocolError("a message before the greeting")
            elif kind is Ack:
                self._acknowledge(message.count)
            elif kind is Ping:
                self._ack_at, self.grace = 0.0, message.grace
            else:
                self._received += 1
                messages.append(message)
        return messages

    def _acknowledge(self, count: int) -> None:
        if count > self._acked + len(self._unacked) - self._again:
            raise ProtocolError(f"an acknowledgement of {count} messages, which were not all sent")
        while self._acked < count:
            self._acked += 1
            self.pending -= sum(map(len, self._unacked.popleft()))

    @property
    def has_part(self) -> bool:
        """Whether a part of a message has come."""
        return self._decoder.has_part

    def output(self, now: float) -> List[Buffer]:
        """What to write on the connection now, in this order; empty: nothing."""
        if not self._wire and self.connected:
            self._fill(now)
            if self.swapped and self._wire:
                self._wire = [swap(b"".join(self._wire))]
        return self._wire

    def sent(self, count: int) -> None:
        """So many bytes of `output` were written."""
        if not self._session:
            self.pending -= count
        done = 0
        while done < len(self._wire) and count >= len(self._wire[done]):
            count -= len(self._wire[done])
            done += 1
        del self._wire[:done]
        if count:
            self._wire[0] = memoryview(self._wire[0])[count:]

    def write(self, fd: int, now: float) -> bool:
        """Write `output` to a descriptor that does not block; whether it took all of it.

        Args:
            fd: the descriptor.
            now: monotonic seconds.

        Raises:
            OSError: its other end is closed.
        """
        try:
            while buffers := self.output(now):
                self.sent(os.writev(fd, buffers))
        except BlockingIOError:
            return False
        return True

    def next_due(self) -> Optional[float]:
        """When `output` has something even if nothing happens (monotonic); ``None``: never."""
        if not (self._session and self.met):
            return None
        dues = [self._ack_at, self._ping_at if self._greets else None]
        return min((due for due in dues if due is not None), default=None)

    def _fill(self, now: float) -> None:
        if self._session:
            self._fill_control(now)
        if self.met:
            size = 0
            while size < _BATCH_BYTES and len(self._wire) < _MAX_BUFFERS:
                buffers = self._next()
                if buffers is None:
                    return
                self._wire += buffers
                size += sum(map(len, buffers))

    def _fill_control(self, now: float) -> None:
        if self._greets and self.met and now >= self._ping_at:
            self._ping_at = now + PING_SECONDS
            self._control.append(Ping(self.grace))
        if self.met and self._ack_at is not None and now >= self._ack_at:
            self._ack_at, self._acknowledged = None, self._taken
            self._control.append(Ack(self._taken))
        for message in self._control:
            self._wire += encode(message)
        self._control.clear()

    def _next(self) -> Optional[List[Buffer]]:
        """The next message, which gets its number now."""
        if self._again:
            self._again -= 1
            return self._unacked[-1 - self._again]
        if self._urgent:
            buffers = self._urgent.popleft()
        elif self._bulk and not self.held:
            buffers = self._bulk.popleft()
        else:
            return None
        if self._session:
            self._unacked.append(buffers)
        return buffers
