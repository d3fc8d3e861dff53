"""A real Slurm: a throw-away cluster of the tests, else the one that ``$SLURM_CONF`` names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.agent.processes import all_pids, children_of
from tests.clusters import Machines, call, script_of
from tests.conftest import at_the_end
from tests.seeing import command_line, pid_namespace, proc, stat_field

#: Nodes of a cluster of ours.
NODES = 3
#: What belongs to the cluster, not to a job.
_OWN = ("slurmd", "slurm.sh", "sleep 1")


class Cluster(Machines):
    """A Slurm.

    Args:
        conf: its ``slurm.conf``.
        enter, script: see `Machines`.
    """

    kind = "slurm"
    programs = ("srun", "scontrol", "squeue", "sinfo", "scancel")

    def __init__(self, conf: str, enter: Sequence[str] = (), script: tuple[str, str] | None = None) -> None:
        super().__init__(Path(conf).parent, {"SLURM_CONF": conf}, enter, script)
        #: Frees what `held` holds.
        self.stack = ExitStack()
        self._held: dict[str, str] = {}

    def jobs(self) -> list[str]:
        """The numbers of the jobs that are pending or run; those that complete are given back."""
        return self.run("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i").split()

    def steps(self) -> list[str]:
        """The steps that run."""
        return self.run("squeue", "--noheader", "--steps", "--format=%i").split()

    @contextmanager
    def allocation(self, *words: str) -> Iterator[dict[str, str]]:
        """A job without a process: the variables of one in it."""
        told = subprocess.run(
            [*self.enter, "salloc", "--no-shell", "--no-kill", *words],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found = re.search(r"Granted job allocation (\d+)", told.stderr)
        assert found, told.stderr
        nodes = self.run("squeue", "--noheader", f"--jobs={found[1]}", "--format=%N")
        try:
            yield {**self.environ, "SLURM_JOB_ID": found[1], "SLURM_JOB_NODELIST": nodes}
        finally:
            self.run("scancel", "--quiet", found[1], check=False)

    def held(self) -> dict[str, str]:
        """An allocation of all nodes for several tests; another one if a test has cut off a node of it."""
        job = self._held.get("SLURM_JOB_ID")
        if job is None or self.run(
            "squeue", "--noheader", f"--jobs={job}", "--format=%D", check=False
        ) != str(NODES):
            self.stack.close()
            self._held = self.stack.enter_context(self.allocation(f"-N{NODES}", "--overcommit"))
        return self._held

    # ------------------------------------------------------------------ nodes of a cluster of ours

    def inside(self, node: str) -> list[str]:
        """The beginning of commands that run on a node."""
        return ["nsenter", f"--target={self.pid(node)}", "--mount", "--net", "--pid", "--uts", "--"]

    def processes(self) -> Iterator[tuple[int, str]]:
        """The processes of jobs on the nodes: pid here, and the command line."""
        nodes = {pid_namespace(self.pid(f"n{number}")) for number in range(1, NODES + 1)}
        for pid in all_pids():
            line = command_line(pid)
            if line and pid_namespace(pid) in nodes and not any(own in line for own in _OWN):
                yield pid, line

    @contextmanager
    def hidden(self, folder: Path, *nodes: str) -> Iterator[None]:
        """An empty folder of its own in the place of this one, on some nodes."""
        for node in nodes:
            self.run(*self.inside(node), "mount", "-t", "tmpfs", "none", str(folder))
        try:
            yield
        finally:
            for node in nodes:
                self.run(*self.inside(node), "umount", str(folder))

    def another_conf(self, folder: Path, munge: str = "", lines: str = "") -> dict[str, str]:
        """The variable of a ``slurm.conf`` that names another socket of munge, or has further lines."""
        conf = Path(self.environ["SLURM_CONF"]).read_text() + lines
        if munge:
            conf = re.sub("AuthInfo=.*", f"AuthInfo=socket={munge}", conf)
        (folder / "slurm.conf").write_text(conf)
        return {"SLURM_CONF": f"{folder}/slurm.conf"}

    @contextmanager
    def configured(self, lines: str) -> Iterator[None]:
        """These lines at the end of its ``slurm.conf``."""
        assert self._script is not None, "expected a cluster of the tests"
        file = Path(self.environ["SLURM_CONF"])
        before = file.read_text()
        try:
            file.write_text(before + lines)
            self.run("scontrol", "reconfigure")
            yield
        finally:
            file.write_text(before)
            self.run("scontrol", "reconfigure")

    def left(self, held: Sequence[str] = ()) -> list[str]:
        """What jobs have left, but for these jobs."""
        jobs = [f"job {job}" for job in self.jobs() if job not in held]
        return [*jobs, *self.steps(), *(line for _, line in (self.processes() if self._script else ()))]


@contextmanager
def a_cluster(folder: Path, name: str, nodes: int = NODES) -> Iterator[Cluster]:
    """A cluster of our own, else that of ``$SLURM_CONF``.

    Args:
        folder: for its state.
        name, nodes: of the cluster.
    """
    script, conf = script_of("slurm.sh"), os.environ.get("SLURM_CONF")
    if script is None:
        if not conf:
            pytest.fail("no Slurm: expected ../shared/clusters (as root), or $SLURM_CONF", False)
        cluster = Cluster(conf)
        with cluster.stack:
            yield cluster
        return
    state = str(folder / "cluster")
    with at_the_end('"$0" down "$1"', str(script), name, CLUSTER_STATE=state):
        call(script, "up", name, str(nodes), "--gpus", "2", CLUSTER_STATE=state)
        enter = ["nsenter", f"--net=/run/netns/slurm-{name}", "--"]
        cluster = Cluster(f"{state}/slurm.conf", enter, (str(script), name))
        # Only the backfill scheduler starts heterogeneous jobs. By itself it looks for them every 30 s.
        with cluster.stack, cluster.configured("SchedulerParameters=bf_interval=1\n"):
            yield cluster


#: The processes of an srun that a test kills: the one that was started, its child, and both in one moment.
SRUN_PARTS = ("main", "child", "both")


def kill_srun(pid: int, part: str = "both") -> None:
    """Kill processes of an srun with SIGKILL.

    Args:
        pid: The process that was started.
        part: One of `SRUN_PARTS`.
    """
    for each in (*(children_of(pid) if part != "main" else ()), *((pid,) if part != "child" else ())):
        os.kill(each, signal.SIGKILL)


def sruns(environ: Mapping[str, str]) -> list[int]:
    """The srun processes with the steps of a job, without their children."""
    job = f"--jobid={environ['SLURM_JOB_ID']}".encode()
    conf = f"SLURM_CONF={environ['SLURM_CONF']}".encode()  # other clusters have jobs of the same numbers
    found = []
    for pid in all_pids():
        words = proc(pid, "cmdline").split(b"\0")
        if (
            words[0] == b"srun"
            and {job, b"--unbuffered"} <= {*words}
            and conf in proc(pid, "environ").split(b"\0")
        ):
            found.append(pid)
    return [pid for pid in found if int(stat_field(pid, 4) or 0) not in found]


def child_with(pid: int, *words: str) -> int | None:
    """The child of a process that has these words in its command line."""
    lines = {child: command_line(child) for child in children_of(pid)}
    return next((child for child, line in lines.items() if all(word in line for word in words)), None)
