"""How much room a host has, while tasks are being placed."""

from __future__ import annotations

from launcher.job import Host, Role

#: How well a task would do in a room: the smallest wins; the last number is the room's ``order``.
Rank = tuple[int, int, int, int, int]


def slots_of(host: Host) -> tuple[int, int | None]:
    """How many tasks a host takes before others are used, and how many at all (``None``: no limit).

    The words are Open MPI's (``man mpirun``, "Hostfiles": ``slots=2 max_slots=4``). ``slots`` alone
    is a hard limit, ``max_slots`` says how far a host may be overfilled. A host with nothing
    written counts as one slot, without a limit, so that a single machine takes every task.
    """
    if host.slots is None:
        slots, limit = 1, host.max_slots
    else:
        slots, limit = host.slots, host.slots if host.max_slots is None else host.max_slots
    return (slots if limit is None else min(slots, limit)), limit


class Room:
    """One host and what was put there so far. It only counts: ids of GPUs are dealt at the end."""

    __slots__ = ("host", "order", "slots", "limit", "gpus_left", "guests", "taken")

    def __init__(self, host: Host, order: int) -> None:
        self.host = host
        #: Its place in the inventory.
        self.order = order
        self.slots, self.limit = slots_of(host)
        self.gpus_left = len(host.gpus or ())
        #: Role name -> how many of its tasks are here; never 0.
        self.guests: dict[str, int] = {}
        self.taken = 0

    @property
    def full(self) -> bool:
        """Whether its limit is reached."""
        return self.limit is not None and self.taken >= self.limit

    def admits(self, role: Role) -> bool:
        """Whether the host was written for any role, or for this one."""
        return not self.host.roles or role.name in self.host.roles

    def fits(self, role: Role) -> bool:
        """Whether one more task of ``role`` finds a place and its GPUs here."""
        return not self.full and self.gpus_left >= (role.gpus or 0)

    def fits_instead(self, role: Role, other: Role) -> bool:
        """Whether a task of ``role`` could take the place of one of ``other``."""
        return self.gpus_left + (other.gpus or 0) >= (role.gpus or 0)

    def rank(self, role: Role) -> Rank:
        """How well the next task of ``role`` would do here.

        First comes how far it would be beyond the slots, then whether the host was written for
        this role. Parameter servers also keep apart from each other: every worker talks to all of
        them, so two on one host share one network card.
        """
        over = max(0, self.taken + 1 - self.slots)
        stranger = int(role.name not in self.host.roles)
        if role.name != "ps":
            return over, stranger, 0, 0, self.order
        return over, stranger, self.guests.get("ps", 0), self.taken - self.slots, self.order

    def add(self, role: Role) -> None:
        """Put one task of ``role`` here."""
        self.taken += 1
        self.gpus_left -= role.gpus or 0
        self.guests[role.name] = self.guests.get(role.name, 0) + 1

    def remove(self, role: Role) -> None:
        """Take one task of ``role`` away."""
        self.taken -= 1
        self.gpus_left += role.gpus or 0
        self.guests[role.name] -= 1
        if not self.guests[role.name]:
            del self.guests[role.name]
