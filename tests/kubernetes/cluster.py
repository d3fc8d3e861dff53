"""A real Kubernetes: a throw-away cluster of the tests, else the one that ``$KUBECONFIG`` names."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.processes import all_pids, children_of
from tests.clusters import Machines, cache_folder, call, script_of, shared
from tests.image import root_files
from tests.seeing import ROOT, command_line, is_soon, proc, soon

#: Nodes of a cluster of ours.
NODES = 2
#: The image of the tests: in a cluster of ours it is made of this machine's Python.
IMAGE, PUBLIC_IMAGE = "localhost/launch-test:1", "python:3.11-slim"


class Cluster(Machines):
    """A Kubernetes, and a namespace of it with the rights that docs/kubernetes.md asks for.

    Args:
        admin: the kubeconfig of who may do all.
        folder: for a kubeconfig.
        name: of the namespace.
        enter, script: see `Machines`.
    """

    kind = "k8s"
    programs = ("kubectl",)

    def __init__(
        self,
        admin: str,
        folder: Path,
        name: str,
        enter: Sequence[str] = (),
        script: tuple[str, str] | None = None,
    ) -> None:
        #: The user of launch.
        self.user = folder / "kubeconfig"
        super().__init__(Path(admin).parent, {"KUBECONFIG": str(self.user)}, enter, script)
        self.admin, self._admin, self.namespace = admin, {"KUBECONFIG": admin}, name
        self.image = IMAGE if script else os.environ.get("LAUNCH_TEST_IMAGE", PUBLIC_IMAGE)
        if script:
            programs = next(self.state.parent.glob("kubernetes-v*"))
            self.environ["PATH"] = f"{programs}:{os.environ['PATH']}"

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl in the namespace, as the administrator."""
        return self.run("kubectl", f"--namespace={self.namespace}", *words, stdin=stdin, check=check)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind in the namespace: ``pods``."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json"))["items"]
        return found

    def pods(self, node: str = "") -> list[str]:
        """The names of the pods in the namespace; of one node."""
        pods = (pod for pod in self.objects("pods") if node in ("", pod["spec"].get("nodeName")))
        return [pod["metadata"]["name"] for pod in pods]

    def workers(self, count: int) -> list[str]:
        """The options of a job of workers in pods."""
        return ["--kubernetes", self.image, "--workers", str(count)]

    def left(self) -> list[str]:
        """What launches have left in the namespace, and on the nodes of a cluster of ours."""
        names = self.kubectl("get", "jobs,pods,configmaps,services", "-o", "name").split()
        pods = any(name.startswith("pod/") for name in names)
        processes = [line for _, line in self.processes()] if self._script and pods else []
        return [name for name in names if not name.endswith("ca.crt")] + processes  # the cluster's own

    def gone(self, seconds: int) -> bool:
        """Whether nothing is left in time; one kubectl waits, as each takes a tenth of a second of a CPU."""
        self.kubectl("wait", "--for=delete", "pods", "--all", f"--timeout={seconds}s", check=False)
        return is_soon(lambda: not self.left(), seconds)

    def broken_kubectl(self, folder: Path, script: str, verb: str = "exec") -> str:
        """A PATH with a kubectl that runs a shell script, in a folder, for one of its commands.

        Args:
            folder: The folder.
            script: The script. The variable ``kubectl`` has the path of the real one.
            verb: The command.
        """
        path, file = self.environ.get("PATH", os.environ["PATH"]), folder / "kubectl"
        file.write_text(
            f"#!/bin/sh\nkubectl={shlex.quote(self.program('kubectl'))}\ncd {shlex.quote(str(folder))}\n"
            f'case " $* " in *" {verb} "*)\n{script}\nesac\nexec $kubectl "$@"\n'
        )
        file.chmod(0o755)
        return f"{folder}:{path}"

    def write_job(self, folder: Path, spec: Mapping[str, object], **keys: object) -> None:
        """Write ``job.yaml`` into a folder: a job in pods of the image that have this spec, too."""
        settings = {"image": self.image, "pod": {"spec": spec}}
        (folder / "job.yaml").write_text(json.dumps({"kubernetes": settings, **keys}))

    def make_namespace(self, manifests: str) -> None:
        """Make the namespace, whose pods must be restricted ones, and give launch's user rights.

        Args:
            manifests: a Role, as YAML.
        """
        (role,) = re.findall(r"^kind: Role\nmetadata: *\{?\n?.*?name: *([\w-]+)", manifests, re.M)
        self.run("kubectl", "create", "namespace", self.namespace)
        level = "pod-security.kubernetes.io/enforce=restricted"
        self.run("kubectl", "label", "namespace", self.namespace, level)
        self.kubectl("create", "-f", "-", stdin=manifests)
        self.kubectl("create", "rolebinding", "launch", f"--role={role}", "--user=restricted")
        account = ("get", "serviceaccount", "default", "-o", "name")
        soon(lambda: self.kubectl(*account, check=False), 60)  # a controller makes it
        given = (self.state / "restricted.kubeconfig").read_text()
        self.user.write_text(given.replace("namespace: restricted", f"namespace: {self.namespace}"))

    # ------------------------------------------------------------------ nodes of a cluster of ours

    def processes(self) -> Iterator[tuple[int, str]]:
        """The processes of this namespace's pods on the nodes: pid here, and the command line."""
        pods = {f"pod{pod['metadata']['uid']}" for pod in self.objects("pods")}
        for pid in all_pids():
            groups, line = proc(pid, "cgroup").decode(), command_line(pid)
            if line and line != "/pause" and any(pod in groups for pod in pods):
                yield pid, line

    def main_process(self, pod: str) -> int:
        """The pid here of the first process in the container of a pod."""
        (uid,) = [each["metadata"]["uid"] for each in self.objects("pods") if each["metadata"]["name"] == pod]
        for pid, _ in self.processes():
            is_first = re.search(rb"NSpid:.*\t1\n", proc(pid, "status"))
            if is_first and f"pod{uid}".encode() in proc(pid, "cgroup"):
                return pid
        raise LookupError(f"{pod} does not run")


