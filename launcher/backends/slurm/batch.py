"""A launcher as a batch job of Slurm: it is submitted, found from other machines, and requeued.

Shortly before the time limit, the launcher sends SIGUSR1 to itself, as a user may do, too. That stops the job
as SIGTERM does. Its report becomes ``earlier.json``, the queue starts the launcher again, and the new
launcher continues the counts of attempts and restarts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import SIGUSR1

from launcher.agent.processes import all_pids, read_process
from launcher.backends.backend import LaunchRequest
from launcher.backends.batch_queue import BatchJobStatus, BatchQueue, JobPhase, Parcel, Submission, run_shown
from launcher.backends.cleaning import CleanRequest, is_dead
from launcher.backends.connections import slow
from launcher.backends.slurm import SlurmOptions, is_in_step, is_inside
from launcher.backends.slurm.job import (
    END_STATES,
    UNANSWERED_NOTICE,
    SlurmJob,
    ask,
    environment,
    job_name,
    outer_environment,
    owner_in_comment,
    pending_text,
    refuse_hopeless,
)
from launcher.backends.slurm.steps import NO_BINDING_MESSAGE, srun
from launcher.common.errors import TransportError
from launcher.itself import launch_command
from launcher.job import RUN_FOLDER_VARIABLE
from launcher.messages import say
from launcher.runs.run import BatchJob, Run
from launcher.threads import start_function

#: The states of a job that waits.
_WAITING_STATES = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
#: The pause before Slurm is asked again for the time that is left, after it did not answer.
_RETRY_SECONDS = 5.0
#: The longest pause before Slurm is asked again for the time that is left.
_MAX_POLL_SECONDS = 3600.0
#: The time for the thread that asks Slurm to exit.
_END_TIMEOUT_SECONDS = 1.0
#: The name of a job that launch has asked for.
_JOB_NAME_PATTERN = r"launch-\d{8}-\d{6}-[0-9a-z]+"
#: A line that srun itself prints about a command that it has run.
_HIDDEN_LINE = re.compile(rb"^srun: error: .* Exited with exit code \d+$|" + NO_BINDING_MESSAGE.encode())


class SlurmQueue(BatchQueue):
    """The queue of Slurm, which can start launchers as batch jobs."""

    shares_files = True

    def can_submit(self) -> bool:
        """Return whether this process is outside of any job of Slurm."""
        return not is_inside(os.environ)

    def submit(
        self, options: SlurmOptions, request: LaunchRequest, run: Run, words: Sequence[str], parcel: Parcel
    ) -> Submission:
        """Submit a batch job whose script runs launch.

        The words are those of its command line. The parcel is for clusters whose nodes do not see the files
        of this machine, so it is not used here.

        Raises:
            TransportError: Slurm refuses the job, or it could never start.
        """
        script = f"#!/bin/sh\nexec {shlex.join(launch_command(*words))}\n"
        output = run.paths.messages.replace("%", "%%")  # sbatch replaces %j and others.
        our_options = (
            # Slurm sends SIGUSR1 before a preemption only, because `notice_of_limit` knows the limit better.
            "--parsable", "--export=ALL", "--open-mode=append", "--signal=B:USR1@0", "--no-kill",
            "--requeue" if request.spec.policy.restarts else "--no-requeue",
            f"--job-name={job_name(run.name)}", f"--output={output}",
        )  # fmt: skip
        user_options = options.for_job(request.spec)
        # By this variable the launcher in the job knows that it was submitted, and the folder of its run.
        environ = {**outer_environment(), RUN_FOLDER_VARIABLE: run.paths.root}
        with slow(UNANSWERED_NOTICE):
            answer = ask("sbatch", *our_options, *user_options, stdin=script, environ=environ)
        number, _, _ = answer.partition(";")  # The name of a cluster may follow.
        refuse_hopeless(number, user_options)  # This raises an error if the job can never start.
        return Submission(f"Slurm's job {number} is submitted")

    def own(self) -> BatchJob | None:
        """Return Slurm's job around this process with its node, or None outside of any job."""
        node = os.environ.get("SLURMD_NODENAME", "")  # The shell of an salloc may run on no node.
        return BatchJob("slurm", os.environ["SLURM_JOB_ID"], node) if is_inside(os.environ) and node else None

    def times_requeued(self) -> int:
        """Return how often Slurm had restarted the job around this process when this process started."""
        return SlurmJob("", os.environ).restarts  # It is in a variable, so no number of a job is needed.

    def may_requeue(self) -> bool:
        """Return whether this launcher is the script of a batch job that Slurm may requeue.

        A launcher that the user has started by srun is not: it is only one step of the job.
        """
        if self.own() is None or is_in_step(os.environ):
            return False
        fields = SlurmJob.of(os.environ).fields()
        return fields.get("BatchFlag") == "1" and fields.get("Requeue") == "1"

    def is_requeued(self) -> bool:
        """Return whether Slurm has requeued the job around this process, and so will end this process."""
        return self.own() is not None and SlurmJob.of(os.environ).is_requeued()

    def requeue(self) -> None:
        """Let Slurm end the job around this process, and put it into the queue again."""
        ask("scontrol", "requeue", os.environ["SLURM_JOB_ID"])

    def inspect(self, runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
        """Return the states of the batch jobs of runs, by the names of the runs, from one call of squeue.

        A run without a batch job is left out.
        """
        with slow(UNANSWERED_NOTICE):
            # Each line has the number, name, state, reason and start time of a job of this user.
            listing = ask("squeue", "--noheader", "--me", "--states=all", "--format=%A|%j|%T|%r|%S")
        fields_by_job: dict[str, list[str]] = {}
        for line in listing.splitlines():
            fields = line.split("|")
            if len(fields) == 5:  # There are more if the name contains |, so this is no job of launch.
                number, name, *_ = fields
                # The name is for runs that do not know the number of their job yet.
                fields_by_job[number] = fields_by_job[name] = fields
        return {run.name: _batch_status(run, fields_by_job) for run in runs if run.batch is not None}

    def command_there(self, run: Run, words: Sequence[str]) -> tuple[list[str], Mapping[str, str] | None]:
        """Return the command line of a step on the node of a run's launcher, and its environment."""
        assert run.batch is not None
        step = [*srun(run.batch.number, run.batch.node), "--input=none", *launch_command(*words)]
        return step, environment()

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """Run a command of launch in a step on the node of a run's launcher, and return its exit code.

        Args:
            run: The run.
            words: The words of the command.
            quiet: Whether to hide its output.
        """
        argv, environ = self.command_there(run, words)
        return run_shown(argv, _HIDDEN_LINE, quiet, environ=environ)

    def withdraw(self, run: Run) -> None:
        """Cancel the batch job of a run, by its number, or by its name while the number is unknown.

        The run gets to know the number when its launcher starts.
        """
        number = run.batch.number if run.batch else ""
        ask("scancel", "--quiet", *([number] if number else ["--me", f"--name={job_name(run.name)}"]))


def _batch_status(run: Run, fields_by_job: Mapping[str, Sequence[str]]) -> BatchJobStatus:
    """Return the state of the batch job of a run.

    Args:
        run: The run.
        fields_by_job: Number, name, state, reason and start time of each job that squeue lists, by the number
            of the job and by its name.
    """
    # Until the launcher starts, the run knows only the name of its job.
    number = run.batch.number if run.batch else ""
    fields = fields_by_job.get(number) or fields_by_job.get(job_name(run.name))
    if fields is None:  # That squeue once does not list the job does not mean that it has ended.
        end = SlurmJob(number, {}).end_reason() if number else f"Slurm has no job {job_name(run.name)}"
        if end:
            return BatchJobStatus(JobPhase.OVER, end)
        return BatchJobStatus(JobPhase.RUNNING, f"Slurm's job {number} runs")
    number, _, state, reason, start = fields
    if state in _WAITING_STATES:
        return BatchJobStatus(JobPhase.PENDING, pending_text(number, reason, start))
    if state in END_STATES:
        # Of all reasons only those of a failed job say more than its state, and NonZeroExitCode does not.
        reason_text = f" ({reason})" if state == "FAILED" and reason != "NonZeroExitCode" else ""
        return BatchJobStatus(JobPhase.OVER, f"Slurm's job {number} {END_STATES[state]}{reason_text}")
    return BatchJobStatus(JobPhase.RUNNING, f"Slurm's job {number} runs")


@contextmanager
def notice_of_limit(job: SlurmJob, seconds: float) -> Iterator[None]:
    """Return a context in which this process gets SIGUSR1 before the time limit of a job.

    Launch handles this signal as a notice of a limit: it stops the tasks, which then have time to save their
    state.

    Args:
        job: The job at Slurm.
        seconds: How long before the time limit. If less than twice this time is left at first, the signal
            comes after half of what is left, so that tasks can do some work before.
    """
    is_left = threading.Event()

    def watch() -> None:
        """Ask Slurm for the time that is left until the signal is due, or until the context is left."""
        notice_seconds: float | None = None  # How long before the limit. None until Slurm has answered.
        pause = 0.0
        while not is_left.wait(pause):
            try:
                seconds_left = job.seconds_left()
            except TransportError:  # The controller is busy.
                pause = _RETRY_SECONDS
                continue
            if seconds_left is None:  # There is no limit.
                return
            if notice_seconds is None:
                notice_seconds = min(seconds, seconds_left / 2)
            if seconds_left <= notice_seconds and not is_left.is_set():
                os.kill(os.getpid(), SIGUSR1)
                return
            # The administrator may change the limit, so Slurm is asked again now and then.
            pause = min(max(seconds_left - notice_seconds, 0.0), _MAX_POLL_SECONDS)

    # The thread asks Slurm now and then how much time is left, while the job runs in the caller.
    thread = start_function(watch, name="time limit")
    try:
        yield
    finally:
        is_left.set()
        thread.join(_END_TIMEOUT_SECONDS)


def clean(request: CleanRequest) -> Iterator[str]:
    """Cancel the jobs that launches have asked for and that no process looks after. Yield a line for each.

    Batch jobs are left alone, because they end with their launchers. Nothing is done if hosts are named, or
    if this machine has no commands of Slurm.

    Args:
        request: What ``launch clean`` asks for.
    """
    if request.named_hosts or not shutil.which("squeue"):
        return
    try:
        listing = ask("squeue", "--noheader", "--me", "--format=%A|%j|%T")
    except TransportError as error:
        say(str(error))
        return
    for line in listing.splitlines():
        number, name, state = line.rsplit("|", 2)
        if not re.fullmatch(_JOB_NAME_PATTERN, name):
            continue
        fields = SlurmJob(number, {}).fields()
        if fields.get("BatchFlag") != "0":  # A batch job, or a job that has just ended and has no fields.
            continue
        owner = owner_in_comment(fields.get("Comment", ""))
        # The field is HOST:SESSION. The session is that of the holder, the shell that asked for the job. It
        # outlives a launcher that was killed, and frees the job soon.
        _, _, session = fields.get("Sid", "").rpartition(":")
        if is_dead(owner) and _session_has_processes(session):
            continue
        run_name = name.partition("-")[2]
        if request.cleaning.may_remove(run_name, owner, f"Slurm's job {number}"):
            if not request.dry_run:
                ask("scancel", "--quiet", number)
            done = "would cancel" if request.dry_run else "cancelled"
            yield f"{done} Slurm's job {number}, {name} ({state.lower()})"


def _session_has_processes(session: str) -> bool:
    """Return whether a process of a POSIX session, such as that of a shell, lives on this machine.

    Args:
        session: The id of the session as Slurm writes it, in decimal. If Slurm writes something else, or
            nothing, no process belongs to it.
    """
    processes = (read_process(pid) for pid in all_pids())
    return any(process and str(process.session) == session and not process.has_ended for process in processes)
