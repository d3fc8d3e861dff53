"""The backend for pods of Kubernetes: each task runs in a pod of its own, whose main process is the agent.

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

Each pod belongs to a Job of its own. The program that a kubectl exec runs passes its stdin and stdout to the
agent, and then waits. The first such program also brings the agent's modules.

Nothing is installed in the cluster, and rights in one namespace are enough. An agent whose launcher is gone
exits when its lease is over. Then its pod ends, and the cluster removes the Job.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Allocation, Backend, LaunchRequest
from launcher.backends.kubernetes.options import KubernetesOptions, faults, parse
from launcher.backends.kubernetes.rows import CLEAN_KUBERNETES, CONTEXT, GROUP, NAMESPACE, PODS, SECTION
from launcher.common.errors import Fault
from launcher.config.settings import Need, Settings
from launcher.job import JobSpec

if TYPE_CHECKING:
    from launcher.backends.cleaning import CleanRequest
    from launcher.backends.kubernetes.batch import KubernetesQueue


class KubernetesBackend(Backend[KubernetesOptions]):
    """The backend for pods of Kubernetes."""

    name = "kubernetes"
    runs_in_containers = provides_hosts = True

    group, section = GROUP, SECTION
    clean_rows = (CLEAN_KUBERNETES, NAMESPACE, CONTEXT)

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> KubernetesOptions | None:
        """Return the options about pods, or None if the user does not ask for pods.

        Neither the job nor named hosts change them. `check` reports named hosts as a fault.
        """
        return parse(settings)

    def missing_file_hint(self, options: KubernetesOptions) -> str:
        """Return how files get into pods."""
        return "--sync DIR copies a folder into each pod, and runs the tasks in the copy"

    def met_needs(self, options: KubernetesOptions | None) -> Collection[Need]:
        """Return the need of options about pods, if there are pods."""
        return () if options is None else (PODS,)

    def check(
        self, options: KubernetesOptions | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault]:
        """Yield the faults of the options about pods, if the user asks for pods."""
        return iter(()) if options is None else faults(options, request)

    def allocate(self, options: KubernetesOptions, request: LaunchRequest) -> Allocation:
        """Return an allocation whose pods are made when the launch connects to them."""
        from launcher.backends.kubernetes.pods import KubernetesAllocation  # noqa: PLC0415 - only when used

        return KubernetesAllocation(options, request)

    def batch_queue(self) -> KubernetesQueue:
        """Return the queue that starts launchers in pods, for ``--detach``."""
        from launcher.backends.kubernetes.batch import KubernetesQueue  # noqa: PLC0415 - only when used

        return KubernetesQueue()

    def clean(self, request: CleanRequest) -> Iterator[str]:
        """Remove the Jobs of ended launches of this machine, if the user typed ``--kubernetes``.

        Each line about a removed Job is yielded: first for Jobs of tasks, then for those of launchers.
        """
        settings = request.settings
        if not settings[CLEAN_KUBERNETES]:
            return iter(())
        from launcher.backends.kubernetes import batch, pods  # noqa: PLC0415 - only when used
        from launcher.backends.kubernetes.kubectl import Kubectl  # noqa: PLC0415 - only when used

        kubectl = Kubectl(settings[CONTEXT], settings[NAMESPACE])
        return itertools.chain(pods.clean(kubectl, request), batch.clean(kubectl, request))


BACKEND = KubernetesBackend()
