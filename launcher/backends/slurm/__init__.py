"""Nodes of Slurm: those of the allocation that launch runs in, or of one that it asks for (``--slurm``).

::

    allocation   the job at Slurm: its nodes, its end; a holder that asks for one and gives it back
    batch        a launcher as a batch job, and the notice before its time limit
    steps        the agent of each node is the main process of a step: an srun for each node

Slurm queues, places, limits and accounts. The agents are the same as over SSH.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Backend
from launcher.backends.cleaning import Cleaning
from launcher.backends.connections import Connections, ProgramRunner
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings, LaunchRequest
from launcher.backends.slurm.rows import (
    ACCOUNT,
    ALLOCATION,
    GPUS_PER_NODE,
    GROUP,
    NO_SLURM,
    NODES,
    PARTITION,
    SECTION,
    SLURM,
    SLURM_NOTICE,
    SLURM_OPTIONS,
    TIME,
)
from launcher.common.errors import Fault, HostsError, JobError, TransportError
from launcher.common.record import Record, replace
from launcher.config.settings import Need, Settings
from launcher.config.table import DETACH, PYTHON, VENV
from launcher.job import RUN_FOLDER_VARIABLE, Host, JobSpec

if TYPE_CHECKING:
    from launcher.backends.slurm.batch import SlurmQueue
    from launcher.common.events import HostFacts
    from launcher.findings import Finding

#: Our options -> those of salloc.
_SALLOC_OPTIONS = {"nodes": "--nodes", "partition": "--partition", "time": "--time",
           "gpus_per_node": "--gpus-per-node", "account": "--account"}  # fmt: skip
#: Steps from this number on are not the user's: the script of sbatch, the shell of salloc.
_FIRST_SYSTEM_STEP = 0xFFFF_FF00
#: The time limit of an allocation without a job, in minutes.
_CHECK_MINUTES = 5
#: Tasks are stopped before a time limit by more than their grace: by this number of seconds.
_AFTER_GRACE_SECONDS = 30.0


class SlurmOptions(Record):
    """What the user asks Slurm for."""

    nodes: int | None = None
    partition: str | None = None
    time: str | None = None
    gpus_per_node: str | None = None
    account: str | None = None
    #: More options of salloc.
    options: str = ""
    #: Seconds before the time limit at which the tasks are stopped.
    notice: float = SLURM_NOTICE.default
    #: Nothing asks for Slurm but the allocation that launch runs in.
    implied: bool = False

    def salloc(self) -> list[str]:
        """The options of salloc."""
        given = {option: getattr(self, name) for name, option in _SALLOC_OPTIONS.items()}
        words = [f"{option}={value}" for option, value in given.items() if value is not None]
        return words + shlex.split(self.options)

    def for_job(self, spec: JobSpec) -> list[str]:
        """The options of salloc and sbatch for the tasks of a job, whose number the user may say.

        Of ``--ntasks``, Slurm gives the first of several nodes as many as it has CPUs, and one to each other.
        """
        words, count, nodes = self.salloc(), _tasks(spec), self.nodes
        if any(word.startswith(("--ntasks", "-n")) for word in words):
            return words
        return [*words, f"--ntasks-per-node={-(-count // nodes)}" if nodes else f"--ntasks={count}"]


def _tasks(spec: JobSpec) -> int:
    return sum(role.count for role in spec.roles if not role.sidecar)


def is_inside(environ: Mapping[str, str]) -> bool:
    """Whether these are the variables of a process in an allocation."""
    return bool(environ.get("SLURM_JOB_ID"))


def is_in_step(environ: Mapping[str, str]) -> bool:
    """Whether these are the variables of a step that the user has started by srun."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < _FIRST_SYSTEM_STEP


def is_in_script(environ: Mapping[str, str]) -> bool:
    """Return whether these are the variables of the script of a batch job. The job ends with that script."""
    return is_inside(environ) and environ.get("ENVIRONMENT") == "BATCH" and not is_in_step(environ)


def _wrong_variables() -> Iterator[Fault]:
    run_name, conf = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_CONF", "")
    if run_name and not re.fullmatch("[1-9][0-9]{0,9}", run_name):
        yield Fault("SLURM_JOB_ID", f"{run_name!r}", "expected the number of a job; or --no-slurm")
    if conf and not os.path.exists(conf):
        yield Fault("SLURM_CONF", f"there is no file {conf!r}", "expected the configuration of Slurm")


@contextmanager
def _way_out(is_implied: bool) -> Iterator[None]:
    """Open a context whose errors name --no-slurm if it was not the user who asked for Slurm.

    Args:
        is_implied: Whether only variables of the environment say that there is a job of Slurm.
    """
    try:
        yield
    except TransportError as error:
        if not is_implied:
            raise
        text = "; --no-slurm ignores the job, and uses this machine"
        if isinstance(error, HostsError):
            raise HostsError([*error.faults[:-1], error.faults[-1] + text]) from error
        raise TransportError(f"{error}{text}") from error


