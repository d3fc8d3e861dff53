"""Assigns a host to each task of a job, or reports all reasons why the tasks do not fit the hosts.

`launcher.launch` calls `place` before anything is started, and the supervisor calls `replace_hosts` when
hosts are lost. Both are pure, and the same input must always lead to the same placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from launcher.common.cluster import TENSORFLOW_ROLES, TaskId
from launcher.common.errors import Fault, PlacementError
from launcher.common.record import replace
from launcher.common.text import did_you_mean, join_names, plural
from launcher.job import Host, JobSpec, PlacedTask, Placement, ProgramKind, Role, is_loopback
from launcher.scheduler.assignment import Assignment, HostCapacity, allocate_gpus, assign, selected
from launcher.scheduler.plan import oversized


def place(spec: JobSpec, hosts: tuple[Host, ...]) -> Placement:
    """Assign a host and GPUs to every task of a job.

    The same job and hosts always lead to the same placement. Hosts are filled up to their slots in the order
    of the user's list, and then evenly up to their limits, by the rules of `launcher.scheduler.assignment`.
    Sidecars need no slot. They run on the host of the first task, or on the first host that they select.

    Args:
        spec: The job. The names of its roles differ.
        hosts: The hosts, each name once, in the order of the user's list.

    Returns:
        The tasks in the order of the table for users, notes for the user, and the standby hosts.

    Raises:
        PlacementError: The tasks do not fit the hosts. It contains all faults: names and labels that no host
            has, roles that do not fit and why, hosts with a loopback address beside others, and environments
            that are too long for the kernel.
    """
    usable = tuple(host for host in hosts if not host.spare)
    if not usable:
        problem = "every host is a spare" if hosts else "there is no host to run on"
        raise PlacementError([Fault("", problem, f"write at least one{' that is not' if hosts else ''}")])
    selector_faults = {role.name: list(_unknown_selectors(role, hosts)) for role in spec.roles}
    faults = [fault for role_faults in selector_faults.values() for fault in role_faults]
    # A role with such a fault is left out, so that it gets no second fault. Faults of other roles are found.
    roles = [role for role in _in_table_order(spec) if not selector_faults[role.name]]
    sidecars = [role for role in roles if role.sidecar]
    assignment = assign([role for role in roles if not role.sidecar], usable)
    slots_needed = sum(role.count for role in spec.roles if not role.sidecar)
    # Several roles may have the same fault.
    faults += dict.fromkeys(_unassigned_faults(assignment, slots_needed))
    without_host = [role for role in sidecars if not selected(role, assignment.hosts)]
    faults += [_not_admitted(role, assignment.hosts) for role in without_host]
    faults += _loopback_faults(capacity.host for capacity in assignment.hosts if capacity.tasks)
    if faults:
        raise PlacementError(faults)
    tasks = [
        PlacedTask(TaskId.of(name, index), role, capacity.host)
        for name, role in assignment.roles.items()
        for index, capacity in enumerate(assignment.chosen[name])
    ]
    sidecar_tasks = [placed for role in sidecars for placed in _sidecar_tasks(role, tasks, assignment)]
    placement = allocate_gpus(tasks + sidecar_tasks)
    faults += oversized(spec, placement)
    if faults:
        raise PlacementError(faults)
    notes = (*_notes(spec, hosts), *_unusable_spares(spec, placement, hosts), *placement.notes)
    return replace(placement, notes=notes, standby=_standby_hosts(spec, placement, hosts))


def _standby_hosts(spec: JobSpec, placement: Placement, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts without a task on which an agent waits, in case another host is lost.

    These are all spares, and then as many others as restarts may need: as a rule a restart replaces one host,
    whose tasks need at most one host each. If it replaces several, tasks may have to use free slots of hosts
    in use. Without restarts there are none.
    """
    if not spec.policy.restarts:
        return ()
    tasks_by_host = Counter(placed.host.name for placed in placement.tasks)
    idle = [host for host in hosts if host.name not in tasks_by_host and _is_reachable(host, placement)]
    most_others = spec.policy.restarts * max(tasks_by_host.values())
    others = [host for host in idle if not host.spare]
    return (*(host for host in idle if host.spare), *others[:most_others])


def _is_reachable(host: Host, placement: Placement) -> bool:
    """Return whether tasks on a host and tasks on the hosts in use can connect to each other.

    Either all addresses are loopback addresses, because all hosts are this machine, or none is. So the host
    of any task stands for all: a placement has at least one task.
    """
    return is_loopback(host.shown_address) == is_loopback(placement.tasks[0].host.shown_address)


def _unusable_spares(spec: JobSpec, placement: Placement, hosts: Sequence[Host]) -> Iterator[str]:
    """Yield notes for the user about spare hosts that cannot run the tasks of a lost host."""
    for host in hosts if spec.policy.restarts else ():
        if host.spare and not _is_reachable(host, placement):
            why = "the addresses of the other hosts are loopback addresses"
            if is_loopback(host.shown_address):
                why = f"tasks on other hosts cannot reach it by {host.shown_address!r}; set address:"
            yield f"{host.name} cannot be a spare: {why}"


