"""A Docker engine, reached by the ``docker`` command of this machine or of a host.

`launcher.backends.docker.fleet` and ``launch clean`` use it. Every command has a time limit, and an engine
that hangs leads to an error that says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from launcher.agent.remote_programs import NOT_FOUND_STATUS, TIMED_OUT_STATUS
from launcher.backends.cleaning import is_dead
from launcher.backends.connections import ProgramRunner
from launcher.backends.docker.container import JOB_LABEL, KEPT_LABEL, OWNER_LABEL, label_options
from launcher.backends.programs import Pipe, RemoteProgram, SubprocessPipe
from launcher.common.errors import TransportError
from launcher.common.record import Record, replace
from launcher.common.text import sanitize_host_text, why_not_started
from launcher.event_loop import await_readable
from launcher.job import Host
from launcher.messages import say

#: The function that runs a command line on a host with a time limit.
_EXECUTE_ENTRY = "launcher.agent.remote_programs:execute"
#: The function that becomes a command on a host, which gets the streams of the remote program.
_BECOME_ENTRY = "launcher.agent.remote_programs:become"
#: The time for one answer of an engine.
ANSWER_TIMEOUT_SECONDS = 30.0
#: The time for the removal of containers and networks.
REMOVAL_TIMEOUT_SECONDS = 50.0
PULL_TIMEOUT_SECONDS = 3600.0
#: The pause between two attempts to remove a network whose containers are just ending.
_REMOVAL_PAUSE_SECONDS = 0.1
#: The time for a host to report that a command took too long.
_REPORT_TIMEOUT_SECONDS = 10.0
_MAX_OUTPUT_BYTES = 4 << 20
#: A variable of the launcher's environment. With it, a container that was disconnected from the job's network
#: can be connected again with its former address. Engines allow this only in networks whose subnet the user
#: chose.
FIXED_ADDRESSES_VARIABLE = "TF_LAUNCHER_FIXED_ADDRESSES"
#: What messages of the engine and of its command mean, by a pattern. The first match counts.
_MEANINGS = {
    r"; (?-i:PATH) is ": "the `docker` command is missing ({message}): install Docker",
    r"permission denied while trying to connect": (
        "this user may not use the Docker engine: `sudo usermod -aG docker $USER` and a new login allow it "
        "(with the rights of root), or use a rootless engine ({message})"
    ),
    r"cannot connect to the docker daemon|failed to connect|is the docker daemon": (
        "no Docker engine responds: is it running? DOCKER_HOST and `docker context use` select one "
        "({message})"
    ),
    r"bind source path does not exist: *(?P<path>.*?)\.?$": (
        "the engine's machine has no {path} to mount (--no-mount leaves out the working folder)"
    ),
    r"could not select device driver": (
        "the engine cannot give GPUs to containers: install the NVIDIA Container Toolkit there"
    ),
    r"exec format error": (
        "the image {image} is not for this kind of machine ({message}): `docker image inspect` shows its "
        "Architecture, `docker pull --platform` gets another"
    ),
    r"executable file .*not found|exec: .*no such file": (
        "the image {image} has no {python}: it must have a Python of 3.8 or later; --python says where it is"
    ),
}
_GONE_MESSAGE = re.compile(r"no such|not found", re.I)
_BUSY_MESSAGE = re.compile(r"active endpoints|removal of container .* is already in progress", re.I)


class Result(Record):
    """The exit code and the output of a command."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def fault(self) -> str:
        """The reason of a failure on one line. Empty if the command succeeded."""
        if self.code == 0:
            return ""
        lines = (line.strip() for line in (self.err or self.out).splitlines())
        messages = [line for line in lines if line and not line.startswith(("WARNING:", "Run 'docker"))]
        first = sanitize_host_text(messages[0]) if messages else "no message"
        return re.sub(r"^(docker: |ERROR: )?(Error response from daemon: )?", "", first)


def _timed_out(seconds: float) -> Result:
    """Return the result of a command that was killed because it took longer than ``seconds``."""
    text = f"the Docker engine does not respond within {seconds:g}s: is it stuck? (try `docker info`)"
    return Result(TIMED_OUT_STATUS, err=text)


class EngineObject(Record):
    """A container or a network at an engine, with labels of a launch."""

    #: ``container`` or ``network``.
    kind: str
    id: str
    name: str
    labels: Mapping[str, str]


