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
from functools import partial

from launcher.agent.slurm_node import fingerprint
from launcher.backends import bootstrap
from launcher.backends.backend import Allocation, LaunchRequest, Purpose
from launcher.backends.connections import Connections, by_reason, for_each, slow
from launcher.backends.slurm import SlurmOptions, count_tasks, is_inside
from launcher.backends.slurm.batch import notice_of_limit
from launcher.backends.slurm.job import UNANSWERED_NOTICE, allocated, asking, show_fields
from launcher.backends.slurm.rows import TIME
from launcher.backends.slurm.steps import SlurmNode, Steps
from launcher.common.errors import Fault, HostsError, JobError, TransportError
from launcher.common.events import HostFacts
from launcher.common.record import replace
from launcher.common.text import duration, join_names, plural
from launcher.config.table import DETACH, FANOUT, PYTHON, VENV
from launcher.findings import WARNING, Finding
from launcher.job import Host, ProgramKind
from launcher.messages import say

#: The time limit of an allocation for ``launch check``.
_CHECK_MINUTES = 5
#: Tasks are stopped before a time limit by the time of ``--grace``, and by this time in addition.
_AFTER_GRACE_SECONDS = 30.0


class SlurmAllocation(Allocation):
    """The nodes of the job around this process, or of a job that this launch asks Slurm for.

    A step inspects each node, and stays on it: later the step becomes the agent of the node.

    Args:
        options: What the user asks of Slurm.
        request: The request of the launch.
    """

    def __init__(self, options: SlurmOptions, request: LaunchRequest) -> None:
        """Store what the user asks Slurm for. The hosts are known when the context is entered."""
        super().__init__(request)
        self.options = options
        #: The nodes of the job, as steps have found them. Empty before that, and in a dry run.
        self.nodes: Sequence[SlurmNode] = ()
        #: What `close` must undo: the job that this launch asked for, its steps, the notice of the limit.
        self._stack = ExitStack()

    def __enter__(self) -> SlurmAllocation:
        """Get the job at Slurm and inspect its nodes. A dry run outside of any job only makes up nodes.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
            TransportError: Slurm grants no nodes, or does not answer, or a node does not.
        """
        if self.request.purpose is Purpose.DRY_RUN and not is_inside(os.environ):
            self._show_examples()
            return self
        # If anything fails here, leaving this stack ends the steps and gives back the job.
        with ExitStack() as stack:
            with _advising_no_slurm(self.options.implied):
                job = allocated(self._salloc_options(), self.request.run_name, self.request.ignore_signals)
                self.job = stack.enter_context(job)
                self.steps = Steps(self.job)
                stack.callback(self.steps.end)
                self._inspect_nodes()
                self._describe()
            if self.request.purpose is Purpose.RUN:
                # The tasks must be able to use the whole time of ``--grace``, from SIGTERM to SIGKILL.
                notice = max(self.options.notice, self.spec.policy.grace + _AFTER_GRACE_SECONDS)
                stack.enter_context(notice_of_limit(self.job, notice))
            self._stack = stack.pop_all()  # Nothing has failed, so only `close` leaves the stack.
        return self

    def close(self) -> None:
        """End all steps, and give back a job that this launch asked for."""
        self._stack.close()

    def _salloc_options(self) -> Sequence[str]:
        """Return the options of salloc for this launch.

        A check, which needs no tasks, gets a short time limit unless the user names one.
        """
        if self.request.purpose is not Purpose.CHECK:
            return self.options.for_job(self.spec)
        has_limit = self.request.settings[TIME] is not None
        return self.options.salloc if has_limit else (*self.options.salloc, f"--time={_CHECK_MINUTES}")

    def _show_examples(self) -> None:
        """Make up nodes for a dry run, because Slurm names the real ones only when it grants them.

        The tasks are spread evenly over them.
        """
        node_count = self.options.nodes or 1
        slots, max_slots = _even_share(count_tasks(self.spec), node_count)
        self.hosts = tuple(
            Host(f"node{number}", slots=slots, max_slots=max_slots) for number in range(1, node_count + 1)
        )
        self.sharing_files = frozenset(host.name for host in self.hosts)
        command = "sbatch" if self.request.settings[DETACH] else "salloc"
        self.remarks = (f"Slurm names the nodes: {command} {shlex.join(self.options.for_job(self.spec))}",)

    # ------------------------------------------------------------------ the nodes

    def _inspect_nodes(self) -> None:
        """Inspect all nodes at once, by steps that stay on them, and make hosts of them.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
            TransportError: Slurm does not answer, or a node does not.
        """
        job, files = self.job, self._fingerprints()
        with slow(UNANSWERED_NOTICE):
            # While Slurm answers, the modules for the nodes are packed.
            names = job.nodes(lambda: bootstrap.packed(bootstrap.AGENT_MODULES))
        self.steps.variables = job.variables(names)
        # sinfo prints a line for each node, with its name and its address. It runs while the nodes are
        # inspected. Meanwhile, too, `warm_up` imports modules that the launch needs later.
        ask_addresses = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %o")
        with asking(*ask_addresses) as answer:
            inspect, fanout = partial(self.steps.inspect, files=files), self.request.settings[FANOUT]
            nodes, failed = for_each(names, inspect, "its first step", fanout, meanwhile=self.request.warm_up)
            with slow(UNANSWERED_NOTICE):
                pairs = [line.split() for line in answer().splitlines()]
        if failed:
            # The end of the job, if it has ended, explains all failures. A step may just have asked for it.
            job_end = job.end_reason(fresh=False)
            raise HostsError(by_reason({name: job_end or reason for name, reason in failed.items()}))
        self.nodes = tuple(nodes[name] for name in names)
        self.sharing_files = frozenset(node.name for node in self.nodes if node.same)
        self.hosts = self._hosts({name: address for name, address in pairs if name != address})

    def _fingerprints(self) -> dict[str, object]:
        """Return the fingerprints of some files, by path. A node compares them with its own files.

        So it can tell whether it sees the working folder and the programs of this machine. What does not
        exist here is left out.
        """
        workdir = self.spec.workdir
        folder = os.path.expanduser(workdir) if workdir else os.getcwd()
        programs = (role.program for role in self.spec.roles if role.program.kind is ProgramKind.SCRIPT)
        paths = [folder, *(os.path.join(folder, os.path.expanduser(program.name)) for program in programs)]
        fingerprints = {path: fingerprint(path) for path in paths}
        return {path: known for path, known in fingerprints.items() if known is not None}

    def _hosts(self, addresses: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the nodes as hosts.

        The tasks of the job are spread evenly: ``slots`` of each host is its share. ``max_slots`` is how many
        tasks it accepts. This is the number that the user asked of Slurm for the node. If the user said no
        number, it is the number of CPUs that the job has there, or more if there are more tasks.

        Args:
            addresses: The numeric addresses of nodes whose address is not their name, by name.

        Raises:
            JobError: There are more tasks than Slurm was asked for.
        """
        task_count = count_tasks(self.spec)
        # The number of tasks that the user asked for on each node. None if the user said no number.
        limits = self.job.tasks(len(self.nodes))
        self.may_exceed_slots = limits is None
        if limits and task_count > sum(limits):
            limit_texts = [f"{node.name} {limit}" for node, limit in zip(self.nodes, limits, strict=True)]
            problem = f"Slurm's job {self.job.id} was asked for {sum(limits)} ({join_names(limit_texts)})"
            expected = f"expected --ntasks={task_count} of salloc or sbatch, or no number of tasks"
            raise JobError([Fault("", f"{plural(task_count, 'task')} do not fit: {problem}", expected)])
        least, most = _even_share(task_count, len(self.nodes))
        hosts = []
        for number, node in enumerate(self.nodes):
            max_slots = limits[number] if limits else max(node.cpus, most)
            # Without tasks, as in a check, all slots are shown.
            slots = min(least, max_slots) if task_count else max_slots
            # The tasks of a lost node move to other nodes, which then run more tasks.
            if self.spec.policy.restarts:
                max_slots = max(max_slots, task_count)
            host = Host(node.name, address=addresses.get(node.name), python=self._python(node))
            hosts.append(replace(host, slots=slots, max_slots=max_slots, gpus=node.gpus))
        return tuple(hosts)

    def _python(self, node: SlurmNode) -> str | None:
        """Return the Python of the tasks on a node.

        None if the user named one, or if it is that of this machine, which tasks use anyway. It is another
        one only if the node lacks the Python of this machine.
        """
        settings = self.request.settings
        # A check has no tasks, and always names the Python that it inspects.
        if self.request.purpose is Purpose.CHECK:
            return None if settings[PYTHON] or settings[VENV] else node.python
        return None if settings.is_given(PYTHON) or node.python == sys.executable else node.python

    def _describe(self) -> None:
        """Tell the user about the job at Slurm, and store the words by which messages name its signals.

        For a check, nothing is said here. The text becomes the remarks, which the check prints, and the steps
        that inspected the nodes are ended.
        """
        self.limit_name = f"SIGUSR1 to Slurm's job {self.job.id} (for its --time, a preemption or scancel)"
        self.stop_name = "SIGTERM, as scancel sends it"
        nodes = plural(len(self.nodes), "node")
        if self.request.purpose is Purpose.CHECK:
            self.steps.end(closes=False)  # More steps may start: the check runs other programs on the nodes.
            partition, seconds_left = self.job.fields().get("Partition", "?"), self.job.seconds_left()
            limit = "no time limit" if seconds_left is None else f"{duration(seconds_left)} left"
            longest = show_fields("partition", partition).get("MaxTime", "UNLIMITED")
            allowed = "" if longest == "UNLIMITED" else f" (at most {longest})"
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
        """Return a context in which steps reach these nodes. Leaving it ends all steps.

        A step has inspected each node of the job, and waits there to become an agent. On nodes that are not
        among the hosts no agent is needed, so these steps are ended.
        """
        self.steps.dismiss({host.name for host in hosts})
        try:
            yield self.steps
        finally:
            self.steps.end()

    def findings(self, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
        """Yield findings about nodes that see other files, or let tasks use fewer CPUs than the job has.

        Args:
            facts: What the agents of the hosts report, by the names of the hosts. A host that did not answer
                is missing.
        """
        for node in self.nodes:
            if not node.same:
                seen = f"it does not have the files of {os.getcwd()} here"
                yield Finding(WARNING, "files", (node.name,), seen=seen, advice="`--sync .` copies them")
            if node.name in facts and facts[node.name].cpus < node.cpus:
                seen = f"tasks may use {facts[node.name].cpus} of the {node.cpus} CPUs that the job has there"
                advice = "ask Slurm for whole nodes: --exclusive"
                yield Finding(WARNING, "cpus", (node.name,), seen=seen, advice=advice)


def _even_share(task_count: int, node_count: int) -> tuple[int, int]:
    """Return the smallest and the largest number of tasks on a node if tasks are spread evenly.

    There is at least one node. The smallest number is 1 even if there are fewer tasks than nodes.
    """
    smallest, largest = task_count // node_count, -(-task_count // node_count)  # Rounded down and up.
    return max(1, smallest), largest


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
        # The advice is given once, at the end of the last line.
        *others, last = error.faults if isinstance(error, HostsError) else [str(error)]
        raise HostsError([*others, f"{last}; --no-slurm ignores the job, and uses this machine"]) from error
