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
_END_REPORT_SECONDS = 3.0
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
_AGENT_END_REASONS = {
    "its container exited with 1": "the agent was killed",
    "its container exited with 0": "its agent stopped its tasks and exited: nothing connected to it in time",
}
#: The variable that tells a launcher in a pod the name and the uid of that pod.
OWNER_POD_VARIABLE = "LAUNCH_POD"
#: The reason for a pod that does not run and gives no reason. Between two attempts to pull an image, even a
#: pod whose image cannot be pulled gives none.
_STARTING_REASON = "its pod is starting"
#: The line for the user while kubectl is slow.
_UNANSWERED_NOTICE = "waiting for an answer from kubectl; Ctrl-C stops waiting"


class KubernetesAllocation(Allocation):
    """The hosts of a launch as pods: one for each task, in a Job of its own.

    Entering the context of `connect` makes the Jobs, and leaving it removes them.

    Args:
        options: The options of the pods.
        request: The request of the launch.
    """

    moves_tasks = False
    replaces_hosts = True

    def __init__(self, options: KubernetesOptions, request: LaunchRequest) -> None:
        """Plan a host for each task, which its pod will be. No Job is made yet."""
        settings = request.settings
        # The job as pods need it: with the limits and GPUs of each role, and with a Python of the image.
        spec = with_limits(requested_spec(request), options, settings)
        hosts, _ = task_hosts(spec)  # The other result is about GPUs of this machine, which pods do not use.
        if request.purpose is Purpose.CHECK:
            # Programs of a check must see the files of --sync, which are copied to HOME.
            hosts = tuple(replace(host, workdir=HOME) for host in hosts)
        super().__init__(request, hosts, spec)
        self.options = options
        self.kubectl = Kubectl(options.context, options.namespace)
        #: The seconds for which tasks live on without their launcher, and those from SIGTERM to SIGKILL.
        self.lease, self.grace = settings[LEASE], spec.policy.grace
        #: The Python of the images, which runs the agents.
        self.python = spec.python or DEFAULT_PYTHON
        #: The roles by name, for the manifests of the Jobs.
        self._roles = {role.name: role for role in spec.roles}
        #: The text by which each Job names this process. By it `launch clean` finds out whether the launcher
        #: has ended.
        self._owner = owner_text(this_process())
        #: The hosts whose Jobs `start` was asked to make.
        self._hosts_by_name: dict[str, Host] = {}
        #: The option of kubectl that selects the objects of the launch.
        self.selector_option = f"--selector={selector(request.run_name)}"
        #: The number of Jobs that were made for a host, by host.
        self._job_numbers: dict[str, int] = {}
        #: The last answer about each pod that ever existed, by the name of its Job.
        self._last_seen_pods: dict[str, Mapping[str, Any]] = {}
        #: The pods in the API's last answer, by the names of their Jobs.
        self._existing_pods: Mapping[str, Mapping[str, Any]] = {}
        #: When the API gave that answer (monotonic). At first it is so long ago that `refresh` asks.
        self._pods_listed_at = -_FRESH_SECONDS
        #: The Jobs by name. They are known only if pods do not start.
        self._existing_jobs: Mapping[str, Mapping[str, Any]] = {}
        #: The events about Jobs and pods. They are known only if pods do not start.
        self._events: Sequence[Mapping[str, Any]] = ()
        #: Held while the API is asked about the pods.
        self._list_lock = threading.Lock()
        #: The commands of kubectl that a thread waits for just now. `remove` kills them.
        self._commands_to_kill: set[KubectlPipe] = set()
        #: Held while Jobs are made or removed.
        self._jobs_lock = threading.Lock()
        #: Whether `remove` was called, so no more Jobs may be made.
        self._is_closing = False
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
        """Return the IP address of the pod of a host, or the host's own address if the pod has none yet."""
        return self.status(host.name).address or host.address

    def node(self, host: Host) -> str:
        """Return the node of the pod of a host. Empty if the pod is on no node yet."""
        return self.status(host.name).node

    # ------------------------------------------------------------------ Jobs

    def manifest(self, host: Host, number: int = 1, avoid: str = "") -> dict[str, Any]:
        """Return the manifest of a Job that makes the pod of a host.

        Args:
            host: The host, which stands for one task.
            number: The number of the Job among those of this host, from 1.
            avoid: The name of a lost node, which the pod should avoid. Empty if there is none.
        """
        role, run_name = self._roles[host.roles[0]], self.request.run_name
        manifest = job_manifest(
            self.options, run_name, host, role, self.python, self.grace, self._owner, number, avoid
        )
        # If this launcher itself runs in a pod, the cluster removes the Job with that pod.
        if launcher_pod := os.environ.get(OWNER_POD_VARIABLE):
            name, uid = launcher_pod.split()
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
            manifest["metadata"]["ownerReferences"] = [owner]
        return manifest

    def _description(self) -> tuple[str, ...]:
        """Return lines that describe the pods to the user of a dry run, one line for all equal pods."""
        hosts_by_text: dict[str, list[str]] = {}
        for host in self.hosts:
            (container,) = self.manifest(host)["spec"]["template"]["spec"]["containers"]
            # The user's pod template may contain null in place of either mapping.
            limits = (container.get("resources") or {}).get("limits") or {}
            limits_text = ", ".join(f"{name} {value}" for name, value in limits.items()) or "no limits"
            text = f"of the image {container['image']}, {limits_text}"
            hosts_by_text.setdefault(text, []).append(host.name)
        return tuple(f"pods {text}: {join_names(names)}" for text, names in hosts_by_text.items())

    def start(self, hosts: Sequence[Host]) -> None:
        """Make the Jobs of hosts, and wait until their pods run.

        Args:
            hosts: Hosts of this launch, each with one task.

        Raises:
            TransportError: The Jobs cannot be made, or a pod does not run in time.
        """
        self._hosts_by_name.update({host.name: host for host in hosts})
        with slow(_UNANSWERED_NOTICE):
            check_rights(self.kubectl.ask, self.kubectl.used_namespace())
            # The Jobs are made in a thread, so that a signal does not interrupt the command that makes them.
            # Each is the first Job of its host, and its pod avoids no node.
            in_thread(partial(self._make_jobs, [(host, 1, "") for host in hosts]))
        self._await_running([host.name for host in hosts], self.selector_option)

    def _make_jobs(self, jobs: Sequence[tuple[Host, int, str]]) -> None:
        """Make Jobs by one command of kubectl.

        Args:
            jobs: The arguments of `manifest` for each Job: its host, its number, and the node that its pod
                should avoid.

        Raises:
            TransportError: The launch is ending, or the API refuses.
        """
        manifests = [self.manifest(*job) for job in jobs]
        with self._jobs_lock:
            if self._is_closing:  # Nobody would remove Jobs that are made now.
                raise TransportError("launch is exiting")
            job_list = {"apiVersion": "v1", "kind": "List", "items": manifests}
            # The numbers are stored before the command runs. If it fails, some Jobs may exist nevertheless,
            # and `remove` deletes Jobs only if there are numbers.
            self._job_numbers.update((host.name, number) for host, number, _ in jobs)
            self.kubectl.ask("create", "--filename=-", "--output=name", stdin=json.dumps(job_list))

    def _await_running(self, hosts: Sequence[str], selector_option: str) -> None:
        """Wait until the pods of hosts run, and tell the user what keeps them from running.

        Each round waits for news of the pods, asks for their states, and from time to time for the reasons,
        which costs more. An API server that does not answer counts as a reason, too, until the time is over.

        Args:
            hosts: The names of the hosts.
            selector_option: The option of kubectl that selects their pods.

        Raises:
            TransportError: A pod will never run, or not all run in time.
        """
        time_limit = self.options.start_timeout
        started_at = reasons_asked_at = time.monotonic()
        shown_reason = ""
        while True:
            self._watch(len(hosts), selector_option, min(_WATCH_SECONDS, time_limit))
            try:
                seconds_left = started_at + time_limit - time.monotonic()
                with slow(_UNANSWERED_NOTICE):
                    self.refresh(_POLL_SECONDS, max(1.0, seconds_left))
                if time.monotonic() >= reasons_asked_at + _REASON_PAUSE_SECONDS:
                    self._ask_reasons(hosts)
                    reasons_asked_at = time.monotonic()
                reason = self._waiting_reason(hosts)
            except HostsError:  # A pod will never run. This is a TransportError, too, but a final one.
                raise
            except TransportError as error:  # The API server may answer again.
                reason = str(error)
            if not reason:
                return
            waited = time.monotonic() - started_at
            if waited >= time_limit:
                # The earlier reason may be the cause of the last one.
                if shown_reason and reason != shown_reason:
                    reason += f"; before that: {shown_reason}"
                limit = f"{duration(time_limit)} (--start-timeout)"
                raise TransportError(f"not all pods run after {limit}: {reason}")
            # A pod may have no reason for moments, which is no news for a user who has seen its reason.
            is_news = reason != shown_reason and not (shown_reason and _STARTING_REASON in reason)
            if waited >= _FIRST_NOTICE_SECONDS and is_news:
                say(f"waiting for pods: {reason}")
                shown_reason = reason
            if self._is_closing:
                raise TransportError("launch is exiting")

    def _watch(self, count: int, selector_option: str, longest: float) -> None:
        """Watch the pods until ``count`` of them run, for ``longest`` seconds at most.

        A watch by one kubectl needs less CPU time than asking again and again. It may fail at once, and then
        the short pause after it limits how often the caller starts another one.
        """
        pause_end = time.monotonic() + _POLL_SECONDS
        running = "--field-selector=status.phase=Running"
        self.kubectl.await_names(count, longest, "pods", selector_option, running)
        time.sleep(max(0.0, pause_end - time.monotonic()))

    def _waiting_reason(self, hosts: Sequence[str]) -> str:
        """Return what keeps the pods of hosts from running, for messages. Empty if all run.

        Raises:
            HostsError: One of them will never run.
        """
        waiting_reasons, final_reasons = {}, {}
        for host in hosts:
            status = self.status(host)
            if status.over or status.hopeless:
                final_reasons[host] = status.over or status.waiting
            elif not status.running:
                waiting_reasons[host] = status.waiting or _STARTING_REASON
        if final_reasons:
            raise HostsError(by_reason(final_reasons))
        return "; ".join(by_reason(waiting_reasons))

    def _ask_reasons(self, hosts: Sequence[str]) -> None:
        """Ask the API for Jobs and events, which say why a host is without a pod, or why its pod waits.

        This does nothing if each host has a pod that runs, or that itself says why it waits.

        Raises:
            TransportError: The API does not answer.
        """
        pods = [self._existing_pods.get(self._job_of(host)) for host in hosts]  # None if there is none.
        known = [pod_status(pod) for pod in pods if pod is not None]
        if len(known) == len(hosts) and all(status.running or status.waiting for status in known):
            return
        jobs = self.kubectl.items("jobs", self.selector_option)
        self._existing_jobs = {job["metadata"]["name"]: job for job in jobs}
        reasons = [f"--field-selector=reason={reason}" for reason in (JOB_EVENT, POD_EVENT)]
        self._events = [event for reason in reasons for event in self.kubectl.items("events", reason)]

    def replace_host(self, host_name: str) -> None:
        """Make a new pod for a lost host, when the processes of its old pod have ended. This blocks.

        If the API does not say that they have, this waits until the agent must have ended its tasks. Then
        the node of the old pod may be lost, and the new pod avoids it.
        """
        longest = seconds_until_tasks_ended(self.lease) + self.grace
        deadline = time.monotonic() + longest
        notice = "a new pod is made when the tasks in the lost one have ended"
        with slow(f"{host_name}: {notice}, after {duration(longest)} at most"):
            has_ended = self._has_ended(host_name)
            while not has_ended and not self._is_closing and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                has_ended = self._has_ended(host_name)
        number, node = self._job_numbers[host_name], self.status(host_name).node
        # The old Job is deleted, and the new one gets the next number. `_job_of` returns the name of the new
        # one as soon as it is made.
        self.kubectl.delete("job", job_name(self.request.run_name, host_name, number))
        self._make_jobs([(self._hosts_by_name[host_name], number + 1, "" if has_ended else node)])
        self._await_running([host_name], f"--selector=job-name={self._job_of(host_name)}")

    def _has_ended(self, host: str) -> bool:
        """Return whether the processes of the pod of a host have surely ended. False if nobody knows."""
        try:
            self.refresh(_POLL_SECONDS)
        except TransportError:
            return False
        return self.status(host).ended

    def remove(self) -> None:
        """Remove all Jobs, and with them the pods, and let no more be made.

        This kills commands of kubectl that wait for a lost node, and waits for a limited time until the pods
        are gone. No signal interrupts it.
        """
        self.request.ignore_signals()
        with self._jobs_lock:
            self._is_closing = True
            for command in [*self._commands_to_kill]:
                command.kill()
            if self._job_numbers:  # Otherwise no Job was ever made.
                try:
                    self.kubectl.delete("jobs", self.selector_option)
                except TransportError as error:
                    say(f"the Jobs cannot be removed: {error}; the cluster removes them later")
                else:
                    with suppress(TransportError):  # The pods end even if the API does not answer.
                        self._await_removal()

    def _await_removal(self) -> None:
        """Wait for a limited time until no pod of the launch is left.

        Raises:
            TransportError: The API does not answer.
        """
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_SECONDS
        self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)
        while self._existing_pods and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            self.refresh(0.0, _REMOVAL_TIMEOUT_SECONDS)

    # ------------------------------------------------------------------ pods

    def refresh(self, age: float = _FRESH_SECONDS, limit: float = COMMAND_TIMEOUT_SECONDS) -> None:
        """Ask the API for all pods of the launch, unless its last answer is new enough.

        Args:
            age: How old the last answer may be, in seconds.
            limit: The time limit of the answer, in seconds.

        Raises:
            TransportError: The API does not answer.
        """
        with self._list_lock:
            # Another thread may have asked while this one waited for the lock.
            if time.monotonic() < self._pods_listed_at + age:
                return
            pods_by_job = {}
            for pod in self.kubectl.items("pods", self.selector_option, limit=limit):
                # The only owner of a pod is the Job that made it.
                for owner in pod["metadata"].get("ownerReferences", ()):
                    pods_by_job[owner["name"]] = pod
            self._existing_pods, self._pods_listed_at = pods_by_job, time.monotonic()
            self._last_seen_pods.update(pods_by_job)

    def _job_of(self, host: str) -> str:
        """Return the name of the newest Job of a host. No Job has this name if none was made yet."""
        return job_name(self.request.run_name, host, self._job_numbers.get(host, 0))

    def status(self, host: str) -> PodStatus:
        """Return the state of the pod of a host, from the API's last answer."""
        job = self._job_of(host)
        if job in self._existing_pods:
            return pod_status(self._existing_pods[job], self._events)
        if job in self._last_seen_pods:  # The pod no longer exists.
            return gone_status(self._last_seen_pods[job])
        if job in self._existing_jobs:  # The Job has not made its pod yet.
            return job_status(self._existing_jobs[job], self._events)
        return PodStatus(waiting="its pod is not made yet")

    def end_error(self, host: str, seconds: float = 0.0, taken: bool = False) -> HostGoneError | None:
        """Return why nothing can connect to the pod of a host any longer.

        Args:
            host: The name of the host.
            seconds: How long to wait for the API, which may not know the end of the pod yet.
            taken: Whether only an end by the cluster or a user counts, see `PodStatus.taken`.

        Returns:
            The error. None if something can still connect, or if nobody knows.
        """
        deadline = time.monotonic() + seconds
        while True:
            with suppress(TransportError):  # If the API does not answer, its last answer counts.
                self.refresh(_POLL_SECONDS if seconds else _FRESH_SECONDS)
            status = self.status(host)
            if status.taken or (status.over and not taken):
                reason = _AGENT_END_REASONS.get(status.over, status.over)
                if status.over.startswith(OOM_KILLED_REASON):
                    reason += "; a larger `--memory` gives it more"
                error_class = HostPreemptedError if status.preempted else HostGoneError
                return error_class(f"{host}: {reason}")
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def command(self, host: str, *words: str) -> list[str]:
        """Return the command line of a kubectl that runs a command in the pod of a host.

        Raises:
            TransportError: The host has no pod.
        """
        job = self._job_of(host)
        if job not in self._existing_pods:
            raise TransportError(f"{host}: {self.status(host).over or 'it has no pod'}")
        name = self._existing_pods[job]["metadata"]["name"]
        options = ("--stdin", "--quiet", f"--container={TASK_CONTAINER}", f"pod/{name}")
        return self.kubectl.argv("exec", *options, "--", *words)

    def first_command(self, host: str) -> list[str]:
        """Return the command line of a kubectl that sends the main process of a pod its program.

        The main process of a pod waits on a socket for modules and for the stdin and stdout of that kubectl,
        see `bootstrap.passing_command`.

        Raises:
            TransportError: The host has no pod.
        """
        return self.command(host, *bootstrap.passing_command(self.python, self._job_of(host), _START_SECONDS))

    @contextmanager
    def killed_by_remove(self, command: KubectlPipe) -> Iterator[None]:
        """Return a context in which `remove` kills this command, which may hang on a lost node."""
        self._commands_to_kill.add(command)
        try:
            if self._is_closing:  # `remove` may have missed the command.
                command.kill()
            yield
        finally:
            self._commands_to_kill.discard(command)


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
        """Start kubectl. `begin` then sends the program."""
        self._pods, self._kills_agent = pods, kills_agent
        self._kubectl = KubectlPipe(host, argv)
        super().__init__(host, self._kubectl, python=pods.python, starter=argv[0])

    def begin(self, startup: bytes, answer_seconds: float = 0.0) -> PodProgram:
        """Send the program to the pod, and wait up to ``answer_seconds`` for its first bytes.

        Args:
            startup: The bytes that the command in the pod expects: modules, a function, its arguments.
            answer_seconds: The time limit. By default this does not wait.
        """
        with self._pods.killed_by_remove(self._kubectl):
            self._kubectl.deliver(startup)
            await_readable(self, answer_seconds)
        return self

    def wait(self, seconds: float) -> int | None:
        """Wait for the program to exit, and return its status, or None if it does not exit in time.

        A program that kills the agent may itself be killed with the pod, and then it has succeeded.
        """
        status = super().wait(seconds)
        if status and self._kills_agent:
            self._pods.end_error(self.host, _END_REPORT_SECONDS)  # This waits until the API knows the end.
            return 0 if self._pods.status(self.host).ended else status
        return status

    def start_error(self) -> TransportError | None:
        """Return why the program never ran, or why the pod has ended, because an agent ends with its pod.

        Returns:
            A `HostGoneError` if the pod has ended. A `RouteDownError` if the program never ran although the
            pod exists, because then the kubelet or the way to it is down. None if the program ran, and the
            pod may live.
        """
        # The program never ran: because the pod has ended, or because nothing can connect to it now.
        if error := super().start_error():
            return self._pods.end_error(self.host, _CONNECT_PAUSE_SECONDS) or RouteDownError(str(error))
        self.wait(_END_REPORT_SECONDS)
        status = self._kubectl.process.returncode
        # A kubectl that runs, or was killed on this machine, says nothing about the pod. One that exited by
        # itself does: so it is worth waiting until the API knows the end of the pod.
        kubectl_exited = status is not None and status >= 0
        return self._pods.end_error(self.host, _END_REPORT_SECONDS if kubectl_exited else 0.0)

    def exit_reason(self, why: str) -> str:
        """Return why the agent exits.

        Args:
            why: What the agent said. If it got SIGTERM, or lost its watchdog process, its pod ends, and the
                cluster knows a better reason.

        Raises:
            HostGoneError: The pod has ended, and the message says why.
        """
        got_sigterm, error = "SIGTERM" in why, None
        if got_sigterm or "watchdog" in why:
            # SIGTERM comes from the cluster or a user, so only an end by them explains it.
            error = self._pods.end_error(self.host, _END_REPORT_SECONDS, taken=got_sigterm)
        if error is not None:
            raise error
        return why


