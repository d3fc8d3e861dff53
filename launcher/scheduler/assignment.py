"""The rules by which tasks get hosts, the most restricted roles first, and GPUs.

`launcher.scheduler.placement` uses them, and reports the tasks that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.text import join_names, plural
from launcher.job import Host, PlacedTask, Placement, Role

#: How well a host suits a task. The smallest rank is best, and its last number is the host's ``order``.
Rank = tuple[int, int, int, int, int]


def slots_of(host: Host) -> tuple[int, int | None]:
    """Return how many tasks a host takes before others are used, and how many at most (None: any number).

    The names are those of Open MPI (``man mpirun``, "Hostfiles": ``slots=2 max_slots=4``). ``slots`` alone is
    also the limit; ``max_slots`` is a higher one. A host with neither has one slot and no limit, so that a
    single machine takes every task.
    """
    if host.slots is None:
        slots, limit = 1, host.max_slots
    else:
        slots, limit = host.slots, host.slots if host.max_slots is None else host.max_slots
    return (slots if limit is None else min(slots, limit)), limit


class HostCapacity:
    """One host, with the number of tasks that are assigned to it so far, and of GPUs that are left."""

    __slots__ = ("host", "order", "slots", "limit", "gpus_left", "roles", "tasks")

    def __init__(self, host: Host, order: int) -> None:
        self.host = host
        #: Its place in the list of hosts.
        self.order = order
        self.slots, self.limit = slots_of(host)
        self.gpus_left = len(host.gpus or ())
        #: The number of tasks of each role on this host. No number is 0.
        self.roles: dict[str, int] = {}
        self.tasks = 0

    @property
    def is_full(self) -> bool:
        """Whether the host has as many tasks as it may have."""
        return self.limit is not None and self.tasks >= self.limit

    def admits(self, role: Role) -> bool:
        """Return whether the host's ``roles`` allow this one."""
        return not self.host.roles or role.name in self.host.roles

    def fits(self, role: Role) -> bool:
        """Return whether there are a slot and enough GPUs for one more task of this role."""
        return not self.is_full and self.gpus_left >= (role.gpus or 0)

    def rank(self, role: Role) -> Rank:
        """Return how well this host suits the next task of a role.

        A host with a free slot is better than one without, then a host reserved for this role is better.
        Parameter servers are spread over hosts: every worker connects to all of them, and those of one host
        share its network card.
        """
        over = max(0, self.tasks + 1 - self.slots)
        unreserved = int(role.name not in self.host.roles)
        if role.name != "ps":
            return over, unreserved, 0, 0, self.order
        return over, unreserved, self.roles.get("ps", 0), self.tasks - self.slots, self.order

    def add(self, role: Role) -> None:
        """Assign one task of a role to this host."""
        self.tasks += 1
        self.gpus_left -= role.gpus or 0
        self.roles[role.name] = self.roles.get(role.name, 0) + 1


def selected(role: Role, hosts: Iterable[HostCapacity]) -> list[HostCapacity]:
    """Return the hosts that a role's ``hosts`` and ``labels`` select."""
    names, labels = frozenset(role.hosts), frozenset(role.labels)
    named = [capacity for capacity in hosts if not names or capacity.host.name in names]
    return [capacity for capacity in named if labels.issubset(capacity.host.labels)]


class Assignment:
    """Tasks and the hosts that they are assigned to. `assign` makes it."""

    def __init__(self, roles: Sequence[Role], hosts: Sequence[Host]) -> None:
        self.roles = {role.name: role for role in roles}
        #: All hosts, in the order in which the user gave them.
        self.hosts = [HostCapacity(host, order) for order, host in enumerate(hosts)]
        #: The hosts that the tasks of each role may use, full ones included.
        self.allowed = {
            role.name: [capacity for capacity in selected(role, self.hosts) if capacity.admits(role)]
            for role in roles
        }
        #: The hosts of the tasks of each role, in the order of their indices.
        self.chosen: dict[str, list[HostCapacity]] = {role.name: [] for role in roles}

    def next_role(self, waiting: Sequence[Role]) -> Role:
        """Return the role to assign next.

        It is the role with the fewest hosts to choose from, so that no other role takes its only places.
        Among equals parameter servers come first, to be spread over hosts, then roles that need many GPUs.
        """

        def need(role: Role) -> tuple[int, bool, int]:
            choice = sum(capacity.fits(role) for capacity in self.allowed[role.name])
            return choice, role.name != "ps", -(role.gpus or 0)

        return min(waiting, key=need)

    def fill(self, role: Role) -> None:
        """Assign each task of a role to the best host that is left, as long as there is one.

        The hosts are in a heap, because only the rank of the host that was used last changes.
        """
        heap = [capacity.rank(role) for capacity in self.allowed[role.name] if capacity.fits(role)]
        heapify(heap)
        for _ in range(role.count):
            if not heap:
                return
            best = self.hosts[heap[0][-1]]
            best.add(role)
            self.chosen[role.name].append(best)
            if best.fits(role):
                heapreplace(heap, best.rank(role))
            else:
                heappop(heap)


def assign(roles: Sequence[Role], hosts: Sequence[Host], placed: Iterable[PlacedTask] = ()) -> Assignment:
    """Assign every task that fits to a host.

    Args:
        roles: The roles, each name once, in the order of the table.
        hosts: The hosts, in the order in which the user gave them.
        placed: Tasks that stay on these hosts, without sidecars.
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
    """Assign the GPUs of every host, each GPU to at most one task.

    A TensorFlow process takes all memory of every GPU it sees (the GPU guide, "Limiting GPU memory growth"),
    so two tasks can't share one.

    Args:
        tasks: The tasks in the order of the table, each on a host with as many GPUs as its role needs.

    Returns:
        The same tasks with their GPUs, and notes for the user on tasks without one.
    """
    ids: dict[TaskId, tuple[str, ...] | None] = {}
    notes: list[str] = []
    for on_host in Placement(tuple(tasks)).by_host().values():
        notes += _allocate(on_host, ids)
    return Placement(tuple(replace(placed, gpus=ids[placed.task]) for placed in tasks), tuple(notes))


def _requested(placed: PlacedTask) -> int | None:
    """Return how many GPUs a task needs, None for a share. A ps or a sidecar needs none by default."""
    none = placed.role.name == "ps" or placed.role.sidecar
    return 0 if placed.role.gpus is None and none else placed.role.gpus


def _allocate(tasks: Sequence[PlacedTask], ids: dict[TaskId, tuple[str, ...] | None]) -> list[str]:
    """Assign the GPUs of one host: first the requested numbers, then equal shares, at least one to a task.

    Args:
        tasks: The tasks of the host.
        ids: The GPUs of each task. This function adds those of the host's tasks.

    Returns:
        A note if tasks got none although the host has GPUs.
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
    has = f"{host.name} has {plural(len(left), 'GPU')}{' left' if used else ''}"
    return [f"{has} for {plural(len(sharing), 'task')}: none for {join_names(without)}"]
