"""What is wrong when tasks and hosts do not go together, in the user's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.errors import Fault
from launcher.job import Host, Role, is_loopback
from launcher.planning.room import Room
from launcher.planning.seating import Seating, asked_for
from launcher.planning.wording import count, nearest
from launcher.text import listed


def unknown_bounds(role: Role, hosts: Sequence[Host]) -> list[Fault]:
    """Faults for the host names and labels a role asks for that no host has."""
    names = [host.name for host in hosts]
    labels = list(dict.fromkeys(label for host in hosts for label in host.labels))
    faults = [
        Fault(role.source, f"{role.name}: there is no host {name!r}", _meant(name, names, "hosts"))
        for name in sorted({*role.hosts}.difference(names), key=role.hosts.index)
    ]
    return faults + [
        Fault(role.source, f"{role.name}: no host has the label {label!r}", _meant(label, labels, "labels"))
        for label in sorted({*role.labels}.difference(labels), key=role.labels.index)
    ]


def _meant(word: str, known: Sequence[str], noun: str) -> str:
    if guess := nearest(word, known):
        return f"did you mean {guess!r}?"
    return f"the {noun} are {listed(known)}" if known else f"there are no {noun}"


def misfits(seating: Seating, tasks: int) -> list[Fault]:
    """One fault for every role whose tasks did not all find a place.

    Args:
        seating: the search, done.
        tasks: how many tasks of the job need a place.
    """
    return [
        _misfit(seating, role, tasks)
        for role in seating.roles.values()
        if len(seating.chosen[role.name]) < role.count
    ]


def homeless(sidecars: Iterable[Role], rooms: Sequence[Room]) -> list[Fault]:
    """One fault for every sidecar that no host has all the labels for.

    Args:
        rooms: of all hosts; sidecars need no place in them.
    """
    return [_not_admitted(role, rooms) for role in sidecars if not asked_for(role, rooms)]


def _misfit(seating: Seating, role: Role, tasks: int) -> Fault:
    """Why ``role`` did not fit: nobody lets it in, no GPUs where there is a place, or no places."""
    allowed = seating.allowed[role.name]
    if not allowed:
        return _not_admitted(role, seating.rooms)
    if places := [room for room in allowed if not room.full]:
        return _no_gpus(role, len(seating.chosen[role.name]), places)
    if len(allowed) == len(seating.rooms):
        return _all_full(allowed, tasks)
    return _its_hosts_full(role, len(seating.chosen[role.name]), allowed)


def _not_admitted(role: Role, rooms: Sequence[Room]) -> Fault:
    shut = [room.host.name for room in asked_for(role, rooms)]
    if shut:
        what = f"{role.name}: no host takes it, {listed(shut)} being for other roles"
        return Fault(role.source, what, f"write {role.name} into roles: of a host")
    whose = f"none of its hosts ({listed(role.hosts)})" if role.hosts else "no host"
    what = f"{role.name}: {whose} has all its labels ({listed(role.labels)})"
    return Fault(role.source, what, "drop some, or label a host")


def _no_gpus(role: Role, seated: int, places: Sequence[Room]) -> Fault:
    left = listed([f"{room.host.name} {_gpus_left(room)}" for room in places])
    needs = f"{role.name} needs {count(role.gpus or 0, 'GPU')} a task"
    what = f"{needs}, for {role.count - seated} of {role.count} there are none: {left}"
    silent = [room.host.name for room in places if room.host.gpus is None]
    say = f"; in a hostfile, as in {silent[0]} gpus=2" if silent else ""
    return Fault(role.source, what, f"add hosts, ask for fewer, or say which there are{say}")


def _gpus_left(room: Room) -> str:
    return "does not say its GPUs" if room.host.gpus is None else f"has {room.gpus_left} left"


def _all_full(rooms: Sequence[Room], tasks: int) -> Fault:
    verb = "has" if len(rooms) == 1 else "have"
    room_for = f"{count(len(rooms), 'host')} {verb} room for {sum(room.taken for room in rooms)}"
    places = listed([f"{room.host.name} {room.taken}" for room in rooms])
    what = f"{count(tasks, 'task')} do not fit: {room_for} ({places})"
    return Fault("", what, "add hosts, raise slots, or set max_slots")


def _its_hosts_full(role: Role, seated: int, allowed: Sequence[Room]) -> Fault:
    here = sorted(((room.guests.get(role.name, 0), room) for room in allowed), key=lambda at: -at[0])
    places = listed([f"{room.host.name} {number}" for number, room in here])
    only = f"{role.name}: only {seated} of {count(role.count, 'task')} fit"
    what = f"{only} on the {count(len(allowed), 'host')} it may use ({places})"
    return Fault(role.source, what, "allow it more hosts, raise slots, or set max_slots")


def loopbacks(hosts: Iterable[Host]) -> list[Fault]:
    """Faults for the hosts that others can't reach, as their address means whoever uses it.

    Only loopback addresses, on the other hand, are fine: then it is one machine.

    Args:
        hosts: those in use.
    """
    used = list(hosts)
    blind = [host for host in used if is_loopback(host.shown_address)]
    return [_loopback(host) for host in blind] if len(blind) < len(used) else []


def _loopback(host: Host) -> Fault:
    what = f"{host.name}: tasks on other hosts can't reach it as {host.shown_address!r}, that is themselves"
    return Fault(host.source, what, "set address: to what the others can connect to")
