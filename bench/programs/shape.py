"""The bare shape of launch's output, in plain Python: ``shape.py N LOGS ARGV...``.

Task pipes, a forked agent, frames, log files and a console; nothing else. What launch is measured against.
"""

import os
import selectors
import struct
import subprocess
import sys

_HEAD = struct.Struct("<II")
_READ = 64 * 1024


def agent(count: int, argv: list[str], out: int) -> int:
    """Start the tasks; send each piece of their output with a head: task and size."""
    selector = selectors.DefaultSelector()
    tasks = []
    for index in range(count):
        environment = {**os.environ, "TASK_INDEX": str(index)}
        task = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert task.stdout is not None
        selector.register(task.stdout.fileno(), selectors.EVENT_READ, index)
        tasks.append(task)
    while selector.get_map():
        frames: list[bytes] = []
        for key, _ in selector.select():
            data = os.read(key.fd, _READ)
            if data:
                frames += (_HEAD.pack(key.data, len(data)), data)
            else:
                selector.unregister(key.fd)
        size = sum(map(len, frames))
        sent = os.writev(out, frames[:1000]) if frames else 0
        if sent < size:
            rest = memoryview(b"".join(frames))[sent:]
            while rest:
                rest = rest[os.write(out, rest) :]
    return max(task.wait() for task in tasks)


def launcher(count: int, logs: str, reading: int) -> None:
    """Write each task's output to its log and, with a prefix for each line, to stdout."""
    files = [os.open(f"{logs}/{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for index in range(count)]
    rests = [b""] * count
    buffer = b""
    while data := os.read(reading, 1 << 20):
        buffer = buffer + data if buffer else data
        at = 0
        while len(buffer) - at >= _HEAD.size:
            task, size = _HEAD.unpack_from(buffer, at)
            end = at + _HEAD.size + size
            if len(buffer) < end:
                break
            piece = buffer[at + _HEAD.size : end]
            os.write(files[task], piece)
            rests[task] = show(b"worker/%d | " % task, rests[task] + piece)
            at = end
        buffer = buffer[at:]
    for task, rest in enumerate(rests):
        if rest:
            os.write(1, b"worker/%d | %b\n" % (task, rest))


def show(prefix: bytes, data: bytes) -> bytes:
    """Print the whole lines; return the rest. A line without an end is printed in pieces."""
    cut = data.rfind(b"\n") + 1
    if not cut and len(data) >= _READ:
        data, cut = data + b"\n", len(data) + 1
    if cut:
        text = memoryview(prefix + data[: cut - 1].replace(b"\n", b"\n" + prefix) + b"\n")
        while text:
            text = text[os.write(1, text) :]
    return data[cut:]


def main() -> int:
    """Fork the agent, then be the launcher."""
    count, logs, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(agent(count, argv, writing))
    os.close(writing)
    launcher(count, logs, reading)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
