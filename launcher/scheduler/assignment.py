"""The search for a host for each task: the most restricted roles first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from launcher.job import Host, Role

#: How well a task would do on a host: the smallest wins; the last number is the host's ``order``.
Rank = tuple[int, int, int, int, int]


def slots_of(host: Host) -> tuple[int, int | None]:
    """The number of tasks a host takes before others are used, and in all (``None``: no limit).

    The words are Open MPI's (``man mpirun``, "Hostfiles": ``slots=2 max_slots=4``). ``slots`` alone
    is a hard limit, ``max_slots`` says how far a host may be filled beyond it. A host with neither
    counts as one slot without a limit, so that a single machine takes every task.
    """
    if host.slots is None:
        slots, limit = 1, host.max_slots
    else:
        slots, limit = host.slots, host.slots if host.max_slots is None else host.max_slots
    return (slots if limit is None else min(slots, limit)), limit


class HostCapacity:
    """One host and the number of tasks assigned to it so far; `launcher.scheduler.gpus` gives out ids."""

    __slots__ = ("host", "order", "slots", "limit", "gpus_left", "roles", "tasks")

    def __init__(self, host: Host, order: int) -> None:
        self.host = host
        #: Its place in the inventory.
        self.order = order
        self.slots, self.limit = slots_of(host)
        self.gpus_left = len(host.gpus or ())
        #: Role -> number of its tasks here; never 0.
        self.roles: dict[str, int] = {}
        self.tasks = 0

    @property
    def full(self) -> bool:
        """Whether its limit is reached."""
        return self.limit is not None and self.tasks >= self.limit

    def admits(self, role: Role) -> bool:
        """Whether the host's ``roles`` allow this one."""
        return not self.host.roles or role.name in self.host.roles

    def fits(self, role: Role) -> bool:
        """Whether there is a slot and enough GPUs for one more task of ``role``."""
        return not self.full and self.gpus_left >= (role.gpus or 0)

    def fits_instead(self, role: Role, other: Role) -> bool:
        """Whether a task of ``role`` could take the place of one of ``other``."""
        return self.gpus_left + (other.gpus or 0) >= (role.gpus or 0)

    def rank(self, role: Role) -> Rank:
        """How well the next task of ``role`` would do here.

        First comes how far it would be beyond the slots, then whether the host is reserved for this
        role. Parameter servers also keep apart from each other: every worker talks to all of them,
        so two on one host share one network card.
        """
        over = max(0, self.tasks + 1 - self.slots)
        unreserved = int(role.name not in self.host.roles)
        if role.name != "ps":
            return over, unreserved, 0, 0, self.order
        return over, unreserved, self.roles.get("ps", 0), self.tasks - self.slots, self.order

    def add(self, role: Role) -> None:
        """Assign one task of ``role``."""
        self.tasks += 1
        self.gpus_left -= role.gpus or 0
        self.roles[role.name] = self.roles.get(role.name, 0) + 1

    def remove(self, role: Role) -> None:
        """Take one task of ``role`` away."""
        self.tasks -= 1
        self.gpus_left += role.gpus or 0
        self.roles[role.name] -= 1
        if not self.roles[role.name]:
            del self.roles[role.name]


def selected(role: Role, hosts: Iterable[HostCapacity]) -> list[HostCapacity]:
    """The hosts a role asks for: all, or those with its names and with all its labels."""
    names, labels = frozenset(role.hosts), frozenset(role.labels)
    named = [capacity for capacity in hosts if not names or capacity.host.name in names]
    return [capacity for capacity in named if labels.issubset(capacity.host.labels)]


