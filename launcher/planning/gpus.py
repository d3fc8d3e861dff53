"""Which GPUs each task may see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from launcher.job import Host, Placed, Placement, TaskId
from launcher.planning.wording import count
from launcher.text import listed

#: What `launcher.job.Placed.gpus` says.
Ids = tuple[str, ...] | None


def deal(tasks: Sequence[Placed]) -> Placement:
    """Give out the GPUs of every host, no GPU twice.

    A TensorFlow process takes the memory of every GPU it can see (the GPU guide, "Limiting GPU
    memory growth"), so two tasks with the same GPU would fight over it.

    Args:
        tasks: in the order of the table, each on a host with as many GPUs as its role asks for.

    Returns:
        The same tasks with ``gpus`` filled in, and remarks on those that got none.
    """
    guests: dict[str, list[Placed]] = {}
    for placed in tasks:
        guests.setdefault(placed.host.name, []).append(placed)
    ids: dict[TaskId, Ids] = {}
    notes: list[str] = []
    for there in guests.values():
        ids.update(_own(there))
        notes += _share(there, ids)
    return Placement(tuple(placed._replace(gpus=ids.get(placed.task)) for placed in tasks), tuple(notes))


def _asked(placed: Placed) -> int | None:
    """How many GPUs a task asks for; ``None``: a share. Who computes little asks for none."""
    little = placed.role.name == "ps" or placed.role.sidecar
    return 0 if placed.role.gpus is None and little else placed.role.gpus


def _own(guests: Sequence[Placed]) -> dict[TaskId, Ids]:
    """The ids of those tasks of one host that ask for a number."""
    pool = iter(guests[0].host.gpus or ())
    wishes = [(placed.task, _asked(placed)) for placed in guests]
    return {task: tuple(islice(pool, asked)) for task, asked in wishes if asked is not None}


def _share(guests: Sequence[Placed], ids: dict[TaskId, Ids]) -> list[str]:
    """Deal what is left on one host to its other tasks: equal shares, or one each while they last.

    Args:
        guests: the tasks of one host.
        ids: what each task got; the shares are written here.

    Returns:
        A remark if some got none although the host has GPUs.
    """
    host, sharing = guests[0].host, [placed.task for placed in guests if _asked(placed) is None]
    if not host.gpus or not sharing:
        ids.update((task, host.gpus) for task in sharing)
        return []
    left = host.gpus[sum(_asked(placed) or 0 for placed in guests) :]
    share = max(1, len(left) // len(sharing))
    ids.update((task, left[n * share : (n + 1) * share]) for n, task in enumerate(sharing))
    return _note(host, len(left), sharing, [task for task in sharing if not ids[task]])


def _note(host: Host, left: int, sharing: Sequence[TaskId], without: Sequence[TaskId]) -> list[str]:
    if not without:
        return []
    verb = "runs" if len(without) == 1 else "run"
    has = f"{host.name} has {count(left, 'GPU')} for {count(len(sharing), 'task')}"
    return [f"{has}: {listed(without)} {verb} without"]
