"""The pod of a launcher: made, filled, started, and fetched from.

It gets launch itself, the folders of ``--sync`` and, if its image lacks it, ``kubectl``, in the way in which
``--sync`` copies files. `keeper` is its main process.

The pod does not see the files of the machine that submits it. So the options follow the files, pickled, with
the new places of the folders. After the end of the launcher, the first command about the run fetches its
folder as ``--collect`` does, and deletes the Job. This pod owns the Jobs of the tasks, so the cluster removes
them with it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import Any

from launcher.agent.transfer import entries_below
from launcher.backends import bootstrap
from launcher.backends.backend import LaunchRequest
from launcher.backends.batch_queue import Parcel
from launcher.backends.connections import slow
from launcher.backends.kubernetes.keeper import LAUNCHER_ENDED_LINE, TASKS_START_LINE
from launcher.backends.kubernetes.kubectl import Kubectl, KubectlPipe
from launcher.backends.kubernetes.manifest import HOME, launcher_options
from launcher.backends.kubernetes.names import LAUNCHER_LABEL, RUN_LABEL, selector
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.pods import OWNER_POD_VARIABLE, KubernetesAllocation
from launcher.backends.kubernetes.rights import LAUNCHER_ACCOUNT, lacks, missing_rights
from launcher.backends.kubernetes.status import TASK_CONTAINER
from launcher.backends.programs import RemoteProgram, start_program
from launcher.common.errors import TransportError
from launcher.common.record import replace
from launcher.common.text import escape_controls
from launcher.config.table import ON_END, ON_EVENT
from launcher.event_loop import await_readable
from launcher.files.requests import Item, SyncRequest, parse_syncs
from launcher.files.transfer import FileTransfer, collect, sync
from launcher.files.walk import SourceTree, read_trees
from launcher.itself import START_CODE
from launcher.job import RUN_FOLDER_VARIABLE, Host, Program, ProgramKind, Role
from launcher.runs.end_command import LIMIT_SECONDS
from launcher.runs.run import Run
from launcher.runs.stacks import PROGRAM_NAME, program_path

#: The pod as a host, for functions that take hosts.
POD_HOST = Host("launcher", roles=("launcher",))
_KEEP_ENTRY = "launcher.backends.kubernetes.keeper:keep"
# Paths in the pod: modules, programs, kubectl, the files of --sync, and the folder of the run.
_LIB_PATH, _BIN_PATH, _KUBECTL_PATH, _FILES_PATH, RUN_PATH = (
    f"{HOME}/{name}" for name in ("lib", "bin", "kubectl", "files", "run")
)
PROGRAM_PATH = f"{_BIN_PATH}/launch"
_PYTHON_PATH = f"{_BIN_PATH}/python"
#: The pickled options in the pod.
_OPTIONS_PATH = f"{HOME}/options"
#: The file in the pod that exists when the launcher has ended.
_END_MARK_PATH = f"{HOME}/ended"
_SCRIPT = f"import sys\nsys.path.insert(0, {_LIB_PATH!r})\nsys.argv.insert(1, {_LIB_PATH!r})\n{START_CODE}"
#: The packages that a launcher imports in the pod. All are pure Python.
_PACKAGES = ("launcher", "pathspec")
_MIN_PYTHON = (3, 10)
#: The hours for which the files of a run wait in the pod.
_KEPT_HOURS = 24
#: The time that a launcher gets after SIGTERM, in addition to the time of the tasks.
_LAUNCHER_GRACE_SECONDS = 20
#: The longest wait for output of the pod.
_READ_SECONDS = 1.0
#: The time for the API to know the end of a pod.
_END_TIMEOUT_SECONDS = 5.0
#: Python code that prints facts about an image.
_IMAGE_FACTS_CODE = (
    "import json, shutil, sys\nprint(json.dumps([sys.version_info[:2], shutil.which('kubectl')]))"
)
#: Python code that prints whether a launcher has ended. The report is written a moment before the keeper
#: marks the end, so the code waits for the mark if there is a report.
_HAS_ENDED_CODE = f"""\
import os, time
for _ in range(20):
    if os.path.exists({_END_MARK_PATH!r}) or not os.path.exists({f"{RUN_PATH}/report.json"!r}):
        break
    time.sleep(0.1)
