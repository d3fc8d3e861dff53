"""``launch clean``: remove what ended launches have left at Docker engines, in Slurm and in Kubernetes.

The backends find and remove it. They never touch what may belong to a launch that is still running.
"""

from __future__ import annotations

from launcher import backends
from launcher.backends.cleaning import Cleaning, CleanRequest
from launcher.backends.fleet import HostPrograms
from launcher.cli.connecting import check_current_folder, connecting_groups, named_hosts
from launcher.common.errors import HostsError, LaunchError
from launcher.config.hostfile import read_hosts
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.messages import say

SUMMARY = "remove containers, networks, jobs and pods that launches have left"

EXAMPLES = """\
launch clean                  remove them and list them
launch clean --dry-run        only list them
launch clean --hosts lab.yaml the same at the engines of these hosts
launch clean --kubernetes     Jobs in the namespace of kubectl's context
launch clean --foreign RUN    also what RUN left, whose launcher was elsewhere

Removes only objects with the label of a launch of yours that has provably
ended: its process is gone on this machine. What may belong to a launcher on
another machine or in a container is named, and stays. `launch stop` stops
launchers that -d has started in Kubernetes."""


DRY_RUN = Setting("dry_run", switch, "list what would be removed, remove nothing", default=False)
FOREIGN: Setting[tuple[str, ...]] = Setting(
    "foreign", str, "also remove what this run left, although its launcher may run elsewhere (repeatable)",
    metavar="RUN", default=(), repeatable=True,
)  # fmt: skip
HOSTS: Setting[str | None] = Setting(
    "hosts", str, "at the engines of these hosts (default: this machine)", metavar="X", default=None
)


def groups() -> tuple[Group, ...]:
    """Return the options of ``launch clean``: its own, and those of the backends that can clean."""
    of_backends = (row for backend in backends.backends().values() for row in backend.clean_rows)
    options = (DRY_RUN, FOREIGN, HOSTS, CONNECT_TIMEOUT, FANOUT, *of_backends)
    return (*connecting_groups(), Group("options", options))


def run(settings: Settings) -> int:
    """Remove what ended launches have left, and print a line for each removed object.

    With ``--dry-run`` the objects are only listed.

    Raises:
        LaunchError: A host or an engine cannot be reached, an object cannot be removed, or a run of
            ``--foreign`` has left nothing.
    """
    # `cleaning` decides for each object whether it may be removed, and notes what was left alone.
    cleaning, hosts = Cleaning(settings[FOREIGN]), read_hosts(settings[HOSTS])
    found_any, faults = False, list[str]()
    backends.find_installed()  # Installed backends, too, may have left something.
    check_current_folder()
    with named_hosts(settings, hosts) as allocation, HostPrograms(allocation, hosts) as programs:
        if programs.failed:  # These hosts cannot be reached.
            raise HostsError(f"{host}: {why}" for host, why in programs.failed.items())
        request = CleanRequest(
            settings, cleaning, named_hosts=hosts, programs=programs, dry_run=settings[DRY_RUN]
        )
        known = backends.backends().values()
        # An option such as --kubernetes, the first of its backend, restricts the command to that backend.
        chosen = [backend for backend in known if backend.clean_rows and settings[backend.clean_rows[0]]]
        for backend in chosen or known:
            try:
                for line in backend.clean(request):
                    print(line)
                    found_any = True
            except LaunchError as error:
                # Other backends may still have something to remove.
                faults += error.faults if isinstance(error, HostsError) else [str(error)]
    for note in cleaning.notes():
        say(note)
    faults += cleaning.faults()  # Runs of --foreign of which nothing could be removed.
    if faults:
        raise HostsError(faults)
    if not found_any:
        print("nothing to remove")
    return 0
