"""A job at Slurm: its nodes, its end, and how launch gets one for itself and gives it back.

An allocation that launch asks for has a holder, a shell whose stdin is a pipe of launch. When the pipe
closes, even because launch was killed, the holder cancels a pending salloc. The command that salloc runs
reads the same pipe, and frees the allocation.
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

#: Seconds for an answer from Slurm's controller, which may be busy; for the end of a holder.
_ANSWER_TIMEOUT_SECONDS = 30.0
_END_TIMEOUT_SECONDS = 10.0
#: Seconds for which the state of a job is not asked for again.
_FRESH_SECONDS = 2.0
#: Seconds until the first look at a pending job, and from there to the second one. Each later pause is twice
#: the one before, up to the last one.
_FIRST_POLL_SECONDS = 1.0
_MAX_POLL_SECONDS = 30.0
#: Bytes of the environment of an allocation.
_MAX_ENVIRONMENT_BYTES = 4 << 20
#: Variables of launch that srun and the steps have.
_PASSED_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "SLURM_CONF")
#: The states in which a job has ended, and how; any other state, known or not, is no end.
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
#: The same of a job that starts again.
_REQUEUED_END = "was queued again by Slurm (preemption, a failed node, or scontrol requeue)"
#: Reasons why a pending job can never start. Slurm may replace the first by the second a moment later: both
#: have one text.
_NODES_REASON = "the partition does not have, or does not allow, so many nodes with room for so many tasks"
_HOPELESS_REASONS = {
    "PartitionConfig": _NODES_REASON,
    "PartitionNodeLimit": _NODES_REASON,
    "PartitionTimeLimit": "the partition does not allow so long a time limit",
    "BadConstraints": "no node has what was asked for",
    "InvalidAccount": "there is no such account",
    "InvalidQOS": "there is no such QOS",
}
#: For so long after the submission of a job, Slurm is asked whether it can ever start.
_REFUSAL_SECONDS = 1.5
_REFUSAL_POLL_SECONDS = 0.2
#: What to do if there are more tasks than the nodes have CPUs.
_SHARING_ADVICE = (
    "; Slurm gives each task a CPU of its own: --slurm-options='--exclusive --ntasks-per-node=1' asks for "
    "whole nodes, whose CPUs the tasks share"
)
UNANSWERED_NOTICE = "waiting for an answer from Slurm; Ctrl-C stops waiting"
#: The end of what the holder prints.
_GRANTED_MARK = b"\0\n"
#: A shell that waits for the allocation, and gives it back when its stdin closes. Its stdin is a pipe of
#: launch, which closes even if launch is killed. SIGTERM takes a pending salloc out of the queue; if salloc
#: was killed, its job is still there. A salloc that gets SIGTERM when its job is granted may run for ever.
#: The second shell has the allocation, and frees it even if salloc was killed. The first one reaps a salloc
#: that ends early, so its pid may be that of another process at the end: the time of its start tells.
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
    """The variables of Slurm's commands: those of the user's own step would be taken for options."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_VARIABLES or name.startswith("LC_")
    }


def outside() -> dict[str, str]:
    """The variables of a command that asks for a job: all of this process, but none of a job around it."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}, **environment()}


def job_name(run_name: str) -> str:
    """The name of the job of a run at Slurm."""
    return f"launch-{run_name}"


class _KilledError(TransportError):
    """A signal has killed a command of Slurm."""


def ask(
    *argv: str,
    stdin: str = "",
    environ: Mapping[str, str] | None = None,
    seconds: float = _ANSWER_TIMEOUT_SECONDS,
) -> str:
    """Run a command of Slurm: what it prints.

    Args:
        argv: the command line.
        stdin: its input.
        environ: its variables; default: `environment`.
        seconds: for its answer.

    Raises:
        TransportError: it fails, or does not answer.
    """
    with asked(*argv, environ=environ, seconds=seconds) as answer:
        return answer(stdin)


@contextmanager
def asked(
    *argv: str, environ: Mapping[str, str] | None = None, seconds: float = _ANSWER_TIMEOUT_SECONDS
) -> Iterator[Callable[..., str]]:
    """A context in which a command of Slurm runs; yields a function that waits for what it prints, see `ask`.

    Args:
        argv: the command.
        environ: the variables of the command; ``None``: `environment`.
        seconds: for its answer.

    Raises:
        TransportError: there is no such command. The function raises it if the command fails, or does not
            answer.
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
            process.kill()  # unless it has ended


