"""A launcher in a pod, for ``--detach``: submitted, found from other machines, fetched when it has ended.

The pod gets launch itself, the folders of ``--sync`` and, if its image has none, ``kubectl``, as ``--sync``
copies files. `keeper` is its main process. Commands run there by ``kubectl exec``.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import IO, Any

from launcher.agent.transfer import walk
from launcher.errors import TransportError
from launcher.files.collect import collect
from launcher.files.copying import Copying
from launcher.files.requests import Item, SyncRequest, parse_syncs
from launcher.files.sync import sync
from launcher.files.walk import Tree, read_trees
from launcher.itself import FOLDER, START
from launcher.job import RUN_FOLDER, Host, Program, ProgramKind, Role, RunPaths
from launcher.loop import await_readable
from launcher.output.files import write_json
from launcher.runs.folder import batched
from launcher.runs.run import Batch, Run, json_of
from launcher.text import printable
from launcher.transports import bootstrap
from launcher.transports.command import CommandPipe
from launcher.transports.kubernetes.keeper import BEGUN, ENDED
from launcher.transports.kubernetes.kubectl import Kubectl, explain
from launcher.transports.kubernetes.manifest import HOME, LAUNCHER, job_name, launcher_manifest, selector
from launcher.transports.kubernetes.pods import OWNER_POD, Pods
from launcher.transports.kubernetes.rights import namespace_of
from launcher.transports.kubernetes.status import CONTAINER, pod_status
from launcher.transports.queue import OVER, PENDING, RUNNING, Parcel, Queued, Submitted
from launcher.transports.transport import Launch

#: The pod, for what handles hosts.
_HOST = Host("launcher", roles=("launcher",))
_KEEP = "launcher.transports.kubernetes.keeper:keep"
#: In the pod: modules, programs, kubectl, what the user syncs, the run; and the mark of its end.
_LIB, _BIN, _KUBECTL, _FILES, _RUN = (f"{HOME}/{name}" for name in ("lib", "bin", "kubectl", "files", "run"))
_LAUNCH, _PYTHON, _OPTIONS, _ENDED = f"{_BIN}/launch", f"{_BIN}/python", f"{HOME}/options", f"{HOME}/ended"
_SCRIPT = f"import sys\nsys.path.insert(0, {_LIB!r})\nsys.argv.insert(1, {_LIB!r})\n{START}"
#: Packages that a launcher imports there; all pure Python.
_PACKAGES = ("launcher", "pathspec")
_OLDEST = (3, 10)
#: Hours that the files of a run wait in the pod.
_HOURS = 24
#: What a launcher writes into the folder of its run; the report is the last to be fetched.
_WRITTEN = ("plan.json", "events.jsonl", "launcher.log", "stop-asked", "logs", "output", "collected")
_REPORT = "report.json"
#: The file in the folder of a run here: where results go.
_RESULTS = "results.json"
#: Seconds to read from the pod before the API is asked again; for kubectl to end.
_PAUSE, _END = 1.0, 5.0
#: Tells about an image; and whether a launcher has ended: a moment after its report, its keeper says so.
_ABOUT = (
    "import json, os, shutil, sys\n"
    "print(json.dumps([sys.version_info[:2], os.uname()[4], shutil.which('kubectl')]))"
)
_ASK = f"""\
import os, time
for _ in range(20):
    if os.path.exists({_ENDED!r}) or not os.path.exists({f"{_RUN}/{_REPORT}"!r}):
        break
    time.sleep(0.1)
