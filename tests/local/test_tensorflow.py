"""Real TensorFlow: the examples train MNIST with parameter servers and workers.

``LAUNCH_TEST_PYTHON`` names another Python that has TensorFlow; the tests need one, and say so.
MNIST is kept in the user's own cache, so that it is fetched once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Ended, Launch
from tests.local.training import CACHE, PYTHON, running
from tests.seeing import ROOT, Family, last_run, run_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLES = ROOT / "examples" / "mnist_dist"
STRATEGIES = ROOT / "examples" / "strategies"
#: TensorFlow is imported once for all tasks: that takes 4 s of a processor.
TENSORFLOW = ["--python", PYTHON, "--preload", "tensorflow"]


@pytest.fixture(scope="module", autouse=True)
def mnist() -> None:
    """TensorFlow and the data are here; a test that can't be run is no test that passed."""
    looked = subprocess.run(
        [PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('tensorflow'))"]
    )
    if looked.returncode:
        pytest.fail(f"{PYTHON} has no tensorflow: install '.[tensorflow]', or set LAUNCH_TEST_PYTHON")
    subprocess.run([PYTHON, str(EXAMPLES / "data.py")], check=True, timeout=350, capture_output=True)


def _trained(launch: Launch, *words: str) -> Ended:
    """Every worker has trained to 85 % or more, each ps was stopped, the job went well."""
    ended = launch(*words, timeout=150, env={"XDG_CACHE_HOME": CACHE, "TF_CPP_MIN_LOG_LEVEL": "2"}, code=0)
    reached = dict(re.findall(r"^(worker/\d) \| test accuracy: ([01]\.\d+)", ended.out, re.MULTILINE))
    assert reached, ended.out
    assert all(float(accuracy) >= 0.85 for accuracy in reached.values()), reached
    states = last_run(launch).states()
    assert [states[f"worker/{n}"] for n in (0, 1)] == ["succeeded", "succeeded"]
    assert [states[f"ps/{n}"] for n in (0, 1)] == ["stopped", "stopped"]
    assert min(task["peak_rss"] for task in last_run(launch).report["tasks"]) > 100 << 20
    return ended


@pytest.mark.promise("the same job on this machine, over SSH, in containers, from a file")
def test_the_classic_program_with_its_flags(launch: Launch, family: Family):
    words = ["--ps", "2", "--workers", "2", *TENSORFLOW]
    _trained(launch, *words, "--flags", str(EXAMPLES / "mnist_dist.py"), "--train_steps=300")
    family.gone(1.0)


@pytest.mark.long
def test_a_coordinator_and_an_evaluator_that_sees_the_last_checkpoint(
    launch: Launch, family: Family, tmp_path: Path
):
    roles = ["--chief", "--ps", "1", "--workers", "2", "--evaluator", "--drain", "evaluator=2m"]
    # In asynchronous training one late update may cost the last model some accuracy: 0.86 was seen.
    steps = ["--steps=200", "--save_steps=100", "--min_accuracy=0.7"]
    program = [str(STRATEGIES / "coordinated.py"), f"--folder={tmp_path}", *steps]
    ended = launch(*roles, *TENSORFLOW, *program, timeout=150, env={"XDG_CACHE_HOME": CACHE}, code=0)
    assert "evaluator/0 | test accuracy after step 200: 0." in ended.out
    stopped = dict.fromkeys(("worker/0", "worker/1", "ps/0"), "stopped")
    assert last_run(launch).states() == {"chief/0": "succeeded", "evaluator/0": "succeeded", **stopped}
    family.gone(1.0)


@pytest.mark.promise("the programs of `docs/strategies.md` run as they stand there, and go on after a kill")
def test_the_programs_of_the_strategies_page(launch: Launch, family: Family, tmp_path: Path):
    """As they stand there, but with fewer steps, in one folder, with the command that stands below each; a
    worker of the first one is killed. An HTTP proxy, as company networks have, is not between the tasks.
    """
    run_programs(launch, tmp_path)
    assert list((tmp_path / "mirrored_run" / "logs").glob("events.out.tfevents.*"))
    family.gone(1.0)


@pytest.mark.long
def test_a_program_with_nothing_left_to_do(launch: Launch, family: Family, tmp_path: Path):
    """A chief with nothing left to do ends while threads of the coordinator prepare data."""
    options, name = run_programs(launch, tmp_path)
    again = launch(*options, *TENSORFLOW, name, cwd=tmp_path, timeout=150, code=0)
    assert "restored coordinated_run/ckpt-200" in again.out and "step" not in again.out
    family.gone(1.0)


def run_programs(launch: Launch, folder: Path) -> tuple[list[str], str]:
    """Run the programs of the page in a folder: the options of the last one, and its name."""
    text = (ROOT / "docs" / "strategies.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\nlaunch (.*?)\n```", text, re.M | re.S)
    assert len(found) == 2
    for program, line in found:
        *options, name = line.split()
        assert ", 1001" in program
        (folder / name).write_text(program.replace(", 1001", ", 201"))
        env = {"TMPDIR": str(folder), "http_proxy": "http://127.0.0.1:9"}
        started = launch.start(*options, *TENSORFLOW, name, cwd=folder, env=env)
        if name == "mirrored.py":
            started.until(lambda it: "worker/1 | step 100 " in it.out, timeout=150)
            os.kill(running(run_of(launch, started))["worker/1"], signal.SIGKILL)
        ended = started.wait(timeout=250, code=0)
        assert "step 200 loss 0." in ended.out
        assert ("restored " in ended.out) == (name == "mirrored.py")
        assert (folder / f"{name.removesuffix('.py')}_run" / "ckpt-200.index").exists()
    return options, name


@pytest.mark.long
def test_a_worker_that_fails_ends_the_training(launch: Launch, family: Family):
    """A ps would wait for ever, TensorFlow does not even notice SIGTERM while it hangs in C++."""
    flags = ["--train_steps=50", "--min_accuracy=0.9999"]
    program = ["--flags", "--grace", "2", str(EXAMPLES / "mnist_dist.py"), *flags]
    job = ["--ps", "1", "--workers", "1", *TENSORFLOW]
    launch(*job, *program, timeout=150, env={"XDG_CACHE_HOME": CACHE, "TF_CPP_MIN_LOG_LEVEL": "2"}, code=1)
    assert last_run(launch).report["failure"]["task"].startswith("worker/")
    family.gone(1.0)
