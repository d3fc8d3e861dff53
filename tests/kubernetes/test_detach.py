"""The launcher runs in a pod: ``--kubernetes --detach``."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import WAITS
from tests.clusters import watched
from tests.conftest import COMMAND, Launch, Started
from tests.kubernetes.cluster import Cluster
from tests.local.terminal import Terminal, last_step
from tests.page.viewer import followed_elsewhere
from tests.seeing import last_run, soon

Start = Callable[..., Started]
Submit = Callable[..., str]

#: Ends in its second attempt.
AGAIN = """
import os, time
print("up", os.environ["SECRET"], flush=True)
with open("result", "w") as file: file.write("saved")
for _ in range(1200):
    if os.environ["LAUNCH_ATTEMPT"] == "2": os._exit(7)
    time.sleep(0.1)
"""


@pytest.fixture
def job(kubernetes: Cluster, tmp_path: Path) -> Path:
    """A job file, whose launcher's pod reaches the API server: a cluster of ours has no kube-proxy."""
    server = kubernetes.kubectl("config", "view", "--minify", "--output=jsonpath={..server}")
    host, _, port = server.removeprefix("https://").partition(":")
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port or "443"}
    container = {"env": [{"name": name, "value": value} for name, value in variables.items()]}
    kubernetes.write_job(tmp_path, {"containers": [container]}, roles={"worker": 1}, command=["true"])
    return tmp_path / "job.yaml"


@pytest.fixture
def account(kubernetes: Cluster) -> None:
    """The service account of the launcher's pod has the rights of docs/kubernetes.md."""
    user = f"--serviceaccount={kubernetes.namespace}:default"
    if not kubernetes.kubectl("get", "rolebinding", "launch-detached", "--ignore-not-found"):
        kubernetes.kubectl("create", "rolebinding", "launch-detached", "--role=launch", user)


