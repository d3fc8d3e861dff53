"""A job at Slurm: its nodes, its end, and how launch gets one for itself and gives it back.

An allocation that launch asks for has a holder, a shell whose stdin is a pipe of launch. When the pipe
closes, even because launch was killed, the holder cancels a pending salloc. The command that salloc runs
reads the same pipe, and frees the allocation. Every command of Slurm that this module runs has a time limit.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from launcher.agent.identity import owner_text, this_process
from launcher.agent.slurm_node import job_variables
from launcher.backends.slurm import is_in_step, is_inside
from launcher.backends.slurm.rows import MOST_NODES
from launcher.common.errors import Fault, JobError, TransportError
from launcher.common.text import why_not_started
from launcher.messages import say

#: The time for an answer from Slurm's controller, which may be busy.
_ANSWER_TIMEOUT_SECONDS = 30.0
#: The time for the holder of an allocation to exit.
_END_TIMEOUT_SECONDS = 10.0
#: The state of a job is not asked for again within this time.
_FRESH_SECONDS = 2.0
#: The pause before Slurm is asked about a pending job for the first time, and for the second time. Each later
#: pause is twice as long, up to the longest one.
_FIRST_POLL_SECONDS = 1.0
_MAX_POLL_SECONDS = 30.0
#: The largest size of the environment of an allocation.
_MAX_ENVIRONMENT_BYTES = 4 << 20
#: The variables of launch that srun and the steps get.
_PASSED_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "SLURM_CONF")
#: The states in which a job has ended, with how it ended. In any other state the job goes on.
END_STATES = {
    "CANCELLED": "was cancelled (scancel)",
    "TIMEOUT": "reached its time limit (--time)",
    "PREEMPTED": "was preempted",
    "DEADLINE": "reached its deadline",
    "NODE_FAIL": "was ended by Slurm because a node failed",
    "OUT_OF_MEMORY": "ran out of memory",
    "COMPLETED": "has ended",
    "FAILED": "has ended",
}
#: How a job ended that Slurm starts again.
_REQUEUED_END = "was queued again by Slurm (preemption, a failed node, or scontrol requeue)"
#: Slurm may replace the first of the two reasons with this text by the second a moment later.
_NODES_REASON = "the partition does not have, or does not allow, so many nodes with room for so many tasks"
#: The reasons why a pending job can never start.
_HOPELESS_REASONS = {
    "PartitionConfig": _NODES_REASON,
    "PartitionNodeLimit": _NODES_REASON,
    "PartitionTimeLimit": "the partition does not allow so long a time limit",
    "BadConstraints": "no node has what was asked for",
    "InvalidAccount": "there is no such account",
    "InvalidQOS": "there is no such QOS",
}
#: For this time after the submission of a job, Slurm is asked whether the job can ever start.
_REFUSAL_SECONDS = 1.5
_REFUSAL_POLL_SECONDS = 0.2
#: The advice if there are more tasks than the nodes have CPUs.
_SHARING_ADVICE = (
    "; Slurm gives each task a CPU of its own: --slurm-options='--exclusive --ntasks-per-node=1' asks for "
    "whole nodes, whose CPUs the tasks share"
)
UNANSWERED_NOTICE = "waiting for an answer from Slurm; Ctrl-C stops waiting"
#: The end of the environment that the holder prints when its job is granted.
_GRANTED_MARK = b"\0\n"
#: The holder: a shell that waits for an allocation, and gives it back when its stdin closes. Its stdin is a
#: pipe of launch, which closes even if launch is killed. SIGTERM makes salloc take a pending job out of the
#: queue. If salloc was killed, its job is still in the queue. A salloc that gets SIGTERM while its job is
#: being granted may never exit, so it is killed after three seconds. The second shell runs in the
#: allocation, and frees it even if salloc was killed. The first shell reaps a salloc that exits early, so the
#: pid of salloc may belong to another process at the end. The time of its start tells.
_HOLDER_SCRIPT = r"""trap "" INT TERM HUP
name=$1
shift
exec 3<&0
salloc "$@" /bin/sh -c 'trap "" INT TERM HUP; env -0; echo; exec >/dev/null; cat; scancel $SLURM_JOB_ID' <&3 &
exec >/dev/null 2>&1
started=$(cut -d" " -f22 /proc/$!/stat)
runs() { [ -e /proc/$!/exe ] && [ "$(cut -d" " -f22 /proc/$!/stat)" = "$started" ]; }
cat <&3
runs && kill -TERM $!
i=0; while runs && [ $i -lt 150 ]; do i=$((i+1)); sleep 0.02; done
runs && kill -KILL $!
wait $! || scancel --quiet --me --name="$name"
"""


def environment() -> dict[str, str]:
    """Return the environment variables for Slurm's commands.

    Of the variables of this process only a few are passed. Slurm's commands would read others, such as those
    of a step that the user has started, as options.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_VARIABLES or name.startswith("LC_")
    }


