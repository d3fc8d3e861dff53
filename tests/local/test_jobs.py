"""Job files, hosts and options by the installed command: what the tasks get, and what is noted; restarts."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import ROOT, RunFolder, last_run, stub

JOB = """\
command: [train.py, --out, $HOME]
flags: true
roles:
  master: 1
  workers: {count: 1, flags: false}
  board: {sidecar: true, command: [board.py]}
"""


@pytest.mark.promise("`TF_CONFIG` and flags by role; placeholders; variables as TonY has them")
def test_flags_by_role_and_the_master_of_tensorflow_1(launch: Launch, tmp_path: Path):
    for name in ("train.py", "board.py"):
        (tmp_path / name).touch()
    (tmp_path / "job.yaml").write_text(JOB)
    ended = launch.here("--dry-run", "--json", tmp_path / "job.yaml", cwd=tmp_path, code=0)
    plan = json.loads(ended.out)
    flags = {task["task"]: "--task_index=0" in task["argv"] for task in plan["tasks"]}
    assert flags == {"master/0": True, "workers/0": False, "board/0": False}
    notes = "\n".join(plan["notes"])
    assert f'{tmp_path}/job.yaml:5: role "workers": did you mean "worker"?' in notes
    assert f"{tmp_path}/job.yaml:1: the program gets $HOME as it is written" in notes
    job = "roles: {master: {command: 'true'}, worker: {command: [sleep, '60']}}\n"
    (tmp_path / "job.yaml").write_text(job)
    assert launch(tmp_path / "job.yaml").code == 0, "its end is the job's, as a chief's"


@pytest.mark.promise("job files by their endings; one of another name is told so")
@pytest.mark.parametrize("name", ["job.json", "JOB.YAML", "j.Yml", "job.JSON"])
def test_endings_of_job_files(launch: Launch, tmp_path: Path, name: str):
    """JSON may be indented with tabs; only the file's options follow it."""
    job = {"command": ["echo", "{rank}"], "roles": {"worker": 2}}
    (tmp_path / name).write_text(json.dumps(job, indent="\t"))
    ended = launch.here("--dry-run", "--json", name, "--workers", "3", cwd=tmp_path, code=0)
    assert len(json.loads(ended.out)["tasks"]) == 3
    assert "cannot read the job file" in launch.here(f"no{name}").err


@pytest.mark.promise("roles of any name")
def test_roles_of_the_user(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "roles:\n"
        "  reader:\n    count: 2\n    command: sh -c 'echo read; exec sleep 60'\n    service: true\n"
        "  trainer:\n    count: 2\n    command: [sh, -c, 'echo \"train {reader_hosts} $EXTRA\"']\n"
        "    env: {EXTRA: more}\n"
    )
    ended = launch(job, code=0)
    run = last_run(launch)
    assert [*run.states().values()] == ["stopped", "stopped", "succeeded", "succeeded"]
    readers = ",".join(run.plan["cluster"]["reader"])
    assert f"trainer/1 | train {readers} more" in ended.out


