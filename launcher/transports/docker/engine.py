"""A Docker engine by its ``docker`` command: the engine of this machine, or of a host.

Every command has a time limit: an engine that hangs gives an error that says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.errors import TransportError
from launcher.text import printable
from launcher.transports.docker.container import JOB, KEPT, MACHINE, OWNER, is_dead, label_words

#: Seconds for one answer of an engine, for the removal of things, and for a pull.
ANSWER, REMOVAL, PULL = 30.0, 50.0, 3600.0
#: Seconds between two attempts to remove a network whose containers are just ending.
_AGAIN = 0.1
#: Exit status of `Result` where the command took too long, or is not there; a shell uses the same.
LATE, NOT_FOUND = 124, 127
#: A variable of the launcher's environment. With it, a container that is disconnected from the job's network
#: can be connected with its former address: engines allow this only in networks with a subnet of our choice.
FIXED_ADDRESSES = "TF_LAUNCHER_FIXED_ADDRESSES"
#: The oldest engine with all that is used here: ``--mount``, ``--rm`` by the engine.
_OLDEST = (17, 6)
#: How often a subnet that another network has just taken is asked for again.
_TRIES = 5
_PERMISSION = re.compile(r"permission denied", re.I)
_NOT_RUNNING = re.compile(r"cannot connect to the docker daemon|failed to connect|is the docker daemon", re.I)
_GONE = re.compile(r"no such|not found", re.I)
_BUSY = re.compile(r"active endpoints|removal of container .* is already in progress", re.I)
#: What the kernel's name of a machine is called in images.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "i386": "386"}


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def fault(self) -> str:
        """The command's error message in one line; empty if it succeeded."""
        if self.code == 0:
            return ""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith(("WARNING:", "Run 'docker"))] or ["no message"]
        return re.sub(r"^(docker: |ERROR: )?(Error response from daemon: )?", "", printable(lines[0]))


#: Runs ``docker`` with these arguments, for so many seconds at most.
Run = Callable[[Sequence[str], float], Result]


class Thing(NamedTuple):
    """A container or a network with labels of a launch."""

    kind: str
    id: str
    name: str
    labels: Mapping[str, str]


class Info(NamedTuple):
    """What is known of an engine."""

    #: The machine's name.
    name: str
    architecture: str
    #: The engine runs as its user, who is root in its containers.
    rootless: bool