def replace_hosts(
    placement: Placement, lost: Collection[str], ended: Collection[TaskId] = ()
) -> Placement | None:
    """Return a placement in which the tasks of lost hosts have other hosts.

    These are spares, which the user keeps free for that, then other hosts on which an agent waits (standby),
    then free slots of hosts in use. All other tasks stay on their hosts. The GPUs of all tasks are assigned
    again.

    Args:
        placement: The present placement.
        lost: The names of the lost hosts.
        ended: Tasks that never start again, and so stay even on lost hosts.

    Returns:
        The new placement, or None if there is no room for all tasks.
    """
    hosts = [host for host in (*placement.standby, *placement.hosts()) if host.name not in lost]
    moving = {placed.task for placed in placement.tasks if placed.host.name in lost} - {*ended}
    staying = [placed for placed in placement.tasks if placed.host.name not in lost]
    # Only the tasks of lost hosts are assigned, so roles are counted without the others.
    counts = Counter(placed.role for placed in placement.tasks if placed.task in moving)
    roles = [replace(role, count=count) for role, count in counts.items()]
    # Sidecars use no slot, and follow the other tasks, so they are placed after these.
    with_slots = [placed for placed in staying if not placed.role.sidecar]
    assignment = assign([role for role in roles if not role.sidecar], hosts, with_slots)
    new_hosts = {name: [capacity.host for capacity in best] for name, best in assignment.chosen.items()}
    for role in roles:
        if role.sidecar:
            can_run = bool(selected(role, assignment.hosts))
            sidecar_tasks = _sidecar_tasks(role, staying, assignment) if can_run else []
            new_hosts[role.name] = [placed.host for placed in sidecar_tasks]
    if any(len(new_hosts[role.name]) < role.count for role in roles):
        return None
    # Each task of a lost host takes the next of the new hosts of its role.
    tasks = [
        replace(placed, host=new_hosts[placed.role.name].pop(0)) if placed.task in moving else placed
        for placed in placement.tasks
    ]
    used = {placed.host.name for placed in tasks}
    standby = tuple(host for host in placement.standby if host.name not in lost and host.name not in used)
    return replace(allocate_gpus(tasks), standby=standby)


def _notes(spec: JobSpec, hosts: Iterable[Host]) -> Iterator[str]:
    """Yield notes for the user about a job of nothing but services, and about options without effect."""
    if all(role.service for role in spec.roles):
        names = " and ".join(role.name for role in spec.roles if not role.sidecar)
        yield f"only {names} tasks: the job runs until Ctrl-C or --timeout. Did you forget --workers?"
    if spec.preload and all(role.program.kind is ProgramKind.EXECUTABLE for role in spec.roles):
        yield "--preload has no effect: it is for Python programs, and no task runs one"
    if not spec.policy.restarts and any(host.spare for host in hosts):
        yield "spare hosts have no effect without --restarts N"


def _in_table_order(spec: JobSpec) -> list[Role]:
    """Return the roles of a job in the order of the table for users.

    TensorFlow's roles come first: chief, worker, ps, evaluator. The user's own follow in the order of the
    job.
    """
    order = {name: number for number, name in enumerate(TENSORFLOW_ROLES)}
    return sorted(spec.roles, key=lambda role: order.get(role.name, len(order)))


def _sidecar_tasks(role: Role, tasks: list[PlacedTask], assignment: Assignment) -> list[PlacedTask]:
    """Return the tasks of a sidecar role, such as TensorBoard, with their hosts.

    They run on the hosts that are reserved for the role. Without any, they run on the first host in use that
    the role may use.

    Args:
        role: The role. It may use at least one of the hosts.
        tasks: The tasks of other roles, which determine the hosts in use.
        assignment: The assignment of these tasks, which knows all hosts.
    """
    allowed = [capacity.host for capacity in selected(role, assignment.hosts)]
    used = dict.fromkeys(placed.host for placed in tasks)
    first_used = next((host for host in used if host in allowed), allowed[0])
    hosts = [host for host in allowed if role.name in host.roles] or [first_used]
    return [PlacedTask(TaskId.of(role.name, n), role, hosts[n % len(hosts)]) for n in range(role.count)]


# ---------------------------------------------------------------------- faults


def _unknown_selectors(role: Role, hosts: Sequence[Host]) -> Iterator[Fault]:
    """Yield the faults of a role that selects hosts by a name or a label that no host has."""
    names = [host.name for host in hosts]
    known_names = set(names)
    labels = list(dict.fromkeys(label for host in hosts for label in host.labels))
    for name in dict.fromkeys(role.hosts):
        if name not in known_names:
            expected = did_you_mean(name, names, f"the hosts are {join_names(names)}")
            yield Fault(role.source, f"{role.name}: there is no host {name!r}", expected)
    for label in dict.fromkeys(role.labels):
        if label not in labels:
            known = f"the labels are {join_names(labels)}" if labels else "there are no labels"
            problem = f"{role.name}: no host has the label {label!r}"
            yield Fault(role.source, problem, did_you_mean(label, labels, known))


