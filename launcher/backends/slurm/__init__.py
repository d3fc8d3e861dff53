"""Nodes of Slurm: those of the allocation that launch runs in, or of one that it asks for (``--slurm``).

::

    allocation   the job at Slurm: its nodes, its end; a holder that asks for one and gives it back
    batch        a launcher as a batch job, and the notice before its time limit
    steps        the agent of each node is the main process of a step: an srun for each node

Slurm queues, places, limits and accounts. The agents are the same as over SSH.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Backend
from launcher.backends.connections import Connected, ProgramRunner
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings, LaunchRequest
from launcher.common.errors import Fault, HostsError, JobError, TransportError
from launcher.common.record import Record
from launcher.config import values
from launcher.job import RUN_FOLDER_VARIABLE, Host, JobSpec

if TYPE_CHECKING:
    from launcher.backends.slurm.batch import SlurmQueue
    from launcher.common.events import HostFacts
    from launcher.config.schema import Section
    from launcher.findings import Finding

#: Our options -> those of salloc.
_SALLOC_OPTIONS = {"nodes": "--nodes", "partition": "--partition", "time": "--time",
           "gpus_per_node": "--gpus-per-node", "account": "--account"}  # fmt: skip
#: What users of others may mean by an option.
_ALTERNATIVES = {
    "nodes": "; or --hosts node1,node2",
    "time": "; or --timeout, the limit of launch",
    "gpus_per_node": "; or --gpus, for each task",
}
#: Steps from this number on are not the user's: the script of sbatch, the shell of salloc.
_FIRST_SYSTEM_STEP = 0xFFFF_FF00
#: Nodes of a job.
MAX_NODES = 10_000
#: The time limit of an allocation without a job, in minutes.
_CHECK_MINUTES = 5
#: Seconds before a time limit at which tasks are stopped; more than their grace by this number.
_NOTICE_SECONDS = 120.0
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
    notice: float = _NOTICE_SECONDS
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


def _options(text: str) -> str:
    """Options of salloc."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words or not words[0].startswith("-"):
        raise ValueError("expected options of salloc, as in '--qos=short --exclusive'")
    return text


