"""A porter whose agent is in a container: what it keeps is ``docker run``, whose pipes are the agent's.

::

    launcher ═══ ssh ═══ porter ══ pipes ══ docker run ══ engine ══ agent (pid 1) ──> task, task, ...
                            └── watcher ─────────┘

All that the launcher sends goes to the container as it is, the agent's own code first: the image's Python
need not be the host's. The end of ``docker run``, however it comes, is the end of the container's stdin, and
so the end of all that is in it. Between the two stands a process that only looks whether the porter is
stopped (`launcher.agent.lease`): the agent's guardian, in its container, can't see that.
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

from launcher.agent import carrying, kernel, porter, sweep
from launcher.agent.__main__ import close_inherited
from launcher.agent.ward import Ward, set_up
from launcher.model.container import ENDED
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

    from launcher.agent.lease import Lease

#: Exit status where there is no ``docker``.
_NOT_FOUND = 127
#: Exit status of ``docker run`` where it lost its engine; also where it started nothing.
_LOST = 125
#: Characters of what it said that are passed on: as JSON they must fit in one frame of the stream.
_MOST_SAID = 8000
#: Seconds for a container to be removed by force.
_REMOVAL = 10.0


def main(arguments: Mapping[str, Any]) -> int:
    """See `launcher.agent.porter.main`.

    Args:
        arguments: as there, and ``container``: see `ContainerWard`; ``job`` as in `launcher.agent.carrying`.
    """
    ward = partial(ContainerWard, arguments["container"])
    return porter.main(arguments, carrying.abandoned(arguments), ward)


def kill(arguments: Mapping[str, Any]) -> int:
    """An errand: as `launcher.agent.sweep.kill`, and the container too."""
    code = sweep.kill(arguments)
    return code if _removed(arguments["container"]) else 1


class ContainerWard(Ward):
    """Starts it.

    Args:
        container: ``run``: the words that start it; ``name``; ``env``: where the engine is.
        host, number: see `Ward`.
    """

    def __init__(self, container: Mapping[str, Any], host: str, number: int) -> None:
        self._container = container
        self._spoke = False
        super().__init__(host, number)

    def _become(self, host: str, number: int, streams: Sequence[int]) -> NoReturn:
        """In the child: the watcher, which starts the container and ends as it does."""
        try:
            set_up(streams)
            close_inherited()
            kernel.show_as(f"tf-watcher {host}")
            _end_like(_watched(self._start, self.lease))
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
            os.execvpe("docker", self._container["run"], {**os.environ, **self._container["env"]})
        except OSError as error:
            os.write(2, f"docker: {error.strerror}\n".encode())
        finally:
            os._exit(_NOT_FOUND)

    def read_facts(self, size: int) -> Optional[bytes]:
        """See `Ward.read_facts`; what speaks is in the container: it is ours, not another of its name."""
        data = super().read_facts(size)
        self._spoke = self._spoke or bool(data)
        return data

    def kill(self) -> Sequence[int]:
        """See `Ward.kill`; one whose ``docker run`` did not see its end may go on, or end a little later."""
        if self._may_go_on():
            _removed(self._container)
        return super().kill()

    def _may_go_on(self) -> bool:
        """``docker run`` was killed, or lost its engine."""
        status = 1 if self._status is None else self._status
        return not os.WIFEXITED(status) or (self._spoke and os.WEXITSTATUS(status) == _LOST)

    def last_words(self) -> str:
        """How the container ended, for `launcher.transport.docker.remote`, which knows what that means."""
        status = self._status or 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        return ENDED + json.dumps({"code": code, "said": self.said()[-_MOST_SAID:]})


def _watched(start: Callable[[], int], lease: Lease) -> int:
    """Start it, wait for its end, look at the lease now and then; its status."""
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
        seconds = None if look_at is None else max(0.0, look_at - now)
        if select.select([waking], [], [], seconds)[0]:
            os.read(waking, 4096)


def _nothing(*_: object) -> None:
    """A signal handler: the wake-up pipe does the work."""


def _end_like(status: int) -> NoReturn:
    """End as a child of ours did."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def _removed(container: Mapping[str, Any]) -> bool:
    """Remove it by force; whether it is gone."""
    argv = ["docker", "rm", "--force", "--volumes", container["name"]]
    env = {**os.environ, **container["env"]}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_REMOVAL, env=env, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 or b"no such container" in done.stdout.lower()
