"""Steps of a job at Slurm: each of our programs on a node is the main process of a step that an srun starts.

The first step on a node inspects the node, before the tasks are placed. Then it waits to become the agent of
the node.

Slurm would kill a daemon with the step that started it, so the agent is the main process of its step. If the
srun of the agent is killed, a second step connects to the agent. To make that possible, launch kills that
child of srun which would cancel the step then, and cancels steps itself, by their names.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.agent.processes import children_of, read_process, send
from launcher.backends import bootstrap
from launcher.backends.connections import CONNECT_ENTRY, AgentArguments, Connections
from launcher.backends.json_client import JsonClient, read
from launcher.backends.programs import RemoteProgram, SubprocessPipe
from launcher.backends.slurm.job import SlurmJob, ask, environment, printed_errors
from launcher.common.errors import AllocationEndedError, ConnectionLostError, HostGoneError, TransportError
from launcher.common.protocol import swap
from launcher.common.record import Record
from launcher.scheduler.plan import DEFAULT_PYTHON

#: The function that inspects a node, and then becomes its agent.
_SERVE_ENTRY = "launcher.agent.slurm_node:serve"
#: The time for the inspection of a node.
_INSPECT_TIMEOUT_SECONDS = 60.0
#: The time for the first step of a node to answer. After it a second step inspects the node.
_FIRST_STEP_SECONDS = 10.0
#: The time for all steps to exit by themselves at the end of a launch.
_END_TIMEOUT_SECONDS = 5.0
#: The time for steps to exit after SIGTERM.
_LAST_WAIT_SECONDS = 2.0
#: The time for an srun to exit after its program has closed its stdout.
_EXIT_TIMEOUT_SECONDS = 0.5
#: The time for cancelled steps to end.
_CANCEL_TIMEOUT_SECONDS = 2.0
#: When a job is cancelled, its steps get a signal. Its state may say so only this much later.
_CANCEL_STATE_SECONDS = 1.0
_POLL_SECONDS = 0.1
#: The reason of an agent that ended and said no other one.
_KILLED_REASON = "the agent was killed"
_CANCELLED_CAUSE = " (scancel of its step does that)"
_KILLED_CAUSE = " (by kill, by the kernel when the node has no memory left, or by scancel of its step)"
#: The reason of an agent that was killed before any task could run.
_KILLED_EARLY_REASON = "the agent was killed at its start"
#: The exit status of an srun whose program was killed.
_KILLED_STATUS = 128 + signal.SIGKILL
#: A step reserves no resource: it runs beside other steps, on all CPUs and GPUs that the job has on its node.
#: Its working folder is the user's home, as over SSH.
_SRUN_COMMAND = (
    "srun", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--quiet",
    "--chdir=/", "--nodes=1", "--ntasks=1",
)  # fmt: skip
_STEP_COMMAND = ("/bin/sh", "-c", "cd; unset OLDPWD; " + bootstrap.COMMAND)
#: What srun prints on clusters that bind no process to CPUs.
NO_BINDING_MESSAGE = "cluster configuration lacks support for cpu binding"
#: What srun prints at its end if its child was killed, see `Step._let_it_outlive_srun`.
_NO_CHILD_MESSAGE = "write(shepherd): Broken pipe"
#: What srun prints if a step is killed before it has read all that was sent to it. It is not the reason.
_CUT_OFF_MESSAGES = ("error reading header: ", "io error with slurmstepd")


def srun(job: str, node: str, name: str = "launch", component: int | None = None) -> list[str]:
    """Return the beginning of a command that runs a program once on a node of a job.

    Args:
        job: The number of the job.
        node: The name of the node.
        name: The name of the step at Slurm.
        component: The component of a heterogeneous job to which the node belongs. None for other jobs.
    """
    group = [] if component is None else [f"--het-group={component}"]
    return [*_SRUN_COMMAND, f"--job-name={name}", f"--jobid={job}", f"--nodelist={node}", *group]


class Step(RemoteProgram):
    """A program of ours in a step, whose srun starts at once.

    `SubprocessPipe.deliver` then sends the program.

    Args:
        host: The name of the node.
        job: The job at Slurm.
        python: The Python on the node.
        is_agent: Whether the program is, or becomes, the agent of the node.
    """

    python_advice = "install Python 3.8 or later on the node"

    def __init__(self, host: str, job: SlurmJob, python: str, *, is_agent: bool) -> None:
        """Start srun. `SubprocessPipe.deliver` then sends the program."""
        self._job = job
        #: Whether the program is, or becomes, the agent of its node.
        self.is_agent = is_agent
        #: The name of the step at Slurm, which no other step has.
        self.name = f"launch-{os.urandom(8).hex()}"
        #: Whether the program passes its output through `swap`.
        self.swapped = False
        #: Whether the agent has written anything. Before that no task runs on the node.
        self._has_written = False
        #: Bytes to send in one message with the next ones. A second short message would take 40 ms (Nagle).
        self.unsent_start = b""
        argv = [*srun(job.id, host, self.name, job.components.get(host)), "--unbuffered", *_STEP_COMMAND]
        #: The pipe to the stdin and stdout of srun, and its process on this machine.
        self.srun = SubprocessPipe(host, argv, environment())
        super().__init__(host, self.srun, python=python, starter=argv[0])

    def recv(self, size: int) -> bytes | None:
        """Return bytes of the program's output, swapped back if the program swaps them.

        An agent exchanges newlines with another byte, because srun would write its output line by line, which
        costs CPU time.
        """
        data = super().recv(size)
        if not data or not self.swapped:
            return data
        self._has_written = True
        return swap(data)

    def send(self, data: bytes | memoryview) -> int:
        """Send these bytes after those that wait in ``unsent_start``. Return how many of them were sent."""
        waiting = len(self.unsent_start)
        sent = super().send(self.unsent_start + data)
        self.unsent_start = self.unsent_start[sent:]
        return max(0, sent - waiting)

    def on_ready(self) -> None:
        """React to the start of the program: answer an agent, and let it outlive its srun."""
        if self.is_agent:
            # Without an answer, TCP delays what the program writes next by 40 ms.
            self.srun.send(b"\n")
            self._let_it_outlive_srun()

    def _let_it_outlive_srun(self) -> None:
        """Kill the child of srun that waits for the death of srun, and then cancels the step.

        If srun is killed after that, the agent lives on, and another step connects to it. If no step connects
        in time, the agent ends by itself, and `Steps.end` cancels its step.
        """
        srun_pid = self.srun.process.pid
        if _executable(srun_pid) != "srun":  # This is a script that started the real srun.
            return
        for pid in children_of(srun_pid):
            child = read_process(pid)
            # The pid may belong to another process by now.
            if child is not None and child.parent == srun_pid and _executable(pid) == "srun":
                send(child, signal.SIGKILL)

    def stderr(self) -> str:
        """Return the last 64 KiB of the stderr of srun, without lines that mean nothing to the user."""
        noise = (NO_BINDING_MESSAGE, _NO_CHILD_MESSAGE, *_CUT_OFF_MESSAGES)
        lines = super().stderr().splitlines(keepends=True)
        return "".join(line for line in lines if not any(text in line for text in noise))

    def start_error(self) -> TransportError | None:
        """Return why the program never ran, or what the end of its srun means for the agent.

        It is called after the end of the program's stdout.

        Returns:
            - A `ConnectionLostError` if the step may live on without its srun, or if the agent was lost
              before any task, so another one may be started.
            - A `HostGoneError` if the agent is gone with its tasks, or the job has ended.
            - Another error if the program never ran.
            - None if it ran and none of this has happened.
        """
        never_ran = super().start_error()
        if never_ran is None:
            # The program has run, so its srun should exit soon. The status is None if it still runs then.
            status = self.srun.wait(_END_TIMEOUT_SECONDS if self.is_agent else _EXIT_TIMEOUT_SECONDS)
            if status is not None and status < 0:  # srun was killed, but the step may live on.
                return ConnectionLostError(f"{self.host}: {self._starter_end()}")
            if status is None or not self.is_agent:  # Only an agent whose step has ended needs a reason.
                return None
        if job_end := self._job.end_reason():
            return AllocationEndedError(job_end)
        reason = self._slurm_reason()
        if never_ran is not None:
            return self.fault(f"the agent cannot be started there: {reason}") if reason else never_ran
        if not self._has_written:  # No task runs on the node yet, so another agent may be started.
            return ConnectionLostError(f"{self.host}: {reason or _KILLED_EARLY_REASON}")
        return HostGoneError(f"{self.host}: {reason or _KILLED_REASON + _KILLED_CAUSE}")

    def _slurm_reason(self) -> str:
        """Return why the step has ended, in Slurm's words: a node failed, or a user has cancelled it.

        Empty if Slurm has said nothing. Lines about task 0 say only how the program exited.
        """
        lines = [line for line in self.stderr().splitlines() if ": task 0: " not in line]
        return printed_errors("\n".join(lines).encode())

    @property
    def was_killed(self) -> bool:
        """Whether srun was killed by a signal, or its program by SIGKILL."""
        status = self.srun.process.poll()
        return status is not None and (status < 0 or status == _KILLED_STATUS)

    @property
    def may_exist(self) -> bool:
        """Whether the step may still exist, because its srun runs or was killed."""
        status = self.srun.process.poll()
        return status is None or status < 0

    def exit_reason(self, why: str) -> str:
        """Return why the agent exits, with the cause that Slurm names, or the likely one. This blocks.

        Args:
            why: The reason that the agent itself sent. If it was killed, the program that had connected to it
                has said so.

        Raises:
            AllocationEndedError: The job has ended, and so all agents.
        """
        job_end = self._job.end_reason()
        # The SIGTERM may come from the end of the job, which Slurm does not report at once.
        deadline = time.monotonic() + _CANCEL_STATE_SECONDS
        while "SIGTERM" in why and not job_end and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            job_end = self._job.end_reason()
        if job_end:
            raise AllocationEndedError(job_end)
        if "was killed" in why:
            self.srun.wait(_END_TIMEOUT_SECONDS)
            if reason := self._slurm_reason():  # Under load, Slurm may kill the step without a word.
                return reason
        if "SIGTERM" in why:
            return why + _CANCELLED_CAUSE
        return why + _KILLED_CAUSE if why == _KILLED_REASON else why

    def close(self) -> None:
        """Close the pipe. The srun of an agent stays, because it tells how the agent ends."""
        if self.is_agent:
            self.srun.socket.close()
        else:
            super().close()

    @property
    def is_running(self) -> bool:
        """Whether the srun of the step runs."""
        return self.srun.process.poll() is None

    def signal(self, number: signal.Signals, until: float) -> None:
        """Wait until a time (monotonic) for srun to exit, and then send it a signal if it still runs.

        Slurm passes the signal on to the step.
        """
        self.wait(until - time.monotonic())
        self.srun.process.send_signal(number)  # This does nothing if srun has exited.

    def release(self) -> None:
        """Close everything, after srun has exited. For an agent, `close` closes only the socket."""
        super().close()


class SlurmNode(Record):
    """A node of the job, as the first step on it found it."""

    name: str
    #: The Python that runs our programs on the node.
    python: str
    #: The number of CPUs that the job has on the node.
    cpus: int
    #: The ids of the GPUs that a step sees. None if Slurm does not say.
    gpus: tuple[str, ...] | None
    #: Whether the working folder and the programs on the node are those of this machine.
    same: bool


class _NodeAnswer(Record):
    """The answer of a node: its ``CUDA_VISIBLE_DEVICES``, and fields of `SlurmNode`."""

    cpus: int
    gpus: str | None
    same: bool


class Steps(Connections):
    """The connections to the nodes of a job: each program on a node is a step, with a connection of its own.

    Args:
        job: The job at Slurm.
    """

    def __init__(self, job: SlurmJob) -> None:
        """Prepare to start steps in a job. None is started yet."""
        self.job = job
        #: The variables of tasks that describe the job.
        self.variables: Mapping[str, str] = {}
        #: Guards the next two fields.
        self._lock = threading.Lock()
        #: All steps, without those that are surely over.
        self._steps: list[Step] = []
        #: Whether no more steps may start, because `end` was called.
        self._is_closing = False
        #: The steps that have inspected their nodes and wait to become agents, by node.
        self._waiting_steps: dict[str, Step] = {}
        #: The Python that runs our programs on each inspected node, by node.
        self._pythons: dict[str, str] = {}

    def inspect(self, host: str, files: Mapping[str, Any]) -> SlurmNode:
        """Inspect a node by a step that stays on it, to become its agent. This blocks.

        The first step that is lost is replaced by a second one. If the Python of this machine does not exist
        on the node, its ``python3`` is used.

        Args:
            host: The name of the node.
            files: The files by which the node tells whether it has the files of this machine, see
                `launcher.agent.slurm_node.serve`.

        Raises:
            TransportError: The node does not answer.
        """
        deadline, is_first_step = time.monotonic() + _INSPECT_TIMEOUT_SECONDS, True
        pythons = list(dict.fromkeys((sys.executable, DEFAULT_PYTHON)))
        while True:
            step = self._start(host, pythons[0], _SERVE_ENTRY, {"files": files}, is_agent=True)
            seconds = deadline - time.monotonic()
            if is_first_step:
                seconds = min(seconds, _FIRST_STEP_SECONDS)
            try:
                answer = read(_NodeAnswer, JsonClient(step).receive(seconds))
            except TransportError:
                # A step that was killed, or does not answer (perhaps its slurmstepd was killed), does not
                # mean that the Python is wrong.
                is_lost = step.was_killed or step.is_running
                if is_lost:
                    # `end` ends what is left of the step. That may take long, and the next step need not
                    # wait.
                    step.srun.end_input()
                else:
                    _end_all([step])
                    del pythons[0]
                if self._is_closing or not pythons or (is_lost and not is_first_step):
                    raise
                is_first_step = False
                continue
            python, gpus = pythons[0], _gpu_ids(answer.gpus)
            self._waiting_steps[host], self._pythons[host] = step, python
            return SlurmNode(host, python=python, cpus=answer.cpus, gpus=gpus, same=answer.same)

    def run(self, host: str, entry: str, arguments: object) -> Step:
        """Start a program of ours on a node that was inspected, in a step of its own.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.
        """
        return self._start(host, self._pythons[host], entry, arguments)

    def connect_agent(self, host: str, arguments: AgentArguments) -> Step:
        """Connect to the agent of a node by a new step, after the first connection to it broke."""
        step = self.run(host, CONNECT_ENTRY, self._agent_arguments(arguments))
        step.swapped = True  # The agent exchanges newlines with another byte, see `Step.recv`.
        return step

    def _agent_arguments(self, arguments: AgentArguments) -> dict[str, Any]:
        """Return the arguments of an agent that is the main process of a step, as JSON.

        With ``swapped`` the agent exchanges newlines with another byte, see `Step.recv`.
        """
        return {**arguments.as_json(), "variables": self.variables, "swapped": True}

    def start_agent(self, host: str, arguments: AgentArguments) -> Step:
        """Let the step that has inspected a node become its agent.

        If that step was lost, end it and start another.

        The arguments of the agent are not sent at once, but with the first bytes that the launcher sends to
        it.
        """
        waiting = self._waiting_steps.get(host)
        if waiting is None or not waiting.is_running:  # The step was lost.
            with self._lock:
                agents = [step for step in self._steps if step.is_agent and step.host == host]
            # The sockets of these steps stay open, because the link may still read from one.
            lost = [step for step in agents if step.may_exist]
            for step in lost:
                step.signal(signal.SIGTERM, 0.0)  # 0.0 is in the past, so this does not wait.
            self._cancel(lost)
            self.inspect(host, {})  # The new step waits now.
        step = self._waiting_steps.pop(host)
        step.unsent_start = json.dumps(self._agent_arguments(arguments)).encode("ascii") + b"\n"
        step.swapped = True
        return step

    def reconnect(self, host: str) -> None:
        """Do nothing, because each program makes a connection of its own, but fail if the job has ended."""
        # Many nodes may reconnect at once, so Slurm is not asked again for each of them.
        if job_end := self.job.end_reason(fresh=False):
            raise AllocationEndedError(job_end)

    def _start(
        self, host: str, python: str, entry: str, arguments: object, *, is_agent: bool = False
    ) -> Step:
        """Start a program in a step on a node, and send the program.

        Args:
            host: The name of the node.
            python: The Python on the node.
            entry: ``module:function``, see `ProgramRunner.run`.
            arguments: The argument of the function: anything that JSON can express.
            is_agent: Whether the program is, or becomes, the agent of the node.
        """
        step = Step(host, self.job, python, is_agent=is_agent)
        # The step is added before it receives the program, which may take long, so that `end` can end it.
        self._add(step)
        step.srun.deliver(bootstrap.startup(python, entry, arguments))
        return step

    def _add(self, step: Step) -> None:
        """Remember a step, and release steps whose pipe is closed and whose srun has exited.

        If no more steps may start, the new one is killed.
        """
        with self._lock:
            unused = [old for old in self._steps if old.fileno() < 0 and not old.may_exist]
            self._steps = [*(old for old in self._steps if old not in unused), step]
            is_closing = self._is_closing
        for old in unused:
            old.release()
        if is_closing:
            step.signal(signal.SIGKILL, 0.0)  # 0.0 is in the past, so this does not wait.

    def _cancel(self, steps: Sequence[Step]) -> None:
        """Cancel those steps that may still exist at Slurm, although the srun of each was ended."""
        if names := {step.name for step in steps if step.may_exist}:
            with suppress(TransportError):  # If Slurm does not answer, the steps end with the job.
                _cancel_by_name(names)

    def dismiss(self, wanted_hosts: Collection[str] = ()) -> None:
        """End the steps that wait to become agents, but not those on the wanted hosts.

        Such a step has inspected its node, and waits so that no second step must be started if the node gets
        a task: that takes a while. This does not block. Each of these programs exits when its stdin ends.

        Args:
            wanted_hosts: The names of the nodes that need an agent.
        """
        for host in self._waiting_steps.keys() - wanted_hosts:
            self._waiting_steps.pop(host).srun.end_input()

    def end(self, *, closes: bool = True) -> None:
        """Wait until no step is left, and kill those that do not end in time.

        Args:
            closes: Whether no more steps may start.
        """
        self.dismiss()
        with self._lock:
            self._is_closing, steps = closes, self._steps
        _end_all(steps)
        self._cancel(steps)  # A step may live on at Slurm if its srun was killed.


def _executable(pid: int) -> str:
    """Return the name of the file that a process executes. Empty if the process is gone."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def _cancel_by_name(names: Collection[str]) -> None:
    """Cancel steps of this user, and wait for a limited time until they have ended.

    Their numbers are looked up by their names, because a step of a heterogeneous job has the number of a
    component in place of that of the job.

    Raises:
        TransportError: Slurm does not answer.
    """
    deadline = time.monotonic() + _CANCEL_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        listing = ("squeue", "--noheader", "--steps", "--me", "--format=%i|%j")
        lines = ask(*listing, seconds=_END_TIMEOUT_SECONDS).splitlines()
        pairs = (line.partition("|") for line in lines)
        numbers = [number for number, _, name in pairs if name in names]
        if not numbers:
            return
        ask("scancel", "--quiet", *numbers, seconds=_END_TIMEOUT_SECONDS)
        time.sleep(_POLL_SECONDS)


def _end_all(steps: Sequence[Step]) -> None:
    """End steps: let them exit by themselves, then send SIGTERM, then SIGKILL. This blocks for seconds."""
    now = time.monotonic()
    for step in steps:
        # A program that never ran does not see that its stdin was closed, so nothing is worth waiting for.
        step.signal(signal.SIGTERM, now + _END_TIMEOUT_SECONDS if step.is_ready else now)
    kill_at = time.monotonic() + _LAST_WAIT_SECONDS
    for step in steps:
        step.signal(signal.SIGKILL, kill_at)
        step.release()


def _gpu_ids(visible: str | None) -> tuple[str, ...] | None:
    """Return the ids of GPUs in ``CUDA_VISIBLE_DEVICES``: numbers, or ``GPU-...`` and ``MIG-...``.

    None if Slurm does not set that variable. What is no id is left out: the text comes from a node.
    """
    if visible is None:
        return None
    return tuple(id for id in visible.split(",") if re.fullmatch(r"\d+|(?:GPU|MIG)-[\w/-]+", id))
