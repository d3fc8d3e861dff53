"""Connections for commands that work on hosts without a job; the options about reaching hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from launcher import backends
from launcher.backends import fleet
from launcher.backends.backend import Backend
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings
from launcher.common.errors import Fault, JobError
from launcher.config.settings import Group, Settings
from launcher.config.table import CONNECT_TIMEOUT, FANOUT, LEASE
from launcher.job import Host
from launcher.runs.run import new_run_name


def check_current_folder() -> None:
    """Refuse to work in a folder that was removed: programs of this machine can't start there.

    Raises:
        JobError: It was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        expected = "expected to be in a folder that exists"
        raise JobError([Fault("", "the current folder is gone", expected)]) from error


def connecting_groups() -> tuple[Group, ...]:
    """The options of the default transport."""
    group = backends.backends()[backends.default()].group
    return () if group is None else (group,)


def allocating_groups() -> tuple[Group, ...]:
    """The options of `allocation` that ask for one."""
    able = [each for each in backends.backends().values() if type(each).present is not Backend.present]
    return tuple(each.group for each in able if each.group is not None)


def reaching(settings: Settings) -> ConnectSettings:
    """How to reach hosts."""
    return ConnectSettings(settings[CONNECT_TIMEOUT], settings[FANOUT], settings[LEASE])


@contextmanager
def allocation(settings: Settings, named: bool) -> Iterator[tuple[Backend, Allocation] | None]:
    """The allocation that this command runs in, or asks for, and its transport; ``None``: there is none.

    Args:
        settings: of the command, perhaps with those of `allocating_groups`.
        named: whether the user names hosts.

    Raises:
        InputError: the options do not fit.
        TransportError: no allocation is active, the queue grants none, or its list of hosts is empty.
    """
    for backend in backends.backends().values():
        with backend.present(Asked(settings, named=named), new_run_name()) as found:
            if found is not None:
                yield backend, found
                return
    yield None


def commands(
    hosts: Sequence[Host], settings: Settings, within: tuple[Backend, Allocation] | None = None
) -> AbstractContextManager[tuple[fleet.Programs, Mapping[str, str]]]:
    """Run remote commands on hosts, see `launcher.backends.fleet.commands`.

    Args:
        hosts: this machine, and others.
        settings: of the command.
        within: an allocation of the hosts; ``None``: the default transport reaches them.

    Raises:
        JobError: The current folder is gone.
    """
    check_current_folder()
    if within is not None:
        backend, allocation = within
        return fleet.commands(backend, allocation.settings, hosts, reaching(settings))
    backend = backends.backends()[backends.default()]
    options = backend.parse(Asked(settings))
    return fleet.commands(backend, options, hosts, reaching(settings))
