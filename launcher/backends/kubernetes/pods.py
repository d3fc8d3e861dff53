"""The pods of a launch: their Jobs are made, watched and removed by ``kubectl``.

The main process of a pod first listens on a socket. The program of the first ``kubectl exec`` reads the
modules of the agent, and then passes them, its stdin and its stdout to the main process, which becomes the
agent. So a ``kubectl exec`` that breaks before has done nothing, and another one can try. Both processes
accept only a process of the same user in the same container. No output of tasks goes to the stdout of the
container, because the node would write it to its disk.

Each ``kubectl`` needs CPU time. So one of them asks for all pods of a launch, and while pods start, a watch
shows when all of them run.

The API lists a pod until its processes have ended, even if the pod is deleted by force, and a new pod waits
for that. If the node is lost, the new pod waits for the lease once more. Then its Job gets the next number,
and the pod avoids the lost node.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from launcher.agent.identity import owner_text, this_process
from launcher.backends import bootstrap
from launcher.backends.backend import Allocation, LaunchRequest, Purpose
from launcher.backends.cleaning import CleanRequest
from launcher.backends.connections import (
    KILL_ENTRY,
    AgentArguments,
    Connections,
    by_reason,
    seconds_until_tasks_ended,
    slow,
)
from launcher.backends.containers import task_hosts, with_limits
from launcher.backends.kubernetes.kubectl import COMMAND_TIMEOUT_SECONDS, Kubectl, KubectlPipe, described
from launcher.backends.kubernetes.manifest import HOME, job_manifest
from launcher.backends.kubernetes.names import OWNER_ANNOTATION, RUN_LABEL, job_name, selector
from launcher.backends.kubernetes.options import KubernetesOptions, requested_spec
from launcher.backends.kubernetes.rights import check_rights
from launcher.backends.kubernetes.status import (
    JOB_EVENT,
    OOM_KILLED_REASON,
    POD_EVENT,
    TASK_CONTAINER,
    PodStatus,
    gone_status,
    job_status,
    pod_status,
)
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import (
    HostGoneError,
    HostPreemptedError,
    HostsError,
    RouteDownError,
    TransportError,
)
from launcher.common.record import replace
from launcher.common.text import duration, join_names
from launcher.config.table import LEASE
from launcher.event_loop import await_readable
from launcher.job import Host
from launcher.messages import say
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.threads import in_thread

#: The function by which the main process of a pod becomes the agent.
_SERVE_ENTRY = "launcher.agent.main:serve_passed"
#: An answer about the pods is new enough for this time.
_FRESH_SECONDS = 2.0
#: How often the API is asked while something waits for its answer.
_POLL_SECONDS = 0.3
#: The time of a watch of pods that do not run yet. After it, launch asks about all of them.
_WATCH_SECONDS = 2.0
#: After this time a line says why pods do not run.
_FIRST_NOTICE_SECONDS = 2.0
#: The pause before the API is asked, by three commands, why pods do not run, and before it is asked again.
_REASON_PAUSE_SECONDS = 4.0
#: The API knows the end of a pod at most this long after the connection to the pod has ended.
_END_KNOWN_SECONDS = 3.0
#: The time for an agent to start in a pod that runs.
_START_SECONDS = 60
#: An agent waits at least this long for another connection, unless its lease is over before. All connections
#: to the pods of a node break when its kubelet restarts, for which systemd takes 10 s.
MIN_OUTAGE_SECONDS = 20.0
#: The pause between two failing connections to a pod. Each needs a tenth of a second of CPU time.
_CONNECT_PAUSE_SECONDS = 1.0
#: The time for pods to be gone after their Jobs were removed.
_REMOVAL_TIMEOUT_SECONDS = 5.0
#: What the end of a pod means for its agent. The exit code is that of the watchdog.
_AGENT_ENDS = {
    "its container exited with 1": "the agent was killed",
    "its container exited with 0": "its agent stopped its tasks and exited: nothing connected to it in time",
}
#: The variable that tells a launcher in a pod the name and the uid of that pod.
OWNER_POD_VARIABLE = "LAUNCH_POD"
#: The reason for a pod that does not run and gives no reason. Between two attempts to pull an image, even a
#: pod whose image cannot be pulled gives none.
_IS_STARTING = "its pod is starting"
#: The line for the user while kubectl is slow.
_UNANSWERED_NOTICE = "waiting for an answer from kubectl; Ctrl-C stops waiting"


class KubernetesAllocation(Allocation):
    """The hosts of a launch as pods: one for each task, in a Job of its own.

    Entering the context of `connect` makes the Jobs, and leaving it removes them.
    """

    moves_tasks = False
    replaces_hosts = True

    def __init__(self, options: KubernetesOptions, request: LaunchRequest) -> None:
        settings = request.settings
        spec = with_limits(requested_spec(request), options, settings)
        hosts, _ = task_hosts(spec)
        if request.purpose is Purpose.CHECK:
            hosts = tuple(replace(host, workdir=HOME) for host in hosts)  # --sync copies files to HOME.
        super().__init__(request, hosts, spec)
        self.options = options
        self.kubectl = Kubectl(options.context, options.namespace)
        self.lease, self.grace = settings[LEASE], spec.policy.grace
        self.python = spec.python or DEFAULT_PYTHON
        self._roles = {role.name: role for role in spec.roles}
        self._owner = owner_text(this_process())
        self._hosts: dict[str, Host] = {}
        #: The option of kubectl that selects the objects of the launch.
        self.selects = f"--selector={selector(request.run_name)}"
        #: The number of Jobs that were made for a host, by host.
        self._numbers: dict[str, int] = {}
        #: The last answer about each pod that ever existed, by the name of its Job.
        self._seen: dict[str, Mapping[str, Any]] = {}
        #: The pods in the API's last answer, by the names of their Jobs.
        self._found: Mapping[str, Mapping[str, Any]] = {}
        #: When the API gave that answer (monotonic).
        self._looked_at = -_FRESH_SECONDS
        #: The Jobs by name. They are known only if pods do not start.
        self._jobs: Mapping[str, Mapping[str, Any]] = {}
        #: The events about Jobs and pods. They are known only if pods do not start.
        self._events: Sequence[Mapping[str, Any]] = ()
        #: Held while the API is asked about the pods.
        self._looking = threading.Lock()
        #: The commands that something waits for.
        self._starting: set[KubectlPipe] = set()
        #: Held while Jobs are made or removed.
        self._making = threading.Lock()
        #: Whether all Jobs were removed, so that no more may be made.
        self._over = False
        self.remarks = self._description()

    @contextmanager
    def connect(self, hosts: Sequence[Host]) -> Iterator[Connections]:
        """Make the Jobs of hosts, wait for their pods to run, and remove the Jobs at the end."""
        try:
            self.start(hosts)
            yield _PodConnections(self)
        finally:
            self.remove()

    def address(self, host: Host) -> str | None:
        """Return the IP address of the pod of a host."""
        return self.status(host.name).address or host.address

    def node(self, host: Host) -> str:
        """Return the node of the pod of a host."""
        return self.status(host.name).node

    # ------------------------------------------------------------------ Jobs

    def manifest(self, host: Host, number: int = 1, avoid: str = "") -> dict[str, Any]:
        """Return the manifest of the Job of a host, see `job_manifest`."""
        role, run_name = self._roles[host.roles[0]], self.request.run_name
        found = job_manifest(
            self.options, run_name, host, role, self.python, self.grace, self._owner, number, avoid
        )
        # If this launcher runs in a pod, the cluster removes the Job with that pod.
        if launcher := os.environ.get(OWNER_POD_VARIABLE):
            name, uid = launcher.split()
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
            found["metadata"]["ownerReferences"] = [owner]
        return found

    def _description(self) -> tuple[str, ...]:
        """Return lines about the pods, for a dry run."""
        lines: dict[str, list[str]] = {}
        for host in self.hosts:
            (container,) = self.manifest(host)["spec"]["template"]["spec"]["containers"]
            limits = (container.get("resources") or {}).get("limits") or {}
            limit = ", ".join(f"{name} {value}" for name, value in limits.items()) or "no limits"
            lines.setdefault(f"of the image {container['image']}, {limit}", []).append(host.name)
        return tuple(f"pods {text}: {join_names(names)}" for text, names in lines.items())

    def start(self, hosts: Sequence[Host]) -> None:
        """Make the Jobs of hosts, and wait until their pods run.

        Args:
            hosts: Hosts of this launch, each with one task.

        Raises:
            TransportError: The Jobs cannot be made, or a pod does not run in time.
        """
        self._hosts.update({host.name: host for host in hosts})
        with slow(_UNANSWERED_NOTICE):
            check_rights(self.kubectl.ask, self.kubectl.used_namespace())
            # The Jobs are made in a thread, so that a signal does not interrupt the command that makes them.
            in_thread(partial(self._make, [(host, 1, "") for host in hosts]))
        self._await_running([host.name for host in hosts], self.selects)

    def _make(self, jobs: Sequence[tuple[Host, int, str]]) -> None:
        """Make Jobs by one command.

        Args:
            jobs: The host of each Job, the number of the Job, and the node that its pod should avoid.

        Raises:
            TransportError: The launch is ending, or the API refuses.
        """
        manifests = [self.manifest(*job) for job in jobs]
        with self._making:
            if self._over:
                raise TransportError("launch is exiting")
            listing = {"apiVersion": "v1", "kind": "List", "items": manifests}
            # The numbers come first, because some Jobs may exist even if the command fails.
            self._numbers.update((host.name, number) for host, number, _ in jobs)
            self.kubectl.ask("create", "--filename=-", "--output=name", stdin=json.dumps(listing))

    def _await_running(self, hosts: Sequence[str], selects: str) -> None:
        """Wait until the pods of hosts run, and tell the user what keeps them from running.

        Args:
            hosts: The names of the hosts.
            selects: The option of kubectl that selects their pods.

        Raises:
            TransportError: A pod will never run, or not all run in time.
        """
        began, shown, asked_at = time.monotonic(), "", time.monotonic()
        while True:
            self._pause(len(hosts), selects, min(_WATCH_SECONDS, self.options.start_timeout))
            try:
                left = began + self.options.start_timeout - time.monotonic()
                with slow(_UNANSWERED_NOTICE):
                    self.refresh(_POLL_SECONDS, max(1.0, left))
                if time.monotonic() >= asked_at + _REASON_PAUSE_SECONDS:
                    self._ask_why(hosts)
                    asked_at = time.monotonic()
                why = self._why_waiting(hosts)
            except HostsError:
                raise
            except TransportError as error:  # The API server may answer again.
                why = str(error)
            if not why:
                return
            waited = time.monotonic() - began
            if waited >= self.options.start_timeout:
                limit = duration(self.options.start_timeout)
                if shown and why != shown:
                    why += f"; before that: {shown}"
                raise TransportError(f"not all pods run after {limit} (--start-timeout): {why}")
            is_reason = not shown or _IS_STARTING not in why
            if waited >= _FIRST_NOTICE_SECONDS and why != shown and is_reason:
                say(f"waiting for pods: {why}")
                shown = why
            if self._over:
                raise TransportError("launch is exiting")

    def _pause(self, count: int, selects: str, longest: float) -> None:
        """Wait until ``count`` pods run, for ``longest`` seconds at most.

        A watch needs less CPU time than asking again and again.
        """
        until = time.monotonic() + _POLL_SECONDS
        self.kubectl.await_names(count, longest, "pods", selects, "--field-selector=status.phase=Running")
        time.sleep(max(0.0, until - time.monotonic()))

    def _why_waiting(self, hosts: Sequence[str]) -> str:
        """Return what keeps the pods of hosts from running. Empty if all run.

        Raises:
            HostsError: One of them will never run.
        """
        waiting, hopeless = {}, {}
        for host in hosts:
            status = self.status(host)
            if status.over or status.hopeless:
                hopeless[host] = status.over or status.waiting
            elif not status.running:
                waiting[host] = status.waiting or _IS_STARTING
        if hopeless:
            raise HostsError(by_reason(hopeless))
        return "; ".join(by_reason(waiting))

    def _ask_why(self, hosts: Sequence[str]) -> None:
        """Ask the API about Jobs and events if a host is without a pod, or its pod gives no reason.

        Raises:
            TransportError: The API does not answer.
        """
        pods = [self._found.get(self._job_of(host)) for host in hosts]
        if all(pod is not None and ((it := pod_status(pod)).running or it.waiting) for pod in pods):
            return
        self._jobs = {job["metadata"]["name"]: job for job in self.kubectl.items("jobs", self.selects)}
        reasons = [f"--field-selector=reason={reason}" for reason in (JOB_EVENT, POD_EVENT)]
        self._events = [event for reason in reasons for event in self.kubectl.items("events", reason)]

    def replace_host(self, host_name: str) -> None:
        """Make a new pod for a lost host, when the processes of its old pod have ended.

        If the API does not say that they have, this waits until the agent must have ended its tasks.
        """
        longest = seconds_until_tasks_ended(self.lease) + self.grace
        until = time.monotonic() + longest
        what = "a new pod is made when the tasks in the lost one have ended"
        with slow(f"{host_name}: {what}, after {duration(longest)} at most"):
            while not ((ended := self._has_ended(host_name)) or self._over or time.monotonic() >= until):
                time.sleep(_POLL_SECONDS)
        number, node = self._numbers[host_name], self.status(host_name).node
        self.kubectl.delete("job", job_name(self.request.run_name, host_name, number))
        self._make([(self._hosts[host_name], number + 1, "" if ended else node)])
        self._await_running([host_name], f"--selector=job-name={self._job_of(host_name)}")

    def _has_ended(self, host: str) -> bool:
        """Return whether the processes of the pod of a host have surely ended."""
        try:
            self.refresh(_POLL_SECONDS)
        except TransportError:
            return False
        return self.status(host).ended

    def remove(self) -> None:
        """Remove all Jobs, and with them the pods. Kill commands that wait for a lost node."""
        self.request.ignore_signals()
        with self._making:
            self._over = True
            for command in [*self._starting]:
                command.kill()
            if self._numbers:
                try:
                    self.kubectl.delete("jobs", self.selects)
                except TransportError as error:
                    say(f"the Jobs cannot be removed: {error}; the cluster removes them later")
                else:
                    with suppress(TransportError):  # The pods end even if the API does not answer.
                        self._await_removal()

    def _await_removal(self) -> None:
        """Wait for a limited time until no pod of the launch is left."""
        until = time.monotonic() + _REMOVAL_TIMEOUT_SECONDS
        self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)
        while self._found and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)

    # ------------------------------------------------------------------ pods

    def refresh(self, age: float = _FRESH_SECONDS, limit: float = COMMAND_TIMEOUT_SECONDS) -> None:
        """Ask the API about all pods, unless the last answer is new enough.

        Args:
            age: How old the last answer may be, in seconds.
            limit: The time limit of the answer.

        Raises:
            TransportError: The API does not answer.
        """
        with self._looking:
            if time.monotonic() < self._looked_at + age:
                return
            found = {}
            for pod in self.kubectl.items("pods", self.selects, limit=limit):
                for owner in pod["metadata"].get("ownerReferences", ()):
                    found[owner["name"]] = pod
            self._found, self._looked_at = found, time.monotonic()
            self._seen.update(found)

    def _job_of(self, host: str) -> str:
        """Return the name of the present Job of a host."""
        return job_name(self.request.run_name, host, self._numbers.get(host, 0))

    def status(self, host: str) -> PodStatus:
        """Return the state of the pod of a host, from the API's last answer."""
        job = self._job_of(host)
        if job in self._found:
            return pod_status(self._found[job], self._events)
        if job in self._seen:
            return gone_status(self._seen[job])
        if job in self._jobs:
            return job_status(self._jobs[job], self._events)
        return PodStatus(waiting="its pod is not made yet")

    def end_error(self, host: str, seconds: float = 0.0, taken: bool = False) -> HostGoneError | None:
        """Return why nothing can connect to a host any longer.

        Args:
            host: The name of the host.
            seconds: How long to wait for the API, which may not know the end yet.
            taken: Whether only an end by the cluster or a user counts, see `PodStatus.taken`.

        Returns:
            The error. None if something can still connect, or if nobody knows.
        """
        until = time.monotonic() + seconds
        while True:
            with suppress(TransportError):
                self.refresh(_POLL_SECONDS if seconds else _FRESH_SECONDS)
            status = self.status(host)
            if status.taken or (status.over and not taken):
                why = _AGENT_ENDS.get(status.over, status.over)
                if status.over.startswith(OOM_KILLED_REASON):
                    why += "; a larger `--memory` gives it more"
                return (HostPreemptedError if status.preempted else HostGoneError)(f"{host}: {why}")
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_SECONDS)

    def command(self, host: str, *words: str) -> list[str]:
        """Return the command line of a kubectl that runs a command in the pod of a host.

        Raises:
            TransportError: The host has no pod.
        """
        job = self._job_of(host)
        if job not in self._found:
            raise TransportError(f"{host}: {self.status(host).over or 'it has no pod'}")
        name = self._found[job]["metadata"]["name"]
        options = ("--stdin", "--quiet", f"--container={TASK_CONTAINER}", f"pod/{name}")
        return self.kubectl.argv("exec", *options, "--", *words)

    def first_command(self, host: str) -> list[str]:
        """Return the command line of a kubectl that sends the main process of a pod its program.

        See `bootstrap.passing_command`.

        Raises:
            TransportError: The host has no pod.
        """
        return self.command(host, *bootstrap.passing_command(self.python, self._job_of(host), _START_SECONDS))

    @contextmanager
    def awaited(self, command: KubectlPipe) -> Iterator[None]:
        """Return a context in which `remove` kills this command, which may hang on a lost node."""
        self._starting.add(command)
        try:
            if self._over:
                command.kill()
            yield
        finally:
            self._starting.discard(command)


