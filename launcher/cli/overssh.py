"""A launch on other machines: connect to all of them, bring the code, run the job, fetch the results."""

from __future__ import annotations

import argparse
import sys

from launcher import runs
from launcher.cli import launching
from launcher.cli.places import is_here
from launcher.cli.quickcheck import QuickCheck
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.trip import Everywhere, Trip
from launcher.cli.voice import Voice
from launcher.errors import LaunchError
from launcher.model.plan import Placement, Plan
from launcher.model.records import TYPE_CHECKING
from launcher.model.rundir import RunPaths
from launcher.transport import Transport
from launcher.transport.ssh.fleet import Fleet
from launcher.transport.ssh.link import SshTransport

if TYPE_CHECKING:
    from launcher.output.selection import Selection


def launch(
    wanted: Request, placement: Placement, args: argparse.Namespace, show: Selection | None, local: Transport
) -> int:
    """Run a job of which at least one host is another machine; see `launcher.cli.launching.launch`.

    Args:
        wanted, placement, args, show: as there.
        local: opens the links to the agents of this machine.

    Raises:
        LaunchError: a host can't be reached, or the code can't be brought there: nothing was started.
    """
    trip = Trip(wanted, placement, args)
    for text in trip.remarks:
        _tell(text)
    job = runs.new_job_id()
    settings = ssh_settings(args)
    here = [host for host in placement.hosts() if is_here(host)]
    complete = True

    def fetch(plan: Plan | None, paths: RunPaths) -> None:
        nonlocal complete
        complete = trip.collect(errands, plan, paths, job)

    with Voice() as voice, Fleet([h for h in placement.hosts() if h not in here], settings, _tell) as fleet:
        fleet.connect()
        errands = Everywhere(here, fleet)
        try:
            settled = trip.bring(errands, job)
            there = SshTransport(fleet, voice.tell, settings.lease)
            code = launching.launch(
                wanted,
                settled,
                args,
                show,
                lambda host: local if is_here(host) else there,
                job=job,
                voice=voice,
                check=not args.no_check,
                watching=() if args.no_check else [QuickCheck(placement.hosts(), voice.tell)],
                afterwards=fetch,
            )
        finally:
            trip.finish(errands, job)
    return code or (0 if complete else LaunchError.exit_code)


def _tell(text: str) -> None:
    """Before the job has a console of its own."""
    print(f"launch: {text}", file=sys.stderr, flush=True)
