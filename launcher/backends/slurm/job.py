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
    """Return the variables for Slurm's commands.

    Variables of a step that the user started are left out, because Slurm's commands would read them as
    options.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_VARIABLES or name.startswith("LC_")
    }


def outer_environment() -> dict[str, str]:
    """Return the variables for a command that asks for a job: those of this process, outside of any job."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}, **environment()}


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
    with asked(*argv, environ=environ, seconds=seconds) as answer:
        return answer(stdin)


@contextmanager
def asked(
    *argv: str, environ: Mapping[str, str] | None = None, seconds: float = _ANSWER_TIMEOUT_SECONDS
) -> Iterator[Callable[..., str]]:
    """Return a context in which a command of Slurm runs, to do something else meanwhile.

    Its value is a function that sends the command its input, waits, and returns what the command prints.

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
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environ or environment(), start_new_session=True
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    except OSError as error:
        raise TransportError(f"{argv[0]} cannot be started: {why_not_started(error)}") from error

    def answer(stdin: str = "") -> str:
        try:
            out, err = process.communicate(stdin.encode(), seconds)
        except subprocess.TimeoutExpired:
            raise TransportError(f"Slurm does not answer: {argv[0]} takes more than {seconds:g}s") from None
        if process.returncode < 0:
            raise _KilledError(f"{argv[0]} was killed by signal {-process.returncode}")
        if process.returncode:
            raise TransportError(f"{argv[0]}: {said(err) or f'it exited with {process.returncode}'}")
        return out.decode("utf-8", "replace").strip()

    with process:
        try:
            yield answer
        finally:
            process.kill()  # This does nothing if the command has exited.


def shown(kind: str, name: str) -> dict[str, str]:
    """Return the fields that ``scontrol show`` prints about a job or a partition, by name.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    words = ("scontrol", "--oneliner", "show", kind, name)
    try:
        answer = ask(*words)
    except _KilledError:  # Slurm signals all processes of a job that it ends, even this command.
        answer = ask(*words)
    # Of a heterogeneous job, the other lines are about its other components.
    first, _, _ = answer.partition("\n")
    return dict(re.findall(r"(\w+)=(\S+)", first))


def _missing(command: str) -> TransportError:
    return TransportError(f"Slurm is not installed here: there is no {command} along PATH")