class PodProgram(RemoteProgram):
    """A program of ours in a pod, whose kubectl starts at once.

    Args:
        pods: The pods of the launch.
        host: The name of the host whose pod runs the program.
        argv: The command line of kubectl.
        kills_agent: Whether the program kills the agent, and with it the pod.
    """

    python_advice = "--python names another Python of the image, --kubernetes another image"

    def __init__(
        self, pods: KubernetesAllocation, host: str, argv: Sequence[str], *, kills_agent: bool = False
    ) -> None:
        self._pods, self._kills_agent = pods, kills_agent
        self._kubectl = KubectlPipe(host, argv)
        super().__init__(host, self._kubectl, python=pods.python, starter=argv[0])

    def begin(self, startup: bytes, answer_seconds: float = 0.0) -> PodProgram:
        """Send the program, and wait up to ``answer_seconds`` for its first bytes."""
        with self._pods.awaited(self._kubectl):
            self._kubectl.deliver(startup)
            await_readable(self, answer_seconds)
        return self

    def wait(self, seconds: float) -> int | None:
        """Wait for the program to exit, and return its status.

        A program that kills the agent may itself be killed with the pod. Then it has succeeded.
        """
        status = super().wait(seconds)
        if status and self._kills_agent:
            self._pods.end_error(self.host, _END_KNOWN_SECONDS)
            return 0 if self._pods.status(self.host).ended else status
        return status

    def start_error(self) -> TransportError | None:
        """Return why the program never ran, or why the pod has ended, because an agent ends with its pod.

        Returns:
            A `HostGoneError` if the pod has ended. A `RouteDownError` if the program never ran although the
            pod exists, because then the kubelet or the way to it is down. None if the program ran, and the
            pod may live.
        """
        if why := super().start_error():
            return self._pods.end_error(self.host, _CONNECT_PAUSE_SECONDS) or RouteDownError(str(why))
        self.wait(_END_KNOWN_SECONDS)
        status = self._kubectl.process.returncode
        killed = status is None or status < 0  # Then the pod may live.
        return self._pods.end_error(self.host, 0.0 if killed else _END_KNOWN_SECONDS)

    def exit_reason(self, why: str) -> str:
        """Return why the agent exits. After SIGTERM, or without its watchdog, its pod ends.

        Raises:
            HostGoneError: The pod has ended, and the message says why.
        """
        is_asked = "SIGTERM" in why
        if is_asked or "watchdog" in why:
            gone = self._pods.end_error(self.host, _END_KNOWN_SECONDS, taken=is_asked)
            if gone:
                raise gone
        return why