def shown(kind: str, name: str) -> dict[str, str]:
    """What ``scontrol show`` shows of a job or a partition, by name.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    words = ("scontrol", "--oneliner", "show", kind, name)
    try:
        answer = ask(*words)
    except _KilledError:  # Slurm signals all processes of a job that it ends, even this command
        answer = ask(*words)
    first, _, _ = answer.partition("\n")  # of a heterogeneous job, the others are its other components
    return dict(re.findall(r"(\w+)=(\S+)", first))


def _missing(command: str) -> TransportError:
    return TransportError(f"Slurm is not installed here: there is no {command} along PATH")


def said(stderr: bytes) -> str:
    """The errors that a command of Slurm has printed, as one line."""
    lines = stderr.decode("utf-8", "replace").splitlines()
    errors = [re.sub(r"^\S+: error: ", "", line) for line in lines if ": error: " in line]
    others = [re.sub(r"^\w+: ", "", line) for line in lines if not line.startswith("Try ")]
    return "; ".join(dict.fromkeys(errors[-3:])) or "".join(others[-1:])


class SlurmJob:
    """A job at Slurm.

    Args:
        id: its number.
        environ: the variables that Slurm gave it.
    """

    def __init__(self, id: str, environ: Mapping[str, str]) -> None:
        self.id, self._environ = id, environ
        #: The component of each node, if the job is heterogeneous.
        self.components: dict[str, int] = {}
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_SECONDS
        self._end = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob:
        """The job around a process that has these variables."""
        return cls(environ["SLURM_JOB_ID"], environ)

    def nodes(self, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """The names of its nodes.

        Args:
            meanwhile: called while Slurm is asked.

        Raises:
            JobError: the variables are wrong.
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
        """Return the number of each component of a heterogeneous job, or an empty one, and its list of nodes.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        lines = ask("squeue", "--noheader", f"--jobs={self.id}", "--format=%i|%N").splitlines()
        pairs = (line.partition("|") for line in lines or ("|",))
        return [(number.partition("+")[2], nodes) for number, _, nodes in pairs]

    def tasks(self, count: int) -> list[int] | None:
        """The number of tasks on each of its nodes that the user asked for; ``None``: the user did not."""
        if is_in_step(self._environ) or not self._environ.get("SLURM_NTASKS"):
            return None
        components = dict.fromkeys(self.components.values())
        names = [f"SLURM_TASKS_PER_NODE_HET_GROUP_{number}" for number in components]
        texts = [self._environ.get(name, "") for name in names or ["SLURM_TASKS_PER_NODE"]]
        numbers = [number for text in texts for number in expanded(text)]
        # One task on each node does not limit them: Slurm assumes it, and scripts that start one program for
        # each node ask for it.
        return numbers if len(numbers) == count and max(numbers) > 1 else None

    def variables(self, nodes: Sequence[str]) -> dict[str, str]:
        """The variables that describe it."""
        found = job_variables(self._environ)
        if is_in_step(self._environ) or self.components:
            found.update(SLURM_JOB_NODELIST=",".join(nodes), SLURM_JOB_NUM_NODES=str(len(nodes)))
        return found

    def fields(self) -> dict[str, str]:
        """What ``scontrol show job`` shows, by name.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        return shown("job", self.id)

    def seconds_left(self) -> float | None:
        """The seconds until its time limit; ``None``: it has none.

        Raises:
            TransportError: Slurm does not answer, or refuses.
        """
        fields = self.fields()
        limit, ran = (_seconds(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
        return None if limit is None or ran is None else float(limit - ran)

    @property
    def restarts(self) -> int:
        """How often Slurm had started it again when it set the variables."""
        count = self._environ.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdecimal() else 0

    def is_requeued(self) -> bool:
        """Whether it has been queued again since Slurm set the variables; false if Slurm does not say."""
        return self.end_reason().endswith(_REQUEUED_END)

    def end_reason(self, fresh: bool = True) -> str:
        """How it has ended, for the user; empty: it has not, or Slurm does not say. Blocks.

        Args:
            fresh: ask Slurm, even if it was asked a moment ago.
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
    """How a job with these `SlurmJob.fields` has ended; empty: it has not.

    While Slurm ends the processes of a job, its state does not say why.
    """
    state = fields.get("JobState", "")
    if state == "COMPLETING":
        limit, ran = _seconds(fields.get("TimeLimit", "")), _seconds(fields.get("RunTime", ""))
        state = "TIMEOUT" if limit is not None and ran is not None and ran >= limit else "CANCELLED"
        state = "PREEMPTED" if fields.get("PreemptTime", "None") not in ("None", "Unknown") else state
    return END_STATES.get(state, "")


def _seconds(text: str) -> int | None:
    """A time of Slurm, ``1-02:00:00``, in seconds; ``None``: it is no time, such as ``UNLIMITED``."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def expanded(text: str) -> list[int]:
    """The numbers of ``SLURM_TASKS_PER_NODE``, such as ``3(x2),1``; empty if they are too many for a job."""
    pairs = re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", text)
    found = [(int(number), int(times or 1)) for number, times in pairs]
    if sum(times for _, times in found) > MOST_NODES:
        return []
    return [number for number, times in found for _ in range(times)]


# ---------------------------------------------------------------------- an allocation of our own


def asked_by() -> str:
    """Return the comment of a job that this process asks for."""
    return f"launch@{os.uname().nodename}:{owner_text(this_process())}"


def owner_of(comment: str) -> str:
    """Return the `owner_text` in the comment of a job.

    Returns:
        Nothing if it has none, as that of a job that an earlier version asked for.
    """
    return comment.partition(":")[2]


@contextmanager
def allocated(words: Sequence[str], name: str, ignore_signals: Callable[[], None]) -> Iterator[SlurmJob]:
    """The job around this process, else one of our own, from when Slurm grants it.

    Args:
        words: options of salloc.
        name: of the launch.
        ignore_signals: called before it is given back.

    Raises:
        TransportError: Slurm does not grant it.
    """
    if is_inside(os.environ):
        yield SlurmJob.of(os.environ)
        return
    label = job_name(name)
    # Lost nodes do not end the job: launch decides.
    ours = (f"--job-name={label}", f"--comment={asked_by()}", "--no-kill")
    loud = [word for word in words if word not in ("-Q", "--quiet")]  # what salloc says is read here
    argv = ["/bin/sh", "-c", _HOLDER_SCRIPT, "launch", label, *loud, *ours]
    with tempfile.TemporaryFile() as stderr:
        try:
            pipe = subprocess.PIPE
            holder = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=stderr, env=outside(), start_new_session=True
            )
        except OSError as error:
            raise TransportError(f"salloc cannot be started: {why_not_started(error)}") from error
        try:
            yield _await(holder, stderr, label, loud)
        finally:
            ignore_signals()
            _give_back(holder, label, _is_submitted(stderr))


def _await(holder: subprocess.Popen[bytes], stderr: IO[bytes], label: str, words: Sequence[str]) -> SlurmJob:
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
            raise TransportError(f"Slurm gives no nodes: {text}")
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in printed.split(b"\0"))
    return SlurmJob.of({name: value for name, _, value in pairs if name.startswith("SLURM_")})


