"""``--sync``: copy folders to all hosts. Only what a host lacks is sent (see `launcher.agent.files`)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

from launcher.agent.transfer import FOLDER, MAX_ENTRIES, send_entries
from launcher.errors import HostsError, OutOfTime
from launcher.files.requests import SyncRequest
from launcher.files.session import Conversation, Progress, on_all
from launcher.files.walk import Packed, Tree, left_out
from launcher.protocol import FileEntry, FilesDone, FilesFollow, FilesListed
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts

#: Bytes of the list of what a host has, at most.
_MOST_LISTED = 400 * MAX_ENTRIES


def sync(
    commands: Hosts,
    hosts: Sequence[str],
    packed: Packed,
    job: str,
    progress: Progress,
    fanout: int,
    deadline: float | None = None,
) -> dict[str, str]:
    """Copy folders to all hosts, and put them in their places.

    Args:
        commands: run programs of ours on all hosts.
        hosts, packed, job: what goes where, for which run.
        progress: shows it.
        fanout: how many hosts at once.
        deadline: when to give up (monotonic seconds); ``None``: never.

    Returns:
        The folder the tasks run in, by host.

    Raises:
        HostsError: hosts that failed, a line each; on each of them nothing of it is visible.
        OutOfTime: the same, after the deadline.
    """
    problems: set[tuple[str, str]] = set()
    trees = [_order(tree.request) for tree in packed.trees]

    def visit(host: str, cancelled: threading.Event) -> Sequence[str]:
        with Conversation(commands, host, "receive", {"job": job, "trees": trees}, cancelled) as talk:
            for tree in packed.trees:
                _send(talk, tree, progress, lambda path, why: problems.add((path, why)))
            return _paths(talk, len(trees))

    lines: list[str] = []
    try:
        done, failed = on_all(hosts, visit, fanout, progress, deadline)
        if failed:
            late = deadline is not None and time.monotonic() > deadline
            raise (OutOfTime if late else HostsError)(failed.values())
        reasons: dict[str, list[str]] = {}
        for path, why in sorted(problems):
            reasons.setdefault(why, []).append(path)
        lines = [f"--sync: {listed(paths)} {why}" for why, paths in sorted(reasons.items())]
        files, size = sum(tree.files for tree in packed.trees), sum(tree.size for tree in packed.trees)
        sent = f"{byte_size(progress.moved)} sent" if progress.moved else "nothing sent"
        folders = f"{counted(files, 'file')} ({byte_size(size)}) to {counted(len(hosts), 'host')}"
        lines.append(f"synced {folders}, {sent}, in {progress.seconds:.1f} s")
        lines += left_out(packed) if progress.moved else ()
        return {host: os.path.join(paths[0], packed.subfolder).rstrip("/") for host, paths in done.items()}
    finally:
        progress.end(*lines)


def _order(request: SyncRequest) -> dict[str, str | None]:
    """What a host is asked for. The key names the folder here, and what an earlier run from it left."""
    name = f"{os.uname().nodename}:{request.folder}"
    key = hashlib.blake2b(os.fsencode(name), digest_size=10).hexdigest()
    return {"name": request.name, "remote": request.remote, "key": key}


def _send(talk: Conversation, tree: Tree, progress: Progress, problem: Callable[[str, str], None]) -> None:
    """Send a host what it lacks of a tree."""
    message = talk.get()
    if not isinstance(message, FilesListed):
        raise talk.misunderstood(f"{type(message).__name__} at the wrong moment")
    try:
        lines = zlib.decompressobj().decompress(message.data, _MOST_LISTED).splitlines()
        had = {entry.path: entry for entry in (FileEntry(*json.loads(line)) for line in lines)}
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise talk.misunderstood(f"a list of files that can't be read: {error}") from error
    lacking = sorted(entry for path, entry in tree.entries.items() if had.get(path) != entry)
    lacking.sort(key=lambda entry: entry.kind != FOLDER)
    gone = sorted((path for path, entry in had.items() if tree.entries.get(path) != entry), reverse=True)
    size = sum(entry.size for entry in lacking)
    progress.expect(size)
    talk.put(FilesFollow(size, tuple(gone)))
    sources = ((f"{tree.request.folder}/{entry.path}", entry) for entry in lacking)
    send_entries(talk, sources, problem, progress.move)
    talk.put(FilesDone())


def _paths(talk: Conversation, count: int) -> Sequence[str]:
    """The paths with which a command ends."""
    message = talk.get()
    if not isinstance(message, FilesDone) or len(message.paths) != count:
        raise talk.misunderstood(f"{type(message).__name__} at the wrong moment")
    return message.paths


def make_outputs(
    commands: Hosts, names: Mapping[str, Sequence[str]], job: str, fanout: int, for_all: bool
) -> dict[str, Sequence[str]]:
    """Make a folder for what each task makes, on its host.

    Args:
        commands: run programs of ours on all hosts.
        names: of the folders, by host.
        job: the run.
        fanout: how many hosts at once.
        for_all: whether tasks run as any user.

    Returns:
        The paths, by host, in the order of the names.

    Raises:
        HostsError: hosts that failed, a line each.
    """

    def visit(host: str, cancelled: threading.Event) -> Sequence[str]:
        arguments = {"job": job, "names": list(names[host]), "mode": 0o777 if for_all else 0o700}
        with Conversation(commands, host, "make_outputs", arguments, cancelled) as talk:
            return _paths(talk, len(names[host]))

    done, failed = on_all(list(names), visit, fanout)
    if failed:
        raise HostsError(failed.values())
    return done


def finish(commands: Hosts, hosts: Sequence[str], job: str, fanout: int) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        Errors, by host: the end of the run does not fail because of them.
    """

    def visit(host: str, cancelled: threading.Event) -> Sequence[str]:
        with Conversation(commands, host, "finish", {"job": job}, cancelled) as talk:
            return _paths(talk, 0)

    return on_all(hosts, visit, fanout)[1]
