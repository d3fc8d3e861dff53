"""The backends: ways in which ``launch`` gets hosts and starts agents on them.

A backend is a module that is cheap to import. Its ``BACKEND`` is a `launcher.backends.backend.Backend`, and a
line of the table below, or an entry point of an installed package, names it. docs/extending.md shows one.
This module finds the backends, collects their options, and chooses the one that a launch uses.

`backend` defines what a backend is, and `connections` what connects a launch to its hosts. The packages
`ssh`, `docker`, `slurm` and `kubernetes` contain the backends. They share these modules:

::

    fleet             the agents of a launch: on this machine forks (local), elsewhere over links (link)
    programs          runs our programs on hosts over a pipe: a command, an SSH channel, or a link (link_pipe)
    json_client       asks such a program questions
    bootstrap         sends the modules that such a program needs
    command_backend   the base of a backend that reaches each host by a command line
    containers        what Docker, Kubernetes and exports share
    batch_queue       launchers that run as batch jobs; queued_runs finds their runs
    cleaning          decides what launch clean may remove
    here              tells whether a host is this machine; ssh_query asks the ssh command for it
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

if TYPE_CHECKING:  # The modules of backends import this package.
    from launcher.backends.backend import Backend

#: The module of each backend, by the name of the backend. The first one is the default.
BACKENDS = {
    "ssh": "launcher.backends.ssh",
    "docker": "launcher.backends.docker",
    "slurm": "launcher.backends.slurm",
    "kubernetes": "launcher.backends.kubernetes",
}
#: The group of entry points by which installed packages offer backends: the name of one, and its module.
_ENTRY_POINT_GROUP = "launch.transports"


def backends() -> dict[str, Backend[Any]]:
    """Import all known backends, and return them by name."""
    return {name: importlib.import_module(module).BACKEND for name, module in BACKENDS.items()}


def find_installed() -> dict[str, Backend[Any]]:
    """Add the backends of installed packages to `BACKENDS`.

    This is slow. So it is called only when the user types an option or a key that no known backend has.

    Returns:
        The added backends, by name.

    Raises:
        LaunchError: A backend cannot be loaded.
    """
    from importlib import metadata  # noqa: PLC0415 - 18 ms, for installed backends only

    added = {}
    for entry_point in metadata.entry_points(group=_ENTRY_POINT_GROUP):
        name = entry_point.name
        if name in BACKENDS:  # It was added before, or has the name of one of ours.
            continue
        try:
            module = entry_point.load()
            added[name] = module.BACKEND
            if module.BACKEND.name != name:
                raise _not_loaded(name, entry_point.value, f"its name is {module.BACKEND.name!r}")
        except ImportError as error:
            raise _not_loaded(name, entry_point.value, str(error)) from error
        except AttributeError as error:
            old_form = "it has TRANSPORT, as for earlier versions of launch"
            why = old_form if hasattr(module, "TRANSPORT") else str(error)
            advice = "it must have BACKEND with a name, see docs/extending.md"
            raise _not_loaded(name, entry_point.value, f"{why}; {advice}") from error
        BACKENDS[name] = entry_point.value
    return added


def _not_loaded(name: str, module: str, why: str) -> LaunchError:
    """Return the error that a backend of an installed package cannot be loaded."""
    return LaunchError(f"the backend {name!r} ({module}) cannot be loaded: {why}")


def sections() -> tuple[FileSection, ...]:
    """Return the sections of job files and default files that the backends read."""
    return tuple(backend.section for backend in backends().values() if backend.section is not None)


def groups() -> tuple[Group, ...]:
    """Return all options of a launch in groups, in the order in which the help shows them."""
    of_backends = (backend.group for backend in backends().values() if backend.group is not None)
    return (*table.FIRST_GROUPS, *of_backends, *table.LAST_GROUPS)


def rows() -> tuple[Setting[Any], ...]:
    """Return all settings of a launch, each once: the options first, then what only files can contain."""
    in_options = [setting for group in groups() for setting in group.rows]
    in_files = [setting for section in sections() for setting in section.rows]
    return tuple(dict.fromkeys(in_options + in_files))


def default() -> str:
    """Return the name of the backend that is used if the user asks for none: the first one."""
    return next(iter(BACKENDS))


class Choice(Record):
    """The backends that the user asks for, and the options of each."""

    #: The names of the backends. The first one is used. More than one is a fault of the input.
    names: Sequence[str]
    #: The options of each backend, by its name. None if the user does not ask for the backend.
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
        """Yield a fault if the user asks for several backends."""
        if len(self.names) > 1:
            problem = f"{' and '.join(self.names)} cannot start the same tasks"
            yield Fault("command line", problem, "expected one of them")


def choose(settings: Settings, spec: JobSpec, *, hosts_named: bool, engine: str = "") -> Choice:
    """Choose the backend of a launch.

    A backend that the user asks for comes first, then ``engine``, then a backend that the surroundings imply
    (as for a launch inside an allocation of Slurm), then the default.

    Args:
        settings: The settings of the command.
        spec: The job.
        hosts_named: Whether the user names hosts.
        engine: The name of the backend that the command itself asks for, as ``launch export`` does. Empty if
            it asks for none.
    """
    options: dict[str, Any] = {}
    asked: list[str] = []
    implied: list[str] = []
    for name, backend in backends().items():
        options[name] = backend.parse(settings, spec, hosts_named=hosts_named)
        # The default backend always has options, and is used if no other one is asked for or implied.
        if options[name] is not None and name != default():
            names = implied if backend.is_implied(options[name]) else asked
            names.append(name)
    if not asked and engine:
        asked = [engine]
        if options[engine] is None:
            # The setting that asks for the backend, which heads its section of files, is set without a value.
            section = backends()[engine].section
            settings = settings if section is None else settings.with_values({section.head: ""})
            options[engine] = backends()[engine].parse(settings, spec, hosts_named=hosts_named)
    # If the user asks for several, `Choice.faults` reports it.
    names = asked or implied[:1] or [default()]
    # Options of a backend that is only implied, and not used, count as not given.
    unused = [name for name in implied if name != names[0]]
    return Choice(names, {**options, **dict.fromkeys(unused)})