class Assignment:
    """Tasks and the hosts they are assigned to; `assign` makes a complete one."""

    def __init__(self, roles: Sequence[Role], hosts: Sequence[Host]) -> None:
        self.roles = {role.name: role for role in roles}
        #: All hosts, in the order written.
        self.hosts = [HostCapacity(host, order) for order, host in enumerate(hosts)]
        #: Role -> hosts its tasks may use, full ones included.
        self.allowed = {
            role.name: [capacity for capacity in selected(role, self.hosts) if capacity.admits(role)]
            for role in roles
        }
        #: Role -> the host of each of its tasks, by index.
        self.chosen: dict[str, list[HostCapacity]] = {role.name: [] for role in roles}

    def by_need(self) -> list[Role]:
        """The roles in the order they are assigned.

        The role with the fewest hosts to choose from is first, so that no other takes a place it
        depends on. Among equals parameter servers come first, since only a free choice lets them
        keep apart, then roles that need many GPUs.
        """
        choice = {
            name: sum(capacity.fits(self.roles[name]) for capacity in hosts)
            for name, hosts in self.allowed.items()
        }
        return sorted(
            self.roles.values(), key=lambda role: (choice[role.name], role.name != "ps", -(role.gpus or 0))
        )

    def fill(self, role: Role) -> None:
        """Give every task of ``role`` the best host left; stop at the first that finds none.

        The hosts wait in a heap, because only the one just used changes its rank.
        """
        heap = [capacity.rank(role) for capacity in self.allowed[role.name] if capacity.fits(role)]
        heapify(heap)
        for _ in range(role.count):
            if not heap:
                if not self._make_room(role):
                    return
                continue
            best = self.hosts[heap[0][-1]]
            self._add(role, best)
            if best.fits(role):
                heapreplace(heap, best.rank(role))
            else:
                heappop(heap)

    def _add(self, role: Role, capacity: HostCapacity) -> None:
        capacity.add(role)
        self.chosen[role.name].append(capacity)

    def _make_room(self, role: Role) -> bool:
        """Assign a task of ``role`` by moving others: one a host, along a chain that ends in a free place.

        This is the augmenting path of bipartite matching, searched by breadth, over roles instead
        of tasks, since tasks of a role are equal. Without GPUs it finds a place whenever there is
        one; GPU counts make it a bin packing, where it may give up too early.

        Returns:
            Whether the task was assigned.
        """
        displaced: dict[str, tuple[Role, HostCapacity]] = {}
        for other, capacity in self._chain(role, displaced):
            if capacity.fits(other):
                self._move(other, capacity, displaced)
                return True
        return False

    def _chain(
        self, role: Role, displaced: dict[str, tuple[Role, HostCapacity]]
    ) -> Iterator[tuple[Role, HostCapacity]]:
        """Every host that ``role``, or a role displaced for it, may use; each host once.

        Writes ``displaced``: role -> the role that would take a place of it, and where.
        """
        seen: set[int] = set()
        queue = [role]
        for candidate in queue:
            for capacity in self.allowed[candidate.name]:
                if capacity.order in seen:
                    continue
                seen.add(capacity.order)
                yield candidate, capacity
                others = [self.roles[name] for name in capacity.roles if name not in (role.name, *displaced)]
                movable = [other for other in others if capacity.fits_instead(candidate, other)]
                displaced.update((other.name, (candidate, capacity)) for other in movable)
                queue += movable

    def _move(
        self, role: Role, capacity: HostCapacity, displaced: dict[str, tuple[Role, HostCapacity]]
    ) -> None:
        """Move the tasks along a chain that ends with ``role`` going to ``capacity``."""
        while role.name in displaced:
            taker, origin = displaced[role.name]
            chosen = self.chosen[role.name]
            chosen[len(chosen) - 1 - chosen[::-1].index(origin)] = capacity
            origin.remove(role)
            capacity.add(role)
            role, capacity = taker, origin
        self._add(role, capacity)


def assign(roles: Sequence[Role], hosts: Sequence[Host]) -> Assignment:
    """Give every task a host, as far as they fit.

    Args:
        roles: in the order of the table; their names differ.
        hosts: in the order written.
    """
    assignment = Assignment(roles, hosts)
    for role in assignment.by_need():
        assignment.fill(role)
    return assignment
