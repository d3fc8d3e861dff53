"""Gives each task a host, or says why the tasks and the hosts do not fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcher.errors import Fault, PlacementError
from launcher.job import TENSORFLOW_ROLES, Host, JobSpec, Placed, Placement, Role, TaskId, is_loopback
from launcher.scheduler.assignment import Assignment, HostCapacity, allocate_gpus, assign, selected
from launcher.scheduler.plan import oversized
from launcher.text import counted, did_you_mean, listed


def place(job: JobSpec, hosts: tuple[Host, ...]) -> Placement:
    """Give every task of a job a host, and its GPUs.

    The same job and hosts always give the same placement. Hosts are filled up to their slots in the order
    written, then beyond, evenly, as far as they allow. `launcher.scheduler.assignment` has the rules for
    slots, ps, the order of roles, and GPUs. Sidecars take no slot: they
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
    unknown = {role.name: list(_unknown_selectors(role, hosts)) for role in job.roles}
    known = [role for role in _in_table_order(job) if not unknown[role.name]]
    sidecars = [role for role in known if role.sidecar]
    assignment = assign([role for role in known if not role.sidecar], hosts)
    faults = [fault for of_role in unknown.values() for fault in of_role]
    faults += dict.fromkeys(
        _unassigned(assignment, sum(role.count for role in job.roles if not role.sidecar))
    )
    without_host = [role for role in sidecars if not selected(role, assignment.hosts)]
    faults += [_not_admitted(role, assignment.hosts) for role in without_host]
    faults += _loopbacks(capacity.host for capacity in assignment.hosts if capacity.tasks)
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


# ---------------------------------------------------------------------- faults


def _unknown_selectors(role: Role, hosts: Sequence[Host]) -> Iterator[Fault]:
    """Faults for the host names and labels a role asks for that no host has."""
    names = [host.name for host in hosts]
    labels = list(dict.fromkeys(label for host in hosts for label in host.labels))
    for name in dict.fromkeys(role.hosts):
        if name not in names:
            expected = did_you_mean(name, names, f"the hosts are {listed(names)}")
            yield Fault(role.source, f"{role.name}: there is no host {name!r}", expected)
    for label in dict.fromkeys(role.labels):
        if label not in labels:
            known = f"the labels are {listed(labels)}" if labels else "there are no labels"
            what = f"{role.name}: no host has the label {label!r}"
            yield Fault(role.source, what, did_you_mean(label, labels, known))


def _unassigned(assignment: Assignment, tasks: int) -> Iterator[Fault]:
    """One fault for every role whose tasks did not all fit.

    Args:
        assignment: the finished search.
        tasks: how many tasks of the job need a slot.
    """
    for role in assignment.roles.values():
        assigned, allowed = len(assignment.chosen[role.name]), assignment.allowed[role.name]
        if assigned == role.count:
            continue
        open_hosts = [capacity for capacity in allowed if not capacity.full]
        if not allowed:
            yield _not_admitted(role, assignment.hosts)
        elif open_hosts:
            yield _too_few_gpus(role, assigned, open_hosts)
        elif len(allowed) == len(assignment.hosts):
            yield _all_full(allowed, tasks)
        else:
            yield _its_hosts_full(role, assigned, allowed)


def _not_admitted(role: Role, hosts: Sequence[HostCapacity]) -> Fault:
    """The fault of a role that may use none of the hosts."""
    reserved = [capacity.host.name for capacity in selected(role, hosts)]
    if reserved:
        what = f"{role.name}: no host takes it, {listed(reserved)} being for other roles"
        return Fault(role.source, what, f"write {role.name} into roles: of a host")
    whose = f"none of its hosts ({listed(role.hosts)})" if role.hosts else "no host"
    what = f"{role.name}: {whose} has all its labels ({listed(role.labels)})"
    return Fault(role.source, what, "drop some, or label a host")


def _too_few_gpus(role: Role, assigned: int, hosts: Sequence[HostCapacity]) -> Fault:
    left = listed([f"{capacity.host.name} {_gpus_left(capacity)}" for capacity in hosts])
    needs = f"{role.name} needs {counted(role.gpus or 0, 'GPU')} a task"
    what = f"{needs}, for {role.count - assigned} of {role.count} there are none: {left}"
    expected = "add hosts, ask for fewer, or say which there are"
    written = [capacity.host for capacity in hosts if capacity.host.source]
    unknown = [host.name for host in written if host.gpus is None]
    if unknown:
        expected += f"; in a hostfile, as in {unknown[0]} gpus=2"
    if len(written) < len(hosts):
        expected += "; CUDA_VISIBLE_DEVICES says which this machine has, as in CUDA_VISIBLE_DEVICES=0,1"
    return Fault(role.source, what, expected)


def _gpus_left(capacity: HostCapacity) -> str:
    return "does not say its GPUs" if capacity.host.gpus is None else f"has {capacity.gpus_left} left"


def _all_full(hosts: Sequence[HostCapacity], tasks: int) -> Fault:
    verb = "has" if len(hosts) == 1 else "have"
    room_for = f"{counted(len(hosts), 'host')} {verb} room for {sum(capacity.tasks for capacity in hosts)}"
    places = listed([f"{capacity.host.name} {capacity.tasks}" for capacity in hosts])
    what = f"{counted(tasks, 'task')} do not fit: {room_for} ({places})"
    return Fault("", what, "add hosts, raise slots, or set max_slots")


def _its_hosts_full(role: Role, assigned: int, hosts: Sequence[HostCapacity]) -> Fault:
    numbers = {capacity.host.name: capacity.roles.get(role.name, 0) for capacity in hosts}
    places = listed([f"{name} {numbers[name]}" for name in sorted(numbers, key=lambda name: -numbers[name])])
    only = f"{role.name}: only {assigned} of {counted(role.count, 'task')} fit"
    what = f"{only} on the {counted(len(hosts), 'host')} it may use ({places})"
    return Fault(role.source, what, "allow it more hosts, raise slots, or set max_slots")


def _loopbacks(hosts: Iterable[Host]) -> Iterator[Fault]:
    """Faults for hosts whose address (``localhost``) means the caller on every machine.

    Only loopback addresses are fine: then all tasks are on one machine.

    Args:
        hosts: those in use.
    """
    used = list(hosts)
    local = [host for host in used if is_loopback(host.shown_address)]
    for host in local if len(local) < len(used) else ():
        what = (
            f"{host.name}: tasks on other hosts can't reach it as {host.shown_address!r}, that is themselves"
        )
        yield Fault(host.source, what, "set address: to what the others can connect to")
