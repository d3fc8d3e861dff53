"""A launch with files that travel, or on hosts that are connected to: bring, run, fetch."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from launcher import runs
from launcher.cli import launching
from launcher.cli.advice import Advice
from launcher.cli.intime import in_time
from launcher.cli.places import is_here
from launcher.cli.quickcheck import QuickCheck
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.voice import Voice
from launcher.errors import LaunchError
from launcher.job import RELAY, Host, Placement, Plan, RunPaths
from launcher.output.base import Renderer
from launcher.transport import Transport

if TYPE_CHECKING:
    from launcher.cli.trip import Trip
    from launcher.output.selection import Selection
    from launcher.transport.ssh.fleet import Fleet


class Journey:
    """One launch.

    Args:
        wanted, args, show: see `launcher.cli.launching.launch`.
        local: opens the links to the agents of this machine.
        voice: takes what is to be said of connections.
        trip: the files that travel; ``None``: none do.
    """

    def __init__(
        self,
        wanted: Request,
        args: argparse.Namespace,
        show: Selection | None,
        local: Transport,
        voice: Voice,
        trip: Trip | None,
    ) -> None:
        self._wanted = wanted
        self._args = args
        self._show = show
        self._local = local
        self._voice = voice
        self._trip = trip
        self._job = runs.new_job_id()
        #: Everything that was to be fetched came.
        self._complete = True

    def make(self, placement: Placement, fleet: Fleet | None) -> int:
        """Run the job.

        Args:
            placement: who runs where.
            fleet: the connections to other machines; ``None``: there are none.

        Returns:
            Its exit code, or 125 if it went well and its results could not be fetched.

        Raises:
            LaunchError: the code could not be brought there: nothing was started.
        """
        trip = self._trip
        if trip is None:
            return self._launch(placement, fleet)
        errands = trip.errands(fleet)
        try:
            code = self._launch(trip.bring(errands, self._job), fleet)
        finally:
            with in_time("removing the folders of this run"):
                trip.finish(errands, self._job) if self._complete else trip.keep(self._job)
        return code or (0 if self._complete else LaunchError.exit_code)

    def _launch(self, placement: Placement, fleet: Fleet | None) -> int:
        there = self._local if fleet is None else self._over(fleet)
        if fleet is not None and self._args.relay is not None:
            placement = self._with_relay(placement, fleet)
        check = fleet is not None and not self._args.no_check

        def fetch(plan: Plan | None, paths: RunPaths) -> None:
            if self._trip is not None:
                self._complete = False  # until it is: Ctrl-C may come
                with in_time("fetching what the job has left"):
                    self._complete = self._trip.collect(self._trip.errands(fleet), plan, paths, self._job)

        return launching.launch(
            self._wanted,
            placement,
            self._args,
            self._show,
            lambda host: self._local if self._is_local(host) else there,
            job=self._job,
            voice=self._voice,
            check=check,
            watching=self._watching(placement, fleet is not None, check),
            afterwards=fetch,
        )

    def _with_relay(self, placement: Placement, fleet: Fleet) -> Placement:
        """Tasks on other machines are told of the port there that leads here."""
        ports = fleet.relay(os.path.abspath(self._args.relay), self._voice.tell)
        return placement.told(
            {
                placed.task: {RELAY: f"127.0.0.1:{ports[placed.host.name]}"}
                for placed in placement.tasks
                if placed.host.name in ports
            }
        )

    def _watching(self, placement: Placement, travels: bool, check: bool) -> list[Renderer]:
        """Who looks on besides the user."""
        looking: list[Renderer] = [Advice(bool(self._args.sync), self._voice.tell)] if travels else []
        return [*looking, QuickCheck(placement.hosts(), self._voice.tell)] if check else looking

    def _is_local(self, host: Host) -> bool:
        """Whether the agent of a host is one of this machine's."""
        return is_here(host)

    def _over(self, fleet: Fleet) -> Transport:
        from launcher.transport.ssh.link import SshTransport

        job = self._job if self._args.sync or self._wanted.job.output_dirs else ""
        return SshTransport(fleet, self._voice.tell, ssh_settings(self._args).lease, job)
