"""The rules by which tasks are assigned to hosts, the most restricted roles first, and to GPUs.

`launcher.scheduler.placement` calls `assign` and `allocate_gpus`. This module only assigns what fits, and
must not report faults: `placement` explains which tasks have no host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.text import join_names, plural
from launcher.job import Host, PlacedTask, Placement, Role

#: How well a host suits a task. The smallest rank is best. The last number is the host's ``order``.
Rank = tuple[int, int, int, int, int]


def slots_of(host: Host) -> tuple[int, int | None]:
    """Return how many tasks a host gets before other hosts are used, and how many it may get.

    The names are those of Open MPI (``man mpirun``, "Hostfiles": ``slots=2 max_slots=4``). ``slots`` alone is
    the limit, too, while ``max_slots`` sets a higher one. A host with neither has one slot and no limit, so
    that a single machine accepts all tasks.

    Returns:
        The number of slots and the limit, which is None for any number.
    """
    slots, limit = host.slots, host.max_slots
    if slots is None:
        slots = 1
    elif limit is None:
        limit = slots
    return (slots if limit is None else min(slots, limit)), limit


class HostCapacity:
    """A host while tasks are assigned, with its tasks so far and its free GPUs.

    Args:
        host: The host.
        order: The place of the host in the user's list.
    """

    __slots__ = ("host", "order", "slots", "limit", "gpus_left", "roles", "tasks")

    def __init__(self, host: Host, order: int) -> None:
        self.host = host
        self.order = order
        #: How many tasks it gets before other hosts are used, and how many it may get. No limit is None.
        self.slots, self.limit = slots_of(host)
        #: How many of its GPUs no task requests yet. 0 if its GPUs are not known.
        self.gpus_left = len(host.gpus or ())
        #: How many tasks of each role are on this host. Roles without a task are missing.
        self.roles: dict[str, int] = {}
        #: How many tasks are on this host.
        self.tasks = 0

    @property
    def is_full(self) -> bool:
        """Whether the host accepts no more tasks."""
        return self.limit is not None and self.tasks >= self.limit

    def admits(self, role: Role) -> bool:
        """Return whether the ``roles`` of the host allow this role."""
        return not self.host.roles or role.name in self.host.roles

    def fits(self, role: Role) -> bool:
        """Return whether the host has a free slot and enough free GPUs for one more task of a role."""
        return not self.is_full and self.gpus_left >= (role.gpus or 0)

    def rank(self, role: Role) -> Rank:
        """Return how well this host suits the next task of a role. The smallest rank is best.

        A host with a free slot comes before hosts without. Among these, a host that is reserved for the role
        comes first. Parameter servers are spread over hosts, because every worker connects to all of them,
        and those on one host share its network card.
        """
        tasks_above_slots = max(0, self.tasks + 1 - self.slots)
        is_unreserved = int(role.name not in self.host.roles)
        if role.name != "ps":
            return tasks_above_slots, is_unreserved, 0, 0, self.order
        # Among hosts with equally many ps, the one with the most free slots is best.
        ps_here, minus_free_slots = self.roles.get("ps", 0), self.tasks - self.slots
        return tasks_above_slots, is_unreserved, ps_here, minus_free_slots, self.order

    def add(self, role: Role) -> None:
        """Assign one task of a role to this host."""
        self.tasks += 1
        self.gpus_left -= role.gpus or 0
        self.roles[role.name] = self.roles.get(role.name, 0) + 1


def selected(role: Role, hosts: Iterable[HostCapacity]) -> list[HostCapacity]:
    """Return the hosts that the ``hosts`` and ``labels`` of a role select. Without both it may use all."""
    names, labels = frozenset(role.hosts), frozenset(role.labels)
    named = [capacity for capacity in hosts if not names or capacity.host.name in names]
    return [capacity for capacity in named if labels.issubset(capacity.host.labels)]


class Assignment:
    """Tasks and the hosts to which they are assigned, as `assign` makes it.

    Args:
        roles: The roles whose tasks need hosts.
        hosts: All hosts, in the order of the user's list.
    """

    def __init__(self, roles: Sequence[Role], hosts: Sequence[Host]) -> None:
        """Find out which hosts the tasks of each role may use. No task is assigned yet."""
        #: The roles by name, in the order of the table for users.
        self.roles = {role.name: role for role in roles}
        #: All hosts, in the order of the user's list.
        self.hosts = [HostCapacity(host, order) for order, host in enumerate(hosts)]
        #: The hosts that the tasks of each role may use, including full ones.
        self.allowed = {
            role.name: [capacity for capacity in selected(role, self.hosts) if capacity.admits(role)]
            for role in roles
        }
        #: The host of each task, by role and in the order of the indices.
        self.chosen: dict[str, list[HostCapacity]] = {role.name: [] for role in roles}

    def next_role(self, waiting: Sequence[Role]) -> Role:
        """Return the role whose tasks are assigned next.

        It is the role with the fewest hosts to choose from, so that no other role takes its only places.
        Among equals parameter servers come first, so that they can be spread over hosts, and then the roles
        that need the most GPUs.

        Args:
            waiting: The roles that are not assigned yet, at least one.
        """

        def precedence(role: Role) -> tuple[int, bool, int]:
            """Return a key by which the role that must be assigned first is the smallest."""
            host_count = sum(capacity.fits(role) for capacity in self.allowed[role.name])
            return host_count, role.name != "ps", -(role.gpus or 0)

        return min(waiting, key=precedence)

    def fill(self, role: Role) -> None:
        """Assign each task of a role to the host that suits it best, until no host is left.

        The hosts are in a heap by their rank (how well they suit, the best one first), because each
        assignment changes the rank of only one host.
        """
        ranks = [capacity.rank(role) for capacity in self.allowed[role.name] if capacity.fits(role)]
        heapify(ranks)
        for _ in range(role.count):
            if not ranks:
                return
            # The heap starts with the best rank, whose last item is the number of the host.
            best = self.hosts[ranks[0][-1]]
            best.add(role)
            self.chosen[role.name].append(best)
            if best.fits(role):
                heapreplace(ranks, best.rank(role))
            else:
                heappop(ranks)


def assign(roles: Sequence[Role], hosts: Sequence[Host], placed: Iterable[PlacedTask] = ()) -> Assignment:
    """Assign every task that fits to a host.

    Args:
        roles: The roles, each name once, in the order of the table for users.
        hosts: The hosts, in the order of the user's list.
        placed: Tasks that stay where they are, without sidecars (such as TensorBoard), which need no slot.

    Returns:
        The assignment. Tasks that do not fit are missing in its ``chosen``.
    """
    assignment = Assignment(roles, hosts)
    capacities = {capacity.host.name: capacity for capacity in assignment.hosts}
    for task in placed:
        capacities[task.host.name].add(task.role)
    waiting = list(roles)
    while waiting:
        role = assignment.next_role(waiting)
        waiting.remove(role)
        assignment.fill(role)
    return assignment


def allocate_gpus(tasks: Sequence[PlacedTask]) -> Placement:
    """Assign the GPUs of every host to its tasks, each GPU to at most one task.

    Two tasks cannot share a GPU, because a TensorFlow process takes all memory of every GPU that it sees (the
    GPU guide, "Limiting GPU memory growth").

    Args:
        tasks: The tasks in the order of the table for users, each on a host with enough GPUs for its role.

    Returns:
        The same tasks with their GPUs, and notes for the user about tasks without one.
    """
    #: The GPUs of each task, which `_allocate` adds host by host. None if those of the host are not known.
    ids: dict[TaskId, tuple[str, ...] | None] = {}
    notes: list[str] = []
    for on_host in Placement(tuple(tasks)).by_host().values():
        notes += _allocate(on_host, ids)
    return Placement(tuple(replace(placed, gpus=ids[placed.task]) for placed in tasks), tuple(notes))


def _requested(placed: PlacedTask) -> int | None:
    """Return how many GPUs a task requests, or None if it gets an equal share of those of its host.

    A ps or a sidecar, such as TensorBoard, needs none, unless its role says otherwise.
    """
    needs_none = placed.role.name == "ps" or placed.role.sidecar
    return 0 if placed.role.gpus is None and needs_none else placed.role.gpus


def _allocate(tasks: Sequence[PlacedTask], ids: dict[TaskId, tuple[str, ...] | None]) -> list[str]:
    """Assign the GPUs of one host to its tasks.

    Tasks whose role requests a number come first. The others share the rest equally, with at least one GPU
    for each as long as there are any.

    Args:
        tasks: All tasks of the host, at least one.
        ids: The ids of the GPUs of each task, to which this function adds those of the host's tasks. They are
            empty for a task that must see no GPU, and None for one that may see all that the host has.

    Returns:
        A note for the user if some tasks get no GPU although the host has some. Otherwise it is empty.
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
        # If the GPUs of the host are not known (None), launch does not limit which ones a task sees.
        ids.update((task, host.gpus) for task in sharing)
        return []
    free_gpus = host.gpus[used:]
    # If there are more tasks than GPUs, the last tasks get an empty slice.
    share = max(1, len(free_gpus) // len(sharing))
    ids.update((task, free_gpus[n * share : (n + 1) * share]) for n, task in enumerate(sharing))
    without = [task for task in sharing if not ids[task]]
    if not without:
        return []
    has = f"{host.name} has {plural(len(free_gpus), 'GPU')}{' left' if used else ''}"
    return [f"{has} for {plural(len(sharing), 'task')}: none for {join_names(without)}"]