print(os.path.exists({_ENDED!r}))
"""
#: Machines of ELF programs, as ``uname -m`` names them.
_MACHINES = {62: "x86_64", 183: "aarch64", 22: "s390x", 21: "ppc64le"}
#: A program header that names a dynamic loader.
_INTERPRETER = 3


class KubernetesQueue:
    """See `launcher.transports.queue.Queue`."""

    shares_files = False

    def submits(self) -> bool:
        """See `Queue.submits`."""
        return True

    def submit(self, launch: Launch, run: Run, words: Sequence[str], parcel: Parcel) -> Submitted:
        """See `Queue.submit`."""
        kubectl = Kubectl(launch.settings.context, launch.settings.namespace)
        namespace = kubectl.namespace or namespace_of(kubectl.ask)
        context = kubectl.context or _current_context(kubectl)
        settings = launch.settings._replace(namespace=namespace, context=context)
        pods = _LauncherPod(launch._replace(settings=settings))
        # Written before the Job is made: `withdraw` finds it.
        name = job_name(run.job, _HOST.name, 1)
        run = batched(run, Batch("kubernetes", f"{namespace}/{name}", "", context or ""))
        try:
            pods.start([_HOST])
            pod, uid = pods.name_and_uid()
            there = _Pod(Kubectl(context, namespace), pod, pods.python)
            places = _send(there, run, launch, parcel)
            run = batched(run, run.batch._replace(node=pod))  # type: ignore[union-attr]
            write_json(f"{run.paths.root}/{_RESULTS}", {"results": parcel.results})
            content = pickle.dumps((run.job, parcel.pack(places, settings._replace(context=None))))
            code = _run(pods, content, f"{pod} {uid}")
            if code is None:
                _fetch(there, run, ("plan.json",), quiet=True)
                return Submitted(f"its launcher runs in the pod {pod} of the namespace {namespace}")
            self.look([run])
            return Submitted(code=code)
        except BaseException:
            launch.ignore_signals()
            pods.remove()
            raise

    def own(self) -> Batch | None:
        """See `Queue.own`: in the pod the run is one of its own machine."""
        return None

    def times_requeued(self) -> int:
        """See `Queue.times_requeued`."""
        return 0

    def may_requeue(self) -> bool:
        """See `Queue.may_requeue`."""
        return False

    def is_requeued(self) -> bool:
        """See `Queue.is_requeued`."""
        return False

    def requeue(self) -> None:
        """See `Queue.requeue`."""
        raise NotImplementedError

    def look(self, runs: Sequence[Run]) -> Mapping[str, Queued]:
        """See `Queue.look`."""
        found: dict[str, Queued] = {}
        places: dict[Kubectl, list[Run]] = {}
        for run in runs:
            if run.batch is not None:
                places.setdefault(_kubectl(run.batch), []).append(run)
        for kubectl, own in places.items():
            only = own[0].job if len(own) == 1 else ""
            pods = {pod["metadata"]["labels"].get(LAUNCHER): pod for pod in _launchers(kubectl, only)}
            for run in own:
                queued = self._look(kubectl, run, pods.get(run.job))
                if queued is not None:
                    found[run.job] = queued
        return found

    def _look(self, kubectl: Kubectl, run: Run, pod: Mapping[str, Any] | None) -> Queued | None:
        assert run.batch is not None
        if pod is None:
            return Queued(OVER, "the pod of its launcher is not there any more")
        status, name = pod_status(pod), pod["metadata"]["name"]
        if status.over:
            return Queued(OVER, f"the pod {name} of its launcher: {status.over}")
        if not status.running:
            return Queued(
                PENDING, f"the pod of its launcher is pending: {status.waiting or 'it is starting'}"
            )
        there = _Pod(kubectl, name)
        if not run.batch.node or there.ask(_ASK).strip() != "True":
            return Queued(RUNNING, f"its launcher runs in the pod {name}")
        results = (json_of(f"{run.paths.root}/{_RESULTS}") or {}).get("results", [])
        _fetch(there, run, _WRITTEN, results)
        _fetch(there, run, (_REPORT,), quiet=True)
        self.withdraw(run)
        return None

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """See `Queue.run_there`."""
        assert run.batch is not None
        terminal = not quiet and sys.stdin.isatty() and sys.stdout.isatty()
        there = _Pod(_kubectl(run.batch), run.batch.node)
        words = [_RUN if word == run.paths.root else word for word in words]
        argv = there.command(*(["--stdin", "--tty"] if terminal else []), words=[_LAUNCH, *words])
        nothing = subprocess.DEVNULL
        kubectl = subprocess.Popen(
            argv,
            stdin=None if terminal else nothing,
            stdout=nothing if quiet else None,
            stderr=subprocess.PIPE,
        )
        assert kubectl.stderr is not None
        shown = threading.Thread(target=_show_errors, args=(kubectl.stderr, quiet), daemon=True)
        shown.start()
        try:
            code = kubectl.wait()
        except BaseException:  # Ctrl-C
            kubectl.kill()
            raise
        shown.join(_END)
        return code

    def withdraw(self, run: Run) -> None:
        """See `Queue.withdraw`."""
        assert run.batch is not None
        words = ("--ignore-not-found", "--cascade=background", "--wait=false")
        _kubectl(run.batch).ask("delete", "jobs", f"--selector={selector(run.job, LAUNCHER)}", *words)


# ---------------------------------------------------------------------- the pod


class _LauncherPod(Pods):
    """The pod of a launcher, while it is made."""

    def __init__(self, launch: Launch) -> None:
        settings = launch.settings
        image = settings.image or next(role.image for role in launch.job.roles if role.image)
        self._tasks = sum(role.count for role in launch.job.roles)
        self._role = Role("launcher", 1, Program(ProgramKind.EXECUTABLE, _LAUNCH), image=image)
        job = launch.job._replace(
            roles=(self._role,), python=launch.job.python if launch.python_given else None
        )
        super().__init__(launch, job)
        self.selects = f"--selector={selector(launch.name, LAUNCHER)}"

    def manifest(self, host: Host, number: int = 1, avoid: str = "") -> dict[str, Any]:
        """See `Pods.manifest`."""
        run, role, user, volumes = self._launch.name, self._role, self._user, self._launch.python_given
        tasks = self._tasks
        return launcher_manifest(self.options, run, host, role, self.python, user, self.grace, tasks, volumes)

    def name_and_uid(self) -> tuple[str, str]:
        """Of the pod."""
        (pod,) = self._found.values()
        return pod["metadata"]["name"], pod["metadata"]["uid"]


class _Pod:
    """Commands in the pod of a launcher; see `launcher.transports.base.Commands`.

    Args:
        kubectl: of its cluster and namespace.
        name: of the pod.
        python: the Python there.
    """

    def __init__(self, kubectl: Kubectl, name: str, python: str = _PYTHON) -> None:
        self._kubectl, self._name, self._python = kubectl, name, python

    def command(self, *options: str, words: Sequence[str]) -> list[str]:
        """The command line that runs words there."""
        pod = (f"--container={CONTAINER}", f"pod/{self._name}")
        return self._kubectl.argv("exec", "--quiet", *options, *pod, "--", *words)

    def run(self, host: str, entry: str, arguments: object) -> CommandPipe:
        """See `Commands.run`."""
        argv = self.command("--stdin", words=bootstrap.loader(self._python))
        return _Program(host, argv, bootstrap.program(entry, arguments), self._python)

    def ask(self, code: str) -> str:
        """Run code: what it prints."""
        pod = (f"--container={CONTAINER}", f"pod/{self._name}")
        return self._kubectl.ask("exec", "--quiet", *pod, "--", self._python, "-E", "-s", "-S", "-c", code)


class _Program(CommandPipe):
    """A program in the pod."""

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`."""
        return explain(super().stderr())


