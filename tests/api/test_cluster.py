"""Clusters that run functions of the test, on this machine: their begin, what a function sees, their end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from launcher import InputError, InputMode, JobFailed, TFCluster
from launcher.api import tasks
from launcher.api.remote import start
from tests.seeing import soon

pytestmark = pytest.mark.timeout(180)


def write(args: Any, ctx: Any) -> None:
    """Write a file with what a node knows."""
    node = [ctx.worker_num, ctx.executor_id, ctx.job_name, ctx.task_index, ctx.num_workers, ctx.is_chief]
    paths = [ctx.working_dir, ctx.absolute_path("model"), ctx.absolute_path("hdfs://x/y"), ctx.defaultFS]
    secrets = [name for name in os.environ if name.startswith("LAUNCH_FEED") or name == "LAUNCH_START"]
    config = json.loads(os.environ["TF_CONFIG"])
    seen = {"argv": sys.argv, "node": node, "cluster": ctx.cluster_spec, "paths": paths}
    folder = args["folder"] if isinstance(args, dict) else args[-1]
    new = Path(folder, f"{ctx.job_name}-{ctx.task_index}.new")
    new.write_text(json.dumps({**seen, "tf_config": config, "secrets": secrets}))
    new.rename(new.with_suffix(""))  # there whole or not at all: the chief does not wait for servers
    while ctx.is_chief and len(list(Path(folder).glob("*-[01]"))) < sum(map(len, ctx.cluster_spec.values())):
        time.sleep(0.01)  # the end of the chief would stop nodes that have not begun


def wait_for(file: str, ctx: Any) -> None:
    """Wait until there is this file."""
    while not Path(file).exists():
        time.sleep(0.01)


def seen_by(folder: Path, node: str) -> Any:
    """The file of that node."""
    return json.loads((folder / node).read_text())


def test_what_the_nodes_of_a_cluster_see(tmp_path: Path):
    args = {"folder": str(tmp_path)}
    with TFCluster.run(write, args, 5, 1, master_node="chief", eval_node=True) as cluster:
        roles = [(row["executor_id"], row["job_name"], row["task_index"]) for row in cluster.cluster_info]
    expected = [(0, "ps", 0), (1, "chief", 0), (2, "evaluator", 0), (3, "worker", 0), (4, "worker", 1)]
    assert roles == expected
    for number, role, index in expected:
        found = seen_by(tmp_path, f"{role}-{index}")
        assert found["node"] == [number, number, role, index, 3, role == "chief"]
        assert found["tf_config"]["task"] == {"type": role, "index": index}
        assert found["secrets"] == []
        assert found["paths"] == [os.getcwd(), f"{os.getcwd()}/model", "hdfs://x/y", "file://"]
    counts = {role: len(found["cluster"][role]) for role in ("ps", "chief", "worker")}
    assert counts == {"ps": 1, "chief": 1, "worker": 2}


def test_workers_only_have_a_tf_config_and_a_list_is_argv(tmp_path: Path):
    words = ["train.py", "--steps", "3", str(tmp_path)]
    TFCluster.run(write, words, 2, 0).shutdown()
    for index in (0, 1):
        found = seen_by(tmp_path, f"worker-{index}")
        assert found["argv"] == words
        assert found["tf_config"]["task"] == {"type": "worker", "index": index}
        assert len(found["tf_config"]["cluster"]["worker"]) == 2
        assert found["node"][-1] == (index == 0)


# ---------------------------------------------------------------------- what travels


def test_a_closure_and_a_module_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As the module is no file where the node looks, it has to travel as code."""
    (tmp_path / "only_here").mkdir()
    source = "WORD = 'carried'\ndef word(number):\n    return WORD * number\n"
    (tmp_path / "only_here" / "mine_alone.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "only_here"))
    import mine_alone  # type: ignore[import-not-found]

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("only_here")])
    out = tmp_path / "out"
    times = 2

    def fun(args: Any, ctx: Any) -> None:
        assert isinstance(mine_alone, ModuleType) or callable(mine_alone.word)
        out.write_text(word(times))

    word = mine_alone.word
    try:
        TFCluster.run(fun, None, 1).shutdown()
    finally:
        del sys.modules["mine_alone"]
    assert out.read_text() == "carriedcarried"