def test_paths_in_a_job_file_are_relative_to_it(launch: Launch, tmp_path: Path):
    """Wherever it is started from."""
    for name in ("here/bin", "here/sub", "here/main"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here/bin/python").symlink_to(sys.executable)
    for name in ("main", "sub"):
        (tmp_path / f"here/{name}/where.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "here/hosts").write_text("localhost slots=2\n")
    job = tmp_path / "here/job.yaml"
    job.write_text(
        "command: [where.py]\nworkdir: main\npython: bin/python\nrun_dir: run\nhosts: hosts\n"
        "roles: {worker: 1, other: {workdir: sub}}\n"
    )
    launch("here/job.yaml", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, code=0)
    run = RunFolder(tmp_path / "here/run")
    for task, folder in {"worker/0": "main", "other/0": "sub"}.items():
        assert run.log(task).decode().strip() == str(tmp_path / "here" / folder)
    assert run.plan["tasks"][0]["argv"][0] == str(tmp_path / "here/bin/python")


def test_a_tilde_is_the_home_and_keeps_the_environment_of_a_python(launch: Launch):
    """A virtual environment's Python finds its packages by the path that it was started with."""
    folder = launch.home / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (launch.home / "where.py").write_text("import os, sys\nprint(sys.prefix, os.getcwd())\n")
    ended = launch("--workdir", "~", "--python", "~/venv/bin/python", "where.py")
    assert f"| {folder} {launch.home}\n" in ended.out, ended.out + ended.err


@pytest.mark.parametrize(
    ("words", "shell", "shown"),
    [
        ([], "link", "link"),
        ([], "other", "real"),
        (["-x", "P*"], "other", "real"),
        (["--workdir", "sub"], "link", "real/sub"),
        (["--preload", "tabnanny", "--workdir", "../link/sub"], "link", "link/sub"),
        (["-x", "PWD=/x"], "link", "/x"),
    ],
    ids=str,
)
def test_pwd_is_the_tasks_folder(launch: Launch, tmp_path: Path, words: list[str], shell: str, shown: str):
    """Programs such as ``make`` believe it; a link stays one, as in a shell."""
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "pwd.py").write_text("import os\nprint(os.environ['PWD'])\n")
    environment = {"PWD": str(tmp_path / shell)}
    ended = launch(*words, "--", tmp_path / "pwd.py", cwd=tmp_path / "real", env=environment)
    assert f"| {tmp_path / shown}\n" in ended.out, ended.out + ended.err


def test_the_command_line_wins_over_hostfile_and_job_file(launch: Launch, tmp_path: Path):
    (tmp_path / "hosts.yaml").write_text("hosts:\n  - {name: localhost, env: {BATCH: '32', HOST: '1'}}\n")
    words = ["-x", "BATCH=64", "--", "sh", "-c", "echo $BATCH $HOST"]
    assert "| 64 1" in launch("--hosts", tmp_path / "hosts.yaml", *words).out
    (tmp_path / "job.yaml").write_text(
        "env: {A: '1', B: '1'}\ncommand: [sh, -c, 'echo $A $B $C']\n"
        "roles:\n  worker: {count: 1, env: {A: '2'}}\n"
    )
    assert "| 3 1 3" in launch(tmp_path / "job.yaml", "-x", "A=3", "-x", "C=3").out


def test_placeholders_in_variables(launch: Launch, tmp_path: Path):
    """Of job file, hostfile and ``-x NAME=VALUE``; a copied variable stays as it is."""
    host = "{name: localhost, slots: 2, env: {LOCAL: '{local_rank}'}}"
    (tmp_path / "hosts.yaml").write_text(f"hosts: [{host}]\n")
    (tmp_path / "job.yaml").write_text(
        "env: {RANK: '{rank}', LIST: '{\"rank\": [1]}'}\nhosts: hosts.yaml\n"
        "roles:\n  worker:\n    count: 2\n    env: {PORT: '{first_port}'}\n"
        "    command: [sh, -c, 'echo $LIST $RANK/$SIZE $LOCAL $COPY; test $PORT = {first_port} && $EXIT']\n"
    )
    size, ends = ["-x", "SIZE={world_size}"], ["-x", "EXIT=test {attempt} = 2", "--restarts", "1"]
    ended = launch(tmp_path / "job.yaml", *size, "-x", "COPY", *ends, env={"COPY": "{rank}"}, code=0)
    for rank in (0, 1):
        assert f'worker/{rank} | {{"rank": [1]}} {rank}/2 {rank} {{rank}}\n' in ended.out


# ---------------------------------------------------------------------- output folders


def test_each_task_has_an_output_folder_in_the_run_if_asked(launch: Launch, tmp_path: Path):
    stays = "test $JOB_NAME = ps && sleep 60; until test -s $OUTPUT_DIR/../ps-0/file; do sleep 0.05; done"
    script = f"echo $JOB_NAME $TASK_INDEX > $OUTPUT_DIR/file; {stays}"
    job = f"command: [sh, -c, '{script}']\nroles: {{worker: 2, ps: 1}}\noutput_dirs: yes\n"
    (tmp_path / "job.yaml").write_text(job)
    options = [str(tmp_path / "job.yaml"), "--run-dir", str(tmp_path / "run")]
    shown = launch.here(*options, "--dry-run", code=0).out
    assert f"{tmp_path}/run/output/worker-0" in shown
    assert "# --output-dirs: what tasks put into OUTPUT_DIR is in " in shown
    assert not (tmp_path / "run").exists()
    launch(*options, code=0)
    run = RunFolder(tmp_path / "run")
    made = {file.parent.name: file.read_text() for file in run.path.glob("output/*/file")}
    assert made == {"worker-0": "worker 0\n", "worker-1": "worker 1\n", "ps-0": "ps 0\n"}
    assert run.plan["tasks"][0]["env"]["OUTPUT_DIR"] == str(run.path / "output/worker-0")
    ended = launch("--run-dir", tmp_path / "other", "--", "sh", "-c", 'echo "<$OUTPUT_DIR>"')
    assert "<>" in ended.out and not (tmp_path / "other/output").exists()


# ---------------------------------------------------------------------- ports


@pytest.mark.promise("ports are held, no clash")
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_launches_at_once(launch: Launch):
    """16 tasks each serve on their port, and try to get those of the others."""
    for _ in range(2):
        words = ["--workers", "16", "--", *stub("binder", "{ps_hosts}", "{worker_hosts}")]
        for started in [launch.start(*words) for _ in range(2)]:
            started.wait(100, code=0)


def test_ports_on_several_hosts(launch: Launch):
    words = ["--hosts", "hostfiles/two-local.yaml", "--ps", "2", "--workers", "2"]
    launch(*words, "--", *stub("binder", "{ps_hosts}", "{worker_hosts}"), code=0)
    addresses = [task["address"] for task in last_run(launch).plan["tasks"]]
    assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1", "127.0.0.2"}


def test_this_machine_by_its_own_name(launch: Launch):
    launch("--hosts", f"{os.uname().nodename}:2", "--workers", "2", "true", code=0)


# ---------------------------------------------------------------------- restarts

#: Kills itself in its first attempt, in the middle of a line.
FRAIL = """
import os, sys
print("attempt", os.environ["LAUNCH_ATTEMPT"], sys.argv[1], os.environ["TASK_ADDRESS"])
if os.environ["LAUNCH_ATTEMPT"] == "1" and os.environ["TASK_INDEX"] == sys.argv[2]:
    print("no end", end="", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.promise("a task comes back with its port; all of it is reported")
def test_a_worker_comes_back_with_its_address_and_everything_is_told(launch: Launch):
    ended = launch("--restarts", "2", "--workers", "2", "--ps", "1", "-c", FRAIL, "{attempt}", "1", code=0)
    run = last_run(launch)
    worker = run.task("worker/1")
    assert (worker["attempt"], worker["state"], run.report["restarts"]) == (2, "succeeded", 1)
    (earlier,) = worker["earlier"]
    assert (earlier["attempt"], earlier["host"], earlier["state"]) == (1, "localhost", "failed")
    assert earlier["detail"] == "killed by SIGKILL"
    address = worker["address"]
    first, again = f"attempt 1 1 {address}\nno end\n", f"attempt 2 2 {address}\n"
    assert run.log("worker/1").decode() == f"{first}launch: attempt 2 starts here\n{again}"
    failed = r"worker/1 failed after \S+: killed by SIGKILL; starting worker/1 again (in [01]\.\ds|at once)"
    assert re.search(failed, ended.err)
    assert "(attempt 2, restart 1 of 2)" in ended.err
    *_, head, first, second, ps, _, verdict = ended.out.splitlines()
    assert [line.split()[-1] for line in (head, first, second, ps)] == ["ATTEMPT", "1", "2", "1"]
    assert verdict.endswith("tasks started again 1 time")
    moves = [event for event in run.events if event["event"] == "TaskMoved" and event["task"] == "worker/1"]
    expected = ["starting", "running", "ended", "failed", "starting", "running", "ended", "succeeded"]
    assert [move["state"] for move in moves] == expected
    assert [move["attempt"] for move in moves] == [1] * 4 + [2] * 4



def test_a_program_that_can_not_be_imported_does_not_start_again(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text("import there_is_no_such_module\n")
    ended = launch("--restarts", "3", "--workers", "2", "train.py", cwd=tmp_path, code=1)
    assert "not started again: an import failed" in ended.err
    assert {task["attempt"] for task in last_run(launch).report["tasks"]} == {1}



def test_a_role_may_have_a_rule_of_its_own(launch: Launch, tmp_path: Path):
    """Without it all workers would start again."""
    command = "command: [sh, -c, 'test {attempt}-{task_index} != 1-0 || exit 3']"
    (tmp_path / "job.yaml").write_text(f"{command}\nroles: {{worker: {{count: 2, restart: task}}}}\n")
    launch(tmp_path / "job.yaml", "--restarts", "1", code=0)
    assert [task["attempt"] for task in last_run(launch).report["tasks"]] == [2, 1]


def test_options_without_effect_are_noted(launch: Launch, tmp_path: Path):
    path = tmp_path / "lab.yaml"
    path.write_text("hosts: [localhost]\nspares: [node9]\n")
    ended = launch("--restart", "job", "--preload", "tensorflow", "--hosts", path, "true", code=0)
    noted = re.findall("launch: (.+) ha(?:s|ve) no effect", ended.err)
    assert noted == ["--restart", "--preload", "spare hosts"]
    ended = launch.here("--restarts", "1", "--preload", "json", "--hosts", path, "--dry-run", "-c", "pass")
    assert "no effect" not in ended.err + ended.out
    assert launch("--restarts", "-1", "true").code == 2
