"""A transport whose hosts are known when the launch runs: ``launch --rooms 2 train.py``.

A room is a folder of this machine that is the home there, with a loopback address that no room had before.
The agent is the main process of the command that enters it. The file of the variable ``LEDGER`` says which
rooms were made and given back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from launcher.backends.bootstrap import COMMAND
from launcher.backends.command_backend import CommandBackend
from launcher.backends.launch_request import Allocation, Asked, LaunchRequest
from launcher.common.errors import Fault, TransportError
from launcher.common.record import replace
from launcher.config.settings import EVERYWHERE, FileSection, Group, Setting, switch
from launcher.config.values import whole
from launcher.job import Host
from launcher.messages import say

ROOMS: Setting[int | None] = Setting(
    "rooms", whole(1, 100), "run in rooms", metavar="N", default=None, given_in=EVERYWHERE
)
SHARED = Setting("shared", switch, "rooms have the files of this machine", default=False)


class Building:
    """The rooms of a launch."""

    def __init__(self, count: int) -> None:
        self.names = [f"room{number}" for number in range(1, count + 1)]
        self.addresses: dict[str, str] = {}
        self._numbers = itertools.count(11)
        self.folder = ""

    def make(self, name: str) -> None:
        """Make a room."""
        if os.environ.get("LANDLORD") == "refuses":
            raise TransportError("the landlord has no room")
        os.makedirs(self.home(name), exist_ok=True)
        self.addresses[name] = f"127.0.0.{next(self._numbers)}"
        self._write(f"made {name} {self.addresses[name]}")

    def home(self, name: str) -> str:
        """Its folder."""
        return os.path.join(self.folder, name)

    def close(self) -> None:
        """Give all back."""
        for name in self.addresses:
            self._write(f"given back {name}")

    def _write(self, line: str) -> None:
        with open(os.environ["LEDGER"], "a", encoding="utf-8") as ledger:
            ledger.write(line + "\n")


class Rooms(CommandBackend):
    """See above."""

    provides_hosts = replaces_hosts = True
    agent = "launcher.agent.main:serve"

    group = Group("rooms", (ROOMS, SHARED))
    section = FileSection(
        "rooms",
        "The number of rooms.",
        head=ROOMS,
        rows=(ROOMS,),
        expected="expected a number",
        short="rooms",
    )

    def parse(self, asked: Asked) -> argparse.Namespace | None:
        """See `Backend.parse`."""
        count, shared = asked.settings[ROOMS], asked.settings[SHARED]
        return argparse.Namespace(count=count, shared=shared) if count else None

    def faults(self, asked: Asked, options: argparse.Namespace | None) -> Iterable[Fault]:
        """See `Backend.faults`."""
        return [Fault("--rooms", "the hosts are named, too")] if options and asked.named else []

    @contextmanager
    def inventory(self, request: LaunchRequest) -> Iterator[Allocation]:
        """See `Backend.inventory`."""
        building = Building(request.settings.count)
        hosts = [Host(name, slots=1) for name in building.names]
        found = replace(Allocation.of(request, hosts), remarks=("the rooms are made when the job starts",))
        if request.settings.shared:
            found = replace(found, same_files=frozenset(building.names))
        if request.dry_run:
            yield found
            return
        with tempfile.TemporaryDirectory() as building.folder:
            try:
                for name in building.names:
                    building.make(name)
                say("the rooms are made")
                if os.environ.get("LANDLORD") == "is slow":
                    time.sleep(60)
                yield replace(found, settings=building)
            finally:
                request.ignore_signals()
                building.close()

    def address(self, host: Host, settings: Building) -> str:
        """See `Backend.address`."""
        return settings.addresses[host.name]

    def renew(self, host: str, settings: Building) -> None:
        """See `Backend.renew`: nothing runs in the room any more."""
        settings.make(host)

    def python(self, host: Host, settings: Building) -> str:
        """See `CommandBackend.python`."""
        return sys.executable

    def start(self, host: Host, settings: Building) -> Sequence[str]:
        """See `CommandBackend.start`."""
        home = settings.home(host.name)
        return ["env", "-C", home, "-u", "XDG_CACHE_HOME", f"HOME={home}", "sh", "-c", COMMAND]


TRANSPORT = Rooms()
