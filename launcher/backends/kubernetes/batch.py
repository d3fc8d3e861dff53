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
from launcher.backends.batch_queue import BatchJobStatus, BatchQueue, JobPhase, Parcel, Submission, run_shown
from launcher.backends.cleaning import CleanRequest
from launcher.backends.connections import slow
from launcher.backends.kubernetes import launcher_pod
from launcher.backends.kubernetes.kubectl import Kubectl
from launcher.backends.kubernetes.names import LAUNCHER_LABEL, job_name, selector
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.status import job_status, pod_status
from launcher.common.errors import TransportError
from launcher.common.record import replace
from launcher.output.run_files import write_json
from launcher.runs.folder import record_batch_job
from launcher.runs.run import BatchJob, Run, all_runs, json_of

#: What a launcher writes into the folder of its run. The report, which is fetched last, is not among them.
_FETCHED_FILES = (
    "plan.json", "events.jsonl", "samples.jsonl", "launcher.log", "stop-asked", "logs", "output", "collected",
)  # fmt: skip
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

        The words of the launcher's command line are not used, because the launcher gets its options as a
        pickled file, made by the parcel. This blocks until the tasks start, or the launcher has ended.

        Returns:
            What to tell the user if the tasks have started. Otherwise the exit code of the launcher.
        """
        kubectl = Kubectl(options.context, options.namespace)
        namespace = kubectl.used_namespace()
        # Later commands must find the pod even if the user's current context is another one then.
        context = kubectl.context or _current_context(kubectl)
        options = replace(options, namespace=namespace, context=context)
        pod = launcher_pod.LauncherPod(options, request)
        # The run's folder names the Job before it is made, so that `withdraw` finds it whatever happens.
        number = f"{namespace}/{job_name(run.name, launcher_pod.POD_HOST.name, 1)}"
        batch_job = BatchJob(transport="kubernetes", number=number, node="", where=context or "")
        run = record_batch_job(run, batch_job)
        try:
            pod.start([launcher_pod.POD_HOST])
            pod_name, uid = pod.name_and_uid()
            pod_runner = launcher_pod.PodRunner(Kubectl(context, namespace), pod_name, pod.python)
            launcher_pod.check_account(pod_runner, namespace)
            pod_paths = launcher_pod.send_files(pod_runner, run, parcel)
            # From now on `inspect` looks for the launcher in this pod.
            run = record_batch_job(run, replace(batch_job, node=pod_name))
            write_json(f"{run.paths.root}/{_RESULTS_FILE}", {"results": parcel.results})
            # The options for the launcher. In the pod kubectl has no contexts, so they name none.
            content = pickle.dumps((run.name, parcel.pack(pod_paths, replace(options, context=None))))
            code = launcher_pod.start_launcher(pod, content, f"{pod_name} {uid}")
            if code is None:  # The tasks have started.
                launcher_pod.fetch_files(pod_runner, run, ("plan.json",), quiet=True)
                return Submission(f"its launcher runs in the pod {pod_name} of the namespace {namespace}")
            self.inspect([run])  # The launcher has ended, so this fetches its files.
            return Submission(code=code)
        except BaseException:  # This includes Ctrl-C.
            request.ignore_signals()
            pod.remove()
            raise

    def inspect(self, runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
        """Return the states of the launchers of runs, by the names of the runs.

        A run whose launcher has ended is left out: its files are fetched, and then its pod is removed.

        Args:
            runs: The runs. Those without a batch job are left out, too.
        """
        statuses: dict[str, BatchJobStatus] = {}
        runs_by_kubectl: dict[Kubectl, list[Run]] = {}  # There is a Kubectl for each context and namespace.
        for run in runs:
            if run.batch is not None:
                runs_by_kubectl.setdefault(_kubectl_of(run.batch), []).append(run)
        for kubectl, its_runs in runs_by_kubectl.items():
            # For one run only its objects are asked for, for several runs the objects of all runs.
            only_run = its_runs[0].name if len(its_runs) == 1 else ""
            with slow("waiting for an answer from kubectl"):
                pods = _launcher_objects(kubectl, "pods", only_run)
                # The Jobs say why there are no pods, so they are asked for only if a pod is missing.
                has_all_pods = all(run.name in pods for run in its_runs)
                jobs = {} if has_all_pods else _launcher_objects(kubectl, "jobs", only_run)
            for run in its_runs:
                try:
                    with slow(f"{run.name}: waiting for the pod of its launcher"):
                        status = self._inspect_run(kubectl, run, pods.get(run.name), jobs.get(run.name))
                except TransportError as error:  # Until more is known, it counts as running.
                    status = BatchJobStatus(JobPhase.RUNNING, f"the pod of its launcher runs: {error}")
                if status is not None:
                    statuses[run.name] = status
        return statuses

    def _inspect_run(
        self, kubectl: Kubectl, run: Run, pod: Mapping[str, Any] | None, job: Mapping[str, Any] | None
    ) -> BatchJobStatus | None:
        """Return the state of the launcher of a run, or fetch its files and return None if it has ended.

        The launcher runs in a pod, which a Job makes:

        - Without a pod it is pending if the Job has not made one yet. Otherwise it is over, and its files are
          lost. What is left of it is removed.
        - A pod that has ended is over as well.
        - A pod that does not run yet is pending.
        - In a pod that runs, the launcher runs or has ended. After its end the pod waits until a
          command has fetched the files. Then the Job is removed, and the pod with it.

        Args:
            kubectl: The kubectl that reaches the pod.
            run: The run. The ``node`` of its batch job is the name of the pod, once the pod has got files.
            pod: The pod. None if there is none.
            job: The Job. None if there is none, or if it is not known.
        """
        assert run.batch is not None
        if is_lost(run, pod, job):  # Nothing can be fetched from the pod.
            self.withdraw(run)
        pending = "the pod of its launcher is pending"
        if pod is None and job is not None and not run.batch.node:
            return BatchJobStatus(JobPhase.PENDING, f"{pending}: {job_status(job, ()).waiting}")
        if pod is None:
            return BatchJobStatus(JobPhase.OVER, "the pod of its launcher no longer exists")
        status, name = pod_status(pod), pod["metadata"]["name"]
        if status.over:
            return BatchJobStatus(JobPhase.OVER, f"the pod {name} of its launcher: {status.over}")
        if not status.running:
            return BatchJobStatus(JobPhase.PENDING, f"{pending}: {status.waiting or 'it is starting'}")
        pod_runner = launcher_pod.PodRunner(kubectl, name)
        # A pod that has not got its files yet has no launcher that could have ended.
        if not run.batch.node or not pod_runner.has_ended():
            return BatchJobStatus(JobPhase.RUNNING, f"its launcher runs in the pod {name}")
        results_path = f"{run.paths.root}/{_RESULTS_FILE}"
        # One command at a time fetches the files. The report comes last, so if it exists, all are here.
        with open(results_path, "ab") as file:
            with slow(f"{run.name}: waiting for another command that fetches its files"):
                fcntl.flock(file, fcntl.LOCK_EX)
            # Otherwise another command has fetched the files while this one waited for the lock.
            if not os.path.exists(run.paths.report):
                results = (json_of(results_path) or {}).get("results", [])
                launcher_pod.fetch_files(pod_runner, run, _FETCHED_FILES, results)
                launcher_pod.fetch_files(pod_runner, run, (_REPORT_FILE,), quiet=True)
                self.withdraw(run)
        return None

    def command_there(self, run: Run, words: Sequence[str]) -> tuple[list[str], Mapping[str, str] | None]:
        """Return the ``kubectl exec`` of a command in the pod of a run's launcher; see `run_there`."""
        return _exec_command(run, words), None

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """Run a command of launch in the pod of a run's launcher, show its output, return its exit code.

        Args:
            run: The run.
            words: The words of the command. The path of the run's folder becomes its path in the pod.
            quiet: Whether to hide the output.
        """
        terminal = not quiet and sys.stdin.isatty() and sys.stdout.isatty()
        argv = _exec_command(run, words, *(["--stdin", "--tty"] if terminal else []))
        return run_shown(argv, _HIDDEN_LINE, quiet, terminal)

    def withdraw(self, run: Run) -> None:
        """Remove the Job of a run's launcher, and with it the pod."""
        assert run.batch is not None
        _kubectl_of(run.batch).delete("jobs", f"--selector={selector(run.name, LAUNCHER_LABEL)}")


