"""The Docker engines of other machines: asked all together before a launch, each by an errand on its host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.cli.dockerowner import is_dead
from launcher.cli.probing import Probes
from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transport.base import Errand, Errands
from launcher.transport.docker.faults import mismatch
from launcher.transport.docker.settings import KEPT, MACHINE, OWNER

if TYPE_CHECKING:
    from typing import Any

#: What is run on a host.
ENTRY = "launcher.agent.dockyard:main"
#: Seconds for an engine's answer, and for a pull: a little longer than the hosts themselves wait.
_ANSWER, _PULL = 60.0, 3660.0
#: The oldest engine with all that we ask for: mounts, a container that is removed when it ends.
_OLDEST = (17, 6)
#: What the command says, and what that means to its user.
_NOT_ALLOWED = re.compile(r"permission denied", re.IGNORECASE)
_NOT_RUNNING = re.compile(r"cannot connect to the docker daemon|failed to connect|is the docker daemon", re.I)


class Left(NamedTuple):
    """A container that a launch has left on a host."""

    host: str
    id: str
    name: str
    labels: Mapping[str, str]


class Seen(NamedTuple):
    """What is known of the engine of a host."""

    #: As the kernel, or Docker, calls it: ``x86_64``, ``amd64``.
    architecture: str
    #: It runs as its user, who is root in its containers.
    rootless: bool
    #: Who we are there: ``UID:GID``.
    user: str


class Dockyards:
    """The engines of the hosts of a launch. A context: the errands end with it.

    Args:
        hosts: theirs; ``DOCKER_HOST`` and the like in a host's ``env`` say where its engine is.
        errands: runs programs there.
        tell: gets a line for the user now and then.

    Raises:
        HostsError: there is no way to some of them.
    """

    def __init__(self, hosts: Sequence[Host], errands: Errands, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._hosts = [host.name for host in hosts]
        begun: dict[str, Errand] = {}
        try:
            for host in hosts:
                begun[host.name] = errands.errand(host.name, ENTRY, {"env": engine_variables(host)})
        except TransportError:
            for errand in begun.values():
                errand.close()
            raise
        self._probes = Probes(begun, tell)
        self.seen: dict[str, Seen] = {}
        self._left: list[Left] = []

    def __enter__(self) -> Dockyards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the errands: nothing more will be asked."""
        self._probes.__exit__()

    # ------------------------------------------------------------------ questions

    def look(self) -> None:
        """See that there is an engine on each that will do.

        Raises:
            HostsError: on some there is none; it says why of each.
        """
        labels = [OWNER, MACHINE, KEPT]
        question = {"do": "look", "owner": OWNER, "labels": labels}
        answers = self._ask(self._hosts, question, _ANSWER, "their Docker engines")
        self._check({host: _engine_fault(said) for host, said in answers.items()})
        for host, said in answers.items():
            info = said["info"]
            rootless = "name=rootless" in (info["SecurityOptions"] or ())
            self.seen[host] = Seen(str(info["Architecture"] or ""), rootless, said["user"])
            for number, name, *values in said["found"]:
                self._left.append(Left(host, number, name, dict(zip(labels, values, strict=True))))

    def dead(self) -> list[Left]:
        """Containers of launches of this user, from this machine, that are over beyond doubt."""
        return [left for left in self._left if is_dead(left.labels)]

    def remove(self, dead: Sequence[Left]) -> list[str]:
        """Remove these; why some could not be, a line for each host."""
        by_host: dict[str, list[str]] = {}
        for left in dead:
            by_host.setdefault(left.host, []).append(left.id)
        questions = {host: {"do": "remove", "ids": ids} for host, ids in by_host.items()}
        answers = self._probes.ask(questions, _ANSWER, "what is left there to be removed")
        told = [f"{host}: {answers[host].said['fault']}" for host in answers if answers[host].said["fault"]]
        return [*told, *(f"{host}: {why}" for host, why in self._probes.failed.items())]

    def sweep(self) -> None:
        """Remove what killed launches left, but not what ``--keep`` did; say so."""
        dead = [left for left in self.dead() if not left.labels[KEPT]]
        if not dead:
            return
        told = self.remove(dead)
        names = ", ".join(f"{left.name} on {left.host}" for left in dead)
        self._tell("\n".join(told) if told else f"removed what a killed launch had left: {names}")

    def provide(self, image: str, policy: str) -> dict[str, str]:
        """See that the image is on each.

        Args:
            image: as the user wrote it.
            policy: ``missing``, ``always`` or ``never``: when to pull it.

        Returns:
            A remark on image and machine for each host, for when it does not start; empty: they fit.

        Raises:
            HostsError: some can't have it.
        """
        lacking = self._hosts if policy == "always" else self._lacking(image)
        if lacking and policy == "never":
            text = f"there is no image {image} there, and --pull never forbids to fetch it"
            raise HostsError(f"{host}: {text}" for host in lacking)
        if lacking:
            self._pull(lacking, image)
        found = self._architectures(image)
        self._check({host: "" if its else f"it has no image {image}" for host, its in found.items()})
        return {host: _remark(image, its, self.seen[host]) for host, its in found.items()}

    def _lacking(self, image: str) -> list[str]:
        return [host for host, its in self._architectures(image).items() if not its]

    def _architectures(self, image: str) -> dict[str, str]:
        answers = self._ask(self._hosts, {"do": "image", "image": image}, _ANSWER, f"the image {image}")
        self._check({host: said.get("fault", "") for host, said in answers.items()})
        return {host: str(said["architecture"]) for host, said in answers.items()}

    def _pull(self, hosts: Sequence[str], image: str) -> None:
        self._tell(f"pulling the image {image} on {listed(hosts)}")
        answers = self._ask(hosts, {"do": "pull", "image": image}, _PULL, f"the image {image} to be pulled")
        faults = {host: said["fault"] for host, said in answers.items() if said["fault"]}
        self._check({host: f"the image {image} can't be pulled: {_bare(it)}" for host, it in faults.items()})

    def folders(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
        """Of the folders that each host is asked for: those that exist there, and their full names."""
        questions = {host: {"do": "folders", "paths": list(paths)} for host, paths in wanted.items()}
        answers = self._probes.ask(questions, _ANSWER, "the folders to be mounted")
        self._check(self._probes.failed)
        return {host: dict(answer.said["there"]) for host, answer in answers.items()}

    def _ask(
        self, hosts: Sequence[str], question: Mapping[str, Any], seconds: float, what: str
    ) -> dict[str, Mapping[str, Any]]:
        answers = self._probes.ask(dict.fromkeys(hosts, question), seconds, what)
        self._check(self._probes.failed)
        return {host: answer.said for host, answer in answers.items()}

    def _check(self, faults: Mapping[str, str]) -> None:
        """All bad news at once.

        Raises:
            HostsError: there is some.
        """
        told = [f"{host}: {faults[host]}" for host in self._hosts if faults.get(host)]
        if told:
            raise HostsError(told)


def engine_variables(host: Host) -> dict[str, str]:
    """What the hostfile says of where the engine of a host is."""
    return {name: value for name, value in host.env if name.startswith("DOCKER_")}


def _engine_fault(said: Mapping[str, Any]) -> str:
    """Why an engine will not do; empty: it will."""
    if "fault" in said:
        return _unreachable(said)
    info = said["info"]
    if info["OSType"] not in (None, "linux"):
        return f"its Docker engine runs {info['OSType']} containers, not Linux"
    numbers = tuple(int(number) for number in re.findall(r"\d+", str(info["ServerVersion"]))[:2])
    if numbers and numbers < _OLDEST:
        return f"its Docker engine is too old: {info['ServerVersion']}; 17.06 or newer is needed"
    return ""


def _unreachable(said: Mapping[str, Any]) -> str:
    text = _bare(str(said["fault"]))
    if said["state"] == "missing":
        return f"there is no docker command there (looked for in {said['path']}): is Docker installed?"
    if said["state"] == "slow":
        return text
    if _NOT_ALLOWED.search(text):
        return (
            "you may not use the Docker engine there: `sudo usermod -aG docker $USER` and a new login would "
            f"allow it (it gives the rights of root), or use a rootless engine ({text})"
        )
    if _NOT_RUNNING.search(text):
        return (
            f"no Docker engine answers there: is it running? env: of the host may have DOCKER_HOST ({text})"
        )
    return f"its Docker engine can't be used: {text}"


def _bare(text: str) -> str:
    """The last line that says something, without what all of them begin with."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "it did not say why"
    return re.sub(r"^(ERROR: )?(Error response from daemon: )?", "", last)


def _remark(image: str, architecture: str, seen: Seen) -> str:
    return mismatch({"Architecture": architecture, "RepoTags": [image]}, seen.architecture)
