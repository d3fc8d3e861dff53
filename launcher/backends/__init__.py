"""The backends: how ``launch`` gets hosts, and starts agents there.

A backend is a module, cheap to import, whose ``BACKEND`` is a `launcher.backends.backend.Backend`, and a line
in this table. docs/extending.md shows one.

`backend` says what a backend is, and `connections` what connects a launch to its hosts. The packages `ssh`,
`docker`, `slurm` and `kubernetes` have the backends. What they share:

::

    fleet             the agents of a launch: local forks that of this machine, link reconnects to others
    programs          runs programs of ours over a pipe: that of a command, of an SSH channel, or of a link
                      (link_pipe); json_client asks them, bootstrap sends their modules
    command_backend   a backend by command lines
    containers        what Docker, Kubernetes and exports share
    batch_queue       launchers as batch jobs; queued_runs finds their runs
    cleaning          decides what launch clean may remove
    here              tells whether a host is this machine, for which ssh_query asks the ssh command
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.common.errors import Fault, LaunchError
from launcher.common.record import Record
from launcher.config import table
from launcher.config.settings import FileSection, Group, Setting, Settings
from launcher.job import JobSpec

if TYPE_CHECKING:  # the modules of backends import this package
    from launcher.backends.backend import Backend

#: Name -> module. The first one is the default.
BACKENDS = {
    "ssh": "launcher.backends.ssh",
    "docker": "launcher.backends.docker",
    "slurm": "launcher.backends.slurm",
    "kubernetes": "launcher.backends.kubernetes",
}
#: Entry points of installed packages: the name of a backend, and its module.
_ENTRY_POINT_GROUP = "launch.transports"


def backends() -> dict[str, Backend[Any]]:
    """Return all backends, by name."""
    return {name: importlib.import_module(module).BACKEND for name, module in BACKENDS.items()}


def find_installed() -> dict[str, Backend[Any]]:
    """Add the backends of installed packages, which takes time: for an option or key that is not known.

    Returns:
        The backends that are new.

    Raises:
        LaunchError: One cannot be loaded.
    """
    from importlib import metadata  # noqa: PLC0415 - 18 ms, for installed backends only

    found = {}
    for entry in metadata.entry_points(group=_ENTRY_POINT_GROUP):
        if entry.name in BACKENDS:
            continue
        try:
            module = entry.load()
            found[entry.name] = module.BACKEND
            if module.BACKEND.name != entry.name:
                raise _not_loaded(entry.name, entry.value, f"its name is {module.BACKEND.name!r}")
        except ImportError as error:
            raise _not_loaded(entry.name, entry.value, str(error)) from error
        except AttributeError as error:
            is_old = "it has TRANSPORT, as for earlier versions of launch"
            why = is_old if hasattr(module, "TRANSPORT") else str(error)
            advice = "it must have BACKEND with a name, see docs/extending.md"
            raise _not_loaded(entry.name, entry.value, f"{why}; {advice}") from error
        BACKENDS[entry.name] = entry.value
    return found


def _not_loaded(name: str, module: str, why: str) -> LaunchError:
    return LaunchError(f"the backend {name!r} ({module}) cannot be loaded: {why}")


def sections() -> tuple[FileSection, ...]:
    """Return the sections of files that backends read."""
    return tuple(each.section for each in backends().values() if each.section is not None)


def groups() -> tuple[Group, ...]:
    """Return the options of a launch, as the help shows them."""
    own = (each.group for each in backends().values() if each.group is not None)
    return (*table.FIRST_GROUPS, *own, *table.LAST_GROUPS)


def rows() -> tuple[Setting[Any], ...]:
    """Return all settings of a launch: its options, and those that only sections of files have."""
    options = [row for group in groups() for row in group.rows]
    return (*dict.fromkeys([*options, *(row for section in sections() for row in section.rows)]),)


def default() -> str:
    """Return the name of the backend that is used if the user asks for none."""
    return next(iter(BACKENDS))


class Choice(Record):
    """The backends that the user asks for."""

    #: Their names. The first is used; to ask for others, too, is a fault.
    names: Sequence[str]
    #: The options of each backend, by its name. None: the user does not ask for it.
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the backend that is used."""
        return self.names[0]

    @property
    def backend(self) -> Backend[Any]:
        """The backend that is used."""
        return backends()[self.name]

    def faults(self) -> Iterator[Fault]:
        """Yield the fault of several backends."""
        if len(self.names) > 1:
            problem = f"{' and '.join(self.names)} cannot start the same tasks"
            yield Fault("command line", problem, "expected one of them")


def choose(settings: Settings, spec: JobSpec, *, hosts_named: bool, engine: str = "") -> Choice:
    """Choose the backend of a launch.

    Args:
        settings: Those of the command.
        spec: The job.
        hosts_named: Whether the user names hosts.
        engine: The backend that the command itself asks for, unless the user asks for another one.
    """
    found = {
        name: backend.parse(settings, spec, hosts_named=hosts_named) for name, backend in backends().items()
    }
    implied = {
        name
        for name, options in found.items()
        if name != default() and options is not None and backends()[name].is_implied(options)
    }
    asked = [name for name, options in found.items() if options is not None and name not in implied]
    asked.remove(default())
    if not asked and engine:
        if found[engine] is None:
            section = backends()[engine].section
            given = settings if section is None else settings.with_values({section.head: ""})
            found[engine] = backends()[engine].parse(given, spec, hosts_named=hosts_named)
        asked = [engine]
    names = asked or [name for name in found if name in implied][:1] or [default()]
    return Choice(names, {**found, **dict.fromkeys(implied - {names[0]})})