def _exec_command(run: Run, words: Sequence[str], *options: str) -> list[str]:
    """Return the ``kubectl exec``, with options of its own, of a command in the pod of a run's launcher."""
    assert run.batch is not None
    pod_runner = launcher_pod.PodRunner(_kubectl_of(run.batch), run.batch.node)
    if words[0] == "stacks":
        launcher_pod.send_stack_program(pod_runner, run)
    words = [launcher_pod.RUN_PATH if word == run.paths.root else word for word in words]
    return pod_runner.command(*options, words=[launcher_pod.PROGRAM_PATH, *words])


def _kubectl_of(batch: BatchJob) -> Kubectl:
    """Return the kubectl that reaches the pod of a batch job.

    The number of the batch job is ``NAMESPACE/JOB``, and ``where`` is the context of kubectl. It is empty if
    kubectl needed none when the batch job was submitted.
    """
    namespace, _, _ = batch.number.partition("/")
    return Kubectl(batch.where or None, namespace)


def _current_context(kubectl: Kubectl) -> str | None:
    """Return the current context of kubectl, or None if kubectl needs none."""
    try:
        return kubectl.ask("config", "current-context").strip() or None
    except TransportError:  # There is none if kubectl uses a proxy, or runs in a pod.
        return None


def _launcher_objects(kubectl: Kubectl, kind: str, run: str = "") -> Mapping[str, Mapping[str, Any]]:
    """Return the Jobs or pods of launchers by the names of their runs.

    Args:
        kubectl: The kubectl that reaches the cluster.
        kind: ``jobs`` or ``pods``.
        run: The name of the only run that counts. Empty for all runs.
    """
    objects = kubectl.items(kind, f"--selector={selector(run, LAUNCHER_LABEL)}")
    return {str(item["metadata"]["labels"].get(LAUNCHER_LABEL)): item for item in objects}