def time_limit(text: str) -> str:
    """Return a time limit in a form of Slurm; ``5m`` and ``36h`` are read as --timeout reads them."""
    if re.fullmatch(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|-1|unlimited|infinite", text, re.I):
        return text
    try:
        seconds = math.ceil(values.duration(text))
    except ValueError:
        forms = "minutes, 5m, 36h, 2d, hours:minutes:seconds, or days-hours:minutes:seconds"
        raise ValueError(f"expected a time limit: {forms}") from None
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


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

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Backend.add_options`."""
        add = functools.partial(values.option, parser.add_argument_group("Slurm"))
        add("--slurm", "run on nodes that Slurm allocates")
        add("--no-slurm", "do not use the nodes of the allocation around launch")
        add("-N --nodes N", "number of nodes", values.whole(1, MAX_NODES))
        add("--partition NAME", "the partition", values.one_line)
        add("--time T", "time limit at Slurm: minutes, 36h, or 1-12:00:00", time_limit)
        add("--gpus-per-node N", "GPUs of each node: 2, or a100:2", values.one_line)
        add("--account NAME", "the account", values.one_line)
        add("--slurm-options '...'", "more options, as salloc has them", _options)

    def sections(self) -> Mapping[str, Section]:
        """See `Backend.sections`."""
        from launcher.config.schema import KeySpec, Section, read_mapping, single, table

        line = single(values.one_line)
        keys = table(
            KeySpec("nodes", "The number of nodes.", single(values.whole(1, MAX_NODES))),
            KeySpec("partition", "The partition.", line),
            KeySpec("time", "The time limit at Slurm: minutes, 36h, or 1-12:00:00.", single(time_limit)),
            KeySpec("gpus_per_node", "GPUs of each node: 2, or a100:2.", line),
            KeySpec("account", "The account.", line),
            KeySpec("options", "More options, as salloc has them.", single(_options)),
            KeySpec("notice", "Time from the stop of the tasks to the time limit.", single(values.duration)),
        )

        def read(node: Any, roles: Sequence[str], faults: Any) -> SlurmOptions | None:
            if not isinstance(node.value, dict):
                faults.add_kind(node, "slurm", "expected a mapping, as in nodes: 4")
                return None
            return SlurmOptions(
                **read_mapping(node, keys, faults).some(*_SALLOC_OPTIONS, "options", "notice")
            )

        return {"slurm": Section("Nodes that Slurm allocates.", read)}

    def settings(self, asked: Asked) -> SlurmOptions | None:
        """See `Backend.settings`."""
        args = asked.args
        if args.no_slurm:
            return None
        if not args.slurm and asked.section is None:
            implied = is_inside(os.environ) and not asked.named
            return SlurmOptions(implied=True) if implied else None
        given = {name: getattr(args, name) for name in _SALLOC_OPTIONS if getattr(args, name) is not None}
        options: SlurmOptions = (asked.section or SlurmOptions())._replace(**given)
        return options._replace(options=f"{options.options} {args.slurm_options or ''}".strip())

    def faults(self, asked: Asked, settings: SlurmOptions | None) -> Iterator[Fault]:
        """See `Backend.faults`."""
        if asked.args.slurm and asked.args.no_slurm:
            yield Fault("", "--slurm and --no-slurm both", "expected one of them")
        given = [
            name for name in (*_SALLOC_OPTIONS, "slurm_options") if getattr(asked.args, name) is not None
        ]
        if (settings is None or settings.implied) and not is_inside(os.environ):
            for name in given:
                text = "the option is about an allocation of Slurm"
                expected = f"expected --slurm, too{_ALTERNATIVES.get(name, '')}"
                yield Fault(f"--{name.replace('_', '-')}", text, expected)
        if (
            vars(asked.args).get("detach")
            and is_in_script(os.environ)
            and RUN_FOLDER_VARIABLE not in os.environ
        ):
            text = "in a script for sbatch, whose job ends with the script, and so would the launcher"
            yield Fault("--detach", text, "expected launch without it; for several at once: launch ... &")
        if settings is None:
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

    def notes(self, asked: Asked, settings: SlurmOptions | None) -> Iterator[str]:
        """See `Backend.notes`."""
        if not is_inside(os.environ):
            return
        job = os.environ["SLURM_JOB_ID"]
        if settings is None and asked.named:
            yield f"--hosts: the tasks run there, not on the nodes of Slurm's job {job}"
        elif settings is not None and settings.salloc() and RUN_FOLDER_VARIABLE not in os.environ:
            text = f"launch runs in Slurm's job {job}, and uses its nodes"
            yield f"no allocation is asked for ({shlex.join(settings.salloc())}): {text}"

    @contextmanager
    def present(self, asked: Asked, name: str, notice: Callable[[str], None]) -> Iterator[Allocation | None]:
        """See `Backend.present`."""
        given = vars(asked.args)
        usual = {"slurm": False, "no_slurm": False, **dict.fromkeys((*_SALLOC_OPTIONS, "slurm_options"))}
        asked = asked._replace(args=argparse.Namespace(**{**usual, **given}))
        settings = self.settings(asked)
        if faults := list(self.faults(asked, settings)):
            raise JobError(faults)
        if settings is None:
            yield None
            return
        from launcher.backends.slurm.allocation import allocated
        from launcher.backends.slurm.steps import present

        python = bool(given.get("python") or given.get("venv"))
        words = settings.salloc()
        words += [] if settings.time else [f"--time={_CHECK_MINUTES}"]
        with ExitStack() as stack:
            with _way_out(settings.implied):
                job = stack.enter_context(allocated(words, name, notice, lambda: None))
                found = present(job, notice, python)
            yield found

    def findings(self, allocation: Allocation, facts: Mapping[str, HostFacts]) -> Iterable[Finding]:
        """See `Backend.findings`."""
        from launcher.backends.slurm.steps import findings

        return findings(allocation.settings, facts)

    def cleanup(
        self,
        args: argparse.Namespace,
        hosts: Sequence[Host],
        commands: ProgramRunner,
        notice: Callable[[str], None],
        dry_run: bool,
    ) -> Iterable[str]:
        """See `Backend.cleanup`: jobs that were asked for."""
        import shutil  # it imports compression

        if hosts or not shutil.which("squeue"):
            return ()
        from launcher.backends.slurm.batch import cleanup

        return cleanup(notice, dry_run, args.cleaning)

    @contextmanager
    def inventory(self, request: LaunchRequest) -> Iterator[Allocation]:
        """See `Backend.inventory`."""
        from launcher.backends.slurm.allocation import allocated
        from launcher.backends.slurm.batch import notice_of_limit
        from launcher.backends.slurm.steps import inventory

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
                job = stack.enter_context(
                    allocated(words, request.run_name, request.notice, request.ignore_signals)
                )
                found = stack.enter_context(inventory(request, job))
            if not request.dry_run:
                stack.enter_context(notice_of_limit(job, notice))
            limit = f"the time limit of Slurm's job {job.id} (--time)"
            yield found._replace(limit=limit, end="SIGTERM, as scancel sends it")

    def queue(self) -> SlurmQueue:
        """See `Backend.queue`."""
        from launcher.backends.slurm.batch import SlurmQueue

        return SlurmQueue()

    def connections(
        self,
        hosts: Sequence[Host],
        settings: Any,
        connect_settings: ConnectSettings,
        notice: Callable[[str], None],
    ) -> AbstractContextManager[Connected]:
        """See `Backend.connections`."""
        from launcher.backends.slurm.steps import connections

        return connections(settings, hosts)


TRANSPORT = SlurmBackend()
