"""A porter whose agent is in a container: what it keeps is ``docker run``, whose pipes are the agent's.

::

    launcher ═══ ssh ═══ porter ══ pipes ══ docker run ══ engine ══ agent (pid 1) ──> task, task, ...
                            └── watcher ─────────┘

All that the launcher sends goes to the container as it is, the agent's own code first: the image's Python
need not be the host's. The end of ``docker run``, however it comes, is the end of the container's stdin, and
so the end of all that is in it.

Between the two stands a process, the watcher, that looks at two things. Whether the porter is stopped
(`launcher.agent.lease`): the agent's guardian, in its container, can't see that. And whether the engine
answers (`launcher.agent.pulse`): where it does not, all in the container is ended without it
(`launcher.agent.inside`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent import carrying, inside, porter
from launcher.agent.__main__ import close_inherited
from launcher.agent.pulse import Pulse, Silence
from launcher.agent.ward import Ward, set_up
from launcher.model.container import ENDED, ENDED_THERE, REMARK, SAID, UNSEEN, framed
from launcher.processes import kernel, sweep

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping, NoReturn, Optional, Sequence

    from launcher.agent.lease import Lease

#: Exit status where there is no ``docker``.
_NOT_FOUND = 127
#: Exit status of ``docker run`` where it lost its engine; also where it started nothing.
_LOST = 125
#: Characters of what it said that are passed on: as JSON, of up to 12 bytes each, they must fit in one frame
#: of the stream.
_MOST_SAID = 5000
#: Seconds for a container to be removed by force.
_REMOVAL = 10.0
#: Seconds for an engine that does not answer: before it has started the container, and when that is to end.
_STARTING, _ENDING = 30.0, 5.0
#: Seconds until somebody looks for its processes: a launch that begins has other things to do.
_LOOK_LATER = 2.0


def main(arguments: Mapping[str, Any]) -> int:
    """See `launcher.agent.porter.main`.

    Args:
        arguments: as there, and ``container``: see `ContainerWard`; ``job`` as in `launcher.agent.carrying`.
    """
    ward = partial(ContainerWard, arguments["container"], float(arguments["lease"]))
    return porter.main(arguments, carrying.abandoned(arguments), ward)


def kill(arguments: Mapping[str, Any]) -> int:
    """An errand: as `launcher.processes.sweep.kill`; the container too, whether or not its engine answers."""
    code = sweep.kill(arguments)
    container = arguments["container"]
    ended = inside.end([int(container["mark"])], farewell=0.0) == ENDED_THERE
    return code if ended or _removed(container) else 1


class ContainerWard(Ward):
    """Starts it.

    Args:
        container: ``run``: the words that start it; ``name``; ``env``: where the engine is; ``mark``: the
            number that its processes carry.
        patience: seconds that its tasks outlive an engine that does not answer.
        host, number: see `Ward`.
    """

    def __init__(self, container: Mapping[str, Any], patience: float, host: str, number: int) -> None:
        self._container = container
        self._mark = int(container["mark"])
        self._patience = patience
        self._spoke = False
        self._silence = Silence()
        #: Since when the engine does not answer, as the launcher was told; 0: it answers.
        self._told = 0.0
        #: For how many seconds it had not answered when all was ended.
        self._silent = 0.0
        #: Whether the container's processes are to be seen on this host, and when to look for that.
        self._was_seen = False
        self._look_at: Optional[float] = time.monotonic() + _LOOK_LATER
        #: What became of the container's processes; see `launcher.model.container`.
        self._inside = ""
        super().__init__(host, number)

    def _become(self, host: str, number: int, streams: Sequence[int]) -> NoReturn:
        """In the child: the watcher, which starts the container and ends as it does."""
        try:
            set_up(streams)
            close_inherited()
            kernel.show_as(f"tf-watcher {host}")
            pulse = Pulse(_environment(self._container), self._silence, time.monotonic())
            _end_like(_watched(self._start, self.lease, pulse))
        finally:  # it does not return: something went wrong
            try:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)

    def _start(self) -> int:
        """The pid of ``docker run``. What can't be run at all is told as a shell would."""
        pid = os.fork()
        if pid:
            return pid
        try:
            os.execvpe("docker", self._container["run"], _environment(self._container))
        except OSError as error:
            os.write(2, f"docker: {error.strerror}\n".encode())
        finally:
            os._exit(_NOT_FOUND)

    def read_facts(self, size: int) -> Optional[bytes]:
        """See `Ward.read_facts`; what speaks is in the container: it is ours, not another of its name."""
        data = super().read_facts(size)
        self._spoke = self._spoke or bool(data)
        return framed(SAID, data) if data else data

    def remark(self, now: float) -> bytes:
        """See `Ward.remark`: the engine does not answer, or does again."""
        if self._spoke and self._look_at is not None and now >= self._look_at:
            self._was_seen, self._look_at = inside.is_seen(self._mark), None
        since, before = self._silence.since(), self._told
        if bool(since) == bool(before):
            return b""
        self._told = since
        text = self._how_silent() if since else f"its Docker engine answers again after {now - before:.0f} s"
        return framed(REMARK, f"{text}\n".encode())

    def _how_silent(self) -> str:
        what = "its tasks go on, unseen" if self._spoke else "it has not started the container yet"
        return f"its Docker engine does not answer; {what}; waiting for {self._limit():.0f} s"

    def _limit(self) -> float:
        return self._patience if self._spoke else min(self._patience, _STARTING)

    def is_deaf(self, now: float, ending: bool) -> bool:
        """See `Ward.is_deaf`: what is to be heard of the container goes through its engine."""
        since = self._silence.since()
        return bool(since) and now >= since + (_ENDING if ending else self._limit())

    def kill(self) -> Sequence[int]:
        """See `Ward.kill`; one whose ``docker run`` did not see its end may go on, or end a little later."""
        if self._may_go_on():
            now, since = time.monotonic(), self._silence.since()
            self.lease.hold(now + _REMOVAL + inside.FAREWELL + inside.KILLING)
            self._silent = now - since if since else 0.0
            if since or not _removed(self._container):
                self._inside = self._end_inside()
        return super().kill()

    def _may_go_on(self) -> bool:
        """``docker run`` was killed, or lost its engine."""
        status = 1 if self._status is None else self._status
        return not os.WIFEXITED(status) or (self._spoke and os.WEXITSTATUS(status) == _LOST)

    def _end_inside(self) -> str:
        """What runs in the container, without its engine; what is not seen any more is over."""
        found = inside.end([self._mark])
        return ENDED_THERE if found == UNSEEN and self._was_seen else found

    def last_words(self, forced: bool = False) -> str:
        """How the container ended, for `launcher.transport.docker.remote`, which knows what that means."""
        status = self._status or 0
        words = {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "said": self.said()[-_MOST_SAID:],
            "forced": forced,
            "silent": self._silent,
            "inside": self._inside,
        }
        return ENDED + json.dumps(words)


def _watched(start: Callable[[], int], lease: Lease, pulse: Pulse) -> int:
    """Start it, wait for its end, look at the lease and the engine now and then; its status."""
    waking, woken = os.pipe()
    for fd in (waking, woken):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    child = start()
    look_at: Optional[float] = 0.0
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        now = time.monotonic()
        if look_at is not None and now >= look_at:
            look_at = lease.look(now)
        dues = [due for due in (look_at, pulse.step(now)) if due is not None]
        if select.select([waking], [], [], max(0.0, min(dues) - now))[0]:
            os.read(waking, 4096)


def _nothing(*_: object) -> None:
    """A signal handler: the wake-up pipe does the work."""


def _end_like(status: int) -> NoReturn:
    """End as a child of ours did."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def _environment(container: Mapping[str, Any]) -> Dict[str, str]:
    """Of the ``docker`` command."""
    return {**os.environ, **container["env"]}


def _removed(container: Mapping[str, Any]) -> bool:
    """Remove it by force; whether it is gone."""
    argv = ["docker", "rm", "--force", "--volumes", container["name"]]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_REMOVAL, env=_environment(container), cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 or b"no such container" in done.stdout.lower()
