"""What ``launch export slurm`` writes, run by sbatch: no launch is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import Launch
from tests.local.test_export import by_task
from tests.local.training import WITH_TENSORFLOW
from tests.seeing import ROOT
from tests.slurm.cluster import Cluster

#: What breaks text that is not quoted, or quoted by hand.
HOSTILE = "a \"b\" 'c' $HOME ${x} `id` $(id) \\ \r\n# END\n\t!{x} é\x85\u2028 ; && ${#hosts[@]}"

SAY = """
import json, os, sys, time
names = ("TF_CONFIG", "CLUSTER_SPEC", "JOB_NAME", "TASK_INDEX", "TASK_ADDRESS", "HOSTILE", "SLURMD_NODENAME")
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}, os.getcwd()]), flush=True)
if os.environ["JOB_NAME"] == "ps":
    open("up", "w")
    time.sleep(600)
while not os.path.exists("up"):
    time.sleep(0.1)
"""


class Batch(NamedTuple):
    """How a batch job has ended."""

    code: int
    out: str


Submit = Callable[..., Batch]


@pytest.fixture
def submit(slurm: Cluster, launch: Launch, clean: None, tmp_path: Path) -> Submit:
    """Exports a job, and runs it by sbatch alone."""

    def submitted(*words: str, folder: Path = tmp_path, env: str = "ALL") -> Batch:
        script, out = tmp_path / "job.sh", tmp_path / "out"
        ended = launch("export", "slurm", *words, cwd=folder, code=0)
        script.write_bytes(ended.stdout)
        slurm.run("sbatch", "--test-only", str(script))
        options = ("--wait", "--parsable", f"--output={out}", f"--export={env}")
        number = slurm.run("sbatch", *options, str(script), check=False, timeout=170)
        fields = slurm.run("scontrol", "--oneliner", "show", "job", number)
        code, _ = re.search(r" ExitCode=(\d+):(\d+) ", fields).groups()  # type: ignore[union-attr]
        return Batch(int(code), out.read_text())

    return submitted


def test_tasks_run_where_tf_config_says(submit: Submit, launch: Launch, weird_path: Path):
    """With the placeholders, TF_CONFIG and arguments of a launch; a ps is ended, and the exit code is 0."""
    (weird_path / "say.py").write_text(SAY)
    names = "rank task_host task_port ps_hosts world_size tf_config local_rank local_size node_rank"
    job = ("--ps", "1", "--workers", "4", "-x", f"HOSTILE={HOSTILE}")
    words = ("say.py", HOSTILE, "|".join(f"{{{name}}}" for name in [*names.split(), "first_address"]))
    ended = submit("-N", "3", *job, "--grace", "1", *words, folder=weird_path)
    assert ended.code == 0, ended.out
    said = dict(re.findall(r"^(\d): (\[\[.*)", ended.out, re.M))
    found = [json.loads(said[str(rank)]) for rank in range(5)]
    cluster = json.loads(found[0][1]["CLUSTER_SPEC"])
    hosts = [address.rpartition(":")[0] for address in (*cluster["worker"], *cluster["ps"])]
    assert sorted(hosts) == ["n1", "n1", "n2", "n2", "n3"]
    for rank, (argv, env, folder) in enumerate(found):
        host, _, port = env["TASK_ADDRESS"].rpartition(":")
        role, index = ("worker", rank) if rank < 4 else ("ps", 0)
        config = {"cluster": cluster, "task": {"type": role, "index": index}}
        assert by_task(env)[0] == f"{role}/{index}" and json.loads(env["TF_CONFIG"]) == config
        local = [other for other in range(5) if hosts[other] == host]
        node = str([*dict.fromkeys(hosts)].index(host))
        places = [str(local.index(rank)), str(len(local)), node]
        first = [str(rank), host, port, *cluster["ps"], "5", env["TF_CONFIG"]]
        values = [*first, *places, cluster["worker"][0]]
        assert argv == [HOSTILE, "|".join(values)]
        assert (env["SLURMD_NODENAME"], env["HOSTILE"], folder) == (host, HOSTILE, str(weird_path))


#: worker/1 fails when all others handle SIGTERM; worker/2, in a short job, two seconds later.
FAIL = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
def wait(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.1)
signal.signal(signal.SIGTERM, end)
me, short = os.environ["JOB_NAME"] + os.environ["TASK_INDEX"], "short" in sys.argv
open(me, "w")
if me == "worker1":
    wait("worker0", "worker2", "ps0")
    open("failed", "w")
    sys.exit(7)
if me == "worker2" and short:
    wait("failed")
    time.sleep(2)
    sys.exit(8)
print("goes on", flush=True)
time.sleep(1 if short and me == "worker0" else 600)
"""


@pytest.mark.parametrize("choice", ["stop", "continue"])
def test_the_first_failure_is_the_exit_code(submit: Submit, tmp_path: Path, choice: str):
    """The others get SIGTERM, and time to handle it."""
    (tmp_path / "fail.py").write_text(FAIL)
    words = ("short",) if choice == "continue" else ()
    ended = submit("-N3", "--ps=1", "--workers=3", "--on-failure", choice, "fail.py", *words)
    assert ended.code == 7, ended.out
    assert "first to fail: rank 1, exit code 7" in ended.out
    saved = ["0", "2", "3"] if choice == "stop" else ["3"]
    assert sorted(re.findall(r"^(\d): saved$", ended.out, re.M)) == saved, ended.out


def test_what_can_t_start(submit: Submit, tmp_path: Path):
    (tmp_path / "gone").mkdir()
    assert submit("-N2", "--workers=2", "--workdir=gone", "--", "sh", "-c", "exec nosuch").code == 127
    ended = submit("-N2", "--workers=2", "-x", "LANG", "true", env="NONE")
    assert ended.code == 1 and "LANG: expected in the environment of sbatch" in ended.out


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.slow
def test_mnist(submit: Submit):
    words = ("-N", "2", "--ps", "1", "--workers", "1", "--flags", "-x", "TF_CPP_MIN_LOG_LEVEL=2")
    program = (str(ROOT / "examples/mnist_dist/mnist_dist.py"), "--train_steps=100")
    ended = submit(*words, *WITH_TENSORFLOW, *program)
    assert ended.code == 0, ended.out[-3000:]
    found = re.findall(r"^[01]: test accuracy: ([01]\.\d+)", ended.out, re.M)
    assert len(found) == 1 and float(found[0]) >= 0.7
