"""The target of a TFJob; ``-x`` (variables), and ``--drain`` (time to end)."""

from collections.abc import Collection, Mapping, Sequence

from launcher.common.errors import Fault
from launcher.common.record import Record, replace
from launcher.common.text import join_names
from launcher.config.values import env_name
from launcher.job import CHIEF_ROLES, RESERVED_VARIABLES, Role, deciding_roles


class Target(Record):
    """What the command line says about a TFJob."""

    #: The program of containers that have no command, and its arguments.
    program: tuple[str, ...] = ()
    #: What runs the tasks in containers, which have limits: ``docker``, ``kubernetes``; empty: nothing does.
    engine: str = ""
    #: The containers are of the images that the TFJob names.
    images: bool = False
    #: Names of variables that tasks get from the command line.
    variables: frozenset[str] = frozenset()


#: A command line that says nothing.
NO_TARGET = Target()


def carried_variables(
    settings: Sequence[str],
    environ: Mapping[str, str],
    taken: Collection[str],
    faults: list[Fault],
    notes: list[str],
) -> tuple[dict[str, str], set[str]]:
    """The variables that ``-x`` options set, as Open MPI's ``-x`` does.

    Args:
        settings: ``NAME``, ``NAME=VALUE`` and ``PRE*``.
        environ: the launcher's environment.
        taken: names of variables that other options set.
        faults, notes: new ones are appended; they never contain a value, which may be secret.

    Returns:
        The variables, and the names of those that are copied from ``environ``.
    """
    found: dict[str, str] = {}
    copied: set[str] = set()
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name.endswith("*") and not equals:
            matching = {key: environ[key] for key in environ if key.startswith(name[:-1])}
            if not matching:
                notes.append(f"-x {name}: no variable of launch has a name with this beginning")
            # A task has these variables, with its own values: the first ones if it runs launch, PWD always.
            own = {*RESERVED_VARIABLES, "PWD"}
            found.update({key: value for key, value in matching.items() if key not in own})
            copied |= matching.keys()
            continue
        try:
            env_name(name)
            if name in taken:
                raise ValueError("expected another name: an option of this launch sets this variable")
            found[name] = value if equals else environ[name]
            copied = copied - {name} if equals else copied | {name}
        except ValueError as error:
            faults.append(Fault(f"-x {name}", f"{name!r} can't be set", str(error)))
        except KeyError:
            expected = "expected NAME=VALUE, or the name of a variable that is set"
            faults.append(Fault(f"-x {name}", f"{name} is not set here", expected))
    return found, copied


def roles_with_drain(
    roles: Sequence[Role],
    times_of_roles: Sequence[tuple[str, float]],
    done_when: str,
    faults: list[Fault],
    notes: list[str],
) -> tuple[Role, ...]:
    """The roles with the times of ``--drain`` options.

    Args:
        roles: of the job; empty: they have faults.
        times_of_roles: the values of ``--drain``: a role, and seconds; an empty role stands for every role.
        done_when: see `launcher.job.deciding_roles`.
        faults, notes: new ones are appended.
    """
    deciding = deciding_roles(roles, done_when)
    waited = {role.name for role in roles if deciding.get(role.name) == role.count}
    fixed = {*(waited if done_when else CHIEF_ROLES), *(role.name for role in roles if role.sidecar)}
    names = sorted({role.name for role in roles} - fixed)
    # Roles whose tasks may finish before the job is done; a ps and most other services never exit.
    may_end = {role.name for role in roles if role.name == "evaluator" or not role.service} - fixed
    of_files = {role.name for role in roles if role.drain is not None}
    times: dict[str, float] = {}
    general: float | None = None
    for name, seconds in times_of_roles:
        if not name:
            general = seconds
        elif name in names or not roles:
            times[name] = seconds
        else:
            expected = f"expected ROLE=S with {join_names(names) or 'a worker, or an evaluator'}"
            problem = f"{name!r} can't run on after the job is done"
            faults.append(Fault(f"--drain {name}=", problem, expected))
    if general is not None:
        times = {**dict.fromkeys(may_end - of_files, general), **times}
    if not faults and not any(
        role.name in times and (role.service or role.name not in waited) for role in roles
    ):
        notes.append("--drain has no effect: it is for workers beside a chief, and for an evaluator")
    return tuple(replace(role, drain=times.get(role.name, role.drain)) for role in roles)
