"""Tasks that are given time when the job is done, and sidecars."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.timeout(120)


#: Every role's program: the chief ends as soon as all run; the worker, which ends on no SIGTERM, has still
#: something to do then, for which it needs its ps.
LEFT = """\
test $JOB_NAME != worker || trap '' TERM
echo $$ > $JOB_NAME.new && mv $JOB_NAME.new $JOB_NAME
case $JOB_NAME in
  chief) until test -e worker -a -e ps; do sleep 0.05; done;;
  ps) exec sleep 300;;
  worker)
    until test -e chief -a -e ps; do sleep 0.05; done
    while kill -0 $(cat chief) 2> /dev/null; do sleep 0.05; done
    sleep $LAST
    kill -0 $(cat ps) && echo last result > result;;
esac
"""
LEFT_JOB = """\
command: [sh, program]
roles: {chief: 1, ps: 1, worker: {count: 1, drain: 30s}}
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of a job whose chief leaves a worker behind."""
    (tmp_path / "program").write_text(LEFT)
    (tmp_path / "job.yaml").write_text(LEFT_JOB)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [["job.yaml"], ["--chief", "--ps", "1", "--workers", "1", "--drain", "30s", "sh", "program"]],
    ids=["file", "option"],
)
def test_a_worker_ends_by_itself_after_its_chief(launch: Launch, left: Path, words: list[str]):
    """It has its ps until then."""
    ended = launch("-x", "LAST=1", *words, cwd=left, code=0)
    assert (left / "result").read_text() == "last result\n"
    assert states(ended.out) == {"chief": "succeeded", "worker": "succeeded", "ps": "stopped"}


def test_a_worker_that_ignores_sigterm_after_its_chief_gets_the_hint_of_drain(launch: Launch, left: Path):
    words = ["--chief", "--ps", "1", "--workers", "1", "--grace", "0.2", "-x", "LAST=30"]
    ended = launch(*words, "sh", "program", cwd=left, code=0)
    (notice,) = (line for line in ended.err.splitlines() if "worker/0 ignored SIGTERM" in line)
    assert notice.endswith("; the job was done: `--drain 60s` gives it time to finish")
    assert not (left / "result").exists()


def states(out: str) -> dict[str, str]:
    """Role -> state, as the table has it."""
    return dict(re.findall(r"^localhost +\d+ +(\w+) +0 +(\w+)", out, re.MULTILINE))


JOB = """\
roles:
  worker: {{count: 1, command: [-c, "print('trained')"]}}
  evaluator:
    {{count: 1, drain: 30s, command: [sh, -c, "until test -e {go}; do sleep 0.05; done; echo evaluated"]}}
  ps: {{count: 1, command: [sleep, '300']}}
  board: {{count: 1, sidecar: true, command: [sleep, '300']}}
"""


@pytest.mark.promise("a job is done with its chief, or all workers; then ps and evaluator are stopped")
def test_the_evaluator_finishes(launch: Launch, tmp_path: Path):
    """The launcher waits for it and prints that; TensorBoard stays as long."""
    (tmp_path / "job.yaml").write_text(JOB.format(go=tmp_path / "go"))
    started = launch.start(tmp_path / "job.yaml").until(lambda it: "waiting for evaluator/0" in it.err)
    (tmp_path / "go").touch()
    ended = started.wait(code=0)
    assert "evaluator/0 | evaluated\n" in ended.out
    assert "launch: waiting for evaluator/0 to finish (at most 30s after the job's end)\n" in ended.err
    ends = {"worker": "succeeded", "evaluator": "succeeded", "ps": "stopped", "board": "stopped"}
    assert states(ended.out) == ends


#: Each task has a server in a child: worker/0 on its own port, the ps on any, the others on those given.
SERVER = """
import os, socket, sys, time
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
own, index = int(os.environ["TASK_ADDRESS"].rpartition(":")[2]), int(os.environ["TASK_INDEX"])
port = 0 if os.environ["JOB_NAME"] == "ps" else int(sys.argv[index]) if index else own
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    time.sleep(66)
"""


def _chosen() -> Iterator[str]:
    """Free ports that the kernel chooses for no socket."""
    for port in range(random.randrange(20000, 31000), 32000):
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)):
                yield str(port)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_tasks_that_listen_on_ports_of_their_own_choice_are_named(launch: Launch):
    ports = [*islice(_chosen(), 2)]
    ended = launch("--ps", "1", "--workers", "3", "-c", SERVER, *ports, timeout=150, code=0)
    (line,) = re.findall("launch: localhost: listening on .*", ended.err)
    assert f"not the one in TF_CONFIG: worker/1 on {ports[0]}, worker/2 on {ports[1]}; does the" in line
