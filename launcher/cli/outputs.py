"""``--output-dirs``: a folder for what each task makes, and all of it in the run's folder at the end.

On this machine it is there from the beginning. On others it is below the run's temporary place, and what is
in it is fetched when the job is over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.errors import HostsError, LaunchError
from launcher.job import OUTPUT_DIR, Placement, Plan, RunPaths, TaskId
from launcher.luggage.base import Errands
from launcher.luggage.parallel import on_all
from launcher.luggage.requests import Wanted
from launcher.luggage.talk import Conversation

if TYPE_CHECKING:
    from collections.abc import Callable

_MAKE = "launcher.agent.store.outputs:make"


def make_here(placement: Placement, paths: RunPaths) -> Placement:
    """Make a folder for every task in the run's folder, and tell those of it that have none elsewhere.

    Raises:
        LaunchError: it can't be made.
    """
    tasks = [placed.task for placed in placement.tasks]
    try:
        for task in tasks:
            os.makedirs(paths.output(task), mode=0o700, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"can't make the folder {error.filename!r}: {error.strerror}") from error
    elsewhere = {placed.task for placed in placement.tasks if OUTPUT_DIR in dict(placed.env)}
    return told(placement, {task: paths.output(task) for task in tasks if task not in elsewhere})


def told(placement: Placement, folders: Mapping[TaskId, str]) -> Placement:
    """The placement whose tasks find these folders in their environment."""
    return placement.told({task: {OUTPUT_DIR: folder} for task, folder in folders.items()})


def make_there(
    errands: Errands, hosts: Sequence[str], placement: Placement, job: str, fanout: int, for_all: bool
) -> Placement:
    """Make the folders of the tasks on other machines.

    Args:
        errands: runs errands there.
        hosts: names of those that are other machines.
        placement: who runs where.
        job: the run's name.
        fanout: how many hosts at a time.
        for_all: tasks are somebody whom we do not know, in a container that sees no folder above these.

    Raises:
        HostsError: some hosts could not.
    """
    tasks = {host: [placed.task for placed in placement.tasks if placed.host.name == host] for host in hosts}

    def visit(host: str, wanted: Callable[[], bool]) -> dict[TaskId, str]:
        names = [task.file_stem for task in tasks[host]]
        what = {"job": job, "names": names, "mode": 0o777 if for_all else 0o700}
        with Conversation(errands, host, _MAKE, what, wanted) as talk:
            said = talk.answer()
        return dict(zip(tasks[host], map(str, said["done"]), strict=True))

    outcome = on_all(hosts, visit, fanout, lambda: None)
    if outcome.failed:
        raise HostsError(outcome.failed.values())
    return told(
        placement, {task: path for folders in outcome.done.values() for task, path in folders.items()}
    )


def wanted_from(hosts: Sequence[str], plan: Plan, paths: RunPaths) -> list[Wanted]:
    """What is to be fetched from other machines: what is in the folders there."""
    remote = frozenset(hosts)
    found = ((task, task.env.get(OUTPUT_DIR)) for task in plan.tasks if task.host in remote)
    return [
        Wanted(task.task, task.host, folder, ".", paths.output(task.task)) for task, folder in found if folder
    ]