class _PodConnections(Connections):
    """The connections to pods: each program in a pod has a kubectl, and a connection of its own."""

    def __init__(self, pods: KubernetesAllocation) -> None:
        """Prepare to run programs in the pods of a launch, which are made already."""
        self._pods = pods
        # The modules are packed once now, and cached, not in the threads that start agents.
        bootstrap.packed(bootstrap.AGENT_MODULES)

    def run(self, host: str, entry: str, arguments: object) -> PodProgram:
        """Start a program in the pod of a host, by a kubectl of its own.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.
        """
        return PodProgram(self._pods, host, self._exec_argv(host)).begin(bootstrap.program(entry, arguments))

    def _exec_argv(self, host: str) -> list[str]:
        """Return the command line of a kubectl that runs a program of ours in the pod of a host."""
        return self._pods.command(host, *bootstrap.loader_command(self._pods.python))

    def start_agent(self, host: str, arguments: AgentArguments) -> PodProgram:
        """Let the main process of a pod become the agent. If it is the agent already, connect to it.

        The main process first only listens. The kubectl runs a program in the pod that hands its own stdin
        and stdout to the main process, with the modules of the agent if it still waits for them. An agent
        that runs already knows by the token that this is its launcher.
        """
        # Beside the usual arguments it gets the seconds from SIGTERM to SIGKILL of its tasks, and those for
        # which it waits at least for another connection when one has broken.
        served = {**arguments.as_json(), "grace": self._pods.grace, "outage": MIN_OUTAGE_SECONDS}
        startup = bootstrap.passing_input(_SERVE_ENTRY, served, arguments.token)
        program = PodProgram(self._pods, host, self._pods.first_command(host))
        # An agent that starts slowly is waited for: a second kubectl could not start another one in the pod.
        return program.begin(startup, _START_SECONDS)

    def kill_agent(self, host: str, agent_id: int) -> PodProgram:
        """Kill the agent of a pod, which may end the pod and so the killing program, too.

        Args:
            host: The name of the host whose pod it is.
            agent_id: The number that identifies the agent, see `AgentArguments`.

        Returns:
            The killing program. Its status is 0 also if it ended with the pod.
        """
        program = PodProgram(self._pods, host, self._exec_argv(host), kills_agent=True)
        return program.begin(bootstrap.program(KILL_ENTRY, {"agent": agent_id}))

    def reconnect(self, host: str) -> None:
        """Do nothing, because each program makes a connection of its own, but fail if the pod has ended."""
        if error := self._pods.end_error(host):
            raise error


def clean(kubectl: Kubectl, request: CleanRequest) -> Iterator[str]:
    """Remove the Jobs of ended launches of this user, and yield a line for each removed Job.

    Args:
        kubectl: The kubectl that reaches the cluster.
        request: The request of ``launch clean``, which decides for each Job whether its launcher has ended.
    """
    for job in kubectl.items("jobs", f"--selector={selector()}"):
        metadata = job["metadata"]
        owner = metadata.get("annotations", {}).get(OWNER_ANNOTATION, "")
        if request.cleaning.may_remove(metadata["labels"].get(RUN_LABEL, ""), owner, described(job)):
            yield kubectl.clean_job(job, request.dry_run)
