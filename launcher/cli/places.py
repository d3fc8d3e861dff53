"""Which hosts are this machine, and what those that are not need to be told."""

from __future__ import annotations

import os

from launcher.cli.request import Request
from launcher.job import Host, is_loopback
from launcher.scheduler.plan import DEFAULT_PYTHON


def is_here(host: Host) -> bool:
    """Whether its tasks are started without SSH: it is this machine, and no SSH server was asked for."""
    if host.user is not None or host.port is not None:
        return False
    return is_loopback(host.name) or host.name in _own_names()


def _own_names() -> tuple[str, ...]:
    name = os.uname().nodename
    return (name, name.partition(".")[0])


def with_defaults(wanted: Request) -> Request:
    """Tell other machines what only this one would take for granted: its own Python is not theirs."""
    return wanted._replace(hosts=tuple(_with_python(wanted, host) for host in wanted.hosts))


def _with_python(wanted: Request, host: Host) -> Host:
    if is_here(host) or host.python or host.venv or wanted.python_source:
        return host
    return host._replace(python=DEFAULT_PYTHON)
