"""An errand: looks after this host's Docker engine for a launch, by the ``docker`` command that is here.

The command, not the engine's socket: it knows where the engine is (contexts, rootless engines), and how its
user logs in to registries. Requests come one after the other (see `launcher.agent.answering`):

=============  =============================================================================================
request        answer
=============  =============================================================================================
``look``       ``info``: as ``docker info`` has it; or ``fault``: what the command said instead.
               ``user``: ours, ``UID:GID``. ``found``: containers that carry the label ``owner``: id, name,
               and the values of ``labels``
``image``      ``architecture`` of ``image``; empty: it is not here. Or ``fault``
``pull``       ``fault``: why ``image`` could not be pulled; empty: it was
``remove``     ``fault``: why not all of the containers ``ids`` could be removed; empty: they were
``folders``    ``there``: of ``paths``, those that exist here, and what they are called with ``~`` filled in
=============  =============================================================================================
"""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent.answering import serve
from launcher.agent.probe_work import Commands

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

    from launcher.agent.probe_work import Said

    Answer = Dict[str, Any]
    Request = Mapping[str, Any]

#: Seconds for one answer of the engine, for its removal of containers, and for a pull.
_ANSWER, _REMOVAL, _PULL = 30.0, 50.0, 3600.0
#: Seconds between two questions whether the engine is there at all, during a pull.
_PULSE = 20.0
#: Between the fields of a line, and the last one: what is empty at the ends of a text gets lost.
_TAB, _END = "\t", "."
_HANGS = (
    "its Docker engine does not answer: is it stopped, or stuck? `docker info` there waits, too, while it is"
)


def main(arguments: Mapping[str, Any]) -> int:
    """Answer requests until stdin ends.

    Args:
        arguments: ``env``: variables that say where the engine is.
    """
    commands = Commands()
    yard = _Yard(commands, {**os.environ, **arguments["env"]})
    steps = {
        "look": yard.look, "image": yard.image, "pull": yard.pull, "remove": yard.remove,
        "folders": _folders,
    }  # fmt: skip
    return serve(steps, commands, 0, 1)


class _Yard:
    """The engine, by its command."""

    def __init__(self, commands: Commands, env: Dict[str, str]) -> None:
        self._run = partial(_docker, commands, env)

    def look(self, request: Request) -> Answer:
        said = self._run(["info", "--format", "{{json .}}"])
        info = _object(said)
        fault = "" if info.get("ServerVersion") else "; ".join(info.get("ServerErrors") or [_fault(said)])
        mine = {"user": f"{os.getuid()}:{os.getgid()}"}
        if fault:
            return {**mine, **_no_use(fault, said)}
        kept = ("ServerVersion", "OSType", "Architecture", "SecurityOptions")
        return {**mine, "info": {name: info.get(name) for name in kept}, **self._found(request)}

    def _found(self, request: Request) -> Answer:
        """What is left there; that nobody knows is not that there is nothing."""
        values = (f'{{{{.Label "{label}"}}}}' for label in request["labels"])
        fields = ["{{.ID}}", "{{.Names}}", *values, _END]
        owner = f"label={request['owner']}"
        said = self._run(["ps", "-a", "--no-trunc", "--filter", owner, "--format", _TAB.join(fields)])
        if said.state != "ok":
            return _no_use(_fault(said), said)
        lines = [line.split(_TAB) for line in said.text.splitlines()]
        return {"found": [line[:-1] for line in lines if len(line) == len(fields) and line[-1] == _END]}

    def image(self, request: Request) -> Answer:
        said = self._run(["image", "inspect", "--format", "{{.Architecture}}", "--", request["image"]])
        if said.state == "ok":
            return {"architecture": (said.text.splitlines() or [""])[-1]}
        missing = "no such image" in said.text.lower()
        return {"architecture": ""} if missing else {"fault": _fault(said)}

    def pull(self, request: Request) -> Answer:
        said: List[Said] = []
        argv = ["pull", "--quiet", "--", request["image"]]
        pulling = threading.Thread(target=lambda: said.append(self._run(argv, _PULL)), daemon=True)
        pulling.start()
        while not said:
            pulling.join(_PULSE)
            if not said and self._run(["version"]).state == "slow":
                return {"fault": _HANGS}
        return {"fault": "" if said[0].state == "ok" else _fault(said[0])}

    def remove(self, request: Request) -> Answer:
        said = self._run(["rm", "--force", "--volumes", "--", *request["ids"]], _REMOVAL)
        gone = said.state == "ok" or "no such container" in said.text.lower()
        return {"fault": "" if gone else _fault(said)}


def _docker(commands: Commands, env: Dict[str, str], words: List[str], seconds: float = 0.0) -> Said:
    return commands.run(["docker", *words], seconds or _ANSWER, env)


def _object(said: Said) -> Dict[str, Any]:
    """The object in what was printed, among warnings; empty if there is none."""
    for line in said.text.splitlines():
        if line.startswith("{"):
            try:
                found: Dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return {}


def _fault(said: Said) -> str:
    if said.state == "slow":
        return _HANGS
    return said.text[-4000:] or "the docker command there failed, and did not say why"


def _no_use(fault: str, said: Said) -> Answer:
    """The engine will not do."""
    return {"fault": fault, "state": said.state, "path": os.environ.get("PATH", "")}


def _folders(request: Request) -> Answer:
    there = {path: os.path.expanduser(path) for path in request["paths"]}
    return {"there": {path: found for path, found in there.items() if os.path.exists(found)}}
