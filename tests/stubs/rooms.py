"""A backend whose hosts are known when the launch runs: ``launch --rooms 2 train.py``.

A room is a folder of this machine that is the home there, with a loopback address that no room had before.
The agent is the main process of the command that enters it. The file of the variable ``LEDGER`` says which
rooms were made and given back.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from launcher.backends.backend import Allocation, Backend, LaunchRequest, Purpose, with_default_python
from launcher.backends.bootstrap import COMMAND
from launcher.backends.command_backend import CommandAllocation
from launcher.common.errors import Fault, TransportError
from launcher.common.record import Record
from launcher.config.settings import EVERYWHERE, FileSection, Group, Setting, Settings, switch
from launcher.config.values import whole
from launcher.job import Host, JobSpec
from launcher.messages import say

ROOMS: Setting[int | None] = Setting(
    "rooms", whole(1, 100), "run in rooms", metavar="N", default=None, given_in=EVERYWHERE
)
SHARED = Setting("shared", switch, "rooms have the files of this machine", default=False)


class RoomOptions(Record):
    """How many rooms, and whether they have the files of this machine."""

    rooms: int
    shared: bool = False


class Rooms(Backend[RoomOptions]):
    """See above."""

    name = "rooms"
    provides_hosts = True

    group = Group("rooms", (ROOMS, SHARED))
    section = FileSection(
        "rooms",
        "The number of rooms.",
        head=ROOMS,
        rows=(ROOMS,),
        expected="expected a number",
        short="rooms",
    )

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> RoomOptions | None:
        """See `Backend.parse`."""
        count = settings[ROOMS]
        return RoomOptions(count, settings[SHARED]) if count else None

    def check(
        self, options: RoomOptions | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault]:
        """See `Backend.check`."""
        if options is not None and request.hosts_named:
            yield Fault("--rooms", "the hosts are named, too")

    def allocate(self, options: RoomOptions, request: LaunchRequest) -> Allocation:
        """See `Backend.allocate`."""
        return RoomAllocation(options, request)


class RoomAllocation(CommandAllocation):
    """The rooms of a launch."""

    replaces_hosts = True
    agent_entry = "launcher.agent.main:serve"

    def __init__(self, options: RoomOptions, request: LaunchRequest) -> None:
        hosts = [Host(f"room{number}", slots=1) for number in range(1, options.rooms + 1)]
        super().__init__(request, with_default_python(request, hosts))
        self.remarks = ("the rooms are made when the job starts",)
        if options.shared:
            self.sharing_files = frozenset(host.name for host in hosts)
        self.addresses: dict[str, str] = {}
        self._numbers = itertools.count(11)
        self._folder = ""
        self._stack = ExitStack()

    def __enter__(self) -> RoomAllocation:
        if self.request.purpose is Purpose.DRY_RUN:
            return self
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.callback(self._give_back)
            for host in self.hosts:
                self.replace_host(host.name)
            say("the rooms are made")
            if os.environ.get("LANDLORD") == "is slow":
                time.sleep(60)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """See `Allocation.close`."""
        self._stack.close()

    def _give_back(self) -> None:
        self.request.ignore_signals()
        for name in self.addresses:
            self._write(f"given back {name}")

    def replace_host(self, host_name: str) -> None:
        """Make a room; nothing runs in it now."""
        if os.environ.get("LANDLORD") == "refuses":
            raise TransportError("the landlord has no room")
        os.makedirs(self._home(host_name), exist_ok=True)
        self.addresses[host_name] = f"127.0.0.{next(self._numbers)}"
        self._write(f"made {host_name} {self.addresses[host_name]}")

    def _write(self, line: str) -> None:
        with open(os.environ["LEDGER"], "a", encoding="utf-8") as ledger:
            ledger.write(line + "\n")

    def _home(self, host_name: str) -> str:
        return os.path.join(self._folder, host_name)

    def address(self, host: Host) -> str:
        """See `Allocation.address`."""
        return self.addresses[host.name]

    def python(self, host: Host) -> str:
        """See `CommandAllocation.python`."""
        return sys.executable

    def start_command(self, host: Host) -> Sequence[str]:
        """See `CommandAllocation.start_command`."""
        home = self._home(host.name)
        return ["env", "-C", home, "-u", "XDG_CACHE_HOME", f"HOME={home}", "sh", "-c", COMMAND]


BACKEND = Rooms()
