"""A launcher in a pod, for ``--detach``: submitted, found from other machines, fetched when it has ended.

Commands run in its pod by ``kubectl exec``. `launcher_pod` makes the pod and copies files.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.backends.backend import LaunchRequest
from launcher.backends.batch_queue import (
    OVER,
    PENDING,
    RUNNING,
    BatchJobStatus,
    BatchQueue,
    Parcel,
    Submission,
    run_shown,
)
from launcher.backends.cleaning import CleanRequest
from launcher.backends.connections import slow
from launcher.backends.kubernetes.kubectl import Kubectl
from launcher.backends.kubernetes.launcher_pod import (
    POD_HOST,
    PROGRAM_PATH,
    RUN_PATH,
    LauncherPod,
    Pod,
    check_account,
    fetch,
    send,
    start,
)
from launcher.backends.kubernetes.names import LAUNCHER_LABEL, job_name, selector
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.status import job_status, pod_status
from launcher.common.errors import TransportError
from launcher.common.record import replace
from launcher.output.run_files import write_json
from launcher.runs.folder import with_batch_job
from launcher.runs.run import BatchJob, Run, all_runs, json_of

#: What a launcher writes into the folder of its run. The report, which is fetched last, is not among them.
_FETCHED_FILES = ("plan.json", "events.jsonl", "launcher.log", "stop-asked", "logs", "output", "collected")
_REPORT_FILE = "report.json"
#: The file in the folder of a run on this machine that lists the folders for results.
_RESULTS_FILE = "results.json"
#: The line that kubectl prints about a command that has failed.
_HIDDEN_LINE = re.compile(rb"^command terminated with exit code \d+$")


class KubernetesQueue(BatchQueue):
    """The queue of a cluster: it starts launchers in pods, which do not see the files of this machine."""

    def submit(
        self,
        options: KubernetesOptions,
        request: LaunchRequest,
        run: Run,
        words: Sequence[str],
        parcel: Parcel,
    ) -> Submission:
        """Make the pod of a launcher, send it files, and start the launcher. If that fails, remove the pod.

        The arguments are those of `BatchQueue.submit`.
        """
        kubectl = Kubectl(options.context, options.namespace)
        namespace = kubectl.used_namespace()
        context = kubectl.context or _current_context(kubectl)
        options = replace(options, namespace=namespace, context=context)
        pods = LauncherPod(options, request)
        # This is written before the Job is made, so that `withdraw` finds the Job.
        name = job_name(run.name, POD_HOST.name, 1)
        run = with_batch_job(
            run, BatchJob(transport="kubernetes", number=f"{namespace}/{name}", node="", where=context or "")
        )
        try:
            pods.start([POD_HOST])
            pod, uid = pods.name_and_uid()
            there = Pod(Kubectl(context, namespace), pod, pods.python)
            check_account(there, namespace)
            places = send(there, run, parcel)
            run = with_batch_job(run, replace(run.batch, node=pod))  # type: ignore[type-var]
            write_json(f"{run.paths.root}/{_RESULTS_FILE}", {"results": parcel.results})
            content = pickle.dumps((run.name, parcel.pack(places, replace(options, context=None))))
            code = start(pods, content, f"{pod} {uid}")
            if code is None:
                fetch(there, run, ("plan.json",), quiet=True)
                return Submission(f"its launcher runs in the pod {pod} of the namespace {namespace}")
            self.inspect([run])
            return Submission(code=code)
        except BaseException:
            request.ignore_signals()
            pods.remove()
            raise

    def inspect(self, runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
        """Return the states of the launchers of runs, by the names of the runs.

        A run whose launcher has ended is fetched, its pod is removed, and the run is left out.
        """
        found: dict[str, BatchJobStatus] = {}
        places: dict[Kubectl, list[Run]] = {}
        for run in runs:
            if run.batch is not None:
                places.setdefault(_kubectl(run.batch), []).append(run)
        for kubectl, own in places.items():
            only = own[0].name if len(own) == 1 else ""
            with slow("waiting for an answer from kubectl"):
                pods = _by_launcher(kubectl, "pods", only)
                alone = {run.name for run in own} - pods.keys()
                jobs = _by_launcher(kubectl, "jobs", only) if alone else {}
            for run in own:
                try:
                    with slow(f"{run.name}: waiting for the pod of its launcher"):
                        queued = self._inspect_run(kubectl, run, pods.get(run.name), jobs.get(run.name))
                except TransportError as error:  # Other pods may answer.
                    queued = BatchJobStatus(RUNNING, f"the pod of its launcher runs: {error}")
                if queued is not None:
                    found[run.name] = queued
        return found

    def _inspect_run(
        self, kubectl: Kubectl, run: Run, pod: Mapping[str, Any] | None, job: Mapping[str, Any] | None
    ) -> BatchJobStatus | None:
        """Return the state of the launcher of a run, or fetch its files and return None if it has ended.

        Args:
            kubectl: The kubectl that reaches the pod.
            run: The run.
            pod: The pod. None if there is none.
            job: The Job. None if there is none, or if it is not known.
        """
        assert run.batch is not None
        if is_lost(run, pod, job):  # Nothing can be fetched from the pod.
            self.withdraw(run)
        is_pending = "the pod of its launcher is pending"
        if pod is None and job is not None and not run.batch.node:
            return BatchJobStatus(PENDING, f"{is_pending}: {job_status(job, ()).waiting}")
        if pod is None:
            return BatchJobStatus(OVER, "the pod of its launcher no longer exists")
        status, name = pod_status(pod), pod["metadata"]["name"]
        if status.over:
            return BatchJobStatus(OVER, f"the pod {name} of its launcher: {status.over}")
        if not status.running:
            return BatchJobStatus(PENDING, f"{is_pending}: {status.waiting or 'it is starting'}")
        there = Pod(kubectl, name)
        if not run.batch.node or not there.has_ended():
            return BatchJobStatus(RUNNING, f"its launcher runs in the pod {name}")
        with open(f"{run.paths.root}/{_RESULTS_FILE}", "ab") as file:
            with slow(f"{run.name}: waiting for another command that fetches its files"):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.path.exists(run.paths.report):
                results = (json_of(f"{run.paths.root}/{_RESULTS_FILE}") or {}).get("results", [])
                fetch(there, run, _FETCHED_FILES, results)
                fetch(there, run, (_REPORT_FILE,), quiet=True)
                self.withdraw(run)
        return None

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """Run a command of launch in the pod of a run's launcher, and return its exit code."""
        assert run.batch is not None
        terminal = not quiet and sys.stdin.isatty() and sys.stdout.isatty()
        there = Pod(_kubectl(run.batch), run.batch.node)
        words = [RUN_PATH if word == run.paths.root else word for word in words]
        argv = there.command(*(["--stdin", "--tty"] if terminal else []), words=[PROGRAM_PATH, *words])
        return run_shown(argv, _HIDDEN_LINE, quiet, terminal)

    def withdraw(self, run: Run) -> None:
        """Remove the Job of a run's launcher, and with it the pod."""
        assert run.batch is not None
        _kubectl(run.batch).delete("jobs", f"--selector={selector(run.name, LAUNCHER_LABEL)}")


