"""The protocol between the launcher and an agent: messages as bytes, over connections that may break.

Both ends use this module: the links in `launcher.backends` and `launcher.agent.connection`. It converts
between messages and bytes, and it must not do any input or output but `MessageChannel.write`. Hosts with
Python 3.8 import it.

A message is sent as a frame, little endian::

    type (u8), size of the fields (u32), size of the payload (u32), fields (JSON), payload

The fields are those of the message's record, without its host, because a connection belongs to one host. The
payload is the field ``data`` as raw bytes. `Decoder` checks types, ranges and lengths of every message
(`launcher.common.validation`), so that a wrong one is a `ProtocolError` where it is read.

On this machine frames go through a pipe. On the way to another machine they survive broken connections:
`MessageChannel` counts events, commands and data in the order in which it sends them, keeps them until the
other end has acknowledged them, and sends the rest again on the next connection. An acknowledgement means
that the application has handled the messages. So a slow reader stops the writer (`WINDOW_BYTES`), and memory
stays bounded on both sides.

Events overtake output. An agent whose window is full stops reading the output of its tasks, but still sends
events. Strings that came from bytes which are not UTF-8 keep these as lone surrogates (PEP 383).
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

#: The largest frame.
MAX_FRAME_BYTES = 4 * 1024 * 1024
#: The largest size of the fields in a frame from an agent.
_MAX_FIELDS_BYTES = 1024 * 1024
#: How much an agent keeps for the launcher before it stops reading from its tasks.
WINDOW_BYTES = 8 * 1024 * 1024
#: The longest time between two pings, each of which is sent at a multiple of the second number.
PING_SECONDS = 2.0
_PING_GRID_SECONDS = 0.25
#: How long an agent without a connection waits for a new one, until the first ping has told it another time.
RECONNECT_SECONDS = 4.0
#: How many bytes of a remote program may be under way in one direction.
CREDIT_BYTES = 1024 * 1024

_HEAD = struct.Struct("<BII")
#: This number of handled messages is acknowledged at once.
_MAX_UNACKNOWLEDGED = 16
#: Fewer handled messages are acknowledged after this time.
_MAX_ACK_SECONDS = 0.25
#: How much output of tasks is written together. Events can overtake only what comes later.
_BATCH_BYTES = 256 * 1024
#: How many buffers are written together.
_MAX_BUFFERS = 256
#: The bytes that `swap` exchanges.
_SWAP_TABLE = bytes.maketrans(b"\n\xff", b"\xff\n")
#: For how many messages the decoded fields, or the encoded ones, are kept.
_MAX_CACHED_MESSAGES = 1024
#: Larger fields are not kept.
_MAX_CACHED_BYTES = 256


class Hello(Record):
    """The first message of both ends on each connection. The launcher sends it first."""

    #: The secret that both ends know, which proves that the connection belongs to this agent.
    session: str
    #: The number of the launcher's connection, so that a late one does not replace a newer one.
    attempt: int
    #: How many numbered messages this end has received so far.
    received: int


class Refused(Record):
    """The agent tells the launcher that it has exited, or exits now."""

    #: The reason, for the user.
    why: str


class Ack(Record):
    """The acknowledgement that the application has handled messages, which need not be sent again."""

    #: How many numbered messages it has handled in all.
    count: int


class Ping(Record):
    """Asks the agent for an `Ack`, so that the launcher notices a dead connection."""

    #: How many seconds the agent waits for a new connection when this one breaks.
    reconnect_seconds: float


class RunCommand(Record):
    """Tells an agent to run a function of ours in a child process, with a byte pipe in each direction."""

    #: The number by which later messages name this remote program.
    command: int
    #: The function, as ``module:function``.
    entry: str
    #: Its arguments, as JSON.
    arguments: Any


class CommandData(Record):
    """Bytes for the stdin of a remote program, or from its stdout. No bytes mean the end of the stream."""

    command: int
    data: bytes


class CommandCredit(Record):
    """The message that bytes of a remote program were read, so that its other end may send as many again."""

    command: int
    size: int


class CommandEnded(Record):
    """A remote program has exited."""

    command: int
    #: Its exit code, or the negative number of the signal that killed it.
    status: int
    #: The last part of what it printed on stderr.
    stderr: str


class CloseCommand(Record):
    """Tells an agent to close the pipes of a remote program, and to kill it if it does not exit."""

    command: int


class FileEntry(Record):
    """A file, folder or symbolic link in a copied tree. The content of a file follows in `FileData`."""

    #: The path below the root of the tree, with ``/``.
    path: str
    #: ``f`` for a file, ``d`` for a folder, ``l`` for a symbolic link.
    kind: str
    #: The permission bits. They are 0 for a link.
    mode: int = 0
    #: The size of a file in bytes. It is 0 for anything else.
    size: int = 0
    #: When a file was last changed, in nanoseconds since 1970. It is 0 for anything else.
    mtime_ns: int = 0
    #: The target of a link.
    target: str = ""


class FileData(Record):
    """Bytes of the file in the last `FileEntry`."""

    data: bytes


class FilesNeeded(Record):
    """The answer of a host to a list of entries: which of them must be sent."""

    #: A byte for each entry, in the order of the list: 1 if the host needs it, 0 if it has the same already.
    data: bytes


class FilesFollow(Record):
    """Announces that the requested entries follow."""

    #: The bytes of all their files together.
    size: int


class FileNotice(Record):
    """A line for the user about a path that was to be copied."""

    text: str
    #: Whether nothing exists at the path.
    missing: bool = False


class FilesDone(Record):
    """The last message of a copy: all entries were sent."""

    #: The paths of the trees on the host.
    paths: Tuple[str, ...] = ()


class FilesFailed(Record):
    """The last message of a copy that cannot continue."""

    #: The reason, for the user.
    why: str


#: What an agent may send through a pipe on this machine.
PIPED_RECORDS: Tuple[Type[Any], ...] = (Refused, *get_args(events.AgentEvent))
#: What an agent sends about remote programs.
PROGRAM_RECORDS = (CommandData, CommandCredit, CommandEnded)
_AGENT_RECORDS = (Hello, Ack, *PIPED_RECORDS, *PROGRAM_RECORDS)
_COMMAND_RECORDS = (RunCommand, CommandData, CommandCredit, CloseCommand)
_LAUNCHER_RECORDS = (Hello, Ack, Ping, *get_args(events.AgentCommand), *_COMMAND_RECORDS)
#: The messages between the launcher and a remote program that copies files. They go through its pipes.
FILE_RECORDS = (FileEntry, FileData, FilesNeeded, FilesFollow, FileNotice, FilesDone, FilesFailed)
_RECORDS: Tuple[Type[Any], ...] = tuple(dict.fromkeys(_AGENT_RECORDS + _LAUNCHER_RECORDS + FILE_RECORDS))
_CODES = {record: code for code, record in enumerate(_RECORDS)}
#: Conditions on several fields of a record together.
_RULES: Dict[Any, Callable[[Any], bool]] = {
    events.PortsHeld: lambda held: len({*held.ports.values()}) == len(held.ports),
    events.TaskNotStarted: lambda event: event.code != 0,
    events.TaskSignalled: lambda event: event.signal != 0,
    events.TaskExited: lambda event: (event.code is None) != (event.signal is None) and event.signal != 0,
}

#: A record of this module or of `launcher.common.events`.
Message = Any
Buffer = Union[bytes, memoryview]


# ---------------------------------------------------------------------- one message


#: One encoder for all messages, because `json.dumps` with separators would make one for each call.
_compact = json.JSONEncoder(separators=(",", ":")).encode
#: The last message without data, and its frame. The same message may go to thousands of hosts.
_last: Tuple[Message, bytes] = (None, b"")


def encode(message: Message) -> List[Buffer]:
    """Return the frame of a message, as buffers for `os.writev`.

    Raises:
        ProtocolError: The frame would be larger than `MAX_FRAME_BYTES`.
    """
    global _last
    last, frame = _last
    # The launcher may send the same message to thousands of hosts, so the last frame is remembered.
    if message is last:
        return [frame]
    record = type(message)
    has_data = record._fields[-1:] == ("data",)
    data = message.data if has_data else b""
    # Each piece of output is a message with data, and its other fields repeat, so their JSON is cached.
    # A record is a tuple at run time, and a slice of it is the cheapest key of the cache.
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
    """Return the fields of a message as JSON, from its class and its values.

    The host is left out, because a connection belongs to one host. The payload is not among the values.
    """
    fields = dict(zip(record._fields, values))
    fields.pop("host", None)
    # The facts are a record, which would become a JSON list.
    if "facts" in fields:
        fields["facts"] = as_dict(fields["facts"])
    return _compact(fields).encode("ascii")


_cached_json: Callable[[Any, Tuple[Any, ...]], bytes] = lru_cache(maxsize=_MAX_CACHED_MESSAGES)(_json)


class Decoder:
    """A decoder that turns the bytes of one connection, in pieces of any size, into checked messages.

    Args:
        from_agent: Whether an agent sends the bytes, whose messages are not trusted. Otherwise the launcher
            sends them.
        host: The name of the agent's host.
        tasks: The tasks of this host, because its messages may name no other ones. None means any task.
        only: The classes of messages that are allowed. Empty means all that this sender may send.
    """

    def __init__(
        self,
        *,
        from_agent: bool,
        host: str = "",
        tasks: Optional[Collection[str]] = None,
        only: Tuple[Type[Any], ...] = (),
    ) -> None:
        """Prepare to decode the bytes of one connection."""
        #: The classes of messages that this sender may send.
        self._allowed = frozenset(only or (_AGENT_RECORDS if from_agent else _LAUNCHER_RECORDS))
        self._host = host
        #: How large the fields of a message may be without its payload.
        self._max_fields_bytes = _MAX_FIELDS_BYTES if from_agent else MAX_FRAME_BYTES
        # What the launcher sends is trusted.
        self._reader = FieldReader(not from_agent, tasks)
        #: The beginning of a frame whose rest has not arrived.
        self._rest = b""
        #: The decoded fields of messages with a payload. The output of a task repeats the same fields.
        self._decoded: Dict[Tuple[int, bytes], Tuple[Any, ...]] = {}

    @property
    def has_part(self) -> bool:
        """Whether only a part of a message has arrived, so its rest will follow soon."""
        return bool(self._rest)

    def feed(self, data: bytes) -> List[Message]:
        """Add bytes and return the messages that are complete now.

        Raises:
            ProtocolError: This sender may not send such bytes.
        """
        if self._rest:
            data = self._rest + data
        messages: List[Message] = []
        start, end = 0, len(data)
        while end - start >= _HEAD.size:
            # `size` is that of the fields, and `payload` that of the payload.
            code, size, payload = _HEAD.unpack_from(data, start)
            # This is checked before the rest has arrived, so that nobody can make us collect too much.
            if code >= len(_RECORDS) or size > self._max_fields_bytes or size + payload > MAX_FRAME_BYTES:
                raise ProtocolError(f"a message of type {code} and {size + payload} bytes")
            # A frame consists of the head, the fields and the payload.
            payload_start = start + _HEAD.size + size
            if end - payload_start < payload:
                break
            fields = data[start + _HEAD.size : payload_start]
            start = payload_start + payload
            messages.append(self._message(code, fields, data[payload_start:start]))
        self._rest = data[start:]
        return messages

    def _message(self, code: int, fields: bytes, payload: bytes) -> Message:
        """Return the message of one frame, checked.

        A message whose last field is ``data``, such as a piece of output, has that field in the payload. Its
        other fields were often decoded before, and are remembered.

        Args:
            code: The type of the message, an index of `_RECORDS`.
            fields: The fields as JSON.
            payload: The bytes of the field ``data``. It is empty for a message without this field.

        Raises:
            ProtocolError: This sender may not send such a message, or its fields are wrong.
        """
        record = _RECORDS[code]
        values = self._decoded.get((code, fields))
        if values is not None:
            # This takes half the time of calling the class. Each piece of output is such a message.
            return tuple.__new__(record, (*values, payload))
        if record not in self._allowed:
            raise ProtocolError(f"{record.__name__} is not for this direction")
        values = self._read_fields(record, fields)
        if record._fields[-1:] == ("data",):
            # The next piece of output has the same fields.
            if len(fields) <= _MAX_CACHED_BYTES:
                if len(self._decoded) >= _MAX_CACHED_MESSAGES:
                    self._decoded.clear()
                self._decoded[code, fields] = values
            return record(*values, payload)
        if payload:
            raise ProtocolError(f"{record.__name__} with {len(payload)} bytes of data")
        message = record(*values)
        # Some records have a rule for fields that are each right, but must fit together.
        if record in _RULES and not _RULES[record](message):
            raise ProtocolError(f"{record.__name__}: its fields contradict each other: {fields[:200]!r}")
        return message

    def _read_fields(self, record: Type[Any], fields: bytes) -> Tuple[Any, ...]:
        """Return the checked values of a record from its fields as JSON, with the host of this connection.

        The host is not sent, so that no host can speak for another one.

        Args:
            record: The class of the record.
            fields: The fields as JSON.

        Raises:
            ProtocolError: The fields are no JSON, or not those of the record.
        """
        try:
            values = self._reader.read(record, json.loads(fields))
        except (ValueError, RecursionError, ProtocolError) as error:
            raise ProtocolError(
                sanitize_host_text(f"{record.__name__}: {error}: {fields[:200]!r}")
            ) from error
        return (self._host, *values) if record._fields[:1] == ("host",) else values


def swap(data: bytes) -> bytes:
    """Exchange newlines with the byte 0xff, which no UTF-8 contains. A second call restores the bytes.

    Some programs, such as srun, pass on line by line what they read. With many short lines in the messages,
    the launcher would get them in many small pieces, and need three times the CPU time.
    """
    if b"\xff" not in data:
        return data.replace(b"\n", b"\xff")
    if b"\n" not in data:
        return data.replace(b"\xff", b"\n")
    return data.translate(_SWAP_TABLE)


# ---------------------------------------------------------------------- a connection that may break


class MessageChannel:
    """One end of a stream of messages that continues over one connection after another.

    It opens no connection itself. The owner of a connection passes received bytes to `receive` and writes
    what `output` returns.

    Args:
        decoder: Makes the decoder of a new connection.
        session: The secret that both ends know, see `Hello`. It is empty for a pipe on this machine. Because
            a pipe does not break, its messages are not numbered.
        greets: Whether this end greets first and sends pings, as the launcher does.
    """

    def __init__(self, decoder: Callable[[], Decoder], session: str = "", greets: bool = False) -> None:
        """Prepare a stream of messages, with no connection at first."""
        self._make_decoder = decoder
        self._decoder = decoder()
        self._session = session
        self._greets = greets
        #: Encoded messages that are sent before those of `_bulk`.
        self._urgent: deque[List[Buffer]] = deque()
        #: Encoded messages that others may overtake, such as output.
        self._bulk: deque[List[Buffer]] = deque()
        #: Messages of the protocol itself, which are not numbered.
        self._control: List[Message] = []
        #: What is written next on the connection.
        self._wire: List[Buffer] = []
        #: How many bytes wait to be sent or to be acknowledged.
        self.pending = 0
        #: Whether the messages of `_bulk` are held back. The owner sets it, see `HoldOutput`.
        self.held = False
        #: Encoded numbered messages that were sent and are not acknowledged.
        self._unacked: deque[List[Buffer]] = deque()
        #: How many messages at the end of `_unacked` must be sent again on this connection.
        self._to_resend = 0
        #: How many of our messages the other end has acknowledged.
        self._sent_and_acknowledged = 0
        #: How many numbered messages have arrived.
        self._received = 0
        #: How many of the numbered messages that have arrived the application has handled.
        self._handled = 0
        #: How many of the numbered messages that have arrived we have acknowledged.
        self._received_and_acknowledged = 0
        #: When to send the next acknowledgement, or None if none is due.
        self._ack_at: Optional[float] = None
        #: When to send the next ping, if this end sends pings.
        self._ping_at = 0.0
        #: The number of the present connection.
        self._attempt = 0
        #: How many seconds the agent waits for a new connection at least, as the launcher may need them to
        #: connect again. The launcher sends this number in each `Ping`, from which the agent takes it.
        self.reconnect_seconds = RECONNECT_SECONDS
        #: Whether all bytes that are written pass `swap`.
        self.swapped = False
        #: Whether the other end has greeted on this connection. A pipe without a session needs no greeting.
        self.met = not session
        #: Whether there is a connection now. A pipe is there from the beginning.
        self.connected = not session

    # ------------------------------------------------------------------ the application

    def send(self, message: Message, bulk: bool = False) -> None:
        """Queue a message, for `output` to return it.

        Args:
            message: The message.
            bulk: Whether other messages may overtake it. Bulk messages, such as output, keep their order.
        """
        buffers = encode(message)
        (self._bulk if bulk else self._urgent).append(buffers)
        self.pending += sum(map(len, buffers))

    def note_handled(self, count: int, now: float, at_once: bool = False, lazily: bool = False) -> None:
        """Note that the application has handled messages, so that they will be acknowledged.

        Args:
            count: How many of the messages that `receive` returned.
            now: The time in monotonic seconds.
            at_once: Whether to acknowledge them without waiting for more.
            lazily: Whether to acknowledge them with the next ping, because they come all the time.
        """
        # Without a session nothing is acknowledged.
        if self._session and count:
            self._handled += count
            if at_once or self._handled - self._received_and_acknowledged >= _MAX_UNACKNOWLEDGED:
                self._ack_at = now
            else:
                due = now + (PING_SECONDS if lazily else _MAX_ACK_SECONDS)
                self._ack_at = due if self._ack_at is None else min(self._ack_at, due)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send, and the other end has acknowledged all messages."""
        return not (self._urgent or self._bulk or self._wire or self._control or self._unacked)

    # ------------------------------------------------------------------ the connection

    def connect(self, attempt: int, now: float) -> None:
        """Continue on a new connection, and forget an older one.

        Args:
            attempt: The number of the connection, which the launcher counts.
            now: The time in monotonic seconds.
        """
        self.disconnect()
        self.connected = True
        self._attempt = attempt
        # The first ping is sent at once, because the agent needs its `reconnect_seconds`.
        self._ping_at = now
        # The other end answers a greeting by its own, see `handle_greeting`.
        if self._greets:
            self._control.append(Hello(self._session, attempt, self._received))

    def disconnect(self) -> None:
        """Note that the connection is broken. Messages wait for the next one."""
        self.connected = self.met = False
        # A message of which only a part has arrived or was written will be sent again as a whole.
        self._decoder = self._make_decoder()
        # Acknowledgements are not lost by this: the next greeting says how many messages have arrived.
        self._control.clear()
        self._wire = []

    def handle_greeting(self, hello: Hello) -> None:
        """Handle the greeting of the other end, and prepare to send the messages that it has not received.

        Raises:
            ProtocolError: The greeting belongs to another session, or counts more messages than were sent.
        """
        # A second greeting on one connection is wrong, too.
        if self.met or hello.session != self._session:
            raise ProtocolError("a greeting that belongs to another session")
        # Until the greeting is handled, every message that was sent may have arrived.
        self._to_resend = 0
        self._acknowledge(hello.received)
        self._to_resend = len(self._unacked)
        self.met = True
        # The agent answers the greeting of the launcher, which has greeted first.
        if not self._greets:
            self._control.append(Hello(self._session, self._attempt, self._received))

    def receive(self, data: bytes) -> List[Message]:
        """Decode bytes of the connection, and handle the messages of the protocol itself.

        - Without a session (on a pipe of this machine) every message is for the application.
        - `Refused` (the agent exits unasked) may come at any time, and is for the application.
        - Before all others the greeting `Hello` must come.
        - `Ack` and `Ping` are handled here.
        - Each other message is counted, so that it will be acknowledged, and is for the application.

        Args:
            data: The bytes, in pieces of any size.

        Returns:
            The messages for the application, and `Refused`. It is empty if none is complete.

        Raises:
            ProtocolError: The bytes are wrong, so the connection is of no use.
        """
        messages: List[Message] = []
        for message in self._decoder.feed(data):
            kind = type(message)
            if kind is Refused or not self._session:
                messages.append(message)
            elif kind is Hello:
                self.handle_greeting(message)
            elif not self.met:
                raise ProtocolError("a message before the greeting")
            elif kind is Ack:
                self._acknowledge(message.count)
            elif kind is Ping:
                # The launcher waits for the answer, an acknowledgement, so it is due at once.
                self._ack_at, self.reconnect_seconds = 0.0, message.reconnect_seconds
            else:
                self._received += 1
                messages.append(message)
        return messages

    def _acknowledge(self, count: int) -> None:
        """Drop the messages that the other end has acknowledged.

        Args:
            count: How many of our messages, since the first connection, it has acknowledged in all.

        Raises:
            ProtocolError: It claims more messages than it can have received.
        """
        # The other end cannot have received messages that must still be sent again on this connection.
        if count > self._sent_and_acknowledged + len(self._unacked) - self._to_resend:
            raise ProtocolError(f"an acknowledgement of {count} messages, which were not all sent")
        while self._sent_and_acknowledged < count:
            self._sent_and_acknowledged += 1
            self.pending -= sum(map(len, self._unacked.popleft()))

    @property
    def has_part(self) -> bool:
        """Whether only a part of a message has arrived, so its rest will follow soon."""
        return self._decoder.has_part

    def output(self, now: float) -> List[Buffer]:
        """Return the buffers to write on the connection now, for `os.writev`.

        They stay until `sent` is called. The list is empty if there is nothing to write.
        """
        if not self._wire and self.connected:
            self._fill(now)
            # `swap` is for a connection through a program that writes line by line.
            if self.swapped and self._wire:
                self._wire = [swap(b"".join(self._wire))]
        return self._wire

    def sent(self, count: int) -> None:
        """Remove bytes from the beginning of `output`, because they were written.

        Args:
            count: How many bytes. The last buffer of them may be incomplete.
        """
        # Without a session there are no acknowledgements, so bytes count as received when written.
        if not self._session:
            self.pending -= count
        whole_buffers = 0
        while whole_buffers < len(self._wire) and count >= len(self._wire[whole_buffers]):
            count -= len(self._wire[whole_buffers])
            whole_buffers += 1
        del self._wire[:whole_buffers]
        # What is left of the count are bytes of the next buffer.
        if count:
            self._wire[0] = memoryview(self._wire[0])[count:]

    def write(self, fd: int, now: float) -> bool:
        """Write what `output` returns to a descriptor.

        Args:
            fd: The descriptor, which does not block.
            now: The time in monotonic seconds.

        Returns:
            Whether all was written. Otherwise the rest has to wait until the descriptor is writable.

        Raises:
            OSError: The other end of the descriptor is closed.
        """
        try:
            while buffers := self.output(now):
                self.sent(os.writev(fd, buffers))
        except BlockingIOError:
            return False
        return True

    def next_due(self) -> Optional[float]:
        """Return when a ping or an acknowledgement has to be sent, in monotonic seconds.

        It is None if none has to be sent.
        """
        # A pipe needs neither, and before the greeting neither may be sent.
        if not (self._session and self.met):
            return None
        ping_at = self._ping_at if self._greets else None
        return min((due for due in (self._ack_at, ping_at) if due is not None), default=None)

    def _fill(self, now: float) -> None:
        """Move messages that wait to the wire: those of the protocol, and then a batch of the others.

        The wire is what is written next. It is kept short, because urgent messages cannot overtake what is in
        it.

        Args:
            now: The time in monotonic seconds.
        """
        # A pipe without a session needs no greetings, pings and acknowledgements.
        if self._session:
            self._fill_control(now)
        # Before the greeting it is unknown which messages must be sent again.
        if self.met:
            size = 0
            while size < _BATCH_BYTES and len(self._wire) < _MAX_BUFFERS:
                buffers = self._next_message()
                if buffers is None:
                    return
                self._wire += buffers
                size += sum(map(len, buffers))

    def _fill_control(self, now: float) -> None:
        """Move the messages of the protocol itself to the wire, with a ping and an `Ack` if they are due."""
        # Only the end that greets, the launcher, pings. Before both have greeted, nothing else may be sent.
        if self._greets and self.met and now >= self._ping_at:
            # All connections ping at the same moments, so that a launcher with many hosts wakes rarely.
            self._ping_at = (now + PING_SECONDS) // _PING_GRID_SECONDS * _PING_GRID_SECONDS
            self._control.append(Ping(self.reconnect_seconds))
            # An acknowledgement that waits goes with it.
            self._ack_at = None if self._ack_at is None else now
        if self.met and self._ack_at is not None and now >= self._ack_at:
            self._ack_at, self._received_and_acknowledged = None, self._handled
            self._control.append(Ack(self._handled))
        for message in self._control:
            self._wire += encode(message)
        self._control.clear()

    def _next_message(self) -> Optional[List[Buffer]]:
        """Return the next encoded message to send, which gets its number now, or None.

        Messages that must be sent again come first, then the urgent ones, then the bulk.
        """
        if self._to_resend:
            # The last `_to_resend` of the messages without acknowledgement, the oldest of them first.
            self._to_resend -= 1
            return self._unacked[-1 - self._to_resend]
        if self._urgent:
            buffers = self._urgent.popleft()
        elif self._bulk and not self.held:
            buffers = self._bulk.popleft()
        else:
            return None
        # It is kept until it is acknowledged, for the case that the connection breaks.
        if self._session:
            self._unacked.append(buffers)
        return buffers
