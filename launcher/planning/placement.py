"""Who runs where."""

from __future__ import annotations

from launcher.errors import Fault, PlacementError
from launcher.job import TENSORFLOW_ROLES, Host, JobSpec, Placed, Placement, Role, TaskId
from launcher.planning.gpus import deal
from launcher.planning.misfits import homeless, loopbacks, misfits, unknown_bounds
from launcher.planning.seating import Seating, asked_for, seat


def place(job: JobSpec, hosts: tuple[Host, ...]) -> Placement:
    """Give every task of a job a host, and its GPUs.

    The same job and hosts always give the same placement. Hosts are filled up to their slots in
    the order written, then beyond, evenly, as far as they allow; the rules are told by
    `launcher.planning.room` (slots, ps apart), `launcher.planning.seating` (who chooses first) and
    `launcher.planning.gpus`. Sidecars take no slot: they are put beside the task that leads the job.

    Args:
        job: roles of different names.
        hosts: the inventory, names differing, in the order written.

    Returns:
        The tasks in the order of the table, and remarks for the user.

    Raises:
        PlacementError: with every fault: names and labels that no host has, roles that do not fit
            and why, hosts whose address only they can use.
    """
    if not hosts:
        raise PlacementError([Fault("", "there is no host to run on", "write at least one")])
    unknown = {role.name: unknown_bounds(role, hosts) for role in job.roles}
    known = [role for role in _in_table_order(job) if not unknown[role.name]]
    sidecars = [role for role in known if role.sidecar]
    seating = seat([role for role in known if not role.sidecar], hosts)
    faults = [fault for of_role in unknown.values() for fault in of_role]
    faults += dict.fromkeys(misfits(seating, sum(role.count for role in job.roles if not role.sidecar)))
    faults += homeless(sidecars, seating.rooms)
    faults += loopbacks(room.host for room in seating.rooms if room.taken)
    if faults:
        raise PlacementError(faults)
    tasks = _placed(seating)
    dealt = deal(tasks + [placed for role in sidecars for placed in _beside(role, tasks, seating)])
    return dealt._replace(notes=(*_endless(job), *dealt.notes))


def _endless(job: JobSpec) -> list[str]:
    """A remark on a job of services alone, which are there for others: it has no end of its own."""
    names = [role.name for role in job.roles if not role.sidecar]
    if not all(role.service for role in job.roles):
        return []
    what = f"there is nobody but {' and '.join(names)}, and a service does not end by itself"
    return [f"{what}: the job lasts until Ctrl-C, --timeout or their own end; is a worker missing?"]


def _in_table_order(job: JobSpec) -> list[Role]:
    """TensorFlow's roles as it lists them, then the user's as written."""
    order = {name: number for number, name in enumerate(TENSORFLOW_ROLES)}
    return sorted(job.roles, key=lambda role: order.get(role.name, len(order)))


def _beside(role: Role, tasks: list[Placed], seating: Seating) -> list[Placed]:
    """A sidecar on a host of its own if one was written for it, else beside the first task in the table."""
    may = [room.host for room in asked_for(role, seating.rooms)]
    used = dict.fromkeys(placed.host for placed in tasks)
    beside = next((host for host in used if host in may), may[0])
    own = [host for host in may if role.name in host.roles] or [beside]
    return [Placed(TaskId.of(role.name, n), role, own[n % len(own)]) for n in range(role.count)]


def _placed(seating: Seating) -> list[Placed]:
    return [
        Placed(TaskId.of(role.name, index), role, room.host)
        for role in seating.roles.values()
        for index, room in enumerate(seating.chosen[role.name])
    ]
