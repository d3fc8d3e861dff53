"""A porter whose agent is in a container: what it keeps is ``docker run``, whose pipes are the agent's.

::

    launcher ═══ ssh ═══ porter ══ pipes ══ docker run ══ engine ══ agent (pid 1) ──> task, task, ...

All that the launcher sends goes to the container as it is, the agent's own code first: the image's Python
need not be the host's. The end of ``docker run``, however it comes, is the end of the container's stdin, and
so the end of all that is in it.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial

from launcher.agent import carrying, porter, sweep
from launcher.agent.ward import Ward, set_up
from launcher.model.container import ENDED
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Mapping, NoReturn, Sequence

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
        super().__init__(host, number)

    def _become(self, host: str, number: int, streams: Sequence[int]) -> NoReturn:
        """In the child. What can't be run at all is told as a shell would."""
        code = 127
        try:
            set_up(streams)
            env = {**os.environ, **self._container["env"]}
            os.execvpe("docker", self._container["run"], env)
        except OSError as error:
            os.write(2, f"docker: {error.strerror}\n".encode())
        finally:
            os._exit(code)

    def kill(self) -> Sequence[int]:
        """See `Ward.kill`; one whose ``docker run`` was killed ends by itself, perhaps not at once."""
        if not os.WIFEXITED(self._status if self._status is not None else 1):
            _removed(self._container)
        return super().kill()

    def last_words(self) -> str:
        """How the container ended, for `launcher.transport.docker.remote`, which knows what that means."""
        status = self._status or 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        return ENDED + json.dumps({"code": code, "said": self.said()})


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