def run_here(words: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Result:
    """Run ``docker`` on this machine."""
    try:
        done = subprocess.run(
            ["docker", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds,
            start_new_session=True, env=environ,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Result(LATE, "", "")
    except OSError as error:
        return Result(NOT_FOUND, "", f"docker: {error.strerror}; PATH is {os.environ.get('PATH', '')}")
    return Result(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def fault_of(result: Result, seconds: float = ANSWER) -> str:
    """Why the engine or its command can't be used, and what to try; empty if the command succeeded."""
    fault = result.fault
    if not fault:
        return ""
    if result.code == LATE:
        return f"the Docker engine does not respond within {seconds:g} s: is it stuck? (try `docker info`)"
    if result.code == NOT_FOUND and "PATH is" in fault:
        return f"there is no docker command ({fault}): install Docker"
    if _PERMISSION.search(fault):
        return (
            "this user may not use the Docker engine: `sudo usermod -aG docker $USER` and a new login allow "
            f"it (with the rights of root), or use a rootless engine ({fault})"
        )
    if _NOT_RUNNING.search(fault):
        how = "DOCKER_HOST and `docker context use` select one"
        return f"no Docker engine responds: is it running? {how} ({fault})"
    return f"the Docker engine can't be used: {fault}"


def inspect(run: Run) -> Info:
    """See that the engine can be used.

    Raises:
        TransportError: it can't be.
    """
    result = run(["info", "--format", "{{json .}}"], ANSWER)
    found = _last_object(result.out)
    errors = found.get("ServerErrors") or []
    if result.code or errors:
        text = result.err if result.err.strip() else "\n".join(errors)
        raise TransportError(fault_of(result._replace(code=result.code or 1, err=text)))
    if (found.get("OSType") or "linux") != "linux":
        raise TransportError(
            f"the Docker engine runs {found['OSType']} containers; Linux containers are needed"
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", str(found.get("ServerVersion", "")))[:2])
    if numbers and numbers < _OLDEST:
        raise TransportError(
            f"the Docker engine is too old: {found['ServerVersion']}; 17.06 or newer is needed"
        )
    podman = found.get("host") or {}  # its `docker info` has fields of its own
    rootless = "name=rootless" in (found.get("SecurityOptions") or ()) or podman.get("security", {}).get(
        "rootless"
    )
    machine = found.get("Architecture") or podman.get("arch") or ""
    return Info(str(found.get("Name") or podman.get("hostname", "")), str(machine), bool(rootless))


def _last_object(text: str) -> Mapping[str, Any]:
    """The JSON object in what was printed, among warnings; empty if there is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found: Mapping[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return {}


# ---------------------------------------------------------------------- images


def architecture(run: Run, image: str) -> str:
    """The kind of machine an image is for, empty if the engine does not have the image.

    Raises:
        TransportError: the engine does not say.
    """
    result = run(["image", "inspect", "--format", "{{.Architecture}}", "--", image], ANSWER)
    if result.code == 0:
        return (result.out.split() or ["unknown"])[-1]
    if _GONE.search(result.fault):
        return ""
    raise TransportError(f"the image {image} can't be looked for: {fault_of(result)}")


def provide(
    run: Run, image: str, policy: str, tell: Callable[[str], None], where: str, pull: Callable[[str], Result]
) -> str:
    """See that an engine has an image.

    Args:
        run: the engine.
        image: as the user wrote it.
        policy: when to pull it: ``missing``, ``always`` or ``never``.
        tell: gets lines for the user.
        where: follows the name of the image in these: `` on node1``.
        pull: pulls it.

    Returns:
        The kind of machine it is for.

    Raises:
        TransportError: the engine can't have it.
    """
    found = "" if policy == "always" else architecture(run, image)
    if found:
        return found
    if policy == "never":
        raise TransportError(f"there is no image {image} at the engine, and --pull never forbids to fetch it")
    tell(f"pulling the image {image}{where}")
    began = time.monotonic()
    result = pull(image)
    if result.code:
        why = fault_of(result, PULL) if result.code == LATE else result.fault
        raise TransportError(f"the image {image} can't be pulled: {why}")
    tell(f"pulled the image {image}{where} in {time.monotonic() - began:.0f} s")
    return architecture(run, image)


def pull_here(image: str) -> Result:
    """Pull an image to this machine; ``docker pull`` shows its progress on stderr."""
    try:
        done = subprocess.run(
            ["docker", "pull", "--", image], stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE,
            timeout=PULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Result(LATE, "", "")
    return Result(done.returncode, "", done.stderr.decode(errors="replace"))


def mismatch(image: str, its: str, machine: str) -> str:
    """Why an image can't run on a machine of another kind; empty: it can, or this is not known."""
    mine = _ARCHITECTURES.get(machine, machine)
    if its in ("", "unknown", mine) or not mine:
        return ""
    return (
        f"{image} is for {its}, the engine's machine is {mine}: `docker pull --platform linux/{mine} "
        f"{image}` gets the image for this machine, if there is one"
    )


# ---------------------------------------------------------------------- networks


def make_network(run: Run, name: str, marks: Mapping[str, str]) -> str:
    """Create the network of a job.

    Returns:
        Its id.

    Raises:
        TransportError: it can't be created.
    """
    network = _create_network(run, name, marks, ())
    if not os.environ.get(FIXED_ADDRESSES):
        return network
    for _ in range(_TRIES):  # create it again, with the subnet the engine chose, unless another takes it
        form = "{{range .IPAM.Config}}{{.Subnet}} {{end}}"
        subnets = run(["network", "inspect", "--format", form, network], ANSWER).out.split()
        run(["network", "rm", network], ANSWER)
        try:
            return _create_network(run, name, marks, subnets)
        except TransportError:
            network = _create_network(run, name, marks, ())
    return network


def _create_network(run: Run, name: str, marks: Mapping[str, str], subnets: Sequence[str]) -> str:
    words = ["network", "create", "--driver", "bridge", *label_words(marks)]
    result = run([*words, *(f"--subnet={subnet}" for subnet in subnets), name], ANSWER)
    if result.code:
        fault = fault_of(result) if result.code == LATE else result.fault
        raise TransportError(f"the job's network can't be created: {fault}")
    return result.out.strip()


# ---------------------------------------------------------------------- clean-up


def things(run: Run, job: str | None = None, seconds: float = ANSWER) -> list[Thing]:
    """What launches have created at an engine, containers first.

    Args:
        run: the engine.
        job: of this job only.
        seconds: time limit for each answer.

    Raises:
        TransportError: the engine does not say.
    """
    wanted = [OWNER, MACHINE, KEPT]
    fields = "\t".join(["{{.ID}}", "{{.Name%s}}", *(f'{{{{.Label "{label}"}}}}' for label in wanted), "."])
    which = ["--no-trunc", "--filter", f"label={OWNER}", *(["--filter", f"label={JOB}={job}"] if job else [])]
    found: list[Thing] = []
    for kind, words, plural in (("container", ["ps", "-a"], "s"), ("network", ["network", "ls"], "")):
        result = run([*words, *which, "--format", fields % plural], seconds)
        if result.code:
            raise TransportError(f"what launches have left can't be listed: {fault_of(result, seconds)}")
        for line in result.out.splitlines():
            identity, name, *values = line.split("\t")
            if len(values) == len(wanted) + 1:
                said = {label: value for label, value in zip(wanted, values, strict=False) if value}
                found.append(Thing(kind, identity, name, said))
    return found


def dead(run: Run, kept: bool = False) -> list[Thing]:
    """What launches of this user, from this machine, have left that have ended.

    Args:
        run: the engine.
        kept: also what ``--keep`` has left.

    Raises:
        TransportError: the engine does not say.
    """
    return [thing for thing in things(run) if is_dead(thing.labels) and (kept or KEPT not in thing.labels)]


def remove(run: Run, found: Sequence[Thing], seconds: float = REMOVAL) -> list[str]:
    """Remove these, containers first.

    Returns:
        What is still there, and why: a line each.
    """
    until = time.monotonic() + seconds
    left: list[str] = []
    for kind, words in (("container", ["rm", "--force", "--volumes"]), ("network", ["network", "rm"])):
        for thing in (thing for thing in found if thing.kind == kind):
            while True:
                result = run([*words, thing.id], max(1.0, until - time.monotonic()))
                if not _BUSY.search(result.fault) or time.monotonic() > until:
                    break
                time.sleep(_AGAIN)
            if result.code and not _GONE.search(result.fault):
                left.append(
                    f"{kind} {thing.name}: {fault_of(result) if result.code == LATE else result.fault}"
                )
    return left


def sweep(run: Run, tell: Callable[[str], None], where: str = "") -> None:
    """Remove what launches have left that were killed, but for what ``--keep`` left.

    Args:
        run: the engine.
        tell: gets a line for the user.
        where: follows the names of what is removed: `` on node1``.
    """
    found = dead(run)
    if found:
        left = remove(run, found)
        names = ", ".join(f"{thing.name}{where}" for thing in found)
        tell("; ".join(left) if left else f"removed what a killed launch had left: {names}")