class Kubelet:
    """The kubelet of a node; it can be killed, and started anew."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.node = node
        init = cluster.pid(node)
        self.pid = next(pid for pid in children_of(init) if command_line(pid).startswith("kubelet "))
        self._argv, environ = (
            proc(self.pid, name).decode().rstrip("\0").split("\0") for name in ("cmdline", "environ")
        )
        self._environ = dict(line.split("=", 1) for line in environ)
        self._enter = ["nsenter", f"--target={init}", "--mount", "--net", "--pid", "--uts", "--ipc"]
        self._log = str(cluster.state / node / "kubelet.log")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def start(self) -> None:
        """In the node, whose first process takes care of it."""
        script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null &'
        argv = [*self._enter, "sh", "-c", script, "sh", self._log, *self._argv]
        subprocess.run(argv, env=self._environ, check=True, timeout=30)


def mounting(folders: Sequence[str], written: str = "") -> dict[str, Any]:
    """The spec of pods that see folders of their nodes; one of them may be written."""
    named = {f"folder-{number}": path for number, path in enumerate(filter(None, (*folders, written)))}
    mounts = [{"name": name, "mountPath": path, "readOnly": path != written} for name, path in named.items()]
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in named.items()]
    return {"volumes": volumes, "containers": [{"volumeMounts": mounts}]}


def role() -> str:
    """The Role that docs/kubernetes.md shows: launch needs no other right."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    (found,) = re.findall(r"^```yaml\n(apiVersion: rbac.*?)^```", page, re.M | re.S)
    return str(found)


@contextmanager
def a_cluster(folder: Path, run: str, nodes: int = NODES) -> Iterator[Cluster]:
    """A cluster of our own, else that of ``$KUBECONFIG``, with a namespace of our own.

    The test processes of a run share the cluster: the first one starts it, the last one ends it.

    Args:
        folder: for files of this process.
        run: names the run of the tests.
        nodes: of a cluster of ours.
    """
    script, admin = script_of("kubernetes.sh"), os.environ.get("KUBECONFIG")
    if script is None and not admin:
        pytest.fail("no Kubernetes: expected ../shared/clusters (as root), or $KUBECONFIG", False)
    namespace = f"launch-{os.getpid()}-{os.urandom(2).hex()}"
    with ExitStack() as stack:
        if script is None:
            cluster = Cluster(str(admin), folder, namespace)
        else:
            name = f"t{zlib.crc32(run.encode()):08x}"
            admin = stack.enter_context(_shared(script, name, nodes))
            enter = ["nsenter", f"--net=/run/netns/k8s-{name}", "--"]
            cluster = Cluster(admin, folder, namespace, enter, (str(script), name))
        cluster.make_namespace(role())
        stack.callback(cluster.run, "kubectl", "delete", "namespace", namespace, "--wait=false")
        yield cluster


def _raise_weight(group: str) -> None:
    """All pods of a cluster together have the CPU weight of one process of the machine, else."""
    for file, weight in ((f"cpu/{group}/cpu.shares", 20_000), (f"{group}/cpu.weight", 2_000)):
        path = Path("/sys/fs/cgroup", file)
        if path.exists():
            path.write_text(str(weight))


@contextmanager
def _shared(script: Path, name: str, nodes: int) -> Iterator[str]:
    """The kubeconfig of a cluster that runs while anybody uses it."""
    with shared(name, str(script), "down", name) as turn:
        with turn:
            call(script, "up", name, str(nodes))
            _raise_weight(f"k8s-{name}")
            admin = call(script, "kubeconfig", name)
            if not Path(admin).with_name("image-loaded").exists():
                with root_files(cache_folder()) as archive:
                    call(script, "load", name, str(archive), IMAGE)
                Path(admin).with_name("image-loaded").touch()
        yield admin
