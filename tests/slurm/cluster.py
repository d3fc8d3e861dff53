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

from tests.clusters import Machines, script_of
from tests.conftest import at_the_end
from tests.seeing import command_line

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
        for number in range(1, NODES + 1):
            namespace = os.readlink(f"/proc/{self.pid(f'n{number}')}/ns/pid")
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    mine = os.readlink(f"/proc/{pid}/ns/pid") == namespace
                    line = command_line(int(pid))
                except OSError:  # it ended meanwhile
                    continue
                if mine and line and not any(own in line for own in _OWN):
                    yield int(pid), line

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
        up = subprocess.run(
            [script, "up", name, str(nodes), "--gpus", "2"],
            env={**os.environ, "CLUSTER_STATE": state},
            capture_output=True,
            text=True,
        )
        if up.returncode:
            pytest.fail(f"no Slurm: {script.name} fails: {up.stderr.strip()}", False)
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
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for each in (*(children if part != "main" else ()), *((pid,) if part != "child" else ())):
        os.kill(each, signal.SIGKILL)


def sruns(environ: Mapping[str, str]) -> list[int]:
    """The srun processes with the steps of a job, without their children."""
    job, found = f"--jobid={environ['SLURM_JOB_ID']}", []
    conf = f"SLURM_CONF={environ['SLURM_CONF']}".encode()  # other clusters have jobs of the same numbers
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            ours = conf in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            of_srun = Path(f"/proc/{parent}/comm").read_text() == "srun\n"
        except OSError:
            continue
        if (
            ours
            and words[0] == b"srun"
            and job.encode() in words
            and b"--unbuffered" in words
            and not of_srun
        ):
            found.append(int(pid))
    return found