def _kubectl(batch: BatchJob) -> Kubectl:
    """Return the kubectl that reaches the pod of a batch job."""
    return Kubectl(batch.where or None, batch.number.partition("/")[0])


def _current_context(kubectl: Kubectl) -> str | None:
    """Return the current context of kubectl, or None if kubectl needs none."""
    try:
        return kubectl.ask("config", "current-context").strip() or None
    except TransportError:  # There is none if kubectl uses a proxy, or runs in a pod.
        return None


def _by_launcher(kubectl: Kubectl, kind: str, run: str = "") -> Mapping[str, Mapping[str, Any]]:
    """Return the Jobs or pods of launchers by the names of their runs.

    Args:
        kubectl: The kubectl that reaches the cluster.
        kind: ``jobs`` or ``pods``.
        run: The name of the only run that counts. Empty for all runs.
    """
    found = kubectl.items(kind, f"--selector={selector(run, LAUNCHER_LABEL)}")
    return {str(item["metadata"]["labels"].get(LAUNCHER_LABEL)): item for item in found}


def is_lost(run: Run, pod: Mapping[str, Any] | None, job: Mapping[str, Any] | None) -> bool:
    """Return whether only a Job, or a pod whose processes have ended, is left of a launcher.

    Args:
        run: The run of the launcher.
        pod: The pod. None if there is none.
        job: The Job. None if there is none, or if it is not known.
    """
    if pod is not None:
        return pod_status(pod).ended
    return job is not None and run.batch is not None and bool(run.batch.node)


def clean(kubectl: Kubectl, request: CleanRequest) -> Iterator[str]:
    """Remove the Jobs of launchers whose pods are lost, if this machine knows their runs.

    Returns:
        An iterator of lines, one for each Job.
    """
    jobs = _by_launcher(kubectl, "jobs")
    runs = {run.name: run for run in all_runs() if run.batch is not None} if jobs else {}
    pods = _by_launcher(kubectl, "pods") if jobs.keys() & runs else {}
    for name, job in jobs.items():
        metadata, run = job["metadata"], runs.get(name)
        number = f"{metadata['namespace']}/{metadata['name']}"
        if run is None or run.batch is None or run.batch.number != number:
            continue
        if is_lost(run, pods.get(name), job):
            yield kubectl.clean_job(job, request.dry_run)
