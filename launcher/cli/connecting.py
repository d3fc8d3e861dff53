"""Finds the hosts of commands without a job, and the options for reaching them.

``launch hosts``, ``check``, ``prepare`` and ``clean`` use it. A launch finds its hosts by its own options.
"""

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
    """Refuse to work in a folder that was removed, because no program of this machine can start there.

    Raises:
        JobError: The current folder was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        expected = "expected to be in a folder that exists"
        raise JobError([Fault("", "the current folder is gone", expected)]) from error


def connecting_groups() -> tuple[Group, ...]:
    """Return the options for connecting to hosts that the user names, such as those of ssh.

    They are those of the default backend, and none if it has no options.
    """
    group = backends.backends()[backends.default()].group
    return () if group is None else (group,)


def allocating_groups() -> tuple[Group, ...]:
    """Return the options by which `allocate` asks a backend for hosts, such as ``--slurm``."""
    providers = (backend for backend in backends.backends().values() if backend.provides_hosts)
    return tuple(backend.group for backend in providers if backend.group is not None)


@contextmanager
def allocate(settings: Settings, named_hosts: Sequence[Host]) -> Iterator[Allocation]:
    """Get the hosts for a command without a job. Leaving the context gives them back.

    They are the hosts that the user names. Without names they are those of an allocation that the command
    runs in or asks for, or else this machine.

    Args:
        settings: The settings of the command, which may contain those of `allocating_groups`.
        named_hosts: The hosts that the user names. Empty if the user names none.

    Raises:
        JobError: The options contradict each other.
        TransportError: No hosts are available.
    """
    request = _request(settings, named_hosts)
    choice = backends.choose(settings, request.spec, hosts_named=bool(named_hosts))
    options = choice.options[choice.name]
    # The last argument is the backend that was chosen, which is here the one that checks its own options. Its
    # notes are about jobs, so only the faults matter.
    faults_and_notes = [*choice.faults(), *choice.backend.check(options, request, choice.backend)]
    if faults := [fault for fault in faults_and_notes if isinstance(fault, Fault)]:
        raise JobError(faults)
    with choice.backend.allocate(options, request) as allocation:
        yield allocation


def named_hosts(settings: Settings, hosts: Sequence[Host]) -> AbstractContextManager[Allocation]:
    """Return the hosts that the user names, or else this machine, for the default backend to reach.

    Unlike `allocate` this never asks a cluster for hosts.

    Args:
        settings: The settings of the command.
        hosts: The hosts that the user names. Empty if the user names none.
    """
    request = _request(settings, hosts)
    backend = backends.backends()[backends.default()]
    options = backend.parse(settings, request.spec, hosts_named=bool(hosts))
    return backend.allocate(options, request)


def _request(settings: Settings, hosts: Sequence[Host]) -> LaunchRequest:
    """Return the request for hosts of a command without a job: no roles, and a new name for the run."""
    spec = JobSpec((), python=settings[PYTHON])
    return LaunchRequest(new_run_name(), spec, settings, tuple(hosts), Purpose.CHECK)