print(os.path.exists({_END_MARK_PATH!r}))
"""
#: Python code that asks the API server as kubectl in a pod would, before the pod contains kubectl. It prints
#: for each review whether it is allowed.
_REVIEW_CODE = """\
import http.client, json, os, ssl
host, port = (os.environ["KUBERNETES_SERVICE_" + name] for name in ("HOST", "PORT"))
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
context = ssl.create_default_context(cafile=folder + "/ca.crt")
api = http.client.HTTPSConnection(host, int(port), timeout=5, context=context)
with open(folder + "/token") as file:
    headers = {"Authorization": "Bearer " + file.read().strip(), "Content-Type": "application/json"}
for review in json.loads(%r):
    path = "/apis/" + review["apiVersion"] + "/selfsubjectaccessreviews"
    api.request("POST", path, json.dumps(review), headers)
    print(json.dumps(json.loads(api.getresponse().read())["status"]["allowed"]))
"""


# ---------------------------------------------------------------------- the pod


class LauncherPod(KubernetesAllocation):
    """The pod of a launcher, while it is made.

    Args:
        options: The options of the launch.
        request: The request of the launch.
    """

    def __init__(self, options: KubernetesOptions, request: LaunchRequest) -> None:
        """Plan the pod of the launcher like that of a single task. Nothing is made yet."""
        spec = request.spec
        # Without an image for all roles, the launcher gets that of the first role.
        image = options.image or next(role.image for role in spec.roles if role.image)
        role = Role("launcher", 1, Program(ProgramKind.EXECUTABLE, PROGRAM_PATH), image=image)
        # The memory of the launcher grows with the number of the tasks.
        options = launcher_options(options, sum(role.count for role in spec.roles))
        super().__init__(options, replace(request, spec=replace(spec, roles=(role,))))
        # After SIGTERM the launcher first stops the tasks, which takes the time of ``--grace``, waits for the
        # commands of --on-event, runs that of --on-end, and exits.
        commands = [row for row in (ON_END, ON_EVENT) if request.settings[row]]
        self.grace += _LAUNCHER_GRACE_SECONDS + LIMIT_SECONDS * len(commands)
        # The objects of the launcher have a label of their own, see `manifest`.
        self.selector_option = f"--selector={selector(request.run_name, LAUNCHER_LABEL)}"

    def manifest(self, host: Host, number: int = 1, avoid: str = "") -> dict[str, Any]:
        """Return the manifest of the launcher's Job, whose labels differ from those of tasks.

        So what removes the Jobs of a run's tasks leaves the launcher alone. The Job names no launcher process
        of this machine, because it outlives that process.
        """
        manifest = super().manifest(host, number, avoid)
        del manifest["metadata"]["annotations"]
        labels = manifest["metadata"]["labels"]
        labels[LAUNCHER_LABEL] = labels.pop(RUN_LABEL)
        return manifest

    def name_and_uid(self) -> tuple[str, str]:
        """Return the name and the uid of the launcher's pod. Call it after `start`.

        `start` waits until the pod runs, and keeps what the API says about it, so this asks nobody.
        """
        (pod,) = self._existing_pods.values()
        return pod["metadata"]["name"], pod["metadata"]["uid"]


class PodRunner:
    """Runs commands in the pod of a launcher; a `launcher.backends.connections.ProgramRunner`.

    Args:
        kubectl: The kubectl that reaches the pod.
        name: The name of the pod.
        python: The Python in the pod.
    """

    def __init__(self, kubectl: Kubectl, name: str, python: str = _PYTHON_PATH) -> None:
        """Store how the pod is reached. Nothing is run yet."""
        self._kubectl, self._name, self._python = kubectl, name, python

    def command(self, *options: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in the pod.

        Args:
            options: The options of ``kubectl exec``.
            words: The command.
        """
        return self._kubectl.argv(*self._exec_words(words, *options))

    def _exec_words(self, words: Sequence[str], *options: str) -> list[str]:
        """Return the words after ``kubectl`` that run a command in the pod. The options are for kubectl."""
        container = (f"--container={TASK_CONTAINER}", f"pod/{self._name}")
        return ["exec", "--quiet", *options, *container, "--", *words]

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program of ours in the pod, by a ``kubectl exec`` of its own.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.
        """
        argv = self.command("--stdin", words=bootstrap.loader_command(self._python))
        kubectl = KubectlPipe(host, argv)
        kubectl.deliver(bootstrap.program(entry, arguments))
        return RemoteProgram(host, kubectl, python=self._python, starter=argv[0])

    def ask(self, code: str) -> str:
        """Run Python code in the pod, without its environment and site-packages. Return what it prints."""
        return self._kubectl.ask(*self._exec_words([self._python, "-E", "-s", "-S", "-c", code]))

    def has_ended(self) -> bool:
        """Ask the pod whether its launcher has ended."""
        return self.ask(_HAS_ENDED_CODE).strip() == "True"


def check_account(pod_runner: PodRunner, namespace: str) -> None:
    """Check that the service account of a launcher's pod has all rights that the launcher will need.

    The launcher checks this itself, too. But before it starts, all folders are sent, which may take long. If
    the API server gives no answer, this raises no error.

    Args:
        pod_runner: What runs code in the pod.
        namespace: The namespace of the pod.

    Raises:
        TransportError: Some rights are missing.
    """

    def ask(*_: str, stdin: str) -> str:
        """Ask the API server as the kubectl of `missing_rights` would, which the pod may lack."""
        return pod_runner.ask(_REVIEW_CODE % json.dumps(json.loads(stdin)["items"]))

    try:
        with slow("waiting for the API server's answer to the launcher's pod"):
            missing = missing_rights(ask, namespace)
    except TransportError:  # The launcher's own kubectl may get an answer, or reports why not.
        return
    if missing:
        raise TransportError(lacks(LAUNCHER_ACCOUNT, namespace, missing))


# ---------------------------------------------------------------------- files


def send_files(pod_runner: PodRunner, run: Run, parcel: Parcel) -> dict[str, str]:
    """Send launch, what it needs, and the folders of the user to the launcher's pod.

    Args:
        pod_runner: What runs programs in the pod.
        run: The run.
        parcel: The folders to send (``--sync``), and the folders of this machine that get results.

    Returns:
        The path in the pod for each folder that is sent, by the user's text of ``--sync``, and for each that
        gets results, by its path on this machine.

    Raises:
        TransportError: The image cannot run a launcher, or the files cannot be sent.
    """
    with slow("waiting for Python in the launcher's pod"):
        version, has_kubectl = json.loads(pod_runner.ask(_IMAGE_FACTS_CODE))
    if tuple(version) < _MIN_PYTHON:
        found, needed = (".".join(map(str, each)) for each in (version, _MIN_PYTHON))
        text = f"the Python of the image is {found}, and a launcher in a pod needs {needed} or later"
        raise TransportError(f"--detach: {text}; without --detach it may be 3.8")
    trees = [_package(name) for name in _PACKAGES]
    if not has_kubectl:
        trees.append(_local_kubectl())
    pod_paths = {result: f"{RUN_PATH}/results/{number}" for number, result in enumerate(parcel.results)}
    requests = parse_syncs(parcel.folders)
    if requests:
        # The second result, the path at which tasks run, is not needed here.
        user_trees, _ = read_trees(requests, os.getcwd(), run.paths.root)
        for number, tree in enumerate(user_trees):
            # The number keeps folders of the same name apart.
            pod_path = f"{_FILES_PATH}/{number}/{tree.request.name}"
            pod_paths[tree.request.text] = pod_path
            trees.append(replace(tree, request=replace(tree.request, remote=pod_path)))
    sync(FileTransfer(pod_runner, 1), [POD_HOST.name], trees, run.name)  # 1 is the number of hosts.
    return pod_paths


def _package(name: str) -> SourceTree:
    """Return the files of a Python package on this machine, to send them to the pod.

    Args:
        name: The name of a package that this process could import.
    """
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    folder = spec.submodule_search_locations[0]
    # A file that cannot be read is left out, and nobody is told.
    found = entries_below(folder, "", lambda *_: None, is_left_out=lambda path, _: "__pycache__" in path)
    entries = {entry.path: entry for _, entry in found}
    return SourceTree(SyncRequest(name, folder=folder, name=name, remote=f"{_LIB_PATH}/{name}"), entries, {})


def _local_kubectl() -> SourceTree:
    """Return the kubectl of this machine, as a file to send to the pod.

    Raises:
        TransportError: There is none, or its file has another name.
    """
    # The command may be a link to a larger program, such as k3s, that is kubectl only under this name.
    path = os.path.realpath(shutil.which("kubectl") or "kubectl")
    folder, name = os.path.split(path)
    if name != "kubectl":
        raise TransportError(f"--detach: the image has no kubectl, and that of this machine is {path}")
    ((_, entry),) = entries_below(path, "kubectl", lambda *_: None)
    request = SyncRequest(path, folder=folder, name="kubectl", remote=_KUBECTL_PATH)
    return SourceTree(request, {"kubectl": entry}, {})


def send_stack_program(pod_runner: PodRunner, run: Run) -> None:
    """Send the program that takes stacks to the launcher's pod, which has no packages, unless it is there.

    Raises:
        LaunchError: There is none here.
        TransportError: It cannot be sent.
    """
    path = program_path()
    ((_, entry),) = entries_below(path, PROGRAM_NAME, lambda *_: None)
    remote = f"{_LIB_PATH}/{PROGRAM_NAME}"
    request = SyncRequest(path, folder=os.path.dirname(path), name=PROGRAM_NAME, remote=remote)
    tree = SourceTree(request, {PROGRAM_NAME: entry}, {})
    # If an earlier command has sent the program, this finds that nothing is missing.
    sync(FileTransfer(pod_runner, 1, quiet=True), [POD_HOST.name], [tree], run.name)


def fetch_files(
    pod_runner: PodRunner, run: Run, names: Sequence[str], results: Sequence[str] = (), quiet: bool = False
) -> None:
    """Copy files of a run, and results, from the launcher's pod to this machine.

    Args:
        pod_runner: What runs programs in the pod.
        run: The run.
        names: The names of files and folders in the folder of the run. What does not exist is not a failure.
        results: The folders of this machine that get results, in the order of `Parcel.results`.
        quiet: Whether the user is told nothing.

    Raises:
        TransportError: Some files cannot be copied.
    """
    copies = [(RUN_PATH, name, run.paths.root) for name in names]
    copies += [(f"{RUN_PATH}/results/{number}", ".", folder) for number, folder in enumerate(results)]
    items = [
        Item(task="launcher", host=POD_HOST.name, base=base, path=path, into=into)
        for base, path, into in copies
    ]
    failures = collect(FileTransfer(pod_runner, 1, quiet=quiet), items)[POD_HOST.name].failures
    if failures:
        raise TransportError(f"{run.name}: its files cannot be fetched: {'; '.join(failures)}")


# ---------------------------------------------------------------------- output


def start_launcher(pod: LauncherPod, content: bytes, owner: str) -> int | None:
    """Start the launcher in its pod, and show what it prints until its tasks start. This blocks.

    The launcher itself is started by the keeper, the main process of the pod, which stays after the launcher
    has ended. The program that is started here only passes its stdin and stdout to the keeper.

    Args:
        pod: The pod of the launcher.
        content: The content of the file with the launcher's options.
        owner: The name and the uid of the pod, which the launcher makes the owner of its tasks' Jobs.

    Returns:
        None if the tasks start. The exit code of the launcher if it has ended before.

    Raises:
        TransportError: The pod has ended, or the connection to it has.
    """
    arguments = {  # See `launcher.backends.kubernetes.keeper.keep`.
        "launcher": [PROGRAM_PATH, "--submitted", _OPTIONS_PATH],
        "environ": {RUN_FOLDER_VARIABLE: RUN_PATH, OWNER_POD_VARIABLE: owner},
        "path": _KUBECTL_PATH,
        "run": RUN_PATH,
        "script": _SCRIPT,
        "file": _OPTIONS_PATH,
        "content": base64.b64encode(content).decode("ascii"),
        "ended": _END_MARK_PATH,
        "hours": _KEPT_HOURS,
    }
    startup = bootstrap.passing_input(_KEEP_ENTRY, arguments)
    program = start_program(POD_HOST.name, pod.first_command(POD_HOST.name), startup, pod.python)
    with closing(program), ExitStack() as slow_notice:
        unfinished_line = b""
        slow_notice.enter_context(slow("waiting for the launcher in its pod"))
        while True:
            await_readable(program, _READ_SECONDS)
            data = program.recv(1 << 16)  # None if nothing has come in time.
            if data is not None:  # From now on the launcher itself says what it waits for.
                slow_notice.close()
            if data == b"":  # The output has ended, and none of the keeper's lines has come.
                why = program.start_error() or "the connection to it has ended"
                raise TransportError(str(pod.end_error(POD_HOST.name, _END_TIMEOUT_SECONDS) or why))
            # Among the lines of the launcher are two of the keeper, which is the main process of the pod.
            *lines, unfinished_line = (unfinished_line + (data or b"")).split(b"\n")
            for line in lines:
                if line == TASKS_START_LINE:
                    return None
                if line.startswith(LAUNCHER_ENDED_LINE):
                    return int(line[len(LAUNCHER_ENDED_LINE) :].partition(b";")[0])
                print(escape_controls(line.decode("utf-8", "replace")), file=sys.stderr, flush=True)
