"""One ``launch`` with a function of the program in each of its tasks: started, watched, ended."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.api.bundle import bundle
from launcher.api.ends import End, Ends
from launcher.api.members import Member, raised
from launcher.api.relaying import Relay
from launcher.api.talk import Said, Word
from launcher.api.wanted import Place, command_line, goes_on
from launcher.errors import Fault, InputError, JobFailed, LaunchError, TaskFailed
from launcher.feed import knock
from launcher.feed.door import Door, Guest
from launcher.runs.growing import Events, last_lines, run_of
from launcher.runs.process import LauncherProcess

#: Seconds between two looks at what the launcher writes down.
_LOOK = 0.05
#: Seconds that a task which has ended may take to be heard to the end; and one that says that it failed, to
#: end.
_HEAR, _END = 0.5, 0.7
#: Lines of a failed task that its exception shows.
_LINES = 20
_KEY_SIZE = 32
#: What the tasks find in their environment.
CARRIED = ("LAUNCH_FEED", "LAUNCH_FEED_KEY", "LAUNCH_KNOCK")


class Handlers(NamedTuple):
    """Who is told of what; each is called in a thread of ours, and must be quick."""

    #: A task has opened a feed.
    feed: Callable[[Guest], None]
    #: A task has said something.
    said: Callable[[Member, Said], None]
    #: A task is over.
    ended: Callable[[End], None]
    #: The job has failed.
    failed: Callable[[LaunchError], None]
    #: Something else has come in.
    guest: Callable[[Guest], None] = lambda guest: guest.sock.close()


class Session:
    """Starts a launch; `close` must be called.

    Args:
        roles: by name, what a job file says of a role, with its ``count``.
        place: where they run.
        work: what each task is to run; the facts of one are completed by its number.
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
        modules = bundle()
        self._patient = goes_on(place)
        self._handlers = handlers
        self._lock = threading.Lock()
        self._ends = Ends()
        self._root = None if place.run_dir is None else os.path.abspath(place.run_dir)
        self._asked = False
        self._waking, self._wake = os.pipe()
        #: The first failure, as an exception; ``None``: there was none.
        self.error: LaunchError | None = None
        #: Set when the launcher has ended and all is known.
        self.over = threading.Event()
        self.exit_code: int | None = None
        names = [
            f"{role}/{index}"
            for role, what in roles.items()
            if role not in alien
            for index in range(what["count"])
        ]
        self.members = {name: Member(name, modules, work, self._said) for name in names}
        self._folder = tempfile.mkdtemp(prefix="tf-launcher-")
        self._relay = Relay()
        try:
            self._door = Door(key := secrets.token_bytes(_KEY_SIZE), self._folder, not place.is_here, remark)
            self._door.serve(self._come)
            self._environment = {**os.environ, **place.env}
            words = command_line(roles, self._mounted(place), CARRIED, self._folder)
            self._process = LauncherProcess(
                words, {**self._environment, **self._secrets(key)}, self._relay.out, self._relay.err
            )
        except BaseException:
            self._relay.abandon()
            self._clean()
            raise
        self._relay.start()
        self._watcher = threading.Thread(target=self._watch, name="launch-watch", daemon=True)
        self._watcher.start()

    def _secrets(self, key: bytes) -> dict[str, str]:
        with open(knock.__file__, encoding="utf-8") as file:
            text = file.read()
        return dict(zip(CARRIED, (json.dumps(self._door.addresses), key.hex(), text), strict=True))

    def _mounted(self, place: Place) -> Place:
        """Containers of this machine see the door's folder; other machines have a way through their connection."""
        more = []
        if place.docker is not None:
            more = ["--mount", self._folder]
        elif not place.is_here:
            more = ["--relay", self._door.path]
        return place._replace(options=[*place.options, *more])

    # ------------------------------------------------------------------ what is known of it

    @property
    def run_dir(self) -> str:
        """The folder of the run; empty: it has none yet."""
        if self._root is None:
            self._root = run_of(self._process.pid, self._environment)
        return self._root or ""

    def last_lines(self, task: str, count: int = _LINES) -> list[str]:
        """The last lines that a task has printed."""
        return last_lines(self.run_dir, task, count) if self.run_dir else []

    def check(self) -> None:
        """Raise what the job has failed of, if it has.

        Raises:
            LaunchError: that.
        """
        if self.error is not None:
            raise self.error

    def until_here(self, seconds: float) -> None:
        """Wait until all tasks have come in.

        Raises:
            LaunchError: the job has failed, or it takes longer.
        """
        since = time.monotonic()
        said = False
        while missing := [name for name, member in self.members.items() if not member.here.is_set()]:
            self.check()
            waited = time.monotonic() - since
            if self.over.is_set() or waited > seconds:
                raise JobFailed(
                    f"after {waited:.0f} s there is still nothing of {some(missing)}", self.run_dir
                )
            if waited > knock.SILENCE and not said:
                said = True
                remark(f"waiting for {some(missing)} to come up")
            self.members[missing[0]].here.wait(_LOOK)
        refused = [f"{name}: {member.refused}" for name, member in self.members.items() if member.refused]
        if refused:
            raise JobFailed("\n".join(refused), self.run_dir)

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end; Ctrl-C asks the job to end, orderly, and a second one at once.

        Returns:
            Whether it came within so many seconds.
        """
        try:
            return self.over.wait(seconds)
        except KeyboardInterrupt:
            self.stop()
            try:
                self.over.wait()
            except KeyboardInterrupt:
                self.end()
            raise

    # ------------------------------------------------------------------ its end

    def stop(self) -> None:
        """Ask it to end, orderly."""
        self._asked = True
        self._process.send(signal.SIGINT)

    def end(self) -> None:
        """See to it that it is over, at once."""
        self._asked = True
        with self._lock:
            self._process.end()
        self._nudge()
        self.over.wait(30)

    def close(self) -> None:
        """Nothing is left: neither process, nor thread, nor socket."""
        if not self.over.is_set():
            self.end()
        self._watcher.join()
        self._clean()
        for member in self.members.values():
            member.close()

    def _clean(self) -> None:
        door = getattr(self, "_door", None)
        if door is not None:
            door.close()
        for number in (self._waking, self._wake):
            os.close(number)
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ in threads of ours

    def _come(self, guest: Guest) -> None:
        if guest.purpose == "feed":
            self._handlers.feed(guest)
        elif guest.purpose == "member" and guest.task in self.members:
            self.members[guest.task].come(guest)
        else:
            self._handlers.guest(guest)

    def _said(self, member: Member, said: Said) -> None:
        self._handlers.said(member, said)
        self._nudge()

    def _nudge(self) -> None:
        try:
            os.write(self._wake, b".")
        except OSError:  # all is over
            pass

    def _watch(self) -> None:
        """What the launcher writes down, until it has ended."""
        events: Events | None = None
        while True:
            code = self._ended()  # asked first: what came up to then is looked at once more
            if events is None and self.run_dir:
                events = Events(self.run_dir)
            for event in events.more() if events else ():
                for end in self._ends.take(event):
                    self._task_over(end)
            self._judge()
            if code is not None:
                break
            self._pause()
        self.exit_code = code
        for member in self.members.values():
            member.ended.set()
        self._relay.finish()
        self._patient = False
        self._judge()
        if code and self.error is None and not self._asked:
            self._fail(self._why(code))
        self.over.set()

    def _ended(self) -> int | None:
        with self._lock:
            return self._process.exit_code

    def _pause(self) -> None:
        poll = select.poll()
        poll.register(self._waking, select.POLLIN)
        if poll.poll(_LOOK * 1000):
            os.read(self._waking, 4096)

    def _task_over(self, end: End) -> None:
        member = self.members.get(end.task)
        if member is not None and member.here.is_set():
            member.silent.wait(_HEAR)  # what it said last may still be on its way
        if member is not None:
            member.ended.set()
        self._judge()  # first, so that who waits for this task is told why it is gone
        self._handlers.ended(end)

    def _judge(self) -> None:
        """Whether the job has failed, as far as is known."""
        if self.error is not None or self._asked or self._patient:
            return
        if self._ends.first is not None:
            self._fail(self._failure(self._ends.first))
        elif self._ends.trouble:
            self._fail(JobFailed(self._ends.trouble, self.run_dir))
        else:
            self._judge_words()

    def _judge_words(self) -> None:
        """A task that says it has failed, and does not end: something keeps its process."""
        for member in self.members.values():
            if member.outcome is not None and member.outcome.word is Word.RAISED:
                if member.failed_at is None:
                    member.failed_at = time.monotonic()
                elif time.monotonic() > member.failed_at + _END:
                    self._fail(self._failure(End(member.name, failed=True)))
                    return

    def _fail(self, error: LaunchError) -> None:
        self.error = error
        self._handlers.failed(error)

    def _failure(self, end: End) -> TaskFailed:
        """The exception for the end of a task, with what it has said itself."""
        member = self.members.get(end.task)
        outcome = member.outcome if member is not None else None
        where = f" on {end.host}" if end.host not in ("", "localhost") else ""
        text, shown, cause = f"{end.task}{where} {end.text}", "", None
        if outcome is not None and outcome.word is Word.RAISED:
            exited = outcome.facts["what"].startswith("SystemExit")
            text = text if exited else f"{end.task}{where} raised {outcome.facts['what']}"
            shown = str(outcome.facts["traceback"])
            cause = raised(outcome)
        lines = [] if shown and not shown.startswith("SystemExit") and cause else self.last_lines(end.task)
        error = TaskFailed(text, end.task, end.host, end.code, end.signal, shown, lines, self.run_dir)
        error.__cause__ = cause
        return error

    def _why(self, code: int) -> LaunchError:
        """What the launcher itself says of its end."""
        said = [line.removeprefix("launch: ") for line in self._relay.said.splitlines() if line.strip()]
        text = "\n".join(said[-_LINES:]) or f"launch ended with {code}"
        if code == InputError.exit_code:
            return InputError([Fault("", text)])
        return JobFailed(text, self.run_dir, code)


def some(names: Sequence[str]) -> str:
    """The first few of some names, for a message."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def remark(text: str) -> None:
    """Tell the user, as ``launch`` does."""
    stream = sys.stderr
    if stream is not None:
        print(f"launch: {text}", file=stream, flush=True)
