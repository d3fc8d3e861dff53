"""The nodes of a job at Slurm as the hosts of a launch.

`launcher.backends.slurm.SlurmBackend.allocate` returns one. When it is left, no step of it may be left in the
job.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from launcher.agent.slurm_node import fingerprint
from launcher.backends import bootstrap
from launcher.backends.backend import Allocation, LaunchRequest, Purpose
from launcher.backends.connections import Connections, by_reason, for_each, slow
from launcher.backends.slurm import SlurmOptions, count_tasks, is_inside
from launcher.backends.slurm.batch import notice_of_limit
from launcher.backends.slurm.job import UNANSWERED_NOTICE, allocated, asked, shown
from launcher.backends.slurm.rows import TIME
from launcher.backends.slurm.steps import SlurmNode, Steps
from launcher.common.errors import Fault, HostsError, JobError, TransportError
from launcher.common.events import HostFacts
from launcher.common.text import duration, join_names, plural
from launcher.config.table import DETACH, FANOUT, PYTHON, VENV
from launcher.findings import WARNING, Finding
from launcher.job import Host, ProgramKind
from launcher.messages import say

#: The time limit of an allocation for ``launch check``.
_CHECK_MINUTES = 5
#: Tasks are stopped before a time limit by their grace, and by this time in addition.
_AFTER_GRACE_SECONDS = 30.0


class SlurmAllocation(Allocation):
    """The nodes of the job around this process, or of a job that this launch asks Slurm for.

    A step inspects each node, and stays on it: later the step becomes the agent of the node.
    """

    def __init__(self, options: SlurmOptions, request: LaunchRequest) -> None:
        super().__init__(request)
        self.options = options
        self.nodes: Sequence[SlurmNode] = ()
        self._stack = ExitStack()

    def __enter__(self) -> SlurmAllocation:
        """Get the job and inspect its nodes. A dry run outside of any job only makes up nodes.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
            TransportError: Slurm grants no nodes, or does not answer, or a node does not.
        """
        if self.request.purpose is Purpose.DRY_RUN and not is_inside(os.environ):
            self._show_examples()
            return self
        with ExitStack() as stack:
            with _advising_no_slurm(self.options.implied):
                self.job = stack.enter_context(
                    allocated(self._words(), self.request.run_name, self.request.ignore_signals)
                )
                self.steps = Steps(self.job)
                stack.callback(self.steps.end)
                self._inspect_nodes()
                self._describe()
            if self.request.purpose is Purpose.RUN:
                notice = max(self.options.notice, self.spec.policy.grace + _AFTER_GRACE_SECONDS)
                stack.enter_context(notice_of_limit(self.job, notice))
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """End all steps, and give back a job that this launch asked for."""
        self._stack.close()

    def _words(self) -> Sequence[str]:
        """Return the options of salloc for this launch. A check gets a short time limit."""
        if self.request.purpose is not Purpose.CHECK:
            return self.options.for_job(self.spec)
        has_limit = self.request.settings[TIME] is not None
        return self.options.salloc if has_limit else (*self.options.salloc, f"--time={_CHECK_MINUTES}")

    def _show_examples(self) -> None:
        """Make up nodes for a dry run, because Slurm names the real ones only when it grants them."""
        count, nodes = count_tasks(self.spec), self.options.nodes or 1
        least, most = max(1, count // nodes), -(-count // nodes)
        self.hosts = tuple(Host(f"node{n}", slots=least, max_slots=most) for n in range(1, nodes + 1))
        self.sharing_files = frozenset(host.name for host in self.hosts)
        command = "sbatch" if self.request.settings[DETACH] else "salloc"
        self.remarks = (f"Slurm names the nodes: {command} {shlex.join(self.options.for_job(self.spec))}",)

    # ------------------------------------------------------------------ the nodes

    def _inspect_nodes(self) -> None:
        """Inspect all nodes, by steps that stay on them, and make hosts of them.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
            TransportError: Slurm does not answer, or a node does not.
        """
        job, files = self.job, self._fingerprints()
        with slow(UNANSWERED_NOTICE):
            names = job.nodes(lambda: bootstrap.packed(bootstrap.AGENT_MODULES))
        self.steps.variables = job.variables(names)
        with asked("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %o") as answer:
            found, silent = for_each(
                names,
                lambda name: self.steps.inspect(name, files),
                "its first step",
                self.request.settings[FANOUT],
                meanwhile=self.request.warm_up,
            )
            with slow(UNANSWERED_NOTICE):
                pairs = [line.split() for line in answer().splitlines()]
        if silent:
            raise HostsError(
                by_reason({name: job.end_reason(fresh=False) or why for name, why in silent.items()})
            )
        self.nodes = tuple(found[name] for name in names)
        self.sharing_files = frozenset(node.name for node in self.nodes if node.same)
        self.hosts = self._hosts({name: address for name, address in pairs if name != address})

    def _fingerprints(self) -> dict[str, object]:
        """Return the files by which a node can tell whether it sees the files of this machine."""
        spec = self.spec
        folder = os.path.expanduser(spec.workdir) if spec.workdir else os.getcwd()
        programs = (role.program for role in spec.roles if role.program.kind is ProgramKind.SCRIPT)
        paths = [folder, *(os.path.join(folder, os.path.expanduser(program.name)) for program in programs)]
        return {path: known for path in paths if (known := fingerprint(path)) is not None}

    def _hosts(self, addresses: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the nodes as hosts.

        The tasks of the job are spread evenly. A node accepts as many tasks as the user asked of Slurm for
        it. If the user said no number, it accepts as many as it has CPUs for the job, or more if there are
        more tasks.

        Args:
            addresses: The numeric addresses of nodes whose address is not their name, by name.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
        """
        count = count_tasks(self.spec)
        room = self.job.tasks(len(self.nodes))
        self.exceeds_slots = room is None
        if room and count > sum(room):
            places = join_names([f"{node.name} {most}" for node, most in zip(self.nodes, room, strict=True)])
            problem = f"Slurm's job {self.job.id} was asked for {sum(room)} ({places})"
            expected = f"expected --ntasks={count} of salloc or sbatch, or no number of tasks"
            raise JobError([Fault("", f"{plural(count, 'task')} do not fit: {problem}", expected)])
        least, even = max(1, count // len(self.nodes)), -(-count // len(self.nodes))
        hosts = []
        for number, node in enumerate(self.nodes):
            most = room[number] if room else max(node.cpus, even)
            slots = min(least, most) if count else most
            # The tasks of a lost node move to other nodes, which then run more tasks.
            most = max(most, count if self.spec.policy.restarts else 0)
            address, python = addresses.get(node.name), self._python(node)
            hosts.append(
                Host(node.name, address=address, slots=slots, max_slots=most, gpus=node.gpus, python=python)
            )
        return tuple(hosts)

    def _python(self, node: SlurmNode) -> str | None:
        """Return the Python of the tasks on a node.

        None if the user named one, or it is that of this machine.
        """
        settings = self.request.settings
        if self.request.purpose is Purpose.CHECK:
            return None if settings[PYTHON] or settings[VENV] else node.python
        return None if settings.is_given(PYTHON) or node.python == sys.executable else node.python

    def _describe(self) -> None:
        """Tell the user about the job, and set the remarks and names by which others describe it."""
        self.limit_name = f"the time limit of Slurm's job {self.job.id} (--time)"
        self.stop_name = "SIGTERM, as scancel sends it"
        nodes = plural(len(self.nodes), "node")
        if self.request.purpose is Purpose.CHECK:
            self.steps.end(over=False)  # The check runs other programs on the nodes.
            partition, left = self.job.fields().get("Partition", "?"), self.job.seconds_left()
            limit = "no time limit" if left is None else f"{duration(left)} left"
            most = shown("partition", partition).get("MaxTime", "UNLIMITED")
            allowed = "" if most == "UNLIMITED" else f" (at most {most})"
            self.remarks = (f"Slurm's job {self.job.id}: partition {partition}{allowed}, {nodes}, {limit}",)
            return
        text = f"Slurm's job {self.job.id}: {nodes}, tasks spread evenly"
        if others := [node.name for node in self.nodes if not node.same]:
            verb = "does" if len(others) == 1 else "do"
            text += f"; {join_names(others)} {verb} not have the files of this machine"
        say(text + (" (--no-slurm: only this machine)" if self.options.implied else ""))

    # ------------------------------------------------------------------ see `Allocation`

    @contextmanager
    def connect(self, hosts: Sequence[Host]) -> Iterator[Connections]:
        """Let the steps that wait on these nodes become their agents, and end all steps at the end."""
        self.steps.dismiss({host.name for host in hosts})
        try:
            yield self.steps
        finally:
            self.steps.end()

    def findings(self, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
        """Yield findings about nodes that see other files, or let tasks use fewer CPUs than the job has."""
        for node in self.nodes:
            if not node.same:
                seen = f"it does not have the files of {os.getcwd()} here"
                yield Finding(WARNING, "files", (node.name,), seen=seen, advice="`--sync .` copies them")
            if node.name in facts and facts[node.name].cpus < node.cpus:
                seen = f"tasks may use {facts[node.name].cpus} of the {node.cpus} CPUs that the job has there"
                yield Finding(
                    WARNING, "cpus", (node.name,), seen=seen, advice="ask Slurm for whole nodes: --exclusive"
                )


@contextmanager
def _advising_no_slurm(is_implied: bool) -> Iterator[None]:
    """Return a context whose errors advise --no-slurm if the user did not ask for Slurm.

    Args:
        is_implied: Whether only environment variables say that there is a job of Slurm.
    """
    try:
        yield
    except TransportError as error:
        if not is_implied:
            raise
        *others, last = error.faults if isinstance(error, HostsError) else [str(error)]
        raise HostsError([*others, f"{last}; --no-slurm ignores the job, and uses this machine"]) from error
