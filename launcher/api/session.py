"""One ``launch`` with a function of the program in each of its tasks: started, waited for, ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.api import uncaught
from launcher.api.bundle import arrival, bundle
from launcher.api.ends import End
from launcher.api.launcheroutput import LauncherOutput
from launcher.api.members import Member
from launcher.api.remarks import remark
from launcher.api.talk import Said
from launcher.api.wanted import Place, command_line, goes_on
from launcher.api.watch import Told, Watch
from launcher.errors import JobFailed, LaunchError
from launcher.feed.listener import LONGEST_FOLDER, Listener, Peer
from launcher.feed.waiting import FIRST, Waiting
from launcher.runs.process import LauncherProcess
from launcher.text import listed

#: Seconds between two looks at who has come in.
_LOOK = 0.05
#: Seconds in which all must be known of a launcher that was killed.
_KNOWN = 30.0
#: Seconds from SIGTERM to harder signals, if nobody has said how many; and in which all must be fetched from
#: other machines.
_GRACE, _FETCHING = 10.0, 300.0
_KEY_SIZE = 32
#: What the tasks find in their environment.
CARRIED = ("LAUNCH_FEED", "LAUNCH_FEED_KEY", "LAUNCH_KNOCK")


class Handlers(NamedTuple):
    """Who is told of what; each is called in a thread of ours, and must be quick."""

    #: A task has opened a feed.
    feed: Callable[[Peer], None]
    #: A task has said something; in a thread of its own, which may take its time.
    said: Callable[[Member, Said], None]
    #: A task is over.
    ended: Callable[[End], None]
    #: The job has failed.
    failed: Callable[[LaunchError], None]
    #: Something else has come in.
    guest: Callable[[Peer], None] = lambda guest: guest.sock.close()


class Session:
    """Starts a launch; `close` must be called.

    Args:
        roles: by name, what a job file says of a role, with its ``count``.
        place: where they run.
        work: what each task is to run.
        handlers: who is told of what.
        alien: names of roles that run something of their own.

    Raises:
        InputError: the launch can't be asked for.
        LaunchError: it can't be started.
    """

    def __init__(
        self,
        roles: Mapping[str, Mapping[str, Any]],
        place: Place,
        work: Said,
        handlers: Handlers,
        alien: Sequence[str] = (),
    ) -> None:
        self._handlers = handlers
        self._quiet = place.quiet
        self._ending = (_GRACE if place.grace is None else place.grace) + _FETCHING
        patient, modules, tasks = goes_on(place), bundle(), _tasks(roles, alien)
        self.members = {name: Member(name, modules, work, self._said) for name in tasks}
        self._folder = _private_folder()
        self._door: Listener | None = None
        self._output = output = LauncherOutput(place.quiet)
        try:
            key = secrets.token_bytes(_KEY_SIZE)
            self._door = Listener(key, self._folder, not place.is_here, remark)
            environ = {**os.environ, **place.env}
            words = command_line(roles, self._reachable(place, self._door), CARRIED, self._folder)
            secret = _environment(self._door, key)
            process = LauncherProcess(words, {**environ, **secret}, output.out, output.err, self._folder)
        except BaseException as error:
            output.abandon()
            self._clean()
            if isinstance(error, OSError):
                raise LaunchError(f"the job can't be started: {error}") from error
            raise
        output.start()
        run_dir = None if place.run_dir is None else os.path.abspath(place.run_dir)
        told = Told(handlers.ended, handlers.failed)
        self._watch = Watch(process, output, self.members, told, patient, environ, run_dir)
        self._door.serve(self._come)

    def _reachable(self, place: Place, door: Listener) -> Place:
        """Containers of this machine see the door's folder; other machines have a way by their connection.

        Containers there have it too, with their hosts' network (which is the default there); else they come
        over the network, or not at all.
        """
        more: list[str] = []
        if place.hosts is not None or place.docker is None:
            more = [] if place.is_here else ["--relay", door.path]
        elif os.environ.get("DOCKER_HOST", "unix:").startswith("unix:"):
            more = ["--mount", self._folder]
        return place._replace(options=[*place.options, *more])

    # ------------------------------------------------------------------ what is known of it

    @property
    def run_dir(self) -> str:
        """The folder of the run; empty: it has none yet."""
        return self._watch.run_dir

    @property
    def over(self) -> bool:
        """Whether the launcher has ended, and all is known."""
        return self._watch.over.is_set()

    @property
    def error(self) -> LaunchError | None:
        """The first failure; ``None``: there was none."""
        return self._watch.error

    def last_lines(self, task: str) -> list[str]:
        """The last lines that a task has printed."""
        return self._watch.last_lines(task)

    def say(self, text: str) -> None:
        """Who is waited for, or what there is: a job that is to be quiet does not say it."""
        if not self._quiet:
            remark(text)

    def check(self) -> None:
        """Raise what the job has failed of, if it has.

        Raises:
            LaunchError: that.
        """
        if self._watch.error is not None:
            raise self._watch.error

    def raising(self, error: BaseException | None) -> None:
        """The program gets this; if it lets it end it, what was shown above need not be shown again."""
        uncaught.expect(error, self._output.shown)

    # ------------------------------------------------------------------ waiting

    def until_here(self, seconds: float) -> None:
        """Wait until all tasks have come in.

        Raises:
            LaunchError: the job has failed, or it takes longer.
        """
        waiting = Waiting()
        while missing := self._missing():
            self.check()
            names = listed([one.name for one in missing])
            if (waited := waiting.seconds) > seconds:
                raise JobFailed(f"after {waited:.0f} s there is still nothing of {names}", self.run_dir)
            if begun := waiting.due():
                self.say(f"{begun} {names} to come up (at most {seconds:g} s: reservation_timeout=)")
            missing[0].here.wait(_LOOK)
        self.check()
        refused = [f"{one.name}: {one.refused}" for one in self.members.values() if one.refused]
        if refused:
            raise JobFailed("\n".join(refused), self.run_dir)

    def _missing(self) -> list[Member]:
        """Those that have neither come in nor ended."""
        return [one for one in self.members.values() if not (one.here.is_set() or one.ended.is_set())]

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end; Ctrl-C asks the job to end, orderly, and a second one at once.

        Returns:
            Whether it came within so many seconds.
        """
        try:
            return self._watch.over.wait(seconds)
        except KeyboardInterrupt:
            self._watch.send(signal.SIGINT)
            try:
                self._watch.over.wait()
            except KeyboardInterrupt:
                self.end()
            raise

    # ------------------------------------------------------------------ its end

    def end(self) -> None:
        """See to it that it is over, at once."""
        self._watch.end()
        self._watch.over.wait(_KNOWN)

    def close(self, at_once: bool = False) -> None:
        """Nothing is left: neither process, nor thread, nor socket.

        Args:
            at_once: tasks that still run are killed, and what they have left on other machines is not
                fetched.
        """
        try:
            if not (self.over or at_once):
                self._until_ended()
        finally:
            if not self.over:
                self.end()
            self._watch.close()
            self._clean()
            for member in self.members.values():
                member.close()
            self.raising(self.error)

    def _until_ended(self) -> None:
        """Let the launcher end the job in its own way; with the grace that it gives to tasks, and what they
        have left on other machines."""
        if not self._watch.ends_itself:
            self._watch.send(signal.SIGTERM)
        if not self._watch.over.wait(FIRST):
            more = "Ctrl-C ends it at once"
            self.say(
                f"waiting for the job to end, and for what it has left (at most {self._ending:g} s; {more})"
            )
            self._watch.over.wait(self._ending)

    def _clean(self) -> None:
        if self._door is not None:
            self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ in threads of ours

    def _come(self, guest: Peer) -> None:
        if guest.purpose == "feed":
            self._handlers.feed(guest)
        elif guest.purpose == "member" and guest.task in self.members:
            self.members[guest.task].come(guest)
        else:
            self._handlers.guest(guest)

    def _said(self, member: Member, said: Said) -> None:
        self._watch.look()
        self._handlers.said(member, said)


def _tasks(roles: Mapping[str, Mapping[str, Any]], alien: Sequence[str]) -> list[str]:
    """The names of all tasks that run the function."""
    ours = {name: role["count"] for name, role in roles.items() if name not in alien}
    return [f"{name}/{index}" for name, count in ours.items() for index in range(count)]


def _private_folder() -> str:
    """A folder for a socket: the path of one has to be short."""
    folder = tempfile.mkdtemp(prefix="tf-launcher-")
    if len(os.fsencode(folder)) <= LONGEST_FOLDER:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="tf-launcher-", dir="/tmp")


def _environment(door: Listener, key: bytes) -> dict[str, str]:
    """What the tasks find in their environment: where the door is, the key, and how to knock."""
    return dict(zip(CARRIED, (json.dumps(door.addresses), key.hex(), arrival()), strict=True))
