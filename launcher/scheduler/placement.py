"""Gives each task a host."""

from __future__ import annotations

from launcher.errors import Fault, PlacementError
from launcher.job import TENSORFLOW_ROLES, Host, JobSpec, Placed, Placement, Role, TaskId
from launcher.scheduler.assignment import Assignment, assign, selected
from launcher.scheduler.gpus import allocate_gpus
from launcher.scheduler.plan import oversized
from launcher.scheduler.unschedulable import loopbacks, not_admitted, unassigned, unknown_selectors


def place(job: JobSpec, hosts: tuple[Host, ...]) -> Placement:
    """Give every task of a job a host, and its GPUs.

    The same job and hosts always give the same placement. Hosts are filled up to their slots in the order
    written, then beyond, evenly, as far as they allow. `launcher.scheduler.assignment` has the rules for
    slots, ps and the order of roles, `launcher.scheduler.gpus` those for GPUs. Sidecars take no slot: they
    run on the host of the first task.

    Args:
        job: roles of different names.
        hosts: the inventory, names differing, in the order written.

    Returns:
        The tasks in the order of the table, and notes for the user.

    Raises:
        PlacementError: with every fault: names and labels that no host has, roles that do not fit and
            why, hosts whose address only they can use, environments too long for the kernel.
    """
    if not hosts:
        raise PlacementError([Fault("", "there is no host to run on", "write at least one")])
    unknown = {role.name: list(unknown_selectors(role, hosts)) for role in job.roles}
    known = [role for role in _in_table_order(job) if not unknown[role.name]]
    sidecars = [role for role in known if role.sidecar]
    assignment = assign([role for role in known if not role.sidecar], hosts)
    faults = [fault for of_role in unknown.values() for fault in of_role]
    faults += dict.fromkeys(unassigned(assignment, sum(role.count for role in job.roles if not role.sidecar)))
    without_host = [role for role in sidecars if not selected(role, assignment.hosts)]
    faults += [not_admitted(role, assignment.hosts) for role in without_host]
    faults += loopbacks(capacity.host for capacity in assignment.hosts if capacity.tasks)
    if faults:
        raise PlacementError(faults)
    tasks = [
        Placed(TaskId.of(name, index), role, capacity.host)
        for name, role in assignment.roles.items()
        for index, capacity in enumerate(assignment.chosen[name])
    ]
    beside = [placed for role in sidecars for placed in _beside(role, tasks, assignment)]
    placement = allocate_gpus(tasks + beside)
    faults += oversized(job, placement)
    if faults:
        raise PlacementError(faults)
    return placement._replace(notes=(*_endless(job), *placement.notes))


def _endless(job: JobSpec) -> list[str]:
    """A note on a job of services alone."""
    if not all(role.service for role in job.roles):
        return []
    names = " and ".join(role.name for role in job.roles if not role.sidecar)
    return [f"only {names} tasks: the job runs until Ctrl-C or --timeout. Did you forget --workers?"]


def _in_table_order(job: JobSpec) -> list[Role]:
    """TensorFlow's roles as it lists them, then the user's as written."""
    order = {name: number for number, name in enumerate(TENSORFLOW_ROLES)}
    return sorted(job.roles, key=lambda role: order.get(role.name, len(order)))


def _beside(role: Role, tasks: list[Placed], assignment: Assignment) -> list[Placed]:
    """The tasks of a sidecar: on the hosts reserved for it, else on the first used host it may use."""
    allowed = [capacity.host for capacity in selected(role, assignment.hosts)]
    used = dict.fromkeys(placed.host for placed in tasks)
    beside = next((host for host in used if host in allowed), allowed[0])
    hosts = [host for host in allowed if role.name in host.roles] or [beside]
    return [Placed(TaskId.of(role.name, n), role, hosts[n % len(hosts)]) for n in range(role.count)]
