"""The hosts of commands without a job, and the options about reaching them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from launcher import backends
from launcher.backends.backend import Allocation, LaunchRequest, Purpose
from launcher.common.errors import Fault, JobError
from launcher.config.settings import Group, Settings
from launcher.config.table import PYTHON
from launcher.job import Host, JobSpec
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
    """Return the options of the default backend."""
    group = backends.backends()[backends.default()].group
    return () if group is None else (group,)


def allocating_groups() -> tuple[Group, ...]:
    """Return the options that ask `allocate` for hosts."""
    able = (each for each in backends.backends().values() if each.provides_hosts)
    return tuple(each.group for each in able if each.group is not None)


@contextmanager
def allocate(settings: Settings, named_hosts: Sequence[Host]) -> Iterator[Allocation]:
    """Get the hosts for a command without a job.

    They are those that the user names, else those of an allocation that the command runs in or asks for, else
    this machine.

    Args:
        settings: Those of the command, perhaps with those of `allocating_groups`.
        named_hosts: The hosts that the user names. Empty: none.

    Raises:
        InputError: The options do not fit.
        TransportError: No hosts are available.
    """
    request = _request(settings, named_hosts)
    choice = backends.choose(settings, request.spec, hosts_named=bool(named_hosts))
    options = choice.options[choice.name]
    found = [*choice.faults(), *choice.backend.check(options, request, choice.backend)]
    if faults := [each for each in found if isinstance(each, Fault)]:
        raise JobError(faults)
    with choice.backend.allocate(options, request) as allocation:
        yield allocation


def named_hosts(settings: Settings, hosts: Sequence[Host]) -> AbstractContextManager[Allocation]:
    """Return the hosts that the user names, else this machine, reached by the default backend."""
    request = _request(settings, hosts)
    backend = backends.backends()[backends.default()]
    options = backend.parse(settings, request.spec, hosts_named=bool(hosts))
    return backend.allocate(options, request)


def _request(settings: Settings, hosts: Sequence[Host]) -> LaunchRequest:
    spec = JobSpec((), python=settings[PYTHON])
    return LaunchRequest(new_run_name(), spec, settings, tuple(hosts), Purpose.CHECK)
