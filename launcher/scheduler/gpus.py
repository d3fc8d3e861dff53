"""Which GPUs each task may see."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import Placed, Placement, TaskId
from launcher.text import counted, listed


def allocate_gpus(tasks: Sequence[Placed]) -> Placement:
    """Give out the GPUs of every host, no GPU twice.

    A TensorFlow process takes the memory of every GPU it can see (the GPU guide, "Limiting GPU
    memory growth"), so two tasks with the same GPU would fight over it.

    Args:
        tasks: in the order of the table, each on a host with as many GPUs as its role asks for.

    Returns:
        The same tasks with ``gpus`` filled in, and notes on those that got none.
    """
    by_host: dict[str, list[Placed]] = {}
    for placed in tasks:
        by_host.setdefault(placed.host.name, []).append(placed)
    ids: dict[TaskId, tuple[str, ...] | None] = {}
    notes: list[str] = []
    for on_host in by_host.values():
        notes += _allocate(on_host, ids)
    return Placement(tuple(placed._replace(gpus=ids[placed.task]) for placed in tasks), tuple(notes))


def _requested(placed: Placed) -> int | None:
    """The number of GPUs a task asks for; ``None``: a share. A ps and a sidecar ask for none by default."""
    none = placed.role.name == "ps" or placed.role.sidecar
    return 0 if placed.role.gpus is None and none else placed.role.gpus


def _allocate(tasks: Sequence[Placed], ids: dict[TaskId, tuple[str, ...] | None]) -> list[str]:
    """Give out the GPUs of one host: the numbers asked for, then equal shares, or one each while they last.

    Args:
        tasks: those of the host.
        ids: what each task got; written here.

    Returns:
        A note if some got none although the host has GPUs.
    """
    host, used, sharing = tasks[0].host, 0, []
    for placed in tasks:
        number = _requested(placed)
        if number is None:
            sharing.append(placed.task)
        else:
            ids[placed.task] = (host.gpus or ())[used : used + number]
            used += number
    if not host.gpus or not sharing:
        ids.update((task, host.gpus) for task in sharing)
        return []
    left = host.gpus[used:]
    share = max(1, len(left) // len(sharing))
    ids.update((task, left[n * share : (n + 1) * share]) for n, task in enumerate(sharing))
    without = [task for task in sharing if not ids[task]]
    if not without:
        return []
    has = f"{host.name} has {counted(len(left), 'GPU')} for {counted(len(sharing), 'task')}"
    return [f"{has}: {listed(without)} {'runs' if len(without) == 1 else 'run'} without"]