@pytest.fixture
def submit(start: Start, job: Path, account: None) -> Submit:
    """Submits a launcher: the name of the run."""

    def submitted(*words: str, command: tuple[str, ...] = WAITS, **more) -> str:
        content = json.loads(job.read_text())
        job.write_text(json.dumps({**content, "command": [*command]}))
        ended = start("-d", job.name, *words, cwd=job.parent, **more).wait(90, code=0)
        assert "its launcher runs in the pod launch-" in ended.err
        return ended.out.strip()

    return submitted


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_job_goes_on_without_this_machine(
    start: Start, launch: Launch, submit: Submit, kubernetes: Cluster, tmp_path: Path
):
    """It is shown and changed through its pod; at its end its files come to here, and nothing is left."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(AGAIN)
    files = ("--sync", str(tmp_path / "code"), "--collect", "worker/0=result:results")
    words = ("--name", "night", "--workers", "2", "-x", "SECRET", *files)
    name = submit(*words, command=("train.py",), env={"SECRET": "hunter2"})
    assert "hunter2" not in kubernetes.kubectl("get", "pods,jobs", "-o", "json")
    logs = start("logs", "-f", "--since", "1h", "worker/0").until(lambda it: "up hunter2" in it.out, 30)
    watched(start, name)
    assert logs.wait(30).code == 7
    assert (tmp_path / "results/result").read_text() == "saved"
    assert last_run(launch).report["exit_code"] == 7
    assert "up hunter2" in start("logs", "--since", "1h", name, "worker/0").wait().out
    again = start("rerun", "night", "--dry-run", env={"SECRET": "hunter3"}).wait(code=0)
    assert again.out.count("SECRET=hunter3") == 2


@pytest.mark.slow
@pytest.mark.promise("results and reports at URLs")
def test_a_launcher_whose_image_lacks_a_package_starts_no_task(start: Start, job: Path, account: None):
    """This Python has what files at the URL need, and could not start the job."""
    options = ["--collect", "model:s3://bucket/x", "--output-to", "s3://bucket/y", "--report", "s3://bucket/z"]
    ended = start("-d", job.name, *options, cwd=job.parent).wait(90, code=2)
    for option, name in (("collect", "x"), ("output-to", "y"), ("report", "z")):
        assert re.search(rf"--{option}: s3://bucket/{name}: \S+ is not installed: pip install ", ended.err)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_top_shows_it_by_a_copy_of_its_files(
    launch: Launch, submit: Submit, kubernetes: Cluster, tmp_path: Path
):
    """From the pod; the copy is renewed, and removed at the end, when all files are here."""
    script = "for step in $(seq 90); do echo step $step loss 0.5; sleep 0.5; done; exit 7"
    name = submit("--workers", "2", command=("sh", "-c", script))
    env = {**kubernetes.environ, "TMPDIR": str(tmp_path)}
    top = Terminal(launch, "top", name, command=(*kubernetes.enter, *COMMAND), env=env)
    try:
        top.until(lambda it: re.search(r"worker/1 +worker-1 on n\d .* running .* step \d", it.shown), 90)
        assert [path for path in tmp_path.iterdir() if path.name.startswith("launch-")]
        first = last_step(top)
        top.until(lambda it: last_step(it) >= first + 5, 60)
        assert top.wait(150) == 0
        assert re.search(r"worker/[01] .* failed +7 ", top.text), top.text
    finally:
        top.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("launch-")]
    assert last_run(launch).report["exit_code"] == 7


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_page_of_it_is_made_here(start: Start, submit: Submit, tmp_path: Path):
    """Of a copy of its files, which the page does not name; and it is compared with itself."""
    script = "for step in $(seq 600); do echo step $step loss 0.5; sleep 0.5; done"
    name = submit("--workers", "2", command=("sh", "-c", script))
    page = tmp_path / "run.html"

    def is_drawn() -> bool:
        ended = start("report", name, "--html", str(page)).wait(60)
        return ended.code == 0 and ">loss<" in page.read_text()

    soon(is_drawn, 90)
    text = page.read_text()
    assert "runs: 2 of 2 tasks" in text and "step 3" in text and ">Folder</dt>" in text
    assert "/launch-" not in text.partition(">Folder</dt>")[2].partition("</dd>")[0]
    both = start("report", name, name).wait(60, code=0).out
    assert "steps/s" in both and "loss, best" in both
    start("stop", "--now", name).wait(60, code=0)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_its_page_by_a_copy_of_its_files(launch: Launch, submit: Submit, kubernetes: Cluster, tmp_path: Path):
    script = "for step in $(seq 60); do echo step $step loss 0.5; sleep 0.5; done; exit 7"
    name = submit("--workers", "2", command=("sh", "-c", script))
    environ = {**kubernetes.environ, "TMPDIR": str(tmp_path)}
    verdict = followed_elsewhere(launch, name, kubernetes.enter, environ)
    assert "exit code 7" in verdict
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("launch-")]


def test_it_is_stopped(start: Start, submit: Submit, kubernetes: Cluster, quota: Callable[[str], None]):
    """In a namespace that asks for limits of every pod."""
    quota("limits.cpu=8,limits.memory=8Gi")
    name = submit("--workers", "2", "--cpus", "0.5", "--memory", "100m")
    words = ("logs", f"--selector=tf-launcher/launcher={name}", "--tail=-1")
    soon(lambda: "launch: the tasks start" in kubernetes.kubectl(*words).splitlines())
    ended = start("stop", name).wait(60)
    assert (ended.code, ended.out) == (0, f"{name} ended with exit code 143\n"), ended.err
    assert "stopped by launch stop" in start("attach", name).wait(30).out


@pytest.mark.slow
def test_its_files_wait_for_somebody(start: Start, submit: Submit, kubernetes: Cluster):
    name = submit(command=("sh", "-c", "echo out; sleep 3; exit 3"))
    soon(lambda: not kubernetes.kubectl("get", "jobs", "--selector=tf-launcher/run", "-o", "name"), 30)
    assert kubernetes.pods()
    both = [start("ps"), start("ps")]  # only one fetches them
    for ended in (started.wait(60) for started in both):
        assert (ended.code, ended.out) == (0, "") and "nothing is running" in ended.err, ended
        assert not re.search("cannot|can't|pod of its launcher runs", ended.err), ended.err
    assert start("logs", name).wait().out == "out\n"
    assert re.search(rf"^{name} .* failed, exit code 3 \(worker/0\) ", start("ps", "--all").wait().out, re.M)


@pytest.mark.slow
def test_its_launcher_is_killed(start: Start, launch: Launch, submit: Submit, kubernetes: Cluster):
    """Its pod runs the command of ``--on-end``, whose output is among the messages."""
    submit("--lease", "15", "--on-end", "sh -c 'echo it is $LAUNCH_STATUS'")
    (pod,) = (pod for pod in kubernetes.pods() if "-launcher-" in pod)
    code = "import json, os; os.kill(json.load(open('/tmp/launch/run/launcher.json'))['pid'], 9)"
    kubernetes.kubectl("exec", pod, "--", "/tmp/launch/bin/python", "-c", code)
    soon(lambda: "launch: nothing is running" in start("ps").wait(60).err, 90)
    assert (last_run(launch).path / "launcher.log").read_text().count("it is lost\n") == 1


@pytest.mark.slow
def test_the_pod_of_the_launcher_is_killed(start: Start, submit: Submit, kubernetes: Cluster):
    """Its tasks end within the lease, and the cluster removes their Jobs with it."""
    name = submit("--workers", "2", "--lease", "15")
    (pod,) = (pod for pod in kubernetes.pods() if "-launcher-" in pod)
    kubernetes.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    soon(lambda: not kubernetes.pods(), 90, lambda: kubernetes.kubectl("get", "pods"))
    would, removed = (start("clean", "--kubernetes", *more).wait(30).out for more in (["--dry-run"], []))
    assert re.match(rf"would remove Job launch-{name}-launcher of the namespace ", would), would
    assert removed == would.replace("would remove", "removed")
    ended = start("attach", name).wait(30)
    assert ended.code == 125 and "the pod of its launcher no longer exists" in ended.err
    assert start("ps").wait(30).out == ""


@pytest.mark.promise("a `-d` that fails is the newest run, and has its exit code")
def test_its_account_has_no_rights(
    start: Start, launch: Launch, job: Path, kubernetes: Cluster, tmp_path: Path
):
    """That is said before any folder is sent; and it is the newest run, not the one before it."""
    kubernetes.kubectl("delete", "rolebinding", "launch-detached", "--ignore-not-found")
    path = kubernetes.broken_kubectl(tmp_path, 'echo "$@" >>execs; exec $kubectl "$@";;')
    ended = start("-d", str(job), env={"PATH": path}).wait(90, code=125)
    assert "--stdin" not in (tmp_path / "execs").read_text()
    assert "service account of the launcher's pod lacks rights that launch needs" in ended.err
    assert "create, delete, list jobs.batch" in ended.err
    again = start("attach").wait(code=125)
    assert "lacks rights that launch needs" in again.out + again.err
    assert last_run(launch).report["exit_code"] == 125


def test_ctrl_c_while_it_is_submitted(start: Start, launch: Launch, job: Path):
    started = start("-d", str(job), "--kubernetes", "localhost/nosuch:1")
    started.until(lambda it: "cannot pull the image localhost/nosuch:1" in it.err, 60)
    assert started.stop(signal.SIGINT, 30).code == 130
    assert last_run(launch).report["exit_code"] == 130