def said(stderr: bytes) -> str:
    """Return the errors that a command of Slurm has printed, on one line."""
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
        self.id, self._environ = id, environ
        #: The number of the component to which each node belongs, if the job is heterogeneous.
        self.components: dict[str, int] = {}
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_SECONDS
        self._end = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob:
        """Return the job around a process that has these environment variables."""
        return cls(environ["SLURM_JOB_ID"], environ)

    def nodes(self, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """Return the names of the job's nodes.

        Args:
            meanwhile: It is called while Slurm is asked.

        Raises:
            JobError: The variables of the job are wrong.
            TransportError: Slurm does not answer, or refuses.
        """
        given = "" if is_in_step(self._environ) else self._environ.get("SLURM_JOB_NODELIST", "")
        try:
            parts = [("", given)] if given else self._parts()
        except TransportError:
            if over := self.end_reason():
                raise TransportError(over) from None
            raise
        names: list[str] = []
        for component, written in parts:
            found: list[str] = []
            if re.fullmatch(r"\w[\w.,\[\]-]*", written):
                with asked("scontrol", "show", "hostnames", written) as answer:
                    meanwhile()
                    found = answer().split()
            if not found:
                raise JobError([Fault("SLURM_JOB_NODELIST", f"{written!r} names no nodes", "or --no-slurm")])
            new = [name for name in found if name not in names]
            names += new
            if component:
                self.components.update(dict.fromkeys(new, int(component)))
        return names

    def _parts(self) -> list[tuple[str, str]]:
        """Return the number and the list of nodes of each component of a heterogeneous job.

        Of another job there is one pair, whose number is empty.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        lines = ask("squeue", "--noheader", f"--jobs={self.id}", "--format=%i|%N").splitlines()
        pairs = (line.partition("|") for line in lines or ("|",))
        return [(number.partition("+")[2], nodes) for number, _, nodes in pairs]

    def tasks(self, count: int) -> list[int] | None:
        """Return how many tasks the user asked for on each of the job's nodes. None if the user did not say.

        Args:
            count: The number of the nodes.
        """
        if is_in_step(self._environ) or not self._environ.get("SLURM_NTASKS"):
            return None
        components = dict.fromkeys(self.components.values())
        names = [f"SLURM_TASKS_PER_NODE_HET_GROUP_{number}" for number in components]
        texts = [self._environ.get(name, "") for name in names or ["SLURM_TASKS_PER_NODE"]]
        numbers = [number for text in texts for number in expanded(text)]
        # One task on each node is no limit, because Slurm assumes it, and scripts that start one program for
        # each node ask for it.
        return numbers if len(numbers) == count and max(numbers) > 1 else None

    def variables(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the variables by which tasks learn about the job."""
        found = job_variables(self._environ)
        if is_in_step(self._environ) or self.components:
            found.update(SLURM_JOB_NODELIST=",".join(nodes), SLURM_JOB_NUM_NODES=str(len(nodes)))
        return found

    def fields(self) -> dict[str, str]:
        """Return the fields that ``scontrol show job`` prints, by name.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        return shown("job", self.id)

    def seconds_left(self) -> float | None:
        """Return the seconds until the job's time limit. None if it has no limit.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        fields = self.fields()
        limit, ran = (_seconds(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
        return None if limit is None or ran is None else float(limit - ran)

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
            if not self._end and (fresh or time.monotonic() >= self._asked_at + _FRESH_SECONDS):
                try:
                    fields = self.fields()
                    count = fields.get("Restarts", "") if self._environ else ""
                    is_requeued = count.isdecimal() and int(count) > self.restarts
                    how = _REQUEUED_END if is_requeued else _end_of_state(fields)
                except TransportError as error:
                    how = "has ended" if "Invalid job id" in str(error) else ""
                self._end = f"Slurm's job {self.id} {how}" if how else ""
                self._asked_at = time.monotonic()
            return self._end


def _end_of_state(fields: Mapping[str, str]) -> str:
    """Return how a job with these `SlurmJob.fields` has ended. Empty if it has not ended.

    While Slurm ends the processes of a job, the state does not say why, so other fields have to.
    """
    state = fields.get("JobState", "")
    if state == "COMPLETING":
        limit, ran = _seconds(fields.get("TimeLimit", "")), _seconds(fields.get("RunTime", ""))
        state = "TIMEOUT" if limit is not None and ran is not None and ran >= limit else "CANCELLED"
        state = "PREEMPTED" if fields.get("PreemptTime", "None") not in ("None", "Unknown") else state
    return END_STATES.get(state, "")


def _seconds(text: str) -> int | None:
    """Parse a time of Slurm such as ``1-02:00:00``. None if it is no time, as ``UNLIMITED``."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def expanded(text: str) -> list[int]:
    """Parse ``SLURM_TASKS_PER_NODE``: ``3(x2),1`` means three tasks on two nodes, and one on a third.

    Returns:
        The number of tasks on each node. Empty if there would be too many nodes for a job.
    """
    pairs = re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", text)
    found = [(int(number), int(times or 1)) for number, times in pairs]
    if sum(times for _, times in found) > MOST_NODES:
        return []
    return [number for number, times in found for _ in range(times)]


# ---------------------------------------------------------------------- an allocation of our own


def asked_by() -> str:
    """Return the comment that a job gets that this process asks for. It names this process."""
    return f"launch@{os.uname().nodename}:{owner_text(this_process())}"


def owner_of(comment: str) -> str:
    """Return the `owner_text` in the comment of a job.

    It is empty if the comment contains none, as for a job that an earlier version of launch asked for.
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
    ours = (f"--job-name={label}", f"--comment={asked_by()}", "--no-kill")
    # What salloc prints is read below, so it must not be silent.
    loud = [word for word in words if word not in ("-Q", "--quiet")]
    argv = ["/bin/sh", "-c", _HOLDER_SCRIPT, "launch", label, *loud, *ours]
    with tempfile.TemporaryFile() as stderr:
        try:
            pipe = subprocess.PIPE
            holder = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=stderr, env=outer_environment(), start_new_session=True
            )
        except OSError as error:
            raise TransportError(f"salloc cannot be started: {why_not_started(error)}") from error
        try:
            yield _await(holder, stderr, label, loud)
        finally:
            ignore_signals()
            _give_back(holder, label, _is_submitted(stderr))


def _await(holder: subprocess.Popen[bytes], stderr: IO[bytes], label: str, words: Sequence[str]) -> SlurmJob:
    """Wait until Slurm grants the job of a holder, and tell the user why it is pending.

    Args:
        holder: The process of the holder.
        stderr: The file to which salloc writes messages.
        label: The name of the job at Slurm.
        words: The options of salloc.

    Raises:
        TransportError: Slurm does not grant the job.
    """
    assert holder.stdout is not None
    printed, pause, shown = b"", _FIRST_POLL_SECONDS, ""
    until = time.monotonic() + pause
    while not printed.endswith(_GRANTED_MARK):
        ready, _, _ = select.select([holder.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            if shown or _is_submitted(stderr):
                state = _pending(label, words)
            else:
                state = UNANSWERED_NOTICE if pause > _FIRST_POLL_SECONDS else ""
            if state and state != shown:
                say(state)
                shown = state
            until = time.monotonic() + pause
            pause = min(2 * pause, _MAX_POLL_SECONDS)
            continue
        data = os.read(holder.stdout.fileno(), 1 << 16)
        printed += data
        if not data or len(printed) > _MAX_ENVIRONMENT_BYTES:
            printed = _printed(stderr)
            text = said(printed)
            if b": error: " not in printed and _is_submitted(stderr):
                text = "salloc was killed, or has started nothing (--no-shell)"
            if "salloc: not found" in text:
                raise _missing("salloc")
            raise TransportError(f"Slurm did not grant any nodes: {text}")
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in printed.split(b"\0"))
    return SlurmJob.of({name: value for name, _, value in pairs if name.startswith("SLURM_")})


def _pending(label: str, words: Sequence[str]) -> str:
    """Return why a job is pending, for the user. Empty if Slurm does not say.

    Raises:
        TransportError: The job can never start.
    """
    try:
        number, reason, start = _why_pending(f"--name={label}")
    except TransportError:  # salloc reports the reason.
        return ""
    if reason in _HOPELESS_REASONS:
        raise TransportError(_refusal(reason, words))
    if not number:
        return ""
    return f"{pending_text(number, reason, start)}; Ctrl-C cancels it"


def _why_pending(option: str) -> tuple[str, str, str]:
    """Ask Slurm why a job is pending.

    Returns:
        The number of the job, the reason, and when it may start. All are empty if the job is not pending.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    line = ask("squeue", "--noheader", option, "--states=PENDING", "--format=%i|%r|%S")
    number, _, rest = line.partition("|")
    reason, _, start = rest.partition("|")
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
    until = time.monotonic() + _REFUSAL_SECONDS
    while time.monotonic() < until:
        try:
            pending, reason, _ = _why_pending(f"--jobs={number}")
        except TransportError:  # The job is submitted, and `launch attach` looks at it later.
            return
        if reason in _HOPELESS_REASONS:
            ask("scancel", "--quiet", number)
            raise TransportError(_refusal(reason, words))
        if not pending or reason != "None":
            return
        time.sleep(_REFUSAL_POLL_SECONDS)


def _refusal(reason: str, words: Sequence[str]) -> str:
    """Return a message that Slurm can never start a job that was asked for by these options."""
    counts = re.findall(r"(?:--ntasks=|--ntasks-per-node=|-n *)(\d+)", " ".join(words))
    hint = (
        _SHARING_ADVICE
        if _HOPELESS_REASONS[reason] is _NODES_REASON and any(int(count) > 1 for count in counts)
        else ""
    )
    return f"Slurm did not grant any nodes: {_HOPELESS_REASONS[reason]}: {shlex.join(words)} ({reason}){hint}"


def pending_text(number: str, reason: str, start: str) -> str:
    """Return why a job is pending, for the user, from the fields of squeue."""
    if reason in _HOPELESS_REASONS:
        return f"Slurm's job {number} can never start: {_HOPELESS_REASONS[reason]} ({reason})"
    expected = f", estimated start {start.replace('T', ' ')}" if start[:1].isdigit() else ""
    return f"Slurm's job {number} is pending: {reason}{expected}"


def _is_submitted(stderr: IO[bytes]) -> bool:
    """Return whether Slurm has a job for a salloc that writes to this file."""
    return re.search(rb"\bjob (?:allocation )?\d", _printed(stderr)) is not None


def _printed(stderr: IO[bytes]) -> bytes:
    """Return what salloc has written to this file so far."""
    # Reading must not move the position of the file, which the writers share.
    return os.pread(stderr.fileno(), 1 << 16, 0)


def _give_back(holder: subprocess.Popen[bytes], label: str, is_submitted: bool) -> None:
    """Cancel the job of a holder, and wait for the holder to exit.

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
    if holder.returncode and not is_submitted:  # salloc was silent (-Q), or had not asked yet.
        with suppress(TransportError):
            ask("scancel", "--quiet", "--me", f"--name={label}")