def _kubectl(batch: Batch) -> Kubectl:
    return Kubectl(batch.where or None, batch.number.partition("/")[0])


def _current_context(kubectl: Kubectl) -> str | None:
    try:
        return kubectl.ask("config", "current-context").strip() or None
    except TransportError:  # there is none: a proxy, or kubectl in a pod
        return None


def _launchers(kubectl: Kubectl, run: str) -> Sequence[Mapping[str, Any]]:
    return kubectl.items("pods", f"--selector={selector(run, LAUNCHER)}")


# ---------------------------------------------------------------------- files


def _send(there: _Pod, run: Run, launch: Launch, parcel: Parcel) -> dict[str, str]:
    """Send launch, what it needs, and the folders of the user.

    Returns:
        The places of the folders, and of results.

    Raises:
        TransportError: the image can't run a launcher; the files can't be sent.
    """
    version, machine, has_kubectl = json.loads(there.ask(_ABOUT))
    if tuple(version) < _OLDEST:
        found, needed = (".".join(map(str, each)) for each in (version, _OLDEST))
        text = f"the Python of the image is {found}, and a launcher in a pod needs {needed} or later"
        raise TransportError(f"--detach: {text}; without --detach it may be 3.8")
    trees = [_package(name) for name in _PACKAGES]
    if not has_kubectl:
        trees.append(_kubectl_of_here(machine))
    places = {result: f"{_RUN}/results/{number}" for number, result in enumerate(parcel.results)}
    requests = parse_syncs(parcel.folders)
    if requests:
        for number, tree in enumerate(read_trees(requests, os.getcwd(), run.paths.root)[0]):
            place = f"{_FILES}/{number}/{tree.request.name}"
            places[tree.request.text] = place
            trees.append(tree._replace(request=tree.request._replace(remote=place)))
    sync(Copying(there, 1, launch.notice), [_HOST.name], trees, run.job)
    return places