def outer_environment() -> dict[str, str]:
    """Return the variables for a command that asks for a job: those of this process, outside of any job.

    ``SLURM_CONF``, which names the configuration of the cluster, stays.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**others, **environment()}


def job_name(run_name: str) -> str:
    """Return the name of a run's job at Slurm."""
    return f"launch-{run_name}"


class _KilledError(TransportError):
    """A signal has killed a command of Slurm."""


def ask(
    *argv: str,
    stdin: str = "",
    environ: Mapping[str, str] | None = None,
    seconds: float = _ANSWER_TIMEOUT_SECONDS,
) -> str:
    """Run a command of Slurm, and return what it prints.

    Args:
        argv: The command line.
        stdin: The input of the command.
        environ: The environment of the command. None means that of `environment`.
        seconds: The time limit.

    Raises:
        TransportError: The command fails, or does not answer in time.
    """
    with asking(*argv, environ=environ, seconds=seconds) as answer:
        return answer(stdin)


@contextmanager
def asking(
    *argv: str, environ: Mapping[str, str] | None = None, seconds: float = _ANSWER_TIMEOUT_SECONDS
) -> Iterator[Callable[..., str]]:
    """Return a context in which a command of Slurm runs, so that the caller can do something else meanwhile.

    Its value is a function that sends the command its input, waits, and returns what the command prints.
    Leaving the context kills a command that still runs.

    Args:
        argv: The command line.
        environ: The environment of the command. None means that of `environment`.
        seconds: The time limit.

    Raises:
        TransportError: The command does not exist. The function raises it if the command fails, or does not
            answer in time.
    """
    pipe = subprocess.PIPE
    try:
        # In a session of its own it gets no Ctrl-C of the terminal: launch decides whether to go on waiting.
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environ or environment(), start_new_session=True
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    except OSError as error:
        raise TransportError(f"{argv[0]} cannot be started: {why_not_started(error)}") from error

    def answer(stdin: str = "") -> str:
        """Send the command its input, wait for it to exit, and return what it prints."""
        try:
            out, err = process.communicate(stdin.encode(), seconds)
        except subprocess.TimeoutExpired:
            raise TransportError(f"Slurm does not answer: {argv[0]} takes more than {seconds:g}s") from None
        if process.returncode < 0:
            raise _KilledError(f"{argv[0]} was killed by signal {-process.returncode}")
        if process.returncode:
            reason = printed_errors(err) or f"it exited with {process.returncode}"
            raise TransportError(f"{argv[0]}: {reason}")
        return out.decode("utf-8", "replace").strip()

    with process:
        try:
            yield answer
        finally:
            process.kill()  # This does nothing if the command has exited.


