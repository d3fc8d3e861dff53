"""Connections for commands that work on hosts without a job; the options about reaching hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from launcher import backends
from launcher.backends import fleet
from launcher.backends.backend import Backend
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings
from launcher.common.errors import Fault, JobError
from launcher.config import values
from launcher.job import Host
from launcher.launch.notices import print_notice

#: The shortest lease in seconds: the launcher pings every 2 s, and notices a lost connection after 5 s.
_MIN_LEASE_SECONDS = 6
#: Largest value of ``--fanout``.
_MAX_FANOUT = 1024


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


def add_reaching(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that are the same for every transport and command; `reaching` reads them."""
    text = "limit for each step of connecting (default: 10)"
    values.option(parser, "--connect-timeout S", text, values.positive_duration)
    text = "hosts to connect to at the same time (default: 32)"
    values.option(parser, "--fanout N", text, values.whole(1, _MAX_FANOUT))


def reaching(args: argparse.Namespace) -> ConnectSettings:
    """How to reach hosts."""
    given = {name: getattr(args, name, None) for name in ConnectSettings._fields}
    return ConnectSettings()._replace(**{name: value for name, value in given.items() if value is not None})


def add_connecting(parser: argparse.ArgumentParser) -> None:
    """Add the options of `commands`."""
    backends.backends()[backends.default()].add_options(parser)
    add_reaching(parser)


def add_allocating(parser: argparse.ArgumentParser) -> None:
    """Add the options of `allocation` that ask for one."""
    for backend in backends.backends().values():
        if type(backend).present is not Backend.present:
            backend.add_options(parser)


@contextmanager
def allocation(args: argparse.Namespace, named: bool) -> Iterator[tuple[Backend, Allocation] | None]:
    """The allocation that this command runs in, or asks for, and its transport; ``None``: there is none.

    Args:
        args: the options, perhaps with those of `add_allocating`.
        named: whether the user names hosts.

    Raises:
        InputError: the options do not fit.
        TransportError: no allocation is active, the queue grants none, or its list of hosts is empty.
    """
    from launcher.launch.run import new_run_name

    for backend in backends.backends().values():
        with backend.present(Asked(args, named=named), new_run_name(), print_notice) as found:
            if found is not None:
                yield backend, found
                return
    yield None


def commands(
    hosts: Sequence[Host], args: argparse.Namespace, within: tuple[Backend, Allocation] | None = None
) -> AbstractContextManager[tuple[fleet.Programs, Mapping[str, str]]]:
    """Run remote commands on hosts, see `launcher.backends.fleet.commands`.

    Args:
        hosts: this machine, and others.
        args: the options of the default transport.
        within: an allocation of the hosts; ``None``: the default transport reaches them.

    Raises:
        JobError: The current folder is gone.
    """
    check_current_folder()
    if within is not None:
        backend, allocation = within
        return fleet.commands(backend, allocation.settings, hosts, reaching(args), print_notice)
    backend = backends.backends()[backends.default()]
    settings = backend.settings(Asked(args))
    return fleet.commands(backend, settings, hosts, reaching(args), print_notice)


def lease(text: str) -> float:
    """Seconds of a lease; a shorter one would end before the launcher notices a lost connection."""
    seconds = values.positive_duration(text)
    if seconds < _MIN_LEASE_SECONDS:
        raise ValueError(f"expected {_MIN_LEASE_SECONDS} seconds or more")
    return seconds
