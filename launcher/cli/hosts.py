"""``launch hosts``: show and check the hosts of a hostfile or list, or this machine.

It only reads: no host is connected. Values of variables may be secret, so it shows only their names.
"""

from __future__ import annotations

import json

from launcher.cli.connecting import allocate
from launcher.common.record import as_dict
from launcher.common.text import plural
from launcher.config.hostfile import read_hosts
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.job import Host
from launcher.output.table import print_table

SUMMARY = "show and check the hosts of a hostfile or list, or this machine"

EXAMPLES = """\
launch hosts                         this machine, or those of an allocation
launch hosts hostfiles/lab.yaml      a table of its hosts, or all its faults
launch hosts 'node[01-16]:4'         the hosts of a list
launch hosts --json lab.yaml         the same for programs"""

_HEADERS = (
    "host", "address", "user", "port", "slots", "max slots", "gpus",
    "roles", "python", "venv", "workdir", "env", "labels", "spare",
)  # fmt: skip


HOSTS: Setting[str | None] = Setting(
    "hosts", str, "a hostfile, or host[:slots],... (default: this machine)", metavar="FILE_OR_LIST",
    default=None, positional="?",
)  # fmt: skip
NO_SLURM = Setting("no_slurm", switch, "not the nodes of the allocation around launch", default=False)
JSON = Setting("json", switch, "print JSON instead of a table", default=False)
GROUPS = (Group("positional arguments", (HOSTS,)), Group("options", (NO_SLURM, JSON)))


def run(settings: Settings) -> int:
    """Print the hosts that a launch with these settings would use.

    Raises:
        TransportError: The hosts of the allocation are not known.
        HostfileError: The list of hosts has faults. The error lists all of them.
    """
    with allocate(settings, read_hosts(settings[HOSTS])) as allocation:
        hosts = allocation.hosts
    if settings[JSON]:
        print(json.dumps([_record(host) for host in hosts], indent=2))
        return 0
    print_table(_HEADERS, [_row(host) for host in hosts])
    # A host without a number of slots counts as one slot.
    slots = plural(sum(host.slots or 1 for host in hosts), "slot")
    known_numbers = [len(host.gpus) for host in hosts if host.gpus is not None]
    gpus = plural(sum(known_numbers), "GPU") if known_numbers else "GPUs not known"
    # Where hosts accept more tasks than they have slots, the sum of the slots would mislead.
    if allocation.may_exceed_slots:
        slots = "any number of tasks"
    print(f"\n{plural(len(hosts), 'host')}, {slots}, {gpus}")
    return 0


def _row(host: Host) -> list[str]:
    """Return the cells of a host in the table, in the order of its headers. What is not set stays empty."""
    gpus = None if host.gpus is None else ",".join(host.gpus) or "none"
    placing = (host.slots, host.max_slots, gpus, ",".join(host.roles))
    running = (host.python, host.venv, host.workdir, ",".join(_variable_names(host)))
    choosing = (",".join(host.labels), "yes" if host.spare else None)
    cells = (host.name, host.address, host.user, host.port, *placing, *running, *choosing)
    return ["" if cell is None else str(cell) for cell in cells]


def _record(host: Host) -> dict[str, object]:
    """Return a host as ``--json`` prints it: the fields of `Host`, but only the names of its variables."""
    return {**as_dict(host), "env": _variable_names(host)}


def _variable_names(host: Host) -> list[str]:
    """Return the names of a host's variables, because their values may be secret."""
    return [name for name, _ in host.env]