def _package(name: str) -> Tree:
    """The modules of a package that this process could import."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    folder = f"{FOLDER}/launcher" if name == "launcher" else spec.submodule_search_locations[0]
    entries = {
        entry.path: entry
        for _, entry in walk(
            folder, "", lambda *_: None, lambda path, _: os.path.basename(path) == "__pycache__"
        )
    }
    return Tree(SyncRequest(name, folder, name, f"{_LIB}/{name}"), entries, {})


def _kubectl_of_here(machine: str) -> Tree:
    """The kubectl of this machine.

    Raises:
        TransportError: it can't run in the pod.
    """
    path = os.path.realpath(shutil.which("kubectl") or "kubectl")
    folder, name = os.path.split(path)
    if why := why_not(path, machine) or ("" if name == "kubectl" else "has another name"):
        without = f"the image has no kubectl, and {path} of this machine {why}"
        raise TransportError(f"--detach: {without}; put kubectl into the image")
    ((_, entry),) = walk(path, "kubectl", lambda *_: None)
    return Tree(SyncRequest(path, folder, "kubectl", _KUBECTL), {"kubectl": entry}, {})


def why_not(path: str, machine: str) -> str:
    """Why a program can't run on another machine; empty: it is static, and for that kind of machine."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return "is no program by itself"
        its_machine, start, size, count = struct.unpack("<18xH12xQ14xHH6x", head)
        file.seek(start)
        headers = file.read(size * count)
    if any(struct.unpack_from("<I", headers, at)[0] == _INTERPRETER for at in range(0, size * count, size)):
        return "needs libraries"
    its_name = _MACHINES.get(its_machine, str(its_machine))
    return "" if its_name == machine else f"is for {its_name}, not for {machine}"


def _fetch(
    there: _Pod, run: Run, names: Sequence[str], results: Sequence[str] = (), quiet: bool = False
) -> None:
    """Copy files of a run, and results, from the pod to here.

    Raises:
        TransportError: some can't be copied.
    """
    items = [Item("launcher", _HOST.name, _RUN, name, run.paths.root) for name in names]
    items += [
        Item("launcher", _HOST.name, f"{_RUN}/results/{number}", ".", folder)
        for number, folder in enumerate(results)
    ]
    failures = collect(Copying(there, 1, (lambda _: None) if quiet else _say), items)[_HOST.name].failures
    if failures:
        raise TransportError(f"{run.job}: its files can't be fetched: {'; '.join(failures)}")


# ---------------------------------------------------------------------- output


def _run(pods: _LauncherPod, content: bytes, owner: str) -> int | None:
    """Start the launcher, and show what it says until its tasks start.

    Args:
        pods: of the launcher.
        content: of the file with its options.
        owner: the name and the uid of the pod.

    Returns:
        The exit code of a launcher that has ended before; ``None``: it runs.

    Raises:
        TransportError: the pod has ended, or the connection to it.
    """
    arguments = {
        "launcher": [_LAUNCH, "--submitted", _OPTIONS],
        "environ": {RUN_FOLDER: _RUN, OWNER_POD: owner},
        "path": _KUBECTL,
        "run": RunPaths(_RUN).root,
        "script": _SCRIPT,
        "file": _OPTIONS,
        "content": base64.b64encode(content).decode("ascii"),
        "ended": _ENDED,
        "hours": _HOURS,
    }
    program = CommandPipe(
        _HOST.name, pods.command(_HOST.name, "attach"), bootstrap.program(_KEEP, arguments), pods.python
    )
    try:
        rest = b""
        while True:
            await_readable(program, _PAUSE)
            data = program.recv(1 << 16)
            if data == b"":
                why = program.why_ended() or "the connection to it has ended"
                raise TransportError(str(pods.gone(_HOST.name, _END) or why))
            *lines, rest = (rest + (data or b"")).split(b"\n")
            for line in lines:
                if line == BEGUN:
                    return None
                if line.startswith(ENDED):
                    return int(line[len(ENDED) :].partition(b";")[0])
                print(printable(line.decode("utf-8", "replace")), file=sys.stderr, flush=True)
    finally:
        program.close()


def _show_errors(stream: IO[bytes], quiet: bool) -> None:
    """Show what a command in the pod writes to stderr, without the line of kubectl about its exit code."""
    for line in stream:
        if not quiet and not line.startswith(b"command terminated with exit code "):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def _say(text: str) -> None:
    print(f"launch: {printable(text)}", file=sys.stderr, flush=True)
