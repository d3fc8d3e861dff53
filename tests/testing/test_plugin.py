"""The plug-in in runs of pytest of other projects."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.seeing import soon

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.timeout(300)

#: Seconds that a run of pytest may take.
LIMIT = 150


#: One that is good, and others with the faults of their names.
TESTS = """
def test_is_a_good_one(cluster):
    assert cluster.start(["true"]).wait().exit_code == 0
    assert cluster.start(["false"]).wait().exit_code == 1
def test_forgets(cluster):
    cluster.start(["sleep", "600"], workers=2)
def test_means_it(cluster):
    cluster.start(["sleep", "600"], left_running=True)
def test_fails(cluster):
    job = cluster.start(["sh", "-c", "echo it is $JOB_NAME; exec sleep 600"], ps=1, workers=1)
    job.task("ps/0").until_prints("it is")
    job.task("worker/0").until_prints("it is")
    cluster.start(["true"]).wait()
    assert job.task("worker/0").port == 0
def test_waits(cluster):
    job = cluster.start(["sh", "-c", "echo one; exec sleep 600"])
    job.task("worker/0").until_prints("one")
    job.task("worker/0").until_prints("two", timeout=1)
"""


def test_what_is_reported_of_tests(plugged: pytest.Pytester):
    """A job that is left running is an error, unless its test has failed: that shows the logs."""
    plugged.makepyfile(TESTS)
    result = plugged.runpytest_subprocess("--junitxml=junit.xml", timeout=LIMIT)
    result.assert_outcomes(passed=3, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_forgets*",
            "job * was left running; *",
            "*--- cluster: job *",
            "launch:",
            "    launch: job *: 1 worker, 1 ps on localhost*",
            "worker/0 (running):",
            "    it is worker",
            "ps/0 (running):",
            "    it is ps",
            "all of it: *job-0*",
            "*--- cluster: job *",
            "worker/0 (succeeded, exit code 0):",
            "    (nothing)",
            "*WaitFailed: worker/0 (running): waited for a line with 'two': not within 1s",
        ]
    )
    result.stdout.no_fnmatch_line("*def *wait_for*")  # the lines of the plug-in itself are not shown
    xml = (plugged.path / "junit.xml").read_text()
    found = re.findall(r'<property name="run_dir" value="([^"]*)"', xml)
    assert len(found) == 7 and all(Path(path, "report.json").exists() for path in found)


def test_where_tasks_run(plugged: pytest.Pytester):
    """The option wins over the configuration file."""
    plugged.makeini("[pytest]\ncluster_backend = docker:from-file\n")
    plugged.makepyfile("def test_it(cluster): print('backend:', cluster._image)")
    for words, expected in [([], "*backend: from-file"), (["--cluster-backend=local"], "*backend: None")]:
        plugged.runpytest_subprocess("-s", *words, timeout=LIMIT).stdout.fnmatch_lines([expected])
    result = plugged.runpytest_subprocess("--cluster-backend=cloud", timeout=LIMIT)
    result.stdout.fnmatch_lines(["*'cloud' is not a backend for clusters; expected local, or docker:IMAGE"])


def test_it_costs_nothing_where_it_is_not_used(plugged: pytest.Pytester):
    plugged.makepyfile(
        """
        import sys
        def test_without():
            ours = {name for name in sys.modules if name.partition(".")[0] == "launcher"}
            assert ours == {"launcher", "launcher.testing", "launcher.testing.plugin"}
            assert not {"tensorflow", "yaml", "psutil", "paramiko"} & set(sys.modules)
        """
    )
    plugged.runpytest_subprocess("-W", "error", timeout=LIMIT).assert_outcomes(passed=1)


_WRITES_PIDS = """
import json, os, signal, sys, time
def test_it(cluster):
    job = cluster.start(["sleep", "600"], workers=2)
    pids = [job.launcher_pid, *[task.pid for task in job.tasks]]
    with open("pids.new", "w") as file:
        json.dump(pids, file)
    os.rename("pids.new", "pids")
    {then}
"""


@pytest.mark.parametrize("then", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_when_pytest_is_gone_its_launches_end(plugged: pytest.Pytester, then: str):
    """``os._exit`` is what pytest-timeout does."""
    plugged.makepyfile(_WRITES_PIDS.format(then=then))
    plugged.runpytest_subprocess(timeout=LIMIT)
    pids = json.loads((plugged.path / "pids").read_text())
    assert len(pids) == 3
    soon(lambda: not any(map(_lives, pids)))


def test_ctrl_c_at_the_tests_ends_all(plugged: pytest.Pytester):
    file = plugged.makepyfile(_WRITES_PIDS.format(then="time.sleep(600)"))
    argv = [sys.executable, "-m", "pytest", str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, cwd=plugged.path) as process:
        pids = soon(
            lambda: (plugged.path / "pids").exists() and json.loads((plugged.path / "pids").read_text())
        )
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT)
    assert b"KeyboardInterrupt" in output
    assert not any(map(_lives, pids))


def test_processes_that_are_left_behind_are_ended_and_reported(plugged: pytest.Pytester):
    """Launcher and agent are killed, and the watchdog is suspended: only the fixture can end the tasks.

    If the watchdog were killed, too, an agent of another test that exits could be first.
    """
    plugged.makepyfile(
        """
        import psutil
        def test_it(cluster):
            job = cluster.start(["sleep", "600"], workers=2, left_running=True)
            commands = [f"/proc/{task.pid}/cmdline" for task in job.tasks]
            job.until(lambda: all(open(path).read().startswith("sleep") for path in commands))
            tasks = [task.pid for task in job.tasks]
            launcher = psutil.Process(job.launcher_pid)
            ours = [launcher, *[p for p in launcher.children(recursive=True) if p.pid not in tasks]]
            for process in ours:
                process.suspend()
            job.until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in ours))
            for process in ours:
                if process.name() != "launch-watchdog":
                    process.kill()
            print("pids:", *tasks)
        """
    )
    result = plugged.runpytest_subprocess("-rP", timeout=LIMIT)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the launcher of job * died and left 3 processes here: killed"])
    pids = re.findall(r"^pids: (\d+) (\d+)$", result.stdout.str(), re.M)
    assert pids and not any(_lives(int(pid)) for pid in pids[0])


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
