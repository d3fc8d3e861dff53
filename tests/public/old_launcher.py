"""A launcher of version 0.1 whose job runs, as far as other commands on its machine can tell.

Usage: ``old_launcher.py RUN_DIR``. It imports nothing of the project, and is not changed with it: it stands
for launchers that run while their users install a later version.

It makes the folder of its run from ``run/``, serves the control socket as version 0.1 does, and ends by
SIGTERM with a report. Requests that version 0.1 refuses are refused. It prints each request, and at the end
how it was asked to stop, as lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parent / "run"
#: The requests that version 0.1 knows: their fields, and the types of the values.
REQUESTS: Mapping[str, Mapping[str, type]] = {
    "tasks": {"measure": bool},
    "restart": {"tasks": list},
    "follow": {"from": int, "output": bool},
}


def events_until(name: str) -> int:
    """The number of events before the first one of this name."""
    lines = (STORED / "events.jsonl").read_text().splitlines()
    return next(number for number, line in enumerate(lines) if json.loads(line)["event"] == name)


class OldLauncher:
    """The launcher.

    Args:
        folder: the folder of its run, which does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._answers: Mapping[str, Any] = json.loads((STORED / "answers.json").read_text())
        self._lines: Sequence[str] = (STORED / "events.jsonl").read_text().splitlines(keepends=True)
        #: How many events there are so far.
        self._count = 0
        self._followers: list[socket.socket] = []
        self._is_stopped = False

    def run(self) -> int:
        """Serve requests until the stop. Returns the exit code."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0tf-launcher-{self._folder.name}")
        listener.listen(128)
        signal.signal(signal.SIGTERM, self._stop)
        self._make_folder()
        self._add_events(events_until("RestartAsked"))
        print(json.dumps({"ready": True}), flush=True)
        while not self._is_stopped:
            if select.select([listener], [], [], 0.02)[0]:
                self._serve(listener.accept()[0])
        self._end()
        return 143

    def _make_folder(self) -> None:
        (self._folder / "logs").mkdir(parents=True)
        for path in ("plan.json", "launcher.log", "logs/ps-0.log", "logs/worker-0.log"):
            shutil.copy(STORED / path, self._folder / path)
        record = json.loads((STORED / "launcher.json").read_text())
        (self._folder / "launcher.json").write_text(json.dumps({**record, **identity()}))

    def _add_events(self, count: int) -> None:
        new = range(self._count, count)
        self._count = count
        with open(self._folder / "events.jsonl", "a") as file:
            file.writelines(self._lines[number] for number in new)
        for number in new:
            event = {"number": number + 1, **json.loads(self._lines[number])}
            for follower in self._followers:
                with suppress(BrokenPipeError):  # it has gone
                    follower.send(json.dumps(event).encode() + b"\n")

    def _serve(self, client: socket.socket) -> None:
        request = json.loads(client.recv(1 << 16))
        print(json.dumps(request), flush=True)
        answer = self._answer(request)
        with open(os.memfd_create("answer"), "wb", buffering=0) as file:
            file.write(json.dumps(answer).encode())
            socket.send_fds(client, [b"answer"], [file.fileno()])
        if "next" in answer:
            self._followers.append(client)
            return
        client.close()
        if request["request"] == "restart":
            self._add_events(events_until("StopAsked"))

    def _answer(self, request: dict[str, Any]) -> Mapping[str, Any]:
        known = REQUESTS.get(request.get("request", ""), {})
        values = {name: value for name, value in request.items() if name != "request"}
        if not known or any(type(value) is not known.get(name) for name, value in values.items()):
            return {"error": f"not a request: {request}"}
        if request["request"] == "follow":
            return {"next": self._count + 1, "output": request.get("output", False)}
        answer: Mapping[str, Any] = self._answers[request["request"]]
        return answer

    def _stop(self, *_: object) -> None:
        self._is_stopped = True

    def _end(self) -> None:
        print(json.dumps({"stop-asked": (self._folder / "stop-asked").read_text()}), flush=True)
        self._add_events(len(self._lines))
        shutil.copy(STORED / "report.json", self._folder)


def identity() -> Mapping[str, object]:
    """What identifies this process in ``launcher.json``."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {
        "pid": os.getpid(),
        "start_ticks": int(fields[19]),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "machine": os.uname().nodename,
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "machine_id": machine_id(),
    }


def machine_id() -> str:
    """A checksum of the id of this machine; a dash if it has none."""
    with suppress(OSError):
        if found := Path("/etc/machine-id").read_bytes().strip():
            return f"{int.from_bytes(found, 'big') % (2**32 - 5):08x}"
    return "-"


if __name__ == "__main__":
    sys.exit(OldLauncher(Path(sys.argv[1])).run())