class _PodConnections(Connections):
    """The connections to pods: each program in a pod has a kubectl, and a connection of its own."""

    def __init__(self, pods: KubernetesAllocation) -> None:
        self._pods = pods
        bootstrap.packed(bootstrap.AGENT_MODULES)  # The result is cached for all pods.

    def run(self, host: str, entry: str, arguments: object) -> PodProgram:
        """Start a program in the pod of a host, by a kubectl of its own."""
        return PodProgram(self._pods, host, self._command(host)).begin(bootstrap.program(entry, arguments))

    def _command(self, host: str) -> list[str]:
        """Return the command line of a kubectl that runs a program of ours in the pod of a host."""
        return self._pods.command(host, *bootstrap.loader_command(self._pods.python))

    def start_agent(self, host: str, arguments: AgentArguments) -> PodProgram:
        """Let the main process of a pod become the agent. If it is the agent already, connect to it."""
        more = {"grace": self._pods.grace, "outage": MIN_OUTAGE_SECONDS}
        startup = bootstrap.passing_input(_SERVE_ENTRY, {**arguments.as_json(), **more}, arguments.token)
        program = PodProgram(self._pods, host, self._pods.first_command(host))
        # The main process becomes the agent only once, so nothing else can be tried meanwhile.
        return program.begin(startup, _START_SECONDS)

    def kill_agent(self, host: str, agent_id: int) -> PodProgram:
        """Kill the agent of a pod, which may end the pod and so the killing program, too."""
        program = PodProgram(self._pods, host, self._command(host), kills_agent=True)
        return program.begin(bootstrap.program(KILL_ENTRY, {"agent": agent_id}))

    def reconnect(self, host: str) -> None:
        """Do nothing, because each program makes a connection of its own, but fail if the pod has ended."""
        if gone := self._pods.end_error(host):
            raise gone


def clean(kubectl: Kubectl, request: CleanRequest) -> Iterator[str]:
    """Remove the Jobs of ended launches of this user.

    Returns:
        An iterator of lines, one for each Job.
    """
    for job in kubectl.items("jobs", f"--selector={selector()}"):
        metadata = job["metadata"]
        owner = metadata.get("annotations", {}).get(OWNER_ANNOTATION, "")
        if request.cleaning.may_remove(metadata["labels"].get(RUN_LABEL, ""), owner, described(job)):
            yield kubectl.clean_job(job, request.dry_run)
