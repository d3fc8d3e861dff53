"""The search: every task gets a host, the pickiest roles first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from launcher.job import Host, Role
from launcher.planning.room import Rank, Room


def asked_for(role: Role, rooms: Iterable[Room]) -> list[Room]:
    """The rooms a role asks for: all, or those with its names and with all its labels."""
    names, labels = frozenset(role.hosts), frozenset(role.labels)
    named = [room for room in rooms if not names or room.host.name in names]
    return [room for room in named if labels.issubset(room.host.labels)]


class Seating:
    """Tasks and the hosts they were given so far; `seat` makes a whole one."""

    def __init__(self, roles: Sequence[Role], hosts: Sequence[Host]) -> None:
        self.roles = {role.name: role for role in roles}
        #: All hosts, in the order written.
        self.rooms = [Room(host, order) for order, host in enumerate(hosts)]
        #: Role name -> where its tasks may go, leaving aside what is full.
        self.allowed = {
            role.name: [room for room in asked_for(role, self.rooms) if room.admits(role)] for role in roles
        }
        #: Role name -> the room of each of its tasks, by index.
        self.chosen: dict[str, list[Room]] = {role.name: [] for role in roles}

    def by_need(self) -> list[Role]:
        """The roles in the order they are placed.

        Who has the fewest hosts to choose from chooses first, so that nobody takes a place that
        somebody else depends on. Among equals parameter servers come first, since only a free
        choice lets them keep apart, then who needs many GPUs.
        """
        choice = {
            name: sum(room.fits(self.roles[name]) for room in rooms) for name, rooms in self.allowed.items()
        }
        return sorted(
            self.roles.values(), key=lambda role: (choice[role.name], role.name != "ps", -(role.gpus or 0))
        )

    def fill(self, role: Role) -> None:
        """Give every task of ``role`` the best room left; stop at the first that finds none.

        The rooms wait in a heap, as only the one just used changes its rank.
        """
        heap = [room.rank(role) for room in self.allowed[role.name] if room.fits(role)]
        heapify(heap)
        for _ in range(role.count):
            if heap:
                self._take_best(role, heap)
            elif not self._make_room(role):
                return

    def _take_best(self, role: Role, heap: list[Rank]) -> None:
        room = self.rooms[heap[0][-1]]
        self._take(role, room)
        if room.fits(role):
            heapreplace(heap, room.rank(role))
        else:
            heappop(heap)

    def _take(self, role: Role, room: Room) -> None:
        room.add(role)
        self.chosen[role.name].append(room)

    def _make_room(self, role: Role) -> bool:
        """Place a task of ``role`` by moving others: one a host, along a chain that ends in a free place.

        This is bipartite matching's augmenting path, searched by breadth, over roles instead of
        tasks, since tasks of a role are equal. Without GPUs it finds a place whenever there is
        one; GPU counts make it a bin packing, where it may give up too early.

        Returns:
            Whether the task was placed.
        """
        displaced: dict[str, tuple[Role, Room]] = {}
        for wanting, room in self._chain(role, displaced):
            if room.fits(wanting):
                self._shift(wanting, room, displaced)
                return True
        return False

    def _chain(self, role: Role, displaced: dict[str, tuple[Role, Room]]) -> Iterator[tuple[Role, Room]]:
        """Every room that ``role``, or a role displaced for it, may use; each room once.

        ``displaced`` is written on the way: role name -> who would take a place of it, and where.
        """
        seen: set[int] = set()
        queue = [role]
        for wanting in queue:
            for room in self.allowed[wanting.name]:
                if room.order in seen:
                    continue
                seen.add(room.order)
                yield wanting, room
                others = [self.roles[name] for name in room.guests if name not in (role.name, *displaced)]
                movable = [other for other in others if room.fits_instead(wanting, other)]
                displaced.update((other.name, (wanting, room)) for other in movable)
                queue += movable

    def _shift(self, role: Role, room: Room, displaced: dict[str, tuple[Role, Room]]) -> None:
        """Move the tasks along a chain that ends with ``role`` going to ``room``."""
        while role.name in displaced:
            taker, origin = displaced[role.name]
            seats = self.chosen[role.name]
            seats[len(seats) - 1 - seats[::-1].index(origin)] = room
            origin.remove(role)
            room.add(role)
            role, room = taker, origin
        self._take(role, room)


def seat(roles: Sequence[Role], hosts: Sequence[Host]) -> Seating:
    """Give every task a host, as far as they fit.

    Args:
        roles: in the order of the table; their names differ.
        hosts: in the order written.
    """
    seating = Seating(roles, hosts)
    for role in seating.by_need():
        seating.fill(role)
    return seating
