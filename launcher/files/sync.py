"""``--sync``: bring folders to all hosts. Only what a host lacks is sent (see `launcher.agent.files`)."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.agent.transfer import FILE, FOLDER, MAX_ENTRIES, send_entries
from launcher.errors import HostsError
from launcher.files.progress import Meter, Progress
from launcher.files.requests import SyncRequest
from launcher.files.session import Conversation, on_all
from launcher.files.walk import Packed, Tree, left_out
from launcher.protocol import FileEntry, FileGone, FileHad, FilesDone, FilesFollow, FilesListed
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts


class SyncResult(NamedTuple):
    """What a sync did."""

    #: The folder the tasks run in, by host.
    workdirs: dict[str, str]
    #: On one host, of all folders.
    files: int
    size: int
    #: Bytes that went to all hosts together, compressed, with all messages.
    sent: int
    #: Bytes of the files that hosts lacked, of all hosts together: what the bar counts.
    moved: int
    seconds: float


def sync(
    commands: Hosts,
    hosts: Sequence[str],
    packed: Packed,
    job: str,
    progress: Progress,
    fanout: int,
    arrived: Callable[[str], None] = lambda _: None,
) -> SyncResult:
    """Bring folders to all hosts, put them in their places.

    Args:
        commands: on all hosts.
        hosts, packed, job: what goes where, for which run.
        progress: shows it.
        fanout: how many hosts at once.
        arrived: called with each host that has all of it, whatever comes of the others; by several threads.

    Raises:
        HostsError: hosts that failed, a line each; on each of them nothing of it is visible.
    """
    meter, since, summary = Meter(hosts), time.monotonic(), ""
    sent: list[int] = []
    problems: set[tuple[str, str]] = set()

    def problem(path: str, why: str) -> None:
        problems.add((path, why))

    def visit(host: str, cancelled: threading.Event) -> list[str]:
        arguments = {"job": job, "trees": [_order(tree.request) for tree in packed.trees]}
        try:
            with Conversation(commands, host, "receive", arguments, cancelled) as talk:
                paths = _serve(talk, packed, meter, problem)
                sent.append(talk.sent)
        finally:
            meter.done(host)
        arrived(host)
        return paths

    progress.begin("syncing", meter)
    try:
        outcome = on_all(hosts, visit, fanout, progress.tick)
        if outcome.failed:
            raise HostsError(outcome.failed.values())
        workdirs = {
            host: os.path.join(paths[0], packed.subfolder).rstrip("/") for host, paths in outcome.done.items()
        }
        files, size = sum(tree.files for tree in packed.trees), sum(tree.size for tree in packed.trees)
        result = SyncResult(workdirs, files, size, sum(sent), meter.moved, time.monotonic() - since)
        lines = [
            *_warnings(problems),
            _summary(result, len(hosts)),
            *(left_out(packed) if meter.moved else ()),
        ]
        summary = "\n".join(lines)
        return result
    finally:
        progress.end(summary)


def _order(request: SyncRequest) -> dict[str, str | None]:
    """What a host is asked for. The key names the folder here, and what an earlier run from it left."""
    name = f"{os.uname().nodename}:{request.folder}"
    key = hashlib.blake2b(os.fsencode(name), digest_size=10).hexdigest()
    return {"name": request.name, "remote": request.remote, "key": key}


def _serve(
    talk: Conversation, packed: Packed, meter: Meter, problem: Callable[[str, str], None]
) -> list[str]:
    """Send a host what it lacks of each tree; the paths of the trees there."""
    while True:
        message = talk.get()
        if isinstance(message, FilesDone) and len(message.paths) == len(packed.trees):
            return list(message.paths)
        if not isinstance(message, FilesFollow) or not 0 <= message.item < len(packed.trees):
            raise talk.misunderstood(f"{type(message).__name__} at the wrong moment")
        tree = packed.trees[message.item]
        had: dict[str, FileEntry] = {}
        while not isinstance(message := talk.get(), FilesListed):
            if not isinstance(message, FileHad) or len(had) > MAX_ENTRIES:
                raise talk.misunderstood(f"{type(message).__name__} at the wrong moment")
            had[message.path] = FileEntry(*message)
        _send(talk, tree, had, meter, problem)


def _send(
    talk: Conversation,
    tree: Tree,
    had: Mapping[str, FileEntry],
    meter: Meter,
    problem: Callable[[str, str], None],
) -> None:
    lacking = sorted(entry for path, entry in tree.entries.items() if had.get(path) != entry)
    size = sum(entry.size for entry in lacking)
    left = size

    def moved(count: int) -> None:
        nonlocal left
        left -= count
        meter.move(count)

    meter.expect(size)
    try:
        talk.put(FilesFollow(0, sum(entry.kind == FILE for entry in lacking), size))
        for path in sorted(
            (path for path, entry in had.items() if tree.entries.get(path) != entry), reverse=True
        ):
            talk.put(FileGone(path))
        lacking.sort(key=lambda entry: entry.kind != FOLDER)
        sources = ((f"{tree.request.folder}/{entry.path}", entry) for entry in lacking)
        send_entries(talk, sources, problem, moved)
        talk.put(FilesDone())
    finally:
        meter.expect(-left)


def _warnings(problems: Iterable[tuple[str, str]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for path, why in problems:
        reasons.setdefault(why, []).append(path)
    return [f"--sync: {listed(sorted(paths))} {why}" for why, paths in sorted(reasons.items())]


def _summary(result: SyncResult, hosts: int) -> str:
    """What the folders hold, and what had to be sent of it to all hosts together."""
    what = f"{counted(result.files, 'file')} ({byte_size(result.size)}) to {counted(hosts, 'host')}"
    sent = f"{byte_size(result.moved)} sent" if result.moved else "nothing sent"
    return f"synced {what}, {sent}, in {result.seconds:.1f} s"


def make_outputs(
    commands: Hosts, names: Mapping[str, Sequence[str]], job: str, fanout: int, for_all: bool
) -> dict[str, list[str]]:
    """Make a folder for what each task makes, on its host.

    Args:
        commands: on all hosts.
        names: of the folders, by host.
        job: the run.
        fanout: how many hosts at once.
        for_all: whether tasks run as any user.

    Returns:
        The paths, by host, in the order of the names.

    Raises:
        HostsError: hosts that failed, a line each.
    """

    def visit(host: str, cancelled: threading.Event) -> list[str]:
        arguments = {"job": job, "names": list(names[host]), "mode": 0o777 if for_all else 0o700}
        return _ask(commands, host, "make_outputs", arguments, cancelled)

    outcome = on_all(list(names), visit, fanout)
    if outcome.failed:
        raise HostsError(outcome.failed.values())
    return outcome.done


def finish(commands: Hosts, hosts: Sequence[str], job: str, fanout: int) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        Errors, by host: the end of the run does not fail because of them.
    """

    def visit(host: str, cancelled: threading.Event) -> list[str]:
        return _ask(commands, host, "finish", {"job": job}, cancelled)

    return on_all(hosts, visit, fanout).failed


def _ask(
    commands: Hosts, host: str, entry: str, arguments: Mapping[str, object], cancelled: threading.Event
) -> list[str]:
    with Conversation(commands, host, entry, arguments, cancelled) as talk:
        message = talk.get()
        if not isinstance(message, FilesDone):
            raise talk.misunderstood(f"{type(message).__name__} at the wrong moment")
        return list(message.paths)
