"""A launcher as a batch job of Slurm: it is submitted, found from other machines, and requeued."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import SIGUSR1

from launcher.agent.processes import all_pids, read_process
from launcher.backends.batch_queue import (
    OVER,
    PENDING,
    RUNNING,
    Parcel,
    Queue,
    Queued,
    Submitted,
    run_shown,
    say,
)
from launcher.backends.cleaning import Cleaning, is_dead
from launcher.backends.connections import slow
from launcher.backends.launch_request import Launch
from launcher.backends.slurm import in_step, is_inside
from launcher.backends.slurm.allocation import (
    ENDS,
    UNANSWERED,
    Job,
    ask,
    environment,
    outside,
    owner_of,
    pending_text,
    refuse_hopeless,
)
from launcher.backends.slurm.steps import NO_BINDING, srun
from launcher.common.errors import TransportError
from launcher.itself import launch_command
from launcher.job import RUN_FOLDER_VARIABLE
from launcher.runs.run import BatchJob, Run
from launcher.threads import start

#: The states of a job that waits.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
#: Seconds until Slurm is asked again for the time that is left: after no answer, and at most; for the end
#: of its thread.
_AGAIN = 5.0
_LONGEST = 3600.0
_END = 1.0
#: The name of a job of ours.
_OURS = r"launch-\d{8}-\d{6}-[0-9a-z]+"
#: Lines of srun about a command that it has run.
_HIDDEN = re.compile(rb"^srun: error: .* Exited with exit code \d+$|" + NO_BINDING.encode())


def job_name(run: str) -> str:
    """The name of a job at Slurm."""
    return f"launch-{run}"


class SlurmQueue(Queue):
    """See `launcher.backends.batch_queue.Queue`."""

    shares_files = True

    def submits(self) -> bool:
        """See `Queue.submits`."""
        return not is_inside(os.environ)

    def submit(self, launch: Launch, run: Run, words: Sequence[str], parcel: Parcel) -> Submitted:
        """See `Queue.submit`."""
        script = f"#!/bin/sh\nexec {shlex.join(launch_command(*words))}\n"
        again = "--requeue" if launch.job.policy.restarts else "--no-requeue"
        # Slurm sends SIGUSR1 before a preemption only: `notice_of_limit` knows the time limit better.
        options = (
            "--parsable",
            "--export=ALL",
            "--open-mode=append",
            "--signal=B:USR1@0",
            "--no-kill",
            again,
        )
        output = run.paths.messages.replace("%", "%%")
        names = (f"--job-name={job_name(run.name)}", f"--output={output}")
        environ = {**outside(), RUN_FOLDER_VARIABLE: run.paths.root}
        words = launch.settings.for_job(launch.job)
        with slow(launch.notice, UNANSWERED):
            number = ask("sbatch", *options, *names, *words, stdin=script, environ=environ).partition(";")[0]
        refuse_hopeless(number, words)
        return Submitted(f"Slurm's job {number} is submitted")

    def own(self) -> BatchJob | None:
        """See `Queue.own`."""
        node = os.environ.get("SLURMD_NODENAME", "")
        return BatchJob("slurm", os.environ["SLURM_JOB_ID"], node) if is_inside(os.environ) and node else None

    def times_requeued(self) -> int:
        """See `Queue.times_requeued`."""
        return Job("", os.environ).restarts

    def may_requeue(self) -> bool:
        """See `Queue.may_requeue`."""
        if self.own() is None or in_step(os.environ):
            return False
        fields = Job.of(os.environ).fields()
        return fields.get("BatchFlag") == fields.get("Requeue") == "1"

    def is_requeued(self) -> bool:
        """See `Queue.is_requeued`."""
        return self.own() is not None and Job.of(os.environ).is_requeued()

    def requeue(self) -> None:
        """See `Queue.requeue`."""
        ask("scontrol", "requeue", os.environ["SLURM_JOB_ID"])

    def look(self, runs: Sequence[Run]) -> Mapping[str, Queued]:
        """See `Queue.look`."""
        with slow(say, UNANSWERED):
            shown = ask("squeue", "--noheader", "--me", "--states=all", "--format=%A|%j|%T|%r|%S")
        found: dict[str, list[str]] = {}
        for line in shown.splitlines():
            fields = line.split("|")
            if len(fields) == 5:
                found[fields[0]] = found[fields[1]] = fields
        return {
            run.name: _queued(found.get(run.batch.number) or found.get(job_name(run.name)), run)
            for run in runs
            if run.batch is not None
        }

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """See `Queue.run_there`."""
        assert run.batch is not None
        step = [*srun(run.batch.number, run.batch.node), "--input=none", *launch_command(*words)]
        return run_shown(step, _HIDDEN, quiet, environ=environment())

    def withdraw(self, run: Run) -> None:
        """See `Queue.withdraw`."""
        number = run.batch.number if run.batch else ""
        ask("scancel", "--quiet", *([number] if number else ["--me", f"--name={job_name(run.name)}"]))


def _queued(fields: Sequence[str] | None, run: Run) -> Queued:
    number = run.batch.number if run.batch else ""
    if fields is None:  # one answer without it does not mean that it has ended
        over = Job(number, {}).why_over() if number else f"Slurm has no job {job_name(run.name)}"
        return Queued(OVER, over) if over else Queued(RUNNING, f"Slurm's job {number} runs")
    number, _, state, reason, start = fields
    if state in _WAITING:
        return Queued(PENDING, pending_text(number, reason, start))
    if state in ENDS:
        why = f" ({reason})" if state == "FAILED" and reason != "NonZeroExitCode" else ""
        return Queued(OVER, f"Slurm's job {number} {ENDS[state]}{why}")
    return Queued(RUNNING, f"Slurm's job {number} runs")


@contextmanager
def notice_of_limit(job: Job, seconds: float) -> Iterator[None]:
    """Send this process SIGUSR1 before the time limit of a job.

    Args:
        job: at Slurm.
        seconds: before its end; at most half of the time that it has left at the beginning.
    """
    over = threading.Event()

    def watch() -> None:
        least: float | None = None
        while True:
            try:
                left = job.seconds_left()
            except TransportError:  # the controller is busy
                if over.wait(_AGAIN):
                    return
                continue
            if left is None:  # there is no limit
                return
            least = min(seconds, left / 2) if least is None else least
            if left <= least and not over.is_set():
                os.kill(os.getpid(), SIGUSR1)
                return
            if over.wait(min(max(left - least, 0.0), _LONGEST)):
                return

    thread = threading.Thread(target=watch, name="time limit", daemon=True)
    start(thread)
    try:
        yield
    finally:
        over.set()
        thread.join(_END)


def cleanup(notice: Callable[[str], None], dry_run: bool, cleaning: Cleaning) -> Iterator[str]:
    """End the jobs that launches have asked for, and that no process looks after.

    Batch jobs are left alone: they end with their launchers.

    Args:
        notice: gets lines for the user.
        dry_run: end nothing.
        cleaning: Decides which ones are ended.

    Yields:
        A line for each.
    """
    try:
        shown = ask("squeue", "--noheader", "--me", "--format=%A|%j|%T")
    except TransportError as error:
        notice(str(error))
        return
    for line in shown.splitlines():
        number, name, state = line.rsplit("|", 2)
        if not re.fullmatch(_OURS, name):
            continue
        fields = Job(number, {}).fields()
        if fields.get("BatchFlag") != "0":
            continue
        owner = owner_of(fields.get("Comment", ""))
        if is_dead(owner) and _lives(fields.get("Sid", "").rpartition(":")[2]):
            continue  # the holder of the job frees it
        if cleaning.may_remove(name.partition("-")[2], owner, f"Slurm's job {number}"):
            if not dry_run:
                ask("scancel", "--quiet", number)
            done = "would cancel" if dry_run else "cancelled"
            yield f"{done} Slurm's job {number}, {name} ({state.lower()})"


def _lives(session: str) -> bool:
    """Whether a process of this session is there: the holder of a job, and what it has started."""
    found = (read_process(pid) for pid in all_pids())
    return any(process and str(process.session) == session and not process.has_ended for process in found)