def show_fields(kind: str, name: str) -> dict[str, str]:
    """Return the fields that ``scontrol show`` prints about a job or a partition, by name.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    words = ("scontrol", "--oneliner", "show", kind, name)
    try:
        answer = ask(*words)
    # If launch runs in a job that Slurm ends, Slurm signals all processes of the job, even this command. A
    # command that starts after that can still answer.
    except _KilledError:
        answer = ask(*words)
    # Of a heterogeneous job, the other lines are about its other components.
    first_line, _, _ = answer.partition("\n")
    return dict(re.findall(r"(\w+)=(\S+)", first_line))


def _missing(command: str) -> TransportError:
    """Return the error that this machine lacks a command of Slurm."""
    return TransportError(f"Slurm is not installed here: there is no {command} along PATH")


def printed_errors(stderr: bytes) -> str:
    """Return the errors that a command of Slurm has printed, on one line.

    These are its last three lines about errors, as in ``sbatch: error: ...``, without the name of the
    command. If there are none, it is the last line of all, but not the advice ``Try "sbatch --help"``.

    Args:
        stderr: What the command wrote to stderr.
    """
    lines = stderr.decode("utf-8", "replace").splitlines()
    errors = [re.sub(r"^\S+: error: ", "", line) for line in lines if ": error: " in line]
    others = [re.sub(r"^\w+: ", "", line) for line in lines if not line.startswith("Try ")]
    return "; ".join(dict.fromkeys(errors[-3:])) or "".join(others[-1:])


class SlurmJob:
    """A job at Slurm.

    Args:
        id: The number of the job.
        environ: The variables that Slurm gave the job. Empty if they are not known.
    """

    def __init__(self, id: str, environ: Mapping[str, str]) -> None:
        """Store what is known about the job. Slurm is not asked yet."""
        self.id, self._environ = id, environ
        #: The number of the component to which each node belongs, if the job is heterogeneous.
        self.components: dict[str, int] = {}
        #: Held while Slurm is asked for the end of the job. Guards the next two fields.
        self._lock = threading.Lock()
        #: When Slurm was last asked for the end of the job (monotonic).
        self._asked_at = -_FRESH_SECONDS
        #: How the job has ended, for messages. Empty until Slurm says so.
        self._end_text = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob:
        """Return the job around a process that has these environment variables."""
        return cls(environ["SLURM_JOB_ID"], environ)

    def nodes(self, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """Return the names of the job's nodes, and store in ``components`` to which component each belongs.

        Args:
            meanwhile: It is called while Slurm is asked.

        Raises:
            JobError: The variables of the job are wrong.
            TransportError: Slurm does not answer, or refuses.
        """
        # In a step the variable names only the nodes of the step.
        in_variable = "" if is_in_step(self._environ) else self._environ.get("SLURM_JOB_NODELIST", "")
        try:
            # Pairs of the number of a component and its nodes. The number is empty if there is only one list.
            node_lists = [("", in_variable)] if in_variable else self._node_lists()
        except TransportError:
            # That the job has ended explains more than the error of the command.
            if end_reason := self.end_reason():
                raise TransportError(end_reason) from None
            raise
        nodes: list[str] = []
        for component, node_list in node_lists:
            found: list[str] = []
            if re.fullmatch(r"\w[\w.,\[\]-]*", node_list):  # It is a list such as node[1-3],node7.
                with asking("scontrol", "show", "hostnames", node_list) as answer:
                    meanwhile()
                    found = answer().split()
            if not found:
                problem = f"{node_list!r} names no nodes"
                raise JobError([Fault("SLURM_JOB_NODELIST", problem, "or --no-slurm")])
            # A node of several components counts as one of the first of them.
            new_nodes = [node for node in found if node not in nodes]
            nodes += new_nodes
            if component:
                self.components.update(dict.fromkeys(new_nodes, int(component)))
        return nodes

    def _node_lists(self) -> list[tuple[str, str]]:
        """Ask Slurm for the number and the list of nodes of each component of a heterogeneous job.

        Of another job there is one pair, whose number is empty.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        # A line is JOB|NODES, or JOB+COMPONENT|NODES. No line counts as an empty list, which is an error.
        lines = ask("squeue", "--noheader", f"--jobs={self.id}", "--format=%i|%N").splitlines() or ["|"]
        pairs = (line.partition("|") for line in lines)
        return [(number.partition("+")[2], nodes) for number, _, nodes in pairs]

    def tasks(self, count: int) -> list[int] | None:
        """Return how many tasks the user asked for on each of the job's nodes. None if the user did not say.

        Args:
            count: The number of the nodes.
        """
        # In a step the variables describe only the step.
        if is_in_step(self._environ) or not self._environ.get("SLURM_NTASKS"):
            return None
        components = dict.fromkeys(self.components.values())
        variables = [f"SLURM_TASKS_PER_NODE_HET_GROUP_{number}" for number in components]
        texts = [self._environ.get(name, "") for name in variables or ["SLURM_TASKS_PER_NODE"]]
        task_counts = [number for text in texts for number in parse_task_counts(text)]
        # One task on each node is no limit, because Slurm assumes it, and scripts that start one program for
        # each node ask for it. Variables that do not describe as many nodes say nothing, either.
        return task_counts if len(task_counts) == count and max(task_counts) > 1 else None

    def variables(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the variables by which tasks learn about the job.

        Args:
            nodes: The names of all its nodes.
        """
        variables = job_variables(self._environ)
        # The variables of a step or a component name only its own nodes.
        if is_in_step(self._environ) or self.components:
            variables.update(SLURM_JOB_NODELIST=",".join(nodes), SLURM_JOB_NUM_NODES=str(len(nodes)))
        return variables

    def fields(self) -> dict[str, str]:
        """Return the fields that ``scontrol show job`` prints, by name.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        return show_fields("job", self.id)

    def seconds_left(self) -> float | None:
        """Return the seconds until the job's time limit. None if it has no limit.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        fields = self.fields()
        limit, run_time = (_parse_seconds(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
        return None if limit is None or run_time is None else float(limit - run_time)

    @property
    def restarts(self) -> int:
        """How often Slurm had restarted the job when it set the variables."""
        count = self._environ.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdecimal() else 0

    def is_requeued(self) -> bool:
        """Return whether Slurm has queued the job again since it set the variables.

        False if Slurm does not say.
        """
        return self.end_reason().endswith(_REQUEUED_END)

    def end_reason(self, fresh: bool = True) -> str:
        """Return how the job has ended, for messages. This blocks.

        Args:
            fresh: Whether Slurm is asked even if it was asked a moment ago.

        Returns:
            The reason. Empty if the job has not ended, or Slurm does not say.
        """
        with self._lock:
            if not self._end_text and (fresh or time.monotonic() >= self._asked_at + _FRESH_SECONDS):
                try:
                    how_ended = self._ask_how_ended()
                except TransportError as error:
                    # Slurm forgets a job some minutes after its end.
                    how_ended = "has ended" if "Invalid job id" in str(error) else ""
                self._end_text = f"Slurm's job {self.id} {how_ended}" if how_ended else ""
                self._asked_at = time.monotonic()
            return self._end_text

    def _ask_how_ended(self) -> str:
        """Ask Slurm how the job has ended: ``was preempted``. Empty if it has not ended.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        fields = self.fields()
        # Without the job's variables nobody knows how often it had been restarted before.
        restarts = fields.get("Restarts", "") if self._environ else ""
        if restarts.isdecimal() and int(restarts) > self.restarts:
            return _REQUEUED_END
        return _end_in_fields(fields)


def _end_in_fields(fields: Mapping[str, str]) -> str:
    """Return how a job has ended, for messages: ``was preempted``. Empty if it has not ended.

    While Slurm ends the processes of a job, the state does not say why, so other fields have to.

    Args:
        fields: The fields of the job, from ``scontrol show job``.
    """
    state = fields.get("JobState", "")
    if state == "COMPLETING":
        limit, run_time = (_parse_seconds(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
        if fields.get("PreemptTime", "None") not in ("None", "Unknown"):
            state = "PREEMPTED"
        else:
            is_timeout = limit is not None and run_time is not None and run_time >= limit
            state = "TIMEOUT" if is_timeout else "CANCELLED"
    return END_STATES.get(state, "")


def _parse_seconds(text: str) -> int | None:
    """Return the seconds of a time of Slurm such as ``1-02:00:00``. None for another text: ``UNLIMITED``."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_task_counts(text: str) -> list[int]:
    """Parse ``SLURM_TASKS_PER_NODE``: ``3(x2),1`` means three tasks on two nodes, and one on a third.

    Returns:
        The number of tasks on each node. Empty if there would be too many nodes for a job.
    """
    matches = re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", text)
    pairs = [(int(count), int(nodes or 1)) for count, nodes in matches]
    if sum(nodes for _, nodes in pairs) > MOST_NODES:
        return []
    return [count for count, nodes in pairs for _ in range(nodes)]


# ---------------------------------------------------------------------- an allocation of our own


def owner_comment() -> str:
    """Return the comment of a job that this process asks for: ``launch@MACHINE:OWNER``.

    OWNER is the text by which `launch clean` finds out whether this process still lives.
    """
    return f"launch@{os.uname().nodename}:{owner_text(this_process())}"


def owner_in_comment(comment: str) -> str:
    """Return the text in the comment of a job that identifies the launcher process.

    Args:
        comment: The comment, which `owner_comment` made: ``launch@MACHINE:OWNER``.

    Returns:
        OWNER. Empty if the comment contains none, as that of a job of an earlier version of launch.
    """
    return comment.partition(":")[2]


@contextmanager
def allocated(words: Sequence[str], name: str, ignore_signals: Callable[[], None]) -> Iterator[SlurmJob]:
    """Return a context in which there is a job: the one around this process, or one that Slurm grants.

    Args:
        words: The options of salloc.
        name: The name of the run.
        ignore_signals: It is called before the job is given back.

    Raises:
        TransportError: On entering, if Slurm does not grant the job.
    """
    if is_inside(os.environ):
        yield SlurmJob.of(os.environ)
        return
    label = job_name(name)
    # With --no-kill, lost nodes do not end the job, because launch decides what to do about them.
    our_options = (f"--job-name={label}", f"--comment={owner_comment()}", "--no-kill")
    # What salloc prints is read below, so it must not be silent.
    words = [word for word in words if word not in ("-Q", "--quiet")]
    argv = ["/bin/sh", "-c", _HOLDER_SCRIPT, "launch", label, *words, *our_options]
    with tempfile.TemporaryFile() as stderr:
        try:
            # The holder keeps the job for as long as this launch uses it.
            pipe = subprocess.PIPE
            holder = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=stderr, env=outer_environment(), start_new_session=True
            )
        except OSError as error:
            raise TransportError(f"salloc cannot be started: {why_not_started(error)}") from error
        try:
            yield _await_grant(holder, stderr, label, words)
        finally:
            ignore_signals()
            _give_back(holder, label, _is_submitted(stderr))


def _await_grant(
    holder: subprocess.Popen[bytes], stderr: IO[bytes], label: str, words: Sequence[str]
) -> SlurmJob:
    """Wait until Slurm grants the job of a holder, and tell the user why it is pending.

    The holder is a shell that runs salloc. When Slurm has granted the job, the command that salloc runs
    prints its environment variables, which describe the job.

    Args:
        holder: The process of the holder.
        stderr: The file to which salloc writes messages.
        label: The name of the job at Slurm.
        words: The options of salloc.

    Raises:
        TransportError: Slurm does not grant the job.
    """
    assert holder.stdout is not None
    # Each poll asks Slurm why the job is pending, and the pauses between polls become longer.
    printed, pause, last_notice = b"", _FIRST_POLL_SECONDS, ""
    next_poll = time.monotonic() + pause
    while not printed.endswith(_GRANTED_MARK):
        readable, _, _ = select.select([holder.stdout], [], [], max(0.0, next_poll - time.monotonic()))
        if not readable:
            if last_notice or _is_submitted(stderr):
                notice = _pending_notice(label, words)
            else:  # Slurm usually has the job within the first pause.
                notice = UNANSWERED_NOTICE if pause > _FIRST_POLL_SECONDS else ""
            if notice and notice != last_notice:
                say(notice)
                last_notice = notice
            next_poll = time.monotonic() + pause
            pause = min(2 * pause, _MAX_POLL_SECONDS)
            continue
        data = os.read(holder.stdout.fileno(), 1 << 16)
        printed += data
        # No data means that salloc has exited. More than the maximum cannot be an environment.
        if not data or len(printed) > _MAX_ENVIRONMENT_BYTES:
            raise _not_granted(stderr)
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in printed.split(b"\0"))
    return SlurmJob.of({name: value for name, _, value in pairs if name.startswith("SLURM_")})


def _not_granted(stderr: IO[bytes]) -> TransportError:
    """Return why Slurm did not grant a job, from the file to which salloc has written messages."""
    printed = _read_stderr(stderr)
    reason = printed_errors(printed)
    # Without an error, salloc was ended from outside, or had no command that could print variables.
    if b": error: " not in printed and _is_submitted(stderr):
        reason = "salloc was killed, or has started nothing (--no-shell)"
    if "salloc: not found" in reason:
        return _missing("salloc")
    return TransportError(f"Slurm did not grant any nodes: {reason}")


def _pending_notice(label: str, words: Sequence[str]) -> str:
    """Return why the job of a salloc is pending, for the user. Empty if Slurm does not say.

    Args:
        label: The name of the job at Slurm.
        words: The options of salloc.

    Raises:
        TransportError: The job can never start.
    """
    try:
        number, reason, start = _why_pending(f"--name={label}")
    except TransportError:  # salloc itself reports why Slurm does not answer.
        return ""
    if reason in _HOPELESS_REASONS:
        raise TransportError(_refusal_message(reason, words))
    if not number:
        return ""
    return f"{pending_text(number, reason, start)}; Ctrl-C cancels it"


def _why_pending(option: str) -> tuple[str, str, str]:
    """Ask Slurm why a job is pending.

    Args:
        option: The option of squeue that selects the job.

    Returns:
        The number of the job, the reason, and when it may start. All are empty if the job is not pending.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    line = ask("squeue", "--noheader", option, "--states=PENDING", "--format=%i|%r|%S")
    number, reason, start, *_ = (*line.split("|"), "", "")  # The line is empty if the job is not pending.
    return number, reason, start


def refuse_hopeless(number: str, words: Sequence[str]) -> None:
    """Cancel a job that was just submitted if it can never start.

    Slurm reports that only some time after it has accepted the job, so this asks for more than a second.

    Args:
        number: The number of the job.
        words: The options by which it was asked for.

    Raises:
        TransportError: The job can never start.
    """
    deadline = time.monotonic() + _REFUSAL_SECONDS
    while time.monotonic() < deadline:
        try:
            pending_number, reason, _ = _why_pending(f"--jobs={number}")
        except TransportError:  # The job is submitted, and `launch attach` looks at it later.
            return
        if reason in _HOPELESS_REASONS:
            ask("scancel", "--quiet", number)
            raise TransportError(_refusal_message(reason, words))
        # A job that is not pending has started or ended. The reason is None until Slurm's scheduler has seen
        # the job.
        if not pending_number or reason != "None":
            return
        time.sleep(_REFUSAL_POLL_SECONDS)


def _refusal_message(reason: str, words: Sequence[str]) -> str:
    """Return a message that Slurm can never start a job.

    Args:
        reason: The reason in Slurm's words, one of `_HOPELESS_REASONS`.
        words: The options by which the job was asked for.
    """
    explanation, advice = _HOPELESS_REASONS[reason], ""
    task_counts = re.findall(r"(?:--ntasks=|--ntasks-per-node=|-n *)(\d+)", " ".join(words))
    if explanation == _NODES_REASON and any(int(count) > 1 for count in task_counts):
        advice = _SHARING_ADVICE
    return f"Slurm did not grant any nodes: {explanation}: {shlex.join(words)} ({reason}){advice}"


def pending_text(number: str, reason: str, start: str) -> str:
    """Return why a job is pending, for the user.

    Args:
        number: The number of the job.
        reason: The reason in Slurm's words.
        start: When Slurm expects to start the job, as squeue prints it: a time, or N/A.
    """
    if reason in _HOPELESS_REASONS:
        return f"Slurm's job {number} can never start: {_HOPELESS_REASONS[reason]} ({reason})"
    expected = f", estimated start {start.replace('T', ' ')}" if start[:1].isdigit() else ""
    return f"Slurm's job {number} is pending: {reason}{expected}"


def _is_submitted(stderr: IO[bytes]) -> bool:
    """Return whether Slurm has a job for a salloc that writes to this file."""
    return re.search(rb"\bjob (?:allocation )?\d", _read_stderr(stderr)) is not None


def _read_stderr(stderr: IO[bytes]) -> bytes:
    """Return what salloc has written to this file so far: at most its first 64 KiB."""
    # Reading must not move the position of the file, which the writers share.
    return os.pread(stderr.fileno(), 1 << 16, 0)


def _give_back(holder: subprocess.Popen[bytes], label: str, is_submitted: bool) -> None:
    """Cancel the job of a holder, and wait for the holder to exit.

    The holder is a shell that runs salloc. It exits when its stdin is closed.

    Args:
        holder: The process of the holder.
        label: The name of the job at Slurm.
        is_submitted: Whether Slurm has the job. If not, salloc may be asking for it just now.
    """
    assert holder.stdin is not None and holder.stdout is not None
    if is_submitted:
        # The holder does this, too, unless it or salloc was killed.
        with suppress(TransportError):
            ask("scancel", "--quiet", f"--jobname={label}")
    holder.stdin.close()
    holder.stdout.close()
    try:
        holder.wait(_END_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:  # Slurm does not answer the holder, either.
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        return
    # The holder fails if salloc has failed, and the holder's own scancel after that, too. A salloc that had
    # printed nothing yet may have got a job meanwhile.
    if holder.returncode and not is_submitted:
        with suppress(TransportError):
            ask("scancel", "--quiet", "--me", f"--name={label}")
