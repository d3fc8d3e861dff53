"""``--sync`` and ``--output-dirs``: folders on all hosts. Only what a host lacks is sent."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

from launcher.agent.identity import machine_id
from launcher.agent.transfer import FILE, SYNC_MARK, digest, list_of, send_entries
from launcher.common.errors import HostsError, ProtocolError, StartTimeoutError
from launcher.common.protocol import FileData, FileEntry, FilesDone, FilesNeeded
from launcher.common.text import byte_size, duration, join_names, plural
from launcher.files.copying import FileTransfer, ProgramStream
from launcher.files.walk import SourceTree, left_out

#: Bytes of a tree's list that are sent in one message.
_MESSAGE_BYTES = 128 * 1024


def sync(
    transfer: FileTransfer,
    hosts: Sequence[str],
    trees: Sequence[SourceTree],
    run_name: str,
    outputs: Mapping[str, Sequence[str]] | None = None,
    for_all: bool = False,
    optional: Collection[str] = (),
) -> dict[str, Sequence[str]]:
    """Copy folders to all hosts, put them in their places, and make a folder for what each task makes.

    Args:
        transfer: runs the remote commands.
        hosts: their names.
        trees: the folders.
        run_name: the id of the run.
        outputs: names of the folders for tasks, by host.
        for_all: whether tasks run as any user.
        optional: hosts that may fail.

    Returns:
        The paths of the trees, and of the folder that those for tasks are in, by host that did not fail.

    Raises:
        HostsError: hosts that failed, a line each; on each of them nothing of it is visible.
        StartTimeoutError: the same, after the time limit.
    """
    problems: set[tuple[str, str]] = set()
    described, lists = [], []
    for tree in trees:
        # Names the folder, and what an earlier run from it left on a host.
        key = digest(f"{os.uname().nodename}:{machine_id()}:{tree.request.folder}")
        described.append({"name": tree.request.name, "remote": tree.request.remote, "key": key})
        lists.append(zlib.compress(list_of(key, tree.entries.values()).encode("ascii")))

    def visit(host: str) -> Sequence[str]:
        names = list((outputs or {}).get(host, ()))
        arguments = {
            "job": run_name,
            "trees": described,
            "outputs": names,
            "mode": 0o777 if for_all else 0o700,
        }
        with transfer.command(host, "receive", arguments) as stream:
            for tree, data in zip(trees, lists, strict=True):
                _send(transfer, stream, tree, data, lambda path, why: problems.add((path, why)))
            paths: Sequence[str] = stream.get(FilesDone).paths
            if len(paths) != len(trees) + 1:
                raise ProtocolError(f"{len(paths)} paths")
            return paths

    done, failed = transfer.on_all(hosts, visit, "syncing")
    if failed.keys() - optional or (failed and transfer.is_late):
        raise (StartTimeoutError if transfer.is_late else HostsError)(failed.values())
    for text in failed.values():
        transfer.report(f"{text}: no task of a lost host will run there")
    reasons: dict[str, list[str]] = {}
    for path, why in sorted(problems):
        reasons.setdefault(why, []).append(path)
    for why, of_why in sorted(reasons.items()):
        transfer.report(f"--sync: {join_names(of_why)} {why}")
    if trees:
        files, size = sum(tree.files for tree in trees), sum(tree.size for tree in trees)
        sent = f"{byte_size(transfer.moved)} sent" if transfer.moved else "nothing sent"
        folders = f"{plural(files, 'file')} ({byte_size(size)}) to {plural(len(done), 'host')}"
        transfer.report(f"synced {folders}, {sent}, in {duration(transfer.seconds)}")
        for text in left_out(trees) if transfer.moved else ():
            transfer.report(text)
    return done


def _send(
    transfer: FileTransfer,
    stream: ProgramStream,
    tree: SourceTree,
    data: bytes,
    problem: Callable[[str, str], None],
) -> None:
    """Send a host the list of a tree, then the entries that it needs."""
    stream.put(FileEntry(SYNC_MARK, FILE, size=len(data)))
    for start in range(0, len(data), _MESSAGE_BYTES):
        stream.put(FileData(data[start : start + _MESSAGE_BYTES]))
    needed = [*itertools.compress(tree.entries.values(), stream.get(FilesNeeded).data)]
    transfer.add(sum(entry.size for entry in needed))
    send_entries(stream, ((f"{tree.request.folder}/{entry.path}", entry) for entry in needed), problem)
    stream.put(FilesDone())


def finish(transfer: FileTransfer, hosts: Sequence[str], run_name: str) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        Errors, by host: the end of the run does not fail because of them.
    """

    def visit(host: str) -> None:
        with transfer.command(host, "finish", {"job": run_name}) as stream:
            stream.get(FilesDone)

    return transfer.on_all(hosts, visit, "removing the folders of this run")[1]
