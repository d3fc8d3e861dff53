"""Steps of a job at Slurm: a look at its nodes, and the agent of each as the main process of an srun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from launcher.agent.node import fingerprint
from launcher.checking import WARNING, Finding
from launcher.errors import HostGone, HostsError, TransportError
from launcher.events import Facts
from launcher.job import Host, JobSpec, ProgramKind
from launcher.record import Record
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.text import counted, duration, listed
from launcher.transports import bootstrap
from launcher.transports.base import Connected
from launcher.transports.command import CommandPipe
from launcher.transports.link import START
from launcher.transports.slurm.allocation import Job, ask, environment, said
from launcher.transports.transport import Inventory, Launch

_SERVE, _SURVEY = "launcher.agent.node:serve", "launcher.agent.node:survey"
#: Seconds for the look at all nodes; for all steps to end at the end, by themselves and after SIGTERM.
_LOOK, _END, _LAST = 60.0, 5.0, 2.0
#: Seconds from the signal to the steps of a job that is cancelled until its state says so, and between looks.
_CANCELLING, _PAUSE = 1.0, 0.1
#: A step takes a share of no resource: it runs beside others, on all CPUs and GPUs of the job on its node.
#: Its folder is the user's home, as over SSH.
_SRUN = (
    "srun", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--quiet",
    "--chdir=/", "--job-name=launch",
)  # fmt: skip
_COMMAND = ("/bin/sh", "-c", "cd; unset OLDPWD; " + bootstrap.COMMAND)
#: What srun says on clusters that bind no process to CPUs.
_NO_BINDING = "cluster configuration lacks support for cpu binding"


def srun(job: str, nodes: Sequence[str]) -> list[str]:
    """The beginning of a command that runs a program once on each of these nodes of a job."""
    names = ",".join(nodes)
    return [
        *_SRUN,
        f"--jobid={job}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={names}",
    ]


class Node(Record):
    """What a node of the job has."""

    name: str
    #: The Python that answered.
    python: str
    cpus: int
    #: Ids of the GPUs that a step sees; ``None``: Slurm does not say.
    gpus: tuple[str, ...] | None
    #: Whether the working folder and the programs are those of this machine.
    same: bool
    address: str | None = None


class Nodes(Record):
    """A job and its nodes: the settings of the connections."""

    job: Job
    nodes: tuple[Node, ...]
    #: The variables that describe the job.
    variables: Mapping[str, str]

    def hosts(self, count: int, moves: bool) -> tuple[Host, ...]:
        """The nodes as hosts.

        The tasks of the job are spread evenly. A node takes as many as were asked of Slurm for it, else as
        many as it has CPUs for the job.

        Args:
            count: the number of tasks; 0: not known.
            moves: whether the tasks of a lost node may move to others, whose places are taken then.
        """
        asked = self.job.tasks(len(self.nodes))
        least, even = max(1, count // len(self.nodes)), -(-count // len(self.nodes))
        hosts = []
        for number, node in enumerate(self.nodes):
            most = asked[number] if asked else max(node.cpus, even)
            slots = min(least, most) if count else most
            most = max(most, count if moves else 0)
            hosts.append(Host(node.name, address=node.address, slots=slots, max_slots=most, gpus=node.gpus))
        return tuple(hosts)


def look(job: Job, files: Mapping[str, Any]) -> Nodes:
    """Look at all nodes of a job by one step.

    Args:
        job: at Slurm.
        files: see `launcher.agent.node.survey`.

    Raises:
        TransportError: Slurm does not answer, or a node does not.
    """
    names = job.nodes()
    addresses = dict(
        line.split(None, 1)
        for line in ask(
            "sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %o"
        ).splitlines()
    )
    found: dict[str, Node] = {}
    why = ""
    for python in dict.fromkeys((sys.executable, DEFAULT_PYTHON)):
        left = [name for name in names if name not in found]
        if not left:
            break
        answers, why = _survey(job, left, python, files)
        for answer in answers:
            name = str(answer.get("node"))
            address = addresses.get(name, name).strip()
            found[name] = Node(
                name,
                python,
                _number(answer.get("cpus")),
                _ids(answer.get("gpus")),
                answer.get("same") is True,
                None if address == name else address,
            )
    silent = [name for name in names if name not in found]
    if silent:
        raise HostsError([f"{listed(silent)}: {job.why_over() or why}"])
    return Nodes(job, tuple(found[name] for name in names), job.variables(names))


def _number(told: object) -> int:
    """A number of CPUs; 1: Slurm does not say."""
    return int(told) if isinstance(told, str) and re.fullmatch("[1-9][0-9]{0,5}", told) else 1


def _ids(told: object) -> tuple[str, ...] | None:
    """The ids in ``CUDA_VISIBLE_DEVICES``; ``None``: Slurm does not set it."""
    if not isinstance(told, str):
        return None
    return tuple(id for id in told.split(",") if re.fullmatch(r"\d+|(?:GPU|MIG)-[\w/-]+", id))


def _survey(
    job: Job, nodes: Sequence[str], python: str, files: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], str]:
    """The answers of nodes that have a Python; and why others have not answered."""
    program = bootstrap.startup(python, _SURVEY, {"files": files})
    argv = [*srun(job.id, nodes), *_COMMAND]
    try:
        done = subprocess.run(argv, input=program, capture_output=True, env=environment(), timeout=_LOOK)
    except FileNotFoundError:
        raise TransportError("Slurm is not installed here: there is no srun along PATH") from None
    except subprocess.TimeoutExpired:
        return [], f"Slurm has started no step there in {_LOOK:g}s"
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    missing = f"<tf-launcher program: {bootstrap.MISSING}>" in lines
    why = f"there is no {python} there" if missing else said(without_noise(done.stderr)) or "no answer"
    answers = [_answer(line) for line in lines if line.startswith("{")]
    return [answer for answer in answers if answer.get("node") in nodes], why


def _answer(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def without_noise(stderr: bytes) -> bytes:
    """What srun has printed, without a line that is no error."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if _NO_BINDING.encode() not in line)