def _unassigned_faults(assignment: Assignment, tasks: int) -> Iterator[Fault]:
    """Yield a fault for every role whose tasks do not all fit, with the reason.

    Args:
        assignment: The assignment of all tasks that fit.
        tasks: How many tasks of the job need a slot.
    """
    for role in assignment.roles.values():
        assigned, allowed = len(assignment.chosen[role.name]), assignment.allowed[role.name]
        if assigned == role.count:
            continue
        with_free_slots = [capacity for capacity in allowed if not capacity.is_full]
        if not allowed:
            yield _not_admitted(role, assignment.hosts)
        elif with_free_slots:  # A task that has a slot does not fit only if it requests GPUs.
            yield _too_few_gpus(role, assigned, with_free_slots)
        elif len(allowed) == len(assignment.hosts):
            yield _all_full(allowed, tasks)
        else:
            yield _its_hosts_full(role, assigned, allowed)


def _not_admitted(role: Role, hosts: Sequence[HostCapacity]) -> Fault:
    """Return the fault of a role that may use none of the hosts.

    Either all hosts that it selects are reserved for other roles, or no host has the labels.
    """
    # As the role may use no host, each one that its names and labels select is reserved for other roles.
    reserved = [capacity.host.name for capacity in selected(role, hosts)]
    if reserved:
        problem = f"{role.name}: no host is for this role ({join_names(reserved)}: for other roles only)"
        return Fault(role.source, problem, f"add {role.name} to roles: of a host")
    whose = f"none of its hosts ({join_names(role.hosts)})" if role.hosts else "no host"
    problem = f"{role.name}: {whose} has all its labels ({join_names(role.labels)})"
    return Fault(role.source, problem, "remove some, or add labels to a host")


def _too_few_gpus(role: Role, assigned: int, hosts: Sequence[HostCapacity]) -> Fault:
    """Return the fault of a role for whose tasks the hosts have slots, but too few GPUs.

    Args:
        role: The role.
        assigned: How many of its tasks have a host.
        hosts: The hosts with free slots that it may use.
    """
    left = join_names([f"{capacity.host.name} {_gpus_left(capacity)}" for capacity in hosts])
    needs = f"{role.name} needs {plural(role.gpus or 0, 'GPU')} per task"
    problem = f"{needs}, {role.count - assigned} of {role.count} tasks get none: {left}"
    expected = "add hosts, request fewer, or name the GPUs of hosts"
    # A host without a source is this machine, which no file describes.
    described = [capacity.host for capacity in hosts if capacity.host.source]
    without_gpus = [host.name for host in described if host.gpus is None]
    if without_gpus:
        expected += f"; in a hostfile, as in {without_gpus[0]} gpus=2"
    if len(described) < len(hosts):
        expected += "; for this machine by CUDA_VISIBLE_DEVICES=0,1"
    return Fault(role.source, problem, expected)


def _gpus_left(capacity: HostCapacity) -> str:
    """Return the part of a message about the free GPUs of a host."""
    return "has no known GPU" if capacity.host.gpus is None else f"has {capacity.gpus_left} left"


def _all_full(hosts: Sequence[HostCapacity], tasks: int) -> Fault:
    """Return the fault of a job for whose tasks all hosts together have too few slots.

    Args:
        hosts: All hosts, each of them full.
        tasks: How many tasks of the job need a slot.
    """
    verb = "has" if len(hosts) == 1 else "have"
    room_for = f"{plural(len(hosts), 'host')} {verb} room for {sum(capacity.tasks for capacity in hosts)}"
    places = join_names([f"{capacity.host.name} {capacity.tasks}" for capacity in hosts])
    problem = f"{plural(tasks, 'task')} do not fit: {room_for} ({places})"
    return Fault("", problem, "add hosts, raise slots, or set max_slots")


def _its_hosts_full(role: Role, assigned: int, hosts: Sequence[HostCapacity]) -> Fault:
    """Return the fault of a role for whose tasks the hosts that it may use have too few slots.

    Args:
        role: The role.
        assigned: How many of its tasks have a host.
        hosts: The hosts that it may use, all of them full.
    """
    # Its tasks on each host, the most first.
    counts = Counter({capacity.host.name: capacity.roles.get(role.name, 0) for capacity in hosts})
    places = join_names([f"{name} {count}" for name, count in counts.most_common()])
    only = f"{role.name}: only {assigned} of {plural(role.count, 'task')} fit"
    problem = f"{only} on the {plural(len(hosts), 'host')} it may use ({places})"
    return Fault(role.source, problem, "allow it more hosts, raise slots, or set max_slots")


def _loopback_faults(hosts: Iterable[Host]) -> Iterator[Fault]:
    """Yield the faults of hosts with a loopback address, which every other host takes for itself.

    If all hosts in use have one, all tasks run on this machine, which is no fault.

    Args:
        hosts: The hosts in use.
    """
    used = list(hosts)
    local = [host for host in used if is_loopback(host.shown_address)]
    for host in local if len(local) < len(used) else ():
        address = host.shown_address
        problem = f"{host.name}: tasks on other hosts cannot reach it by {address!r}, their own machine"
        yield Fault(host.source, problem, "set address: to an address that the others can connect to")