def _pending(label: str, words: Sequence[str]) -> str:
    """Why a job is pending, for the user; empty: Slurm does not say.

    Raises:
        TransportError: it would wait for ever.
    """
    try:
        number, reason, start = _why_pending(f"--name={label}")
    except TransportError:  # salloc says why
        return ""
    if reason in _HOPELESS_REASONS:
        raise TransportError(_refusal(reason, words))
    if not number:
        return ""
    return f"{pending_text(number, reason, start)}; Ctrl-C cancels it"


def _why_pending(option: str) -> tuple[str, str, str]:
    """Ask about a pending job.

    Returns:
        Its number, why it waits, and when it may start. They are empty if it is not pending.

    Raises:
        TransportError: Slurm does not answer, or refuses.
    """
    line = ask("squeue", "--noheader", option, "--states=PENDING", "--format=%i|%r|%S")
    number, _, rest = line.partition("|")
    reason, _, start = rest.partition("|")
    return number, reason, start


def refuse_hopeless(number: str, words: Sequence[str]) -> None:
    """Cancel a job that was just submitted if it can never start.

    Args:
        number: The number of the job.
        words: The options by which it was asked for.

    Raises:
        TransportError: It can never start.
    """
    until = time.monotonic() + _REFUSAL_SECONDS
    while time.monotonic() < until:
        try:
            pending, reason, _ = _why_pending(f"--jobs={number}")
        except TransportError:  # it is submitted: `launch attach` looks at it
            return
        if reason in _HOPELESS_REASONS:
            ask("scancel", "--quiet", number)
            raise TransportError(_refusal(reason, words))
        if not pending or reason != "None":
            return
        time.sleep(_REFUSAL_POLL_SECONDS)


