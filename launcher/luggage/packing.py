"""Folders that are to travel, looked at before any host is there: what goes, and what is to be said of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from launcher.errors import Fault, JobError
from launcher.luggage.leftout import left_out_line
from launcher.luggage.requests import SyncRequest
from launcher.luggage.walk import Tree, travels, walk
from launcher.text import listed


class Packed(NamedTuple):
    """Folders that were looked at, ready to travel."""

    requests: Sequence[SyncRequest]
    trees: Sequence[Tree]
    #: Where in the first folder the tasks run.
    subfolder: str
    without: Sequence[str]

    @property
    def pairs(self) -> Iterator[tuple[SyncRequest, Tree]]:
        """What was asked for, and what it is."""
        return zip(self.requests, self.trees, strict=True)

    @property
    def remarks(self) -> list[str]:
        """What the user should know: things that can't travel."""
        left_out = (
            f"--sync: sockets, pipes and devices are left out: {listed(tree.left_out)} in {tree.root}"
            for tree in self.trees
            if tree.left_out
        )
        return [*left_out, *self.restless_remarks]

    @property
    def restless_remarks(self) -> list[str]:
        """What the user should know of files that did not rest while they were looked at."""
        return [
            f"--sync: {listed(paths)} in {tree.root} {what}"
            for tree in self.trees
            for paths, what in (
                (tree.vanished, "vanished while it was looked at: left out"),
                (
                    tree.copies.names if tree.copies else (),
                    "changed while it was read: what travels is a copy",
                ),
            )
            if paths
        ]


def pack(
    requests: Sequence[SyncRequest],
    cwd: str,
    without: Sequence[str] = (),
    trusted: bool = True,
    restless: Collection[str] = (),
) -> Packed:
    """Look at the folders: nothing travels yet.

    Args:
        requests: at least one; tasks run in the first.
        cwd: the launcher's folder; tasks run in the same one on the hosts, if it travels.
        without: paths that do not travel, whatever the rules say: the run's own folder.
        trusted: whether what is remembered of the last time counts.
        restless: files that change all the time, relative to their folder.

    Raises:
        JobError: something can't be read; or the launcher's folder does not travel.
    """
    without = [os.path.realpath(path) for path in without]
    trees = [walk(request.folder, without, trusted, restless) for request in requests]
    subfolder = requests[0].inside(cwd) or ""
    if not travels(trees[0], subfolder):
        what = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError(
            [Fault("--sync", what, "tasks could not run there: start it from a folder that travels")]
        )
    return Packed(requests, trees, subfolder, without)


def left_out(packed: Packed) -> list[str]:
    """What the ignore rules kept here, a line a folder."""
    single = len(packed.trees) == 1
    lines = (
        left_out_line(tree.root, tree.ignored, "" if single else request.name)
        for request, tree in packed.pairs
    )
    return [line for line in lines if line]
