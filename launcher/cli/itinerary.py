"""What would travel with a job, in words: for a dry run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from launcher.job import TaskId
from launcher.luggage.packing import Packed
from launcher.luggage.progress import counted, human, shortened
from launcher.luggage.requests import CollectRequest, SyncRequest
from launcher.model.luggage import OUTPUTS
from launcher.text import listed

#: Stands for the run's name, which a dry run has not.
_JOB = "JOB"


def place_of(request: SyncRequest) -> str:
    """Where a folder goes on the hosts, as far as it is known here: the home and the cache are theirs."""
    if request.remote is None:
        return f"~/.cache/tf-launcher/work/{_JOB}/{request.name}"
    return request.remote if request.remote.startswith("/") else f"~/{request.remote}"


def syncs(requests: Sequence[SyncRequest], packed: Packed | None, remote: Sequence[str]) -> Iterator[str]:
    """What ``--sync`` would bring where, a line a folder.

    Args:
        requests: what was asked for.
        packed: what was found there; ``None``: nothing travels.
        remote: names of the hosts that are other machines.
    """
    if packed is None:
        for request in requests:
            yield f"--sync: {shortened(request.folder)} stays: all tasks run on this machine"
        return
    for request, tree in zip(packed.requests, packed.trees, strict=True):
        what = f"{shortened(request.folder)}, {counted(tree.files, 'file')} ({human(tree.size)})"
        stays = "removed when the job is over" if request.remote is None else "it stays there"
        yield f"--sync: {what}, goes to {place_of(request)} on {listed(remote)}; {stays}"


def collects(
    requests: Sequence[CollectRequest], tasks: Sequence[TaskId], run_dir: str | None
) -> Iterator[str]:
    """What ``--collect`` would fetch from whom, a line a request.

    Args:
        requests: what was asked for.
        tasks: all of the job.
        run_dir: the run's folder, if the user named one.
    """
    for request in requests:
        whose = listed([str(task) for task in tasks if request.concerns(task)])
        yield f"--collect: {request.path} of {whose} comes to {_into(request, run_dir)} when the job is over"


def outputs(run_dir: str | None) -> Iterator[str]:
    """What ``--output-dirs`` would do."""
    where = f"{_top(run_dir)}/output/TASK"
    yield f"--output-dirs: what tasks put into OUTPUT_DIR is in {where} when the job is over"


def output_of(task: TaskId, run_dir: str | None, remote: bool) -> str:
    """Where a task would find its folder."""
    top = f"~/.cache/tf-launcher/work/{_JOB}/{OUTPUTS}" if remote else f"{_top(run_dir)}/output"
    return f"{top}/{task.file_stem}"


def _top(run_dir: str | None) -> str:
    return "RUN_DIR" if run_dir is None else shortened(os.path.abspath(run_dir))


def _into(request: CollectRequest, run_dir: str | None) -> str:
    if request.into is None:
        top = f"{_top(run_dir)}/collected"
    else:
        top = shortened(os.path.abspath(request.into))
    return top if request.into is not None and request.number is not None else f"{top}/TASK"