class SlurmBackend(Backend):
    """See above."""

    provides_hosts = shares_files = True

    group, section = GROUP, SECTION

    def parse(self, asked: Asked) -> SlurmOptions | None:
        """See `Backend.parse`."""
        settings = asked.settings
        if settings[NO_SLURM]:
            return None
        if not settings[SLURM]:
            implied = is_inside(os.environ) and not asked.named
            return SlurmOptions(implied=True) if implied else None
        return SlurmOptions(
            nodes=settings[NODES],
            partition=settings[PARTITION],
            time=settings[TIME],
            gpus_per_node=settings[GPUS_PER_NODE],
            account=settings[ACCOUNT],
            options=settings[SLURM_OPTIONS],
            notice=settings[SLURM_NOTICE],
        )

    def meets(self, options: SlurmOptions | None) -> Collection[Need]:
        """See `Backend.meets`."""
        asked_for = options is not None and not options.implied
        return (ALLOCATION,) if asked_for or is_inside(os.environ) else ()

    def faults(self, asked: Asked, options: SlurmOptions | None) -> Iterator[Fault]:
        """See `Backend.faults`."""
        if asked.settings[DETACH] and is_in_script(os.environ) and RUN_FOLDER_VARIABLE not in os.environ:
            text = "in a script for sbatch, whose job ends with the script, and so would the launcher"
            yield Fault("--detach", text, "expected launch without it; for several at once: launch ... &")
        if options is None:
            return
        yield from _wrong_variables()
        if asked.named:
            yield Fault("--slurm", "the hosts are named, too", "expected one of them, or --no-slurm")
        tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
        if is_inside(os.environ) and is_in_step(os.environ) and tasks != "1":
            if os.environ.get("SLURM_PROCID", "0") != "0":
                raise SystemExit(2)
            text = f"srun has started launch {tasks} times, once for each of its tasks"
            expected = f"expected launch without srun, which starts the tasks: launch --workers {tasks} ..."
            yield Fault("", text, expected)

    def notes(self, asked: Asked, options: SlurmOptions | None) -> Iterator[str]:
        """See `Backend.notes`."""
        if not is_inside(os.environ):
            return
        job = os.environ["SLURM_JOB_ID"]
        if options is None and asked.named:
            yield f"--hosts: the tasks run there, not on the nodes of Slurm's job {job}"
        elif options is not None and options.salloc() and RUN_FOLDER_VARIABLE not in os.environ:
            text = f"launch runs in Slurm's job {job}, and uses its nodes"
            yield f"no allocation is asked for ({shlex.join(options.salloc())}): {text}"

    @contextmanager
    def present(self, asked: Asked, name: str) -> Iterator[Allocation | None]:
        """See `Backend.present`."""
        options = self.parse(asked)
        if faults := list(self.faults(asked, options)):
            raise JobError(faults)
        if options is None:
            yield None
            return
        from launcher.backends.slurm.allocation import allocated  # noqa: PLC0415 - the live half
        from launcher.backends.slurm.steps import present  # noqa: PLC0415 - the live half

        python = bool(asked.settings[PYTHON] or asked.settings[VENV])
        words = options.salloc()
        words += [] if options.time else [f"--time={_CHECK_MINUTES}"]
        with ExitStack() as stack:
            with _way_out(options.implied):
                job = stack.enter_context(allocated(words, name, lambda: None))
                found = present(job, python)
            yield found

    def findings(self, allocation: Allocation, facts: Mapping[str, HostFacts]) -> Iterable[Finding]:
        """See `Backend.findings`."""
        from launcher.backends.slurm.steps import findings  # noqa: PLC0415 - the live half

        return findings(allocation.settings, facts)

    def cleanup(
        self,
        settings: Settings,
        cleaning: Cleaning,
        hosts: Sequence[Host],
        commands: ProgramRunner,
        dry_run: bool,
    ) -> Iterable[str]:
        """See `Backend.cleanup`: jobs that were asked for."""
        import shutil  # noqa: PLC0415 - with compression: 4 ms

        if hosts or not shutil.which("squeue"):
            return ()
        from launcher.backends.slurm.batch import cleanup  # noqa: PLC0415 - the live half

        return cleanup(dry_run, cleaning)

    @contextmanager
    def inventory(self, request: LaunchRequest) -> Iterator[Allocation]:
        """See `Backend.inventory`."""
        from launcher.backends.slurm.allocation import allocated  # noqa: PLC0415 - the live half
        from launcher.backends.slurm.batch import notice_of_limit  # noqa: PLC0415 - the live half
        from launcher.backends.slurm.steps import inventory  # noqa: PLC0415 - the live half

        options: SlurmOptions = request.settings
        words = options.for_job(request.spec)
        if request.dry_run and not is_inside(os.environ):
            count, nodes = _tasks(request.spec), options.nodes or 1
            least, most = max(1, count // nodes), -(-count // nodes)
            hosts = [Host(f"node{n}", slots=least, max_slots=most) for n in range(1, nodes + 1)]
            remarks = (f"Slurm names the nodes: salloc {shlex.join(words)}",)
            yield Allocation(tuple(hosts), request.spec, same_files=frozenset(h.name for h in hosts),
                            remarks=remarks)  # fmt: skip
            return
        notice = max(options.notice, request.spec.policy.grace + _AFTER_GRACE_SECONDS)
        with ExitStack() as stack:
            with _way_out(options.implied):
                job = stack.enter_context(allocated(words, request.run_name, request.ignore_signals))
                found = stack.enter_context(inventory(request, job))
            if not request.dry_run:
                stack.enter_context(notice_of_limit(job, notice))
            limit = f"the time limit of Slurm's job {job.id} (--time)"
            yield replace(found, limit=limit, end="SIGTERM, as scancel sends it")

    def queue(self) -> SlurmQueue:
        """See `Backend.queue`."""
        from launcher.backends.slurm.batch import SlurmQueue  # noqa: PLC0415 - the live half

        return SlurmQueue()

    def connections(
        self,
        hosts: Sequence[Host],
        settings: Any,
        connect_settings: ConnectSettings,
    ) -> AbstractContextManager[Connections]:
        """See `Backend.connections`."""
        from launcher.backends.slurm.steps import connections  # noqa: PLC0415 - the live half

        return connections(settings, hosts)


TRANSPORT = SlurmBackend()