def is_lost(run: Run, pod: Mapping[str, Any] | None, job: Mapping[str, Any] | None) -> bool:
    """Return whether only a Job, or a pod whose processes have ended, is left of a launcher.

    Usually the main process of its pod stays until the files of the run are fetched. Now they are lost.

    Args:
        run: The run of the launcher.
        pod: The pod. None if there is none.
        job: The Job. None if there is none, or if it is not known.
    """
    if pod is not None:
        return pod_status(pod).ended
    # The Job has had a pod if the run names it as the node of its batch job. Otherwise a pod may still come.
    has_had_pod = run.batch is not None and bool(run.batch.node)
    return job is not None and has_had_pod


def clean(kubectl: Kubectl, request: CleanRequest) -> Iterator[str]:
    """Remove the Jobs of launchers whose pods are lost, and yield a line for each removed Job.

    Only Jobs of runs that this machine knows are removed.
    """
    # Each of the later questions is asked only if the earlier answers leave something to remove.
    jobs = _launcher_objects(kubectl, "jobs")
    runs = {run.name: run for run in all_runs() if run.batch is not None} if jobs else {}
    pods = _launcher_objects(kubectl, "pods") if jobs.keys() & runs else {}
    for run_name, job in jobs.items():
        metadata, run = job["metadata"], runs.get(run_name)
        number = f"{metadata['namespace']}/{metadata['name']}"
        # A Job of another cluster or namespace may have the label of the same run.
        if run is None or run.batch is None or run.batch.number != number:
            continue
        if is_lost(run, pods.get(run_name), job):
            yield kubectl.clean_job(job, request.dry_run)
