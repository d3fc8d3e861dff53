"""``--sync`` and ``--output-dirs``: folders on all hosts. Only what a host lacks is sent."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence

from launcher.agent.transfer import MAX_ENTRIES, send_entries
from launcher.errors import HostsError, OutOfTime, ProtocolError
from launcher.files.copying import Conversation, Copying
from launcher.files.requests import SyncRequest
from launcher.files.walk import Tree, left_out
from launcher.protocol import FileEntry, FilesDone, FilesFollow, FilesListed
from launcher.text import byte_size, counted, listed

#: Bytes of the list of what a host has, at most.
_MOST_LISTED = 400 * MAX_ENTRIES


def sync(
    copying: Copying,
    hosts: Sequence[str],
    trees: Sequence[Tree],
    job: str,
    outputs: Mapping[str, Sequence[str]] | None = None,
    for_all: bool = False,
) -> dict[str, Sequence[str]]:
    """Copy folders to all hosts, put them in their places, and make a folder for what each task makes.

    Args:
        copying: the hosts.
        hosts, trees, job: what goes where, for which run.
        outputs: names of the folders for tasks, by host.
        for_all: whether tasks run as any user.

    Returns:
        The paths of the trees, and of the folder that those for tasks are in, by host.

    Raises:
        HostsError: hosts that failed, a line each; on each of them nothing of it is visible.
        OutOfTime: the same, after the time limit.
    """
    problems: set[tuple[str, str]] = set()
    asked = [_asked(tree.request) for tree in trees]

    def visit(host: str) -> Sequence[str]:
        names = list((outputs or {}).get(host, ()))
        arguments = {"job": job, "trees": asked, "outputs": names, "mode": 0o777 if for_all else 0o700}
        with copying.command(host, "receive", arguments) as talk:
            for tree in trees:
                _send(copying, talk, tree, lambda path, why: problems.add((path, why)))
            paths: Sequence[str] = talk.get(FilesDone).paths
            if len(paths) != len(asked) + 1:
                raise ProtocolError(f"{len(paths)} paths")
            return paths

    done, failed = copying.on_all(hosts, visit)
    if failed:
        raise (OutOfTime if copying.is_late else HostsError)(failed.values())
    reasons: dict[str, list[str]] = {}
    for path, why in sorted(problems):
        reasons.setdefault(why, []).append(path)
    for why, of_why in sorted(reasons.items()):
        copying.report(f"--sync: {listed(of_why)} {why}")
    if trees:
        files, size = sum(tree.files for tree in trees), sum(tree.size for tree in trees)
        sent = f"{byte_size(copying.moved)} sent" if copying.moved else "nothing sent"
        folders = f"{counted(files, 'file')} ({byte_size(size)}) to {counted(len(hosts), 'host')}"
        copying.report(f"synced {folders}, {sent}, in {copying.seconds:.1f} s")
        for text in left_out(trees) if copying.moved else ():
            copying.report(text)
    return done


def _asked(request: SyncRequest) -> dict[str, str | None]:
    """What a host is asked for. The key names the folder here, and what an earlier run from it left."""
    name = f"{os.uname().nodename}:{request.folder}"
    key = hashlib.blake2b(os.fsencode(name), digest_size=10).hexdigest()
    return {"name": request.name, "remote": request.remote, "key": key}


def _send(copying: Copying, talk: Conversation, tree: Tree, problem: Callable[[str, str], None]) -> None:
    """Send a host what it lacks of a tree."""
    listed = talk.get(FilesListed)
    try:
        columns = json.loads(zlib.decompressobj().decompress(listed.data, _MOST_LISTED))
        had = {entry.path: entry for entry in (FileEntry(*row) for row in zip(*columns, strict=True))}
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise ProtocolError(f"a list of files that can't be read: {error}") from error
    lacking = [entry for path, entry in tree.entries.items() if had.get(path) != entry]
    gone = [path for path, entry in had.items() if tree.entries.get(path) != entry]
    size = sum(entry.size for entry in lacking)
    copying.add(size)
    talk.put(FilesFollow(size, tuple(gone)))
    send_entries(talk, ((f"{tree.request.folder}/{entry.path}", entry) for entry in lacking), problem)
    talk.put(FilesDone())


def finish(copying: Copying, hosts: Sequence[str], job: str) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        Errors, by host: the end of the run does not fail because of them.
    """

    def visit(host: str) -> None:
        with copying.command(host, "finish", {"job": job}) as talk:
            talk.get(FilesDone)

    return copying.on_all(hosts, visit)[1]