class Engine:
    """The engine that the ``docker`` command uses, on this machine or on a host.

    Args:
        host: The host, whose ``DOCKER_`` variables select its engine. None for this machine.
        programs: What runs programs on the host.
        environ: The environment of ``docker`` on this machine. None for that of this process.
    """

    def __init__(
        self,
        host: Host | None = None,
        programs: ProgramRunner | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Store how the engine is reached. Nothing is asked yet."""
        self._host, self._programs, self._environ = host, programs, environ
        #: The commands that run on this machine now.
        self._running: set[subprocess.Popen[str]] = set()
        #: Whether these commands, and all later ones, are killed (see `abandon`).
        self._is_abandoned = False
        #: What follows the names of containers and networks in lines for the user, as ``on node1``.
        self.place = f" on {host.name}" if host else ""

    def docker(self, *arguments: str, seconds: float = ANSWER_TIMEOUT_SECONDS) -> Result:
        """Run ``docker`` with these arguments where the engine is, and return how it ended. This blocks.

        Raises:
            TransportError: The host cannot be reached.
        """
        return self._run(["docker", *arguments], seconds)

    def start(self, programs: ProgramRunner | None, arguments: Sequence[str]) -> Pipe:
        """Start ``docker`` with a pipe to its streams.

        Such a command connects to one container, and its caller chooses what runs it. All other commands of
        this object use the ``programs`` of the object.

        Args:
            programs: What runs programs on the host. None if ``docker`` runs on this machine.
            arguments: The arguments of ``docker``.

        Raises:
            TransportError: There is no connection to the host, or the command cannot be started.
        """
        argv = ["docker", *arguments]
        if programs is None:
            return SubprocessPipe("this machine", argv, self._environ)
        return self._start_entry(programs, _BECOME_ENTRY, argv)

    def _start_entry(
        self, programs: ProgramRunner, entry: str, argv: Sequence[str], **more: object
    ) -> RemoteProgram:
        """Start a command on the host, with the variables of the host that select its engine.

        Args:
            programs: What runs programs on the host.
            entry: The function of ours that runs the command there.
            argv: The command line.
            **more: Further arguments of that function.
        """
        assert self._host is not None
        env = {name: value for name, value in self._host.env if name.startswith("DOCKER_")}
        return programs.run(self._host.name, entry, {"argv": argv, "env": env, **more})

    def _run(self, argv: Sequence[str], seconds: float) -> Result:
        """Run a command where the engine is, and return how it ended.

        Raises:
            TransportError: The host cannot be reached.
        """
        if self._programs is None:
            return self._run_here(argv, seconds)
        # The host kills the command after `seconds`, and reports that. If it does not, this gives up later.
        deadline, output = time.monotonic() + seconds + _REPORT_TIMEOUT_SECONDS, b""
        with closing(self._start_entry(self._programs, _EXECUTE_ENTRY, argv, seconds=seconds)) as command:
            while (data := command.recv(1 << 16)) != b"":  # None if there is nothing yet.
                output += data or b""
                seconds_left = deadline - time.monotonic()
                if seconds_left < 0 or len(output) > _MAX_OUTPUT_BYTES:
                    return _timed_out(seconds)
                if data is None:
                    await_readable(command, seconds_left)
            if error := command.start_error():
                raise error
            code = command.wait(max(0.0, deadline - time.monotonic()))
            if code is None or code == TIMED_OUT_STATUS:
                return _timed_out(seconds)
            return Result(code, output.decode(errors="replace"), command.stderr())

    def _run_here(self, argv: Sequence[str], seconds: float, stdout: int = subprocess.PIPE) -> Result:
        """Run a command on this machine, and return how it ended.

        Args:
            argv: The command line.
            seconds: The time limit. After it the command is killed.
            stdout: Where the output goes, as for `subprocess.Popen`. If it is not a pipe, the user sees it,
                and Ctrl-C reaches the command.
        """
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                start_new_session=stdout == subprocess.PIPE, env=self._environ, encoding="utf-8",
                errors="replace",
            )  # fmt: skip
        except BlockingIOError as error:  # The system starts no more processes.
            return Result(1, err=f"docker cannot be started: {why_not_started(error)}")
        except OSError as error:
            path = os.environ.get("PATH", "")
            return Result(NOT_FOUND_STATUS, err=f"docker: {error.strerror}; PATH is {path}")
        with process:
            self._running.add(process)
            try:
                if self._is_abandoned:  # `abandon` may have missed this process.
                    process.kill()
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return _timed_out(seconds)
            finally:
                self._running.discard(process)
                # The output is not read to its end, because children may live on if ``docker`` is a script.
                process.kill()
        return Result(process.returncode, out or "", err)

    def abandon(self) -> None:
        """Kill the commands that other threads run on this machine now, and all later ones.

        The end of a launch calls this, so that it need not wait for them.
        """
        self._is_abandoned = True
        for process in list(self._running):
            process.kill()

    def is_installed(self) -> bool:
        """Return whether the ``docker`` command exists. Without it, launch has left nothing at the engine."""
        return self.docker("--version").code != NOT_FOUND_STATUS

    def is_rootless(self) -> bool:
        """Return whether the engine runs as an ordinary user of its machine, and not as root.

        The root of its containers is then this ordinary user outside of them. This also checks the engine,
        which answers only if it can be used.

        Raises:
            TransportError: The engine cannot be used.
        """
        result = self.docker("info", "--format", "{{json .}}")
        try:
            info = json.loads(result.out)
        except (ValueError, RecursionError):
            info = None
        info = info if isinstance(info, dict) else {}  # Any other answer counts as empty.
        # Without an engine, some versions of docker succeed, and put the error into the JSON.
        server_errors = info.get("ServerErrors") or []
        if result.code or server_errors:
            text = result.err if result.err.strip() else "\n".join(map(str, server_errors))
            fault = replace(result, code=result.code or 1, err=text).fault
            explanation = explain(fault)
            if explanation == fault:  # `explain` does not know the message.
                explanation = f"the Docker engine cannot be used: {fault}"
            raise TransportError(explanation)
        return "name=rootless" in (info.get("SecurityOptions") or ())

    def login(self) -> tuple[str, str]:
        """Ask the host for the ``UID:GID`` and the home of its login user, and return both.

        Raises:
            TransportError: The host does not answer.
        """
        result = self._run(["sh", "-c", 'echo "$(id -u):$(id -g)"; echo "$HOME"'], ANSWER_TIMEOUT_SECONDS)
        lines = result.out.splitlines()
        if result.code or len(lines) != 2:
            fault = result.fault or f"it answered {sanitize_host_text(result.out)!r}"
            raise TransportError(f"the host cannot be asked for its login user: {fault}")
        return lines[0], lines[1]

    # ------------------------------------------------------------------ images and networks

    def ensure_image(self, image: str, policy: str) -> None:
        """Make sure that the engine has an image, and pull it if needed.

        Args:
            image: The image, as the user wrote it.
            policy: When to pull it: ``missing``, ``always`` or ``never``.

        Raises:
            TransportError: The engine cannot get the image.
        """
        if policy != "always" and self.docker("image", "inspect", "--", image).code == 0:
            return
        if policy == "never":
            raise TransportError(f"the engine has no image {image}, and --pull never is set")
        say(f"pulling the image {image}{self.place}")
        if self._programs is None:  # The user sees the progress on stderr.
            result = self._run_here(["docker", "pull", "--", image], PULL_TIMEOUT_SECONDS, stdout=2)
        else:
            result = self.docker("pull", "--quiet", "--", image, seconds=PULL_TIMEOUT_SECONDS)
        if result.code:
            raise TransportError(f"the image {image} cannot be pulled: {result.fault}")

    def make_network(self, name: str, label_values: Mapping[str, str]) -> str:
        """Create the network of a job, and return its id.

        Args:
            name: The name of the network.
            label_values: Its labels and their values, by which launch finds it later.

        Raises:
            TransportError: The network cannot be created.
        """
        create = ["network", "create", "--driver", "bridge", *label_options(label_values)]
        result = self.docker(*create, name)
        if result.code == 0 and os.environ.get(FIXED_ADDRESSES_VARIABLE):
            # Containers can have fixed addresses only in a network whose subnet was named. So the network is
            # created again, with the subnet that the engine chose the first time.
            options = "{{range .IPAM.Config}}--subnet={{.Subnet}} {{end}}"
            subnet_options = self.docker("network", "inspect", "--format", options, name).out.split()
            self.docker("network", "rm", name)
            result = self.docker(*create, *subnet_options, name)
        if result.code:
            raise TransportError(f"the job's network cannot be created: {result.fault}")
        return result.out.strip()

    # ------------------------------------------------------------------ clean-up

    def objects(self, run_name: str = "", seconds: float = ANSWER_TIMEOUT_SECONDS) -> list[EngineObject]:
        """Return the containers and networks of launches at the engine, containers first.

        Args:
            run_name: The run to which the objects must belong. Empty for all runs.
            seconds: The time limit of each answer.

        Raises:
            TransportError: The engine does not list them.
        """
        labels = [OWNER_LABEL, KEPT_LABEL, JOB_LABEL]
        options = ["--no-trunc", "--filter", f"label={OWNER_LABEL}"]
        options += ["--filter", f"label={JOB_LABEL}={run_name}"] if run_name else []
        label_fields = [f'{{{{.Label "{label}"}}}}' for label in labels]
        found: list[EngineObject] = []
        containers = ("container", ["ps", "-a"], "{{.Names}}")
        networks = ("network", ["network", "ls"], "{{.Name}}")
        for kind, listing, name_field in (containers, networks):
            # The dot at the end of each line keeps an empty last label a field.
            line_format = "\t".join(["{{.ID}}", name_field, *label_fields, "."])
            result = self.docker(*listing, *options, "--format", line_format, seconds=seconds)
            if result.code:
                raise TransportError(f"leftovers of launches cannot be listed: {explain(result.fault)}")
            for fields in (line.split("\t") for line in result.out.splitlines()):
                # Other lines come from labels of other programs that contain a tab or a newline.
                if len(fields) == len(labels) + 3:
                    id, name, *values, _ = fields  # The last field is the dot.
                    present = {label: value for label, value in zip(labels, values, strict=True) if value}
                    found.append(EngineObject(kind, id=id, name=sanitize_host_text(name), labels=present))
        return found

    def remove(
        self, objects: Sequence[EngineObject], seconds: float = REMOVAL_TIMEOUT_SECONDS
    ) -> dict[str, str]:
        """Remove these objects, containers first. This blocks for about ``seconds`` at most.

        Returns:
            A line with the reason for each object that is still there, by its id.
        """
        deadline = time.monotonic() + seconds
        remaining = {}
        for item in sorted(objects, key=lambda item: item.kind):
            removal = ["rm", "--force", "--volumes"] if item.kind == "container" else ["network", "rm"]
            while True:
                result = self.docker(*removal, item.id, seconds=max(1.0, deadline - time.monotonic()))
                # A network is busy while its containers are just ending.
                if not _BUSY_MESSAGE.search(result.fault) or time.monotonic() > deadline:
                    break
                time.sleep(_REMOVAL_PAUSE_SECONDS)
            if result.code and not self._is_gone(item, max(1.0, deadline - time.monotonic())):
                remaining[item.id] = f"{item.kind} {item.name}: {result.fault}"
        return remaining

    def _is_gone(self, item: EngineObject, seconds: float) -> bool:
        """Return whether an object could not be removed because another process has removed it.

        The engine's answer to the removal itself depends on how far the other process was, so this asks
        again.
        """
        result = self.docker(item.kind, "inspect", "--format", "{{.Name}}", item.id, seconds=seconds)
        return result.code != 0 and _GONE_MESSAGE.search(result.fault) is not None

    def remove_leftovers(self) -> None:
        """Remove what killed launches have left, except what ``--keep`` left, and tell the user about it.

        Raises:
            TransportError: The engine does not list them.
        """
        objects = [item for item in self.objects() if KEPT_LABEL not in item.labels]
        leftovers = [item for item in objects if is_dead(item.labels.get(OWNER_LABEL, ""))]
        if leftovers:
            remaining = self.remove(leftovers)
            names = ", ".join(f"{item.name}{self.place}" for item in leftovers)
            removed = f"removed what a killed launch had left: {names}"
            say("; ".join(remaining.values()) if remaining else removed)


def explain(message: str, image: str = "", python: str = "") -> str:
    """Return what a message of the engine or its command means, with a remedy, or else the message itself.

    Args:
        message: The message, one line.
        image: The image of the container that was to start.
        python: The Python that was to run in the container.
    """
    for pattern, meaning in _MEANINGS.items():
        if match := re.search(pattern, message, re.I):
            return meaning.format(message=message, image=image, python=python, **match.groupdict())
    return message
