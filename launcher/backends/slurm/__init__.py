"""The backend for nodes of Slurm: those of the allocation around launch, or of one that launch asks for.

::

    job          the job at Slurm: its nodes, its end; a holder that asks for one and gives it back
    batch        a launcher as a batch job, and the notice before its time limit
    steps        the agent of each node is the main process of a step: an srun for each node
    allocation   the nodes of the job as the hosts of a launch

Slurm queues, places, limits and accounts. The agents are the same as over SSH.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Allocation, Backend, LaunchRequest
from launcher.backends.slurm import rows
from launcher.common.errors import Fault, Note
from launcher.common.record import Record
from launcher.config.settings import Need, Settings
from launcher.config.table import DETACH
from launcher.job import RUN_FOLDER_VARIABLE, JobSpec

if TYPE_CHECKING:
    from launcher.backends.cleaning import CleanRequest
    from launcher.backends.slurm.batch import SlurmQueue

#: The options that have the same names as those of salloc.
_SALLOC_ROWS = (rows.NODES, rows.PARTITION, rows.TIME, rows.GPUS_PER_NODE, rows.ACCOUNT)
#: Steps from this number on were not started by the user: the script of sbatch, the shell of salloc.
_FIRST_SYSTEM_STEP = 0xFFFF_FF00


class SlurmOptions(Record):
    """The nodes that the user asks Slurm for."""

    nodes: int | None = None
    #: The options of salloc.
    salloc: tuple[str, ...] = ()
    #: The tasks are stopped this many seconds before the time limit.
    notice: float = rows.SLURM_NOTICE.default
    #: Whether nothing but the allocation around launch asks for Slurm.
    implied: bool = False

    def for_job(self, spec: JobSpec) -> tuple[str, ...]:
        """Return the options of salloc and sbatch for the tasks of a job.

        If the user does not say how many tasks there are, this does. It uses ``--ntasks-per-node`` with
        several nodes, because with ``--ntasks`` Slurm would grant the first node one task for each of its
        CPUs, and each other node only one.
        """
        if any(word.startswith(("--ntasks", "-n")) for word in self.salloc):
            return self.salloc
        count = count_tasks(spec)
        if self.nodes is None:
            return (*self.salloc, f"--ntasks={count}")
        return (*self.salloc, f"--ntasks-per-node={math.ceil(count / self.nodes)}")


def count_tasks(spec: JobSpec) -> int:
    """Return the number of tasks that Slurm counts.

    Sidecars such as TensorBoard do not count: they only serve the job, and need no slot of their own.
    """
    return sum(role.count for role in spec.roles if not role.sidecar)


def is_inside(environ: Mapping[str, str]) -> bool:
    """Return whether these environment variables belong to a process in an allocation of Slurm."""
    return bool(environ.get("SLURM_JOB_ID"))


def is_in_step(environ: Mapping[str, str]) -> bool:
    """Return whether these environment variables belong to a step that the user started by srun."""
    step = environ.get("SLURM_STEP_ID", "")
    # The script of sbatch and the shell of salloc run in steps, too, whose numbers are above all others.
    return step.isdigit() and int(step) < _FIRST_SYSTEM_STEP


def is_in_script(environ: Mapping[str, str]) -> bool:
    """Return whether these environment variables belong to the script of a batch job.

    The batch job ends with its script.
    """
    return is_inside(environ) and environ.get("ENVIRONMENT") == "BATCH" and not is_in_step(environ)


class SlurmBackend(Backend[SlurmOptions]):
    """The backend for nodes of Slurm."""

    name = "slurm"
    provides_hosts = shares_files = True

    group, section = rows.GROUP, rows.SECTION

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> SlurmOptions | None:
        """Return what the user asks Slurm for.

        Args:
            settings: The settings of the launch.
            spec: The job, which changes nothing here.
            hosts_named: Whether the user names hosts. Then the allocation around launch is not used.

        Returns:
            The options. They are implied if only the allocation around launch asks for Slurm. None if nothing
            does, or the user types ``--no-slurm``.
        """
        if settings[rows.NO_SLURM]:
            return None
        if not settings[rows.SLURM]:
            return SlurmOptions(implied=True) if is_inside(os.environ) and not hosts_named else None
        # These options of launch have the same names at salloc.
        named = [f"{row.flag}={settings[row]}" for row in _SALLOC_ROWS if settings[row] is not None]
        words = (*named, *shlex.split(settings[rows.SLURM_OPTIONS]))
        return SlurmOptions(nodes=settings[rows.NODES], salloc=words, notice=settings[rows.SLURM_NOTICE])

    def is_implied(self, options: SlurmOptions) -> bool:
        """Return whether only the allocation around this process asks for Slurm."""
        return options.implied

    def met_needs(self, options: SlurmOptions | None) -> Collection[Need]:
        """Return the need of an allocation, if the user asks for one, or launch is inside one.

        Options with this need, such as ``--time``, are refused in other launches. Inside an allocation they
        are accepted without effect, also with ``--no-slurm``.
        """
        user_asks = options is not None and not options.implied
        return (rows.ALLOCATION,) if user_asks or is_inside(os.environ) else ()

    def check(
        self, options: SlurmOptions | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault | Note]:
        """Yield faults of the options, of Slurm's variables, and of how launch was started, and notes.

        ``options`` is None if Slurm is not asked for, and ``chosen`` is the backend of the launch.
        """
        # The launcher that `launch --detach` has submitted runs in the script of a batch job, too, with the
        # options that the user typed. This variable, which only it gets, tells it from a launch in a user's
        # own script.
        was_submitted = RUN_FOLDER_VARIABLE in os.environ
        if request.settings[DETACH] and is_in_script(os.environ) and not was_submitted:
            text = "in a script for sbatch, whose job ends with the script, and so would the launcher"
            yield Fault("--detach", text, "expected launch without it; for several at once: launch ... &")
        # From here on the faults are those of a launch that uses Slurm, because the user asks for it or
        # because this process runs inside an allocation.
        if options is not None:
            yield from _wrong_variables()
            if request.hosts_named:
                yield Fault("--slurm", "the hosts are named, too", "expected one of them, or --no-slurm")
            yield from _wrong_start()
        if is_inside(os.environ):
            job = os.environ["SLURM_JOB_ID"]
            if options is None and request.hosts_named:
                yield Note(f"--hosts: the tasks run there, not on the nodes of Slurm's job {job}")
            elif options is not None and options.salloc and not was_submitted:
                # The options of salloc have no effect. Those of a submitted launcher had one at sbatch.
                text = f"launch runs in Slurm's job {job}, and uses its nodes"
                yield Note(f"no allocation is asked for ({shlex.join(options.salloc)}): {text}")

    def allocate(self, options: SlurmOptions, request: LaunchRequest) -> Allocation:
        """Return the nodes of the job around launch, or of a job that is asked for on entering."""
        from launcher.backends.slurm.allocation import SlurmAllocation  # noqa: PLC0415 - only when used

        return SlurmAllocation(options, request)

    def batch_queue(self) -> SlurmQueue:
        """Return the queue that starts launchers as batch jobs, for ``--detach``."""
        from launcher.backends.slurm.batch import SlurmQueue  # noqa: PLC0415 - only when used

        return SlurmQueue()

    def clean(self, request: CleanRequest) -> Iterator[str]:
        """Cancel allocations that ended launches had asked for, and yield a line for each."""
        from launcher.backends.slurm.batch import clean  # noqa: PLC0415 - only when used

        return clean(request)


def _wrong_variables() -> Iterator[Fault]:
    """Yield a fault for each variable of Slurm that cannot be right."""
    job, conf = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_CONF", "")
    if job and not re.fullmatch("[1-9][0-9]{0,9}", job):
        yield Fault("SLURM_JOB_ID", f"{job!r}", "expected the number of a job; or --no-slurm")
    if conf and not os.path.exists(conf):
        yield Fault("SLURM_CONF", f"there is no file {conf!r}", "expected the configuration of Slurm")


def _wrong_start() -> Iterator[Fault]:
    """Yield a fault if srun has started launch several times, once for each task of a step.

    Only the first of these launches reports it. The others exit at once and print nothing.
    """
    count = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if is_inside(os.environ) and is_in_step(os.environ) and count != "1":
        if os.environ.get("SLURM_PROCID", "0") != "0":
            raise SystemExit(2)
        text = f"srun has started launch {count} times, once for each of its tasks"
        expected = f"expected launch without srun, which starts the tasks: launch --workers {count} ..."
        yield Fault("", text, expected)


BACKEND = SlurmBackend()