def test_a_module_beside_the_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "beside_us.py").write_text("WORD = 'found'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "out"

    def fun(args: Any, ctx: Any) -> None:
        import beside_us  # type: ignore[import-not-found]

        out.write_text(beside_us.WORD)

    TFCluster.run(fun, None, 1).shutdown()
    assert out.read_text() == "found"


def test_objects_that_can_not_be_pickled_are_refused_before_the_start():
    lock = threading.Lock()
    with pytest.raises(InputError, match="map_fun cannot be sent to another process.*lock"):
        TFCluster.run(lambda args, ctx: lock, None, 1)
    with pytest.raises(InputError, match="tf_args cannot be sent to another process.*lock"):
        TFCluster.run(lambda args, ctx: None, lock, 1)


def test_a_python_of_another_version_is_refused():
    other = tasks.start_text().replace(f"main({tuple(sys.version_info[:2])},", "main((3, 0),")
    env = {"LAUNCH_START": other, "JOB_NAME": "worker", "TASK_INDEX": "0"}
    ended = subprocess.run([sys.executable, "-c", start.START_CODE], env=env, capture_output=True, text=True)
    assert ended.returncode == 1
    other = r"it runs Python \S+, the program that drives the job 3.0; .*\(set python=\)"
    assert re.search(other, ended.stderr)


# ---------------------------------------------------------------------- several, and elsewhere


def test_two_clusters_at_once_in_threads(tmp_path: Path):
    def fun(args: Any, ctx: Any) -> None:
        until = time.monotonic() + 20
        (tmp_path / args).touch()
        while len(list(tmp_path.glob("[ab]"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)

    with ThreadPoolExecutor() as pool:
        clusters = pool.map(lambda name: TFCluster.run(fun, name, 1, quiet=True).shutdown(), "ab")
        assert list(clusters) == [None, None]


def test_a_job_file_has_the_hosts_and_options(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    job = tmp_path / "job.yaml"
    job.write_text(
        "command: [ignored.py]\ntimeout: 1m\n"
        "roles: {worker: {count: 7, env: {WORD: given}, workdir: sub}, ps: 3}\n"
    )

    def fun(args: Any, ctx: Any) -> None:
        Path(f"seen-{ctx.task_index}").write_text(os.environ["WORD"])

    TFCluster.run(fun, None, 2, job=job, quiet=True).shutdown()
    assert not list(tmp_path.glob("seen-*"))
    assert [path.read_text() for path in sorted((tmp_path / "sub").iterdir())] == ["given", "given"]


PROGRAM = """
import os, time
from launcher import TFCluster
def fun(args, ctx):
    print("up", flush=True)
    time.sleep(300)
cluster = TFCluster.run(fun, None, 3, 1)
print("all up", flush=True)
{end}
"""


def test_ctrl_c_ends_the_job_orderly(tmp_path: Path, launch: Any):
    (tmp_path / "program.py").write_text(PROGRAM.format(end="cluster.shutdown()"))
    started = launch.start(str(tmp_path / "program.py"), command=[sys.executable])
    started.until(lambda it: "all up" in it.out)
    ended = started.stop(signal.SIGINT)
    assert ended.err.rstrip().endswith("KeyboardInterrupt")
    assert "stopped" in ended.out and "failed" not in ended.out


@pytest.mark.parametrize("end", ["time.sleep(300)", "os._exit(0)", ""], ids=["killed", "left", "forgotten"])
def test_a_program_that_is_gone_leaves_nothing(
    end: str, tmp_path: Path, launch: Any, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "program.py").write_text(PROGRAM.format(end=end))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    started = launch.start(str(tmp_path / "program.py"), command=[sys.executable])
    started.until(lambda it: "all up" in it.out)
    if end.startswith("time"):
        started.kill()
    else:
        ended = started.wait()
        assert end or "without TFCluster.shutdown()" in ended.err
    # That no process is left is seen by the fixture that looks after every test.
    TFCluster.run(lambda args, ctx: None, None, 1, quiet=True).shutdown()  # removes what was left of a socket
    assert not list(tmp_path.glob("tmp/tf-launcher-*"))


def test_a_cluster_belongs_to_the_process_that_made_it(tmp_path: Path):
    with TFCluster.run(wait_for, str(tmp_path / "go"), 1, input_mode=InputMode.FEED, quiet=True) as cluster:
        since = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                with pytest.raises(JobFailed, match="belongs to the process that has forked this one"):
                    cluster.train([1])
                cluster.__exit__(None, None, None)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0 and time.monotonic() - since < 20
        (tmp_path / "go").touch()


FORKED = PROGRAM.format(
    end="""\
if os.fork() == 0:
    os.setsid()
    until = time.monotonic() + 60
    while time.monotonic() < until and not os.path.exists(__file__ + ".end"):
        time.sleep(0.05)
    os._exit(0)
print("forked", flush=True)
time.sleep(300)"""
)


def test_a_program_that_is_killed_leaves_nothing_though_its_fork_lives(tmp_path: Path, launch: Any):
    (tmp_path / "program.py").write_text(FORKED)
    started = launch.start(str(tmp_path / "program.py"), command=[sys.executable])
    started.until(lambda it: "forked" in it.out)
    started.kill()
    runs = tmp_path / "home" / "state" / "tf-launcher" / "runs"
    path = str(tmp_path / "program.py")

    def lives() -> bool:
        return any(path in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))

    soon(lambda: list(runs.glob("*/report.json")))
    assert lives(), "the fork has not ended before the job"
    (tmp_path / "program.py.end").touch()
    soon(lambda: not lives())


@pytest.mark.parametrize("where", ["this machine", "a job file", "hosts"])
def test_a_local_cluster_does_not_listen_on_the_network(where: str, tmp_path: Path):
    (tmp_path / "job.yaml").write_text("roles: {worker: 1}\ngrace: 5\n")

    def listening() -> list[str]:
        lines = subprocess.check_output(["ss", "-Hltnp"], text=True).splitlines()
        return [line for line in lines if f"pid={os.getpid()}," in line]

    before = listening()
    job = tmp_path / "job.yaml" if where == "a job file" else None
    hosts = "localhost:2" if where == "hosts" else None
    with TFCluster.run(wait_for, str(tmp_path / "go"), 1, job=job, hosts=hosts, quiet=True):
        after = listening()
        (tmp_path / "go").touch()
    assert after == before


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_workers_may_finish_when_the_chief_is_done(tmp_path: Path, chief: str):
    def fun(args: Any, ctx: Any) -> None:
        if ctx.job_name == "worker":
            time.sleep(0.7)
            (tmp_path / "finished").touch()

    TFCluster.run(fun, None, 2, master_node=chief, quiet=True).shutdown()
    assert (tmp_path / "finished").exists()
