"""``launch prepare``: make the same Python environment on every host.

It resolves the packages once, and lets a program of ours build the environment on each host. It never changes
an environment that it has not made.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping

from launcher.backends.fleet import HostPrograms
from launcher.cli.connecting import check_current_folder, connecting_groups, named_hosts
from launcher.common.errors import Fault, InputError
from launcher.common.text import join_names, plural
from launcher.config import values
from launcher.config.hostfile import read_hosts
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.environments.prepare import EnvironmentStatus, Preparer, Requirements, Resolver, wanted
from launcher.messages import say
from launcher.output.table import print_table

SUMMARY = "make the same Python environment on every host"

EXAMPLES = """\
launch prepare --hosts lab.yaml              packages of ./requirements.txt
launch prepare --hosts lab.yaml tensorflow   these packages
launch prepare --hosts 'node[01-40]' -r needs.txt --name tf
launch prepare --hosts lab.yaml --check      only compare the hosts
launch prepare --hosts lab.yaml --clean      remove unused ones

Without packages: requirements.txt, else the dependencies in pyproject.toml,
else the TensorFlow that is installed here. Exit code: 0 all hosts have the
environment; 1 some do not; 2 bad input."""

#: The name of the environment if the user names none.
DEFAULT_ENVIRONMENT = "default"
_COLUMNS = ("host", "Python", "TensorFlow", "driver", "size", "state")
_NAME = values.matching(
    r"(?![0-9a-f]{16}-py)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "expected letters, digits, dots, dashes"
)
#: After this number of days without a run, --clean removes an environment.
_UNUSED_DAYS = 30


PACKAGES: Setting[tuple[str, ...]] = Setting(
    "packages", str, "such as tensorflow or numpy==2.1", metavar="PACKAGE", default=(), positional="*",
    repeatable=True,
)  # fmt: skip
REQUIREMENT: Setting[tuple[str, ...]] = Setting(
    "requirement", values.not_empty, "a requirements file; may be repeated", flags=("-r", "--requirement"),
    metavar="FILE", default=(), repeatable=True,
)  # fmt: skip
HOSTS: Setting[str | None] = Setting(
    "hosts", str, "a hostfile, or host,... (default: this machine)", metavar="X", default=None
)
NAME = Setting(
    "name", _NAME, "of the environment (default: default)", metavar="NAME", default=DEFAULT_ENVIRONMENT
)
UPGRADE = Setting("upgrade", switch, "find the newest versions again", default=False)
OFFLINE = Setting(
    "offline", switch, "download wheels here and send them: hosts use no package index", default=False
)
CHECK = Setting("check", switch, "only compare the hosts; exit code 1 if any differs", default=False)
CLEAN = Setting(
    "clean", switch, f"remove environments that no run has used for {_UNUSED_DAYS} days", default=False,
    excludes=("check",),
)  # fmt: skip


def groups() -> tuple[Group, ...]:
    """Return the options of ``launch prepare``, including those that reach the hosts."""
    options = (REQUIREMENT, HOSTS, NAME, UPGRADE, OFFLINE, CHECK, CLEAN, CONNECT_TIMEOUT, FANOUT)
    return (Group("positional arguments", (PACKAGES,)), *connecting_groups(), Group("options", options))


def run(settings: Settings) -> int:
    """Make a Python environment on the hosts that the user names, and print a table of the hosts.

    - Without an option, hosts that lack the environment get it.
    - With ``--check`` the hosts are only compared with the packages that the user names.
    - With ``--clean`` environments that no run has used for `_UNUSED_DAYS` are removed instead.

    Returns:
        0, or 1 if any host lacks the environment or could not be cleaned.

    Raises:
        InputError: The hosts or the packages have faults. The error lists all of them.
    """
    hosts_text, is_cleaning = settings[HOSTS], settings[CLEAN]
    hosts, packages = read_hosts(hosts_text), Requirements()
    if is_cleaning and (settings[PACKAGES] or settings[REQUIREMENT]):
        raise InputError([Fault("--clean", "packages are named", "expected none: it removes environments")])
    if not is_cleaning:  # Faults of the packages are shown before any host is asked.
        packages = wanted(settings[REQUIREMENT], settings[PACKAGES], os.environ)

    # A signal raises an exception, so that the contexts below remove what they have made. One that the parent
    # process ignores, as nohup and shells do, stays ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    is_making = not settings[CHECK] and not is_cleaning
    # With 0 days the hosts remove nothing.
    request = {"name": settings[NAME], "makes": is_making, "days": _UNUSED_DAYS if is_cleaning else 0}
    temporary = tempfile.TemporaryDirectory(prefix="tf-launcher-", ignore_cleanup_errors=True)
    check_current_folder()
    with (
        temporary as folder,
        named_hosts(settings, hosts) as allocation,
        HostPrograms(allocation, allocation.hosts) as programs,
    ):
        resolver = Resolver(packages, folder, upgrade=settings[UPGRADE], offline=settings[OFFLINE])
        statuses = Preparer(allocation.hosts, request, resolver, programs).prepare(settings[FANOUT])
    _print(statuses)
    wanted_state = "clean" if is_cleaning else "ready"
    bad_hosts = [host for host, status in statuses.items() if status.state != wanted_state]
    if bad_hosts:
        what = "not cleaned" if is_cleaning else "without the environment"
        say(f"{plural(len(bad_hosts), 'host')} of {len(statuses)} {what}: {join_names(bad_hosts)}")
    elif is_making:
        on_hosts = f" --hosts {shlex.quote(hosts_text)}" if hosts_text else ""
        # Other machines need a copy of the program, too.
        with_copy = "" if allocation.local.issuperset(statuses) else " --sync ."
        say(f"ready: launch{on_hosts} --venv {settings[NAME]}{with_copy} PROGRAM")
    return int(bool(bad_hosts))


def _print(statuses: Mapping[str, EnvironmentStatus]) -> None:
    """Print a table of the environments by host, and warn the user if their versions differ."""
    rows = []
    for host, status in statuses.items():
        rows.append([host, status.python, status.tensorflow, status.driver, status.size, status.state])
    print_table(_COLUMNS, rows)
    # An empty version is not known, which the table shows.
    for what, versions in (
        ("Pythons", {status.python for status in statuses.values()}),
        ("versions of TensorFlow", {status.tensorflow for status in statuses.values()}),
    ):
        if len(versions - {""}) > 1:
            say(f"warning: the hosts have different {what}: {join_names(sorted(versions - {''}))}")
