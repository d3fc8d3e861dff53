"""The pods of a launch: their Jobs are made, watched and removed by ``kubectl``.

The main process of a pod first listens on a socket. The program of the first ``kubectl exec`` reads the
modules of the agent, then passes them, its stdin and its stdout to the main process, which becomes the agent.
So a ``kubectl exec`` that breaks before has done nothing, and the next one begins again. Both accept only a
process of the same user in the same container. No output of tasks goes to the stdout of the container,
because the node would write it to its disk.

Each ``kubectl`` takes CPU time. So one of them asks for all pods of a launch, and while pods start, a watch
shows when all of them run. The API lists a pod until its processes have ended, even if it is deleted by
force, and a new pod waits for that. If the node is lost, it waits for the lease once more. Then it has the
next number, and avoids the lost node.
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

_SERVE_ENTRY = "launcher.agent.main:serve_passed"
#: Seconds for which an answer about the pods is fresh; between two looks while something waits.
_FRESH_SECONDS = 2.0
_POLL_SECONDS = 0.3
#: Seconds of a watch of pods that do not run yet. After it, launch looks at all of them.
_WATCH_SECONDS = 2.0
#: Seconds until a line says why pods do not run.
_FIRST_NOTICE_SECONDS = 2.0
#: Seconds until the API is asked, by three commands, why pods do not run; and until it is asked again.
_REASON_PAUSE_SECONDS = 4.0
#: Seconds until the API knows the end of a pod whose connection has ended.
_END_KNOWN_SECONDS = 3.0
#: Seconds for an agent to start in a pod that runs.
_AGENT_START_SECONDS = 60
#: Seconds that an agent waits, at least, for another connection, unless its lease is over before: all
#: connections to the pods of a node break when its kubelet starts again, for which systemd takes 10 s.
MIN_OUTAGE_SECONDS = 20.0
#: Seconds between two connections to a pod that fail: each takes a tenth of a second of CPU time.
_CONNECT_PAUSE_SECONDS = 1.0
#: Seconds for pods to be gone when their Jobs are removed.
_REMOVAL_TIMEOUT_SECONDS = 5.0
#: What it means for the agent how its pod ended. The exit code is that of the watchdog.
_AGENT_ENDS = {
    "its container exited with 1": "the agent was killed",
    "its container exited with 0": "its agent stopped its tasks and exited: nothing connected to it in time",
}
#: The variable of a launcher in a pod: name and uid of that pod.
OWNER_POD_VARIABLE = "LAUNCH_POD"
#: What is said of a pod without a reason why it does not run. An image that cannot be pulled is one, between
#: two attempts.
_IS_STARTING = "its pod is starting"
#: A line for the user while kubectl takes long.
_UNANSWERED_NOTICE = "waiting for an answer from kubectl; Ctrl-C stops waiting"


class KubernetesAllocation(Allocation):
    """A pod for each task, in a Job of its own. `connect` makes the Jobs, and leaving it removes them."""

    moves_tasks = False
    replaces_hosts = True

    def __init__(self, options: KubernetesOptions, request: LaunchRequest) -> None:
        settings = request.settings
        spec = with_limits(requested_spec(request), options, settings)
        hosts, _ = task_hosts(spec)
        if request.purpose is Purpose.CHECK:
            hosts = tuple(replace(host, workdir=HOME) for host in hosts)  # where --sync copies to
        super().__init__(request, hosts, spec)
        self.options = options
        self.kubectl = Kubectl(options.context, options.namespace)
        self.lease, self.grace = settings[LEASE], spec.policy.grace
        self.python = spec.python or DEFAULT_PYTHON
        self._roles = {role.name: role for role in spec.roles}
        self._owner = owner_text(this_process())
        self._hosts: dict[str, Host] = {}
        #: Selects the objects of the launch.
        self.selects = f"--selector={selector(request.run_name)}"
        #: Of each host: the number of Jobs that were made for it.
        self._numbers: dict[str, int] = {}
        #: By Job: the last answer about each pod that was ever seen; the pods of the last look. Its time.
        self._seen: dict[str, Mapping[str, Any]] = {}
        self._found: Mapping[str, Mapping[str, Any]] = {}
        self._looked_at = -_FRESH_SECONDS
        #: Why pods do not start: the Jobs, by name, and the events.
        self._jobs: Mapping[str, Mapping[str, Any]] = {}
        self._events: Sequence[Mapping[str, Any]] = ()
        self._looking = threading.Lock()
        #: Commands that something waits for.
        self._starting: set[KubectlPipe] = set()
        #: Held while Jobs are made; whether all have been removed.
        self._making = threading.Lock()
        self._over = False
        self.remarks = self._description()

    @contextmanager
    def connect(self, hosts: Sequence[Host]) -> Iterator[Connections]:
        """See `Allocation.connect`."""
        try:
            self.start(hosts)
            yield _PodConnections(self)
        finally:
            self.remove()

    def address(self, host: Host) -> str | None:
        """See `Allocation.address`: the IP of the pod."""
        return self.status(host.name).address or host.address

    def node(self, host: Host) -> str:
        """See `Allocation.node`: that of the pod."""
        return self.status(host.name).node

    # ------------------------------------------------------------------ Jobs

    def manifest(self, host: Host, number: int = 1, avoid: str = "") -> dict[str, Any]:
        """The Job of a host, see `job_manifest`."""
        role, run_name = self._roles[host.roles[0]], self.request.run_name
        found = job_manifest(
            self.options, run_name, host, role, self.python, self.grace, self._owner, number, avoid
        )
        # With the pod of this launcher the cluster removes the Job.
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
            hosts: those of the launch, each with one task.

        Raises:
            TransportError: they cannot be made, or a pod does not run in time.
        """
        self._hosts.update({host.name: host for host in hosts})
        with slow(_UNANSWERED_NOTICE):
            check_rights(self.kubectl.ask, self.kubectl.used_namespace())
            # A signal does not end the command that creates something.
            in_thread(partial(self._make, [(host, 1, "") for host in hosts]))
        self._await_running([host.name for host in hosts], self.selects)

    def _make(self, jobs: Sequence[tuple[Host, int, str]]) -> None:
        manifests = [self.manifest(*job) for job in jobs]
        with self._making:
            if self._over:
                raise TransportError("launch is exiting")
            listing = {"apiVersion": "v1", "kind": "List", "items": manifests}
            # Before that: if it fails, some may have been made.
            self._numbers.update((host.name, number) for host, number, _ in jobs)
            self.kubectl.ask("create", "--filename=-", "--output=name", stdin=json.dumps(listing))

    def _await_running(self, hosts: Sequence[str], selects: str) -> None:
        """Wait until the pods of hosts run. The option ``selects`` selects these pods."""
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
            except TransportError as error:  # the API server may answer again
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
        """Wait until so many pods run, ``longest`` at most. A watch takes less CPU time than many looks."""
        until = time.monotonic() + _POLL_SECONDS
        self.kubectl.await_names(count, longest, "pods", selects, "--field-selector=status.phase=Running")
        time.sleep(max(0.0, until - time.monotonic()))

    def _why_waiting(self, hosts: Sequence[str]) -> str:
        """What keeps pods from running; empty: all run.

        Raises:
            HostsError: one never will.
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
        """Ask the API about Jobs and events, if there are hosts without a pod, or whose pod gives no reason.

        Raises:
            TransportError: it does not answer.
        """
        pods = [self._found.get(self._job_of(host)) for host in hosts]
        if all(pod is not None and ((it := pod_status(pod)).running or it.waiting) for pod in pods):
            return
        self._jobs = {job["metadata"]["name"]: job for job in self.kubectl.items("jobs", self.selects)}
        reasons = [f"--field-selector=reason={reason}" for reason in (JOB_EVENT, POD_EVENT)]
        self._events = [event for reason in reasons for event in self.kubectl.items("events", reason)]

    def replace_host(self, host_name: str) -> None:
        """See `Allocation.replace_host`."""
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
        try:
            self.refresh(_POLL_SECONDS)
        except TransportError:
            return False
        return self.status(host).ended

    def remove(self) -> None:
        """Remove all Jobs, and with them the pods; kill commands that wait for a lost node."""
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
                    with suppress(TransportError):  # the pods end even if the API does not answer
                        self._await_removal()

    def _await_removal(self) -> None:
        until = time.monotonic() + _REMOVAL_TIMEOUT_SECONDS
        self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)
        while self._found and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)

    # ------------------------------------------------------------------ pods

    def refresh(self, age: float = _FRESH_SECONDS, limit: float = COMMAND_TIMEOUT_SECONDS) -> None:
        """Ask the API about all pods, unless the last answer is new enough.

        Args:
            age: how old the last answer may be, in seconds.
            limit: seconds for the answer.

        Raises:
            TransportError: it does not answer.
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
        """The state of the pod of a host, as the last look has found it."""
        job = self._job_of(host)
        if job in self._found:
            return pod_status(self._found[job], self._events)
        if job in self._seen:
            return gone_status(self._seen[job])
        if job in self._jobs:
            return job_status(self._jobs[job], self._events)
        return PodStatus(waiting="its pod is not made yet")

    def end_error(self, host: str, seconds: float = 0.0, taken: bool = False) -> HostGoneError | None:
        """Why nothing can connect to a host any more; ``None``: something may, or it is not known.

        Args:
            host: its name.
            seconds: for which the API may not know the end yet.
            taken: only if the cluster or a user ends the pod, see `PodStatus.taken`.
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
        """The command line of a kubectl that runs words in the pod of a host.

        Raises:
            TransportError: there is no pod.
        """
        job = self._job_of(host)
        if job not in self._found:
            raise TransportError(f"{host}: {self.status(host).over or 'it has no pod'}")
        name = self._found[job]["metadata"]["name"]
        options = ("--stdin", "--quiet", f"--container={TASK_CONTAINER}", f"pod/{name}")
        return self.kubectl.argv("exec", *options, "--", *words)

    def first_command(self, host: str) -> list[str]:
        """Return the command line of a kubectl that brings the main process its program.

        See `bootstrap.passing`.

        Raises:
            TransportError: There is no pod.
        """
        return self.command(host, *bootstrap.passing(self.python, self._job_of(host), _AGENT_START_SECONDS))

    @contextmanager
    def awaited(self, command: KubectlPipe) -> Iterator[None]:
        """While a command is awaited, which may be on a lost node, `remove` kills it."""
        self._starting.add(command)
        try:
            if self._over:
                command.kill()
            yield
        finally:
            self._starting.discard(command)


class PodProgram(RemoteProgram):
    """A program of ours in a pod, whose kubectl runs from now on.

    Args:
        pods: Those of the launch.
        host: The host whose pod it runs in.
        argv: The command line of kubectl.
        kills_agent: Whether the program kills the agent, and with it the pod.
    """

    def __init__(
        self, pods: KubernetesAllocation, host: str, argv: Sequence[str], *, kills_agent: bool = False
    ) -> None:
        self._pods, self._kills_agent = pods, kills_agent
        self._kubectl = KubectlPipe(host, argv)
        super().__init__(host, self._kubectl, python=pods.python, starter=argv[0])

    def begin(self, startup: bytes, answer_seconds: float = 0.0) -> PodProgram:
        """Send the program, and wait for so long for its first bytes."""
        with self._pods.awaited(self._kubectl):
            self._kubectl.deliver(startup)
            await_readable(self, answer_seconds)
        return self

    def wait(self, seconds: float) -> int | None:
        """See `RemoteProgram.wait`: a program that kills the agent may be killed with the pod."""
        status = super().wait(seconds)
        if status and self._kills_agent:
            self._pods.end_error(self.host, _END_KNOWN_SECONDS)
            return 0 if self._pods.status(self.host).ended else status
        return status

    def start_error(self) -> TransportError | None:
        """See `RemoteProgram.start_error`: when the agent has ended, the pod has.

        If the program never ran, and the pod is there, the kubelet or the way to it is down.
        """
        if why := super().start_error():
            return self._pods.end_error(self.host, _CONNECT_PAUSE_SECONDS) or RouteDownError(str(why))
        self.wait(_END_KNOWN_SECONDS)
        status = self._kubectl.process.returncode
        killed = status is None or status < 0  # perhaps the pod lives
        return self._pods.end_error(self.host, 0.0 if killed else _END_KNOWN_SECONDS)

    def exit_reason(self, why: str) -> str:
        """See `RemoteProgram.exit_reason`: after SIGTERM, or without its watchdog, the pod ends."""
        is_asked = "SIGTERM" in why
        if is_asked or "watchdog" in why:
            gone = self._pods.end_error(self.host, _END_KNOWN_SECONDS, taken=is_asked)
            if gone:
                raise gone
        return why


class _PodConnections(Connections):
    """A kubectl for each program in a pod, which makes a connection of its own."""

    def __init__(self, pods: KubernetesAllocation) -> None:
        self._pods = pods
        bootstrap.packed(bootstrap.AGENT_MODULES)  # once for all pods

    def run(self, host: str, entry: str, arguments: object) -> PodProgram:
        """See `ProgramRunner.run`."""
        return PodProgram(self._pods, host, self._command(host)).begin(bootstrap.program(entry, arguments))

    def _command(self, host: str) -> list[str]:
        return self._pods.command(host, *bootstrap.loader(self._pods.python))

    def start_agent(self, host: str, arguments: AgentArguments) -> PodProgram:
        """See `Connections.start_agent`. The main process becomes the agent, unless it has already."""
        more = {"grace": self._pods.grace, "outage": MIN_OUTAGE_SECONDS}
        startup = bootstrap.passed(_SERVE_ENTRY, {**arguments.as_json(), **more}, arguments.token)
        program = PodProgram(self._pods, host, self._pods.first_command(host))
        # The main process becomes the agent only once: nothing else can be tried meanwhile.
        return program.begin(startup, _AGENT_START_SECONDS)

    def kill_agent(self, host: str, agent_id: int) -> PodProgram:
        """See `Connections.kill_agent`."""
        program = PodProgram(self._pods, host, self._command(host), kills_agent=True)
        return program.begin(bootstrap.program(KILL_ENTRY, {"agent": agent_id}))

    def reconnect(self, host: str) -> None:
        """See `Connections.reconnect`: the next kubectl makes a new connection."""
        if gone := self._pods.end_error(host):
            raise gone


def clean(kubectl: Kubectl, request: CleanRequest) -> Iterator[str]:
    """Remove the Jobs of launches of this user that have ended.

    Yields:
        A line for each.
    """
    for job in kubectl.items("jobs", f"--selector={selector()}"):
        metadata = job["metadata"]
        owner = metadata.get("annotations", {}).get(OWNER_ANNOTATION, "")
        if request.cleaning.may_remove(metadata["labels"].get(RUN_LABEL, ""), owner, described(job)):
            yield kubectl.clean_job(job, request.dry_run)
