"""Pods of Kubernetes as hosts: each task has a pod, a Job of its own, and the agent is its main process.

::

    options      what the user asks for
    template     the pod templates of the user
    names        names and labels
    manifest     the Jobs
    kubectl      how the cluster is reached: only by the command kubectl
    rights       asks the API server whether rights are missing
    status       what the API says about a pod
    pods         the pods of a launch: made, connected to, made again, removed
    batch        --detach: a launcher in a pod, found from other machines
    launcher_pod that pod: made, filled, fetched from
    keeper       its main process

    here         orchestrator ══ link ══ kubectl exec ══ API server ══ agent ──> task

The program of each kubectl exec passes its stdin and stdout to the agent, then waits. The first program
brings the agent's modules.

Nothing is installed in the cluster: rights in one namespace are enough. An agent whose launcher is gone exits
when its lease is over. Then its pod ends, and the cluster removes the Job.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Backend
from launcher.backends.cleaning import Cleaning
from launcher.backends.connections import Connections, ProgramRunner
from launcher.backends.docker.options import in_images
from launcher.backends.kubernetes import options as kubernetes
from launcher.backends.kubernetes.rows import CLEAN_KUBERNETES, CONTEXT, GROUP, NAMESPACE, PODS, SECTION
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings, LaunchRequest
from launcher.common.errors import JobError
from launcher.common.record import replace
from launcher.config.settings import Need, Settings
from launcher.config.table import PYTHON
from launcher.job import Host, JobSpec, Program, ProgramKind, Role

if TYPE_CHECKING:
    from launcher.backends.kubernetes.batch import KubernetesQueue
    from launcher.backends.kubernetes.pods import Pods


class KubernetesBackend(Backend):
    """See above."""

    runs_in_containers = provides_hosts = replaces_hosts = True
    missing_file_hint = "--sync DIR copies a folder into each pod, and runs the tasks in the copy"

    group, section = GROUP, SECTION
    clean_rows = (CLEAN_KUBERNETES, NAMESPACE, CONTEXT)
    parse = staticmethod(kubernetes.parse)
    faults = staticmethod(kubernetes.faults)

    def meets(self, options: kubernetes.KubernetesOptions | None) -> Collection[Need]:
        """See `Backend.meets`."""
        return () if options is None else (PODS,)

    def queue(self) -> KubernetesQueue:
        """See `Backend.queue`."""
        from launcher.backends.kubernetes.batch import KubernetesQueue  # noqa: PLC0415 - the live half

        return KubernetesQueue()

    @contextmanager
    def present(self, asked: Asked, name: str) -> Iterator[Allocation | None]:
        """See `Backend.present`: two pods for ``launch check --kubernetes IMAGE``."""
        python = asked.settings[PYTHON]
        role = Role("pod", 2, Program(ProgramKind.EXECUTABLE, "true"))
        spec = JobSpec((role,), python=python)
        asked = replace(asked, spec=spec)
        options = self.parse(asked)
        if faults := list(self.faults(asked, options)):
            raise JobError(faults)
        if options is None:
            yield None
            return
        from launcher.backends.kubernetes.manifest import HOME  # noqa: PLC0415 - the live half

        usual, connect_settings = (self, options), ConnectSettings()
        request = LaunchRequest(
            name,
            spec=spec,
            hosts=(),
            named=False,
            settings=options,
            connect_settings=connect_settings,
            usual=usual,
            ignore_signals=lambda: None,
        )
        with self.inventory(replace(request, python_given=bool(python))) as found:
            hosts = tuple(replace(host, workdir=HOME) for host in found.hosts)  # where --sync copies to
            yield replace(found, hosts=hosts)

    @contextmanager
    def inventory(self, request: LaunchRequest) -> Iterator[Allocation]:
        """See `Backend.inventory`: the pods are made when the launch connects to them."""
        from launcher.backends.docker.container import own_hosts  # noqa: PLC0415 - the live half
        from launcher.backends.kubernetes.pods import Pods  # noqa: PLC0415 - the live half

        spec = in_images(request.spec, request.settings, request.python_given, request.workdir_given)
        hosts, _ = own_hosts(spec)
        pods = Pods(request, spec)
        yield Allocation(hosts, spec, pods, standby=False, remarks=pods.described(hosts))

    def connections(
        self,
        hosts: Sequence[Host],
        settings: Pods,
        connect_settings: ConnectSettings,
    ) -> AbstractContextManager[Connections]:
        """See `Backend.connections`."""
        from launcher.backends.kubernetes.pods import connected  # noqa: PLC0415 - the live half

        return connected(settings, hosts)

    def address(self, host: Host, settings: Any) -> str | None:
        """See `Backend.address`: the IP of the pod."""
        return settings.status(host.name).address or None

    def node(self, host: Host, settings: Any) -> str:
        """See `Backend.node`: that of the pod."""
        node: str = settings.status(host.name).node
        return node

    def renew(self, host: str, settings: Any) -> None:
        """See `Backend.renew`."""
        settings.renew(host)

    def cleanup(
        self,
        settings: Settings,
        cleaning: Cleaning,
        hosts: Sequence[Host],
        commands: ProgramRunner,
        dry_run: bool,
    ) -> Iterable[str]:
        """See `Backend.cleanup`: the Jobs of launches of this machine."""
        if not settings[CLEAN_KUBERNETES]:
            return ()
        from launcher.backends.kubernetes import batch, pods  # noqa: PLC0415 - the live half

        where = settings[CONTEXT], settings[NAMESPACE], dry_run
        return itertools.chain(pods.cleanup(*where, cleaning), batch.cleanup(*where))


TRANSPORT = KubernetesBackend()
