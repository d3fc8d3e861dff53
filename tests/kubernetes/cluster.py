"""A real Kubernetes: a throw-away cluster of the tests, else the one that ``$KUBECONFIG`` names."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Machines, script_of
from tests.conftest import at_the_end
from tests.kubernetes.image import root_files
from tests.seeing import ROOT, command_line, is_soon, soon

#: Nodes of a cluster of ours.
NODES = 2
#: The image of the tests: in a cluster of ours it is made of this machine's Python.
IMAGE, PUBLIC_IMAGE = "localhost/launch-test:1", "python:3.11-slim"
#: Ends a cluster that nobody uses: by its script, its name, and the lock files of its users and their turn.
#: Who had to wait for the turn of somebody who has ended the cluster holds a lock of a file that is gone.
_LAST = """
    exec 8>"$3"; flock 8; [ /proc/self/fd/8 -ef "$3" ] || exit 0
    exec 9>"$2"; ! flock -nx 9 || { "$0" down "$1" && rm "$2" "$3"; }
"""


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
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                groups = Path(f"/proc/{pid}/cgroup").read_text()
                line = command_line(int(pid))
            except OSError:  # it ended meanwhile
                continue
            if line and line != "/pause" and any(pod in groups for pod in pods):
                yield int(pid), line

    def main_process(self, pod: str) -> int:
        """The pid here of the first process in the container of a pod."""
        (uid,) = [each["metadata"]["uid"] for each in self.objects("pods") if each["metadata"]["name"] == pod]
        for pid, _ in self.processes():
            status = Path(f"/proc/{pid}/status").read_text()
            if f"pod{uid}" in Path(f"/proc/{pid}/cgroup").read_text() and re.search(r"NSpid:.*\t1\n", status):
                return pid
        raise LookupError(f"{pod} does not run")


class Kubelet:
    """The kubelet of a node; it can be killed, and started anew."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        init = cluster.pid(node)
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        self.pid = next(pid for pid in map(int, children) if command_line(pid).startswith("kubelet "))
        self._argv = Path(f"/proc/{self.pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        environ = Path(f"/proc/{self.pid}/environ").read_bytes().rstrip(b"\0").decode().split("\0")
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
    namespace = f"launch-{os.getpid()}-{os.urandom(2).hex()}"
    if script is None:
        if not admin:
            pytest.fail("no Kubernetes: expected ../shared/clusters (as root), or $KUBECONFIG", False)
        cluster = Cluster(admin, folder, namespace)
        cluster.make_namespace(role())
        try:
            yield cluster
        finally:
            cluster.run("kubectl", "delete", "namespace", namespace, "--wait=false")
        return
    name = f"t{zlib.crc32(run.encode()):08x}"
    with _shared(script, name, nodes) as admin:
        enter = ["nsenter", f"--net=/run/netns/k8s-{name}", "--"]
        cluster = Cluster(admin, folder, namespace, enter, (str(script), name))
        cluster.make_namespace(role())
        try:
            yield cluster
        finally:
            cluster.run("kubectl", "delete", "namespace", namespace, "--wait=false")


def _raise_weight(group: str) -> None:
    """All pods of a cluster together have the CPU weight of one process of the machine, else."""
    for file, weight in ((f"cpu/{group}/cpu.shares", 20_000), (f"{group}/cpu.weight", 2_000)):
        path = Path("/sys/fs/cgroup", file)
        if path.exists():
            path.write_text(str(weight))


@contextmanager
def _shared(script: Path, name: str, nodes: int) -> Iterator[str]:
    """The kubeconfig of a cluster that runs while anybody uses it."""

    def call(*words: str) -> str:
        environ = {key: value for key, value in os.environ.items() if key != "LAUNCH_TEST_MARK"}
        done = subprocess.run([script, *words], env=environ, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.fail(f"no Kubernetes: {script.name} {words[0]} fails: {done.stderr.strip()}", False)
        return done.stdout.strip()

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tf-launcher-tests")
    cache.mkdir(parents=True, exist_ok=True)
    files = [str(cache / f"{name}.{lock}") for lock in ("users", "turn")]
    with at_the_end(_LAST, str(script), name, *files), open(files[0], "w") as users:
        with open(files[1], "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            call("up", name, str(nodes))
            _raise_weight(f"k8s-{name}")
            admin = call("kubeconfig", name)
            if not Path(admin).with_name("image-loaded").exists():
                with root_files(cache) as archive:
                    call("load", name, str(archive), IMAGE)
                Path(admin).with_name("image-loaded").touch()
        yield admin
