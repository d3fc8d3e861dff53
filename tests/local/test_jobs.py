"""Job files, hosts and options by the installed command: what the tasks get, and what is noted."""

from __future__ import annotations

import json
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
    assert run.states() == {
        "reader/0": "stopped", "reader/1": "stopped", "trainer/0": "succeeded", "trainer/1": "succeeded",
    }  # fmt: skip
    readers = ",".join(run.plan["cluster"]["reader"])
    assert f"trainer/1 | train {readers} more" in ended.out


def test_paths_in_a_job_file_are_relative_to_it(launch: Launch, tmp_path: Path):
    """Wherever it is started from."""
    for name in ("here/bin", "here/sub", "here/main"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here/bin/python").symlink_to(sys.executable)
    (tmp_path / "here/main/where.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "here/sub/where.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "here/hosts").write_text("localhost slots=2\n")
    job = tmp_path / "here/job.yaml"
    job.write_text(
        "command: [where.py]\nworkdir: main\npython: bin/python\nrun_dir: run\nhosts: hosts\n"
        "roles: {worker: 1, other: {workdir: sub}}\n"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    launch("here/job.yaml", cwd=tmp_path, env=environment, code=0)
    run = RunFolder(tmp_path / "here/run")
    assert run.log("worker/0").decode().strip() == str(tmp_path / "here/main")
    assert run.log("other/0").decode().strip() == str(tmp_path / "here/sub")
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
def test_pwd_is_the_folder_of_the_task(
    launch: Launch, tmp_path: Path, words: list[str], shell: str, shown: str
):
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
    (tmp_path / "hosts.yaml").write_text(
        "hosts:\n  - {name: localhost, slots: 2, env: {LOCAL: '{local_rank}'}}\n"
    )
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


def test_each_task_has_an_output_folder_in_the_run(launch: Launch, tmp_path: Path):
    stays = "test $JOB_NAME = ps && sleep 60; until test -s $OUTPUT_DIR/../ps-0/file; do sleep 0.05; done"
    script = f"echo $JOB_NAME $TASK_INDEX > $OUTPUT_DIR/file; {stays}"
    job = f"command: [sh, -c, '{script}']\nroles: {{worker: 2, ps: 1}}\noutput_dirs: yes\n"
    (tmp_path / "job.yaml").write_text(job)
    launch(tmp_path / "job.yaml", "--run-dir", tmp_path / "run", code=0)
    run = RunFolder(tmp_path / "run")
    assert {file.parent.name: file.read_text() for file in run.path.glob("output/*/file")} == {
        "worker-0": "worker 0\n",
        "worker-1": "worker 1\n",
        "ps-0": "ps 0\n",
    }
    assert run.plan["tasks"][0]["env"]["OUTPUT_DIR"] == str(run.path / "output/worker-0")


def test_no_output_folder_by_default(launch: Launch, tmp_path: Path):
    ended = launch("--run-dir", tmp_path / "run", "--", "sh", "-c", 'echo "<$OUTPUT_DIR>"')
    assert "<>" in ended.out and not (tmp_path / "run/output").exists()


def test_a_dry_run_names_the_output_folder(launch: Launch, tmp_path: Path):
    ended = launch.here("--output-dirs", "--run-dir", tmp_path / "run", "--dry-run", "true", code=0)
    assert f"{tmp_path}/run/output/worker-0" in ended.out
    assert "# --output-dirs: what tasks put into OUTPUT_DIR is in " in ended.out
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- ports


@pytest.mark.promise("ports are held, no clash")
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_launches_at_once(launch: Launch):
    """16 tasks each serve on their port, and try to get those of the others."""
    for _ in range(2):
        both = [
            launch.start("--workers", "16", "--", *stub("binder", "{ps_hosts}", "{worker_hosts}"))
            for _ in range(2)
        ]
        for started in both:
            started.wait(100, code=0)


def test_ports_on_several_hosts(launch: Launch):
    words = ["--hosts", "hostfiles/two-local.yaml", "--ps", "2", "--workers", "2"]
    launch(*words, "--", *stub("binder", "{ps_hosts}", "{worker_hosts}"), code=0)
    addresses = [task["address"] for task in last_run(launch).plan["tasks"]]
    assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1", "127.0.0.2"}
