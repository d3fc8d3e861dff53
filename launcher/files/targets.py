"""Copies files of this machine to URLs: what ``--collect``, ``--output-to`` and ``--report`` name.

A process of its own does it (`launcher.storage.copy_out`), because the packages below fsspec have threads,
take time to import, and may hang. It is ended when the user presses Ctrl-C, or when no byte has been
copied for a long time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from launcher.backends.connections import with_tilde
from launcher.backends.programs import SubprocessPipe
from launcher.common.errors import TransportError
from launcher.common.record import Record
from launcher.common.text import byte_size, duration, join_names, last_line, plural
from launcher.event_loop import await_readable
from launcher.files.transfer import FileTransfer
from launcher.itself import program_command
from launcher.storage.urls import shown

#: The copy is given up when no byte was copied for this time, which is longer than a store is tried again.
_STALL_SECONDS = 180.0
_POLL_SECONDS = 0.05
_READ_BYTES = 64 * 1024


class FileTarget(Record):
    """A file or folder of this machine, and the URL that gets what is in it."""

    path: str
    url: str
    #: The URL that the user has named, for messages. The other one may be below it.
    named: str


def copy_out(transfer: FileTransfer, targets: Sequence[FileTarget]) -> list[tuple[str, str]]:
    """Copy files to URLs, and report the amount to the user.

    Args:
        transfer: Shows the progress, and limits the time.
        targets: What is copied, and where to. Files that are there under the same names are replaced.

    Returns:
        The files that were not copied, each with the reason. The path is empty if the reason stands for all,
        or for more files. The list is empty if all were copied.
    """
    place = join_names([*dict.fromkeys(shown(target.named) for target in targets)])
    done, failed = transfer.on_all([place], lambda _: _run(transfer, targets, place), "copying files")
    if failed:
        return [("", text) for text in failed.values()]
    result = done[place]
    if result["left_out"]:
        names = join_names([*map(with_tilde, result["left_out"])])
        transfer.report(f"not copied, as they are links or no regular files: {names}")
    failures = [(path, why) for path, why in result["failures"]]
    if result["copied"] or not failures:
        files, size = plural(result["copied"], "file"), byte_size(result["bytes"])
        transfer.report(f"copied {files} ({size}) to {place} in {duration(transfer.seconds)}")
    return failures


def _run(transfer: FileTransfer, targets: Sequence[FileTarget], place: str) -> dict[str, Any]:
    """Run the process, and return the last of what it tells.

    Raises:
        TransportError: It has failed, no byte was copied for a long time, or the user does not want to wait.
    """
    pipe = SubprocessPipe(place, program_command("launcher.storage.copy_out"))
    try:
        pipe.deliver(json.dumps([[target.path, target.url] for target in targets]).encode() + b"\n")
        result: dict[str, Any] = {}
        rest, moved_at = b"", time.monotonic()
        while (data := pipe.recv(_READ_BYTES)) != b"":
            transfer.check(place)
            if data is None:
                if time.monotonic() > moved_at + _STALL_SECONDS:
                    raise TransportError(f"{place}: nothing was copied for {_STALL_SECONDS:.0f}s")
                await_readable(pipe, _POLL_SECONDS)
                continue
            moved_at = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                result = json.loads(line)
                transfer.add(size=result.get("size", 0), moved=result.get("moved", 0))
        if "copied" not in result:
            why = last_line(pipe.stderr(), f"it ended with {pipe.wait(1.0)}")
            raise TransportError(f"{place}: the process that copies files has failed: {why}")
        return result
    finally:
        pipe.close()  # If the process still runs, this ends it.