def present(job: Job) -> Inventory:
    """The nodes of a job, for commands without a launch.

    Raises:
        TransportError: see `look`.
    """
    folder, fields = os.getcwd(), job.fields()
    found = look(job, {folder: fingerprint(folder)})
    left = job.seconds_left()
    limit = "no time limit" if left is None else f"{duration(left)} left"
    nodes = counted(len(found.nodes), "node")
    remarks = (f"Slurm's job {job.id}: partition {fields.get('Partition', '?')}, {nodes}, {limit}",)
    same = frozenset(node.name for node in found.nodes if node.same)
    return Inventory(found.hosts(0, False), JobSpec(()), found, same_files=same, remarks=remarks)


def findings(found: Nodes, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """See `Transport.findings`."""
    for node in found.nodes:
        if not node.same:
            seen = f"it does not have the files of {os.getcwd()} here"
            yield Finding(WARNING, "files", (node.name,), seen, "`--sync .` copies them")
        if node.name in facts and facts[node.name].cpus < node.cpus:
            seen = f"tasks may use {facts[node.name].cpus} of the {node.cpus} CPUs that the job has there"
            yield Finding(WARNING, "cpus", (node.name,), seen, "ask Slurm for whole nodes: --exclusive")


def inventory(launch: Launch, job: Job) -> Inventory:
    """The nodes of a job as the hosts of a launch.

    Raises:
        TransportError: see `look`.
    """
    folder = os.path.expanduser(launch.job.workdir or ".")
    programs = (role.program for role in launch.job.roles if role.program.kind is ProgramKind.SCRIPT)
    paths = [folder, *(os.path.join(folder, os.path.expanduser(program.name)) for program in programs)]
    files = {path: told for path in paths if (told := fingerprint(path)) is not None}
    found = look(job, files)
    count = sum(role.count for role in launch.job.roles if not role.sidecar)
    made = found.hosts(count, bool(launch.job.policy.restarts))
    pythons = {node.name: node.python for node in found.nodes}
    hosts = tuple(
        host
        if launch.python_given or pythons[host.name] == sys.executable
        else host._replace(python=pythons[host.name])
        for host in made
    )
    same = frozenset(node.name for node in found.nodes if node.same)
    files_there = "" if len(same) == len(made) else f"; {_others(found)} not the files of this machine"
    text = f"Slurm's job {job.id}: {counted(len(made), 'node')}, tasks spread evenly{files_there}"
    if launch.settings.implied:
        text += " (--no-slurm: only this machine)"
    launch.notice(text)
    return Inventory(hosts, launch.job, found, same_files=same)


def _others(found: Nodes) -> str:
    names = [node.name for node in found.nodes if not node.same]
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'}"


# ---------------------------------------------------------------------- agents


class Step(CommandPipe):
    """A program of ours in a step.

    Args:
        host: the node.
        found: the job.
        python: on the node.
        entry, arguments: see `launcher.transports.bootstrap.startup`.
    """

    def __init__(self, host: str, found: Nodes, python: str, entry: str, arguments: object) -> None:
        self._job, self._is_agent = found.job, entry == _SERVE
        argv = [*srun(found.job.id, [host]), "--unbuffered", *_COMMAND]
        startup = bootstrap.startup(python, entry, arguments)
        super().__init__(host, argv, startup, python, environment())

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`."""
        return without_noise(super().stderr().encode()).decode()

    def why_ended(self) -> TransportError | None:
        """See `RemoteCommand.why_ended`. When its step has ended, the agent has."""
        why = super().why_ended()
        status = self._process.returncode if why else self.status()
        if why is None and (not self._is_agent or status is None or status < 0):
            return None  # srun was killed: perhaps the step lives
        over = self._job.why_over()
        if over or why is None:
            return HostGone(f"{self._host}: {over or self._why_gone()}")
        return why

    def _why_gone(self) -> str:
        """Why the step has ended, as Slurm tells it: a node failed, or somebody has cancelled it."""
        lines = [line for line in self.stderr().splitlines() if ": task 0: " not in line]
        return said("\n".join(lines).encode()) or "the agent was killed"

    def status(self) -> int | None:
        """How srun has ended; negative: by a signal."""
        self.wait(_END)
        return self._process.returncode

    def why_refused(self, why: str) -> str:
        """See `RemoteCommand.why_refused`."""
        if "SIGTERM" not in why:
            return self._job.why_over() or why
        until = time.monotonic() + _CANCELLING
        while not (over := self._job.why_over()) and time.monotonic() < until:
            time.sleep(_PAUSE)
        return over or f"{why} (scancel of its step does that)"

    def close(self) -> None:
        """See `RemoteCommand.close`. The srun of an agent stays: if it is killed, Slurm kills the agent."""
        if self._is_agent:
            self._socket.close()
        else:
            super().close()

    def end(self, until: float, number: signal.Signals) -> None:
        """Wait for the end of srun until a time (monotonic); then signal it, and Slurm ends the step."""
        self.wait(max(0.0, until - time.monotonic()))
        if self._process.returncode is None:
            self._process.send_signal(number)

    def release(self) -> None:
        """Close all, after `end`."""
        super().close()


class _Steps:
    """A step for each program on a node; see `launcher.transports.base.Connections`."""

    def __init__(self, found: Nodes) -> None:
        self._found = found
        self._pythons = {node.name: node.python for node in found.nodes}
        #: Those of agents.
        self.agents: list[Step] = []
        bootstrap.packed(bootstrap.AGENT_MODULES)  # once for all nodes

    def run(self, host: str, entry: str, arguments: object) -> Step:
        """See `Commands.run`."""
        if entry == START:
            assert isinstance(arguments, Mapping)
            entry, arguments = _SERVE, {**arguments, "variables": self._found.variables}
        step = Step(host, self._found, self._pythons[host], entry, arguments)
        if entry == _SERVE:
            self.agents.append(step)
        return step

    def reconnect(self, host: str) -> None:
        """See `Connections.reconnect`: the next step makes a new connection."""
        if over := self._found.job.why_over(fresh=False):
            raise HostGone(f"{host}: {over}")


@contextmanager
def steps(found: Nodes) -> Iterator[Connected]:
    """Connections to nodes; at the end no step of theirs is left."""
    made = _Steps(found)
    try:
        yield Connected(made)
    finally:
        for number, seconds in ((signal.SIGTERM, _END), (signal.SIGKILL, _LAST)):
            until = time.monotonic() + seconds
            for step in made.agents:
                step.end(until, number)
        for step in made.agents:
            step.release()