def _refusal(reason: str, words: Sequence[str]) -> str:
    """Return why Slurm can never start a job that was asked for by these words."""
    counts = re.findall(r"(?:--ntasks=|--ntasks-per-node=|-n *)(\d+)", " ".join(words))
    hint = (
        _SHARING_ADVICE
        if _HOPELESS_REASONS[reason] is _NODES_REASON and any(int(count) > 1 for count in counts)
        else ""
    )
    return f"Slurm gives no nodes: {_HOPELESS_REASONS[reason]}: {shlex.join(words)} ({reason}){hint}"


def pending_text(number: str, reason: str, start: str) -> str:
    """Why a job is pending, for the user, by the fields of squeue."""
    if reason in _HOPELESS_REASONS:
        return f"Slurm's job {number} can never start: {_HOPELESS_REASONS[reason]} ({reason})"
    expected = f", estimated start {start.replace('T', ' ')}" if start[:1].isdigit() else ""
    return f"Slurm's job {number} is pending: {reason}{expected}"


def _is_submitted(stderr: IO[bytes]) -> bool:
    """Whether Slurm has a job of a salloc that writes here."""
    return re.search(rb"\bjob (?:allocation )?\d", _printed(stderr)) is not None


def _printed(stderr: IO[bytes]) -> bytes:
    return os.pread(stderr.fileno(), 1 << 16, 0)  # its position is that of the writers, too


def _give_back(holder: subprocess.Popen[bytes], label: str, is_submitted: bool) -> None:
    assert holder.stdin is not None and holder.stdout is not None
    if is_submitted:
        with suppress(TransportError):  # the holder does it, too, unless it or salloc was killed
            ask("scancel", "--quiet", f"--jobname={label}")
    holder.stdin.close()
    holder.stdout.close()
    try:
        holder.wait(_END_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:  # Slurm does not answer it, either
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        return
    if holder.returncode and not is_submitted:  # salloc is silent (-Q), or has not asked yet
        with suppress(TransportError):
            ask("scancel", "--quiet", "--me", f"--name={label}")
