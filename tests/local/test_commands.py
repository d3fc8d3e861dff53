"""The other commands, and what a plain launch does not need."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch, Started, executable, in_shell
from tests.seeing import ROOT, Family, last_run, named, proc, soon, stub

COMMANDS = (
    "hosts", "check", "attach", "logs", "ps", "restart", "rerun", "stop", "clean", "prepare", "export",
    "completion", "help",
)  # fmt: skip


# ---------------------------------------------------------------------- help


@pytest.mark.parametrize("name", ["", "run", *COMMANDS])
def test_help_has_examples_in_80_columns(launch: Launch, name: str):
    ended = launch.here(*[name][: bool(name)], "--help", code=0)
    assert ended.out.startswith("usage: launch") and "examples:" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    assert launch.here("help", *[name][: bool(name)]).out == ended.out


def test_help_has_a_line_for_each_option_and_command(launch: Launch):
    some, every = launch.here("-h").out, launch.here("--help-all").out
    for text, options in ((some, ("--ps", "--workers", "--docker", "-d, --detach")), (every, ("--fanout",))):
        assert max(map(len, text.splitlines()[:-1])) <= 80
        assert not re.search(r"(?m)^ {10,}(?!launch)", text), "no line goes on below itself"
        assert all(re.search(rf"(?m)^  {option} .*  \w", text) for option in options)
        assert all(re.search(rf"(?m)^  {name} +\w", text) for name in COMMANDS)
        assert "exit codes:" in text
        assert (Path(text.splitlines()[-1].removeprefix("documentation: ")) / "restarts.md").is_file()
    assert "  --fanout" not in some and "  --np" not in every and "  -hosts" not in every


#: What takes milliseconds, and what most launches do not need.
SLOW = {
    "argcomplete", "cloudpickle", "fabric", "invoke", "numpy", "paramiko", "pathspec", "psutil",
    "tensorflow", "uv", "yaml", "jinja2", "prometheus_client", "regex", "rich", "starlette", "uvicorn",
    "asyncio", "bz2", "concurrent.futures", "ctypes", "datetime", "difflib", "hashlib", "html",
    "importlib.metadata", "ipaddress", "logging", "multiprocessing", "pickle", "random", "shutil",
    "subprocess", "tempfile", "textwrap", "tomllib", "zlib",
    "launcher.backends.bootstrap", "launcher.backends.docker.engine", "launcher.backends.kubernetes.kubectl",
    "launcher.backends.link", "launcher.backends.slurm.allocation", "launcher.backends.ssh.connections",
    "launcher.findings", "launcher.output.failure", "launcher.page", "launcher.thread_pool",
}  # fmt: skip


def test_a_launch_imports_nothing_slow(launch: Launch, tmp_path: Path):
    command = (sys.executable, "-X", "importtime", "-m", "launcher")
    ended = launch("--workers", "1", "true", command=command, cwd=tmp_path)
    imported = set(re.findall(r"(?m)^import time:.*\| +(\S+)$", ended.err))
    assert ended.code == 0 and "launcher.launch.orchestrator" in imported
    assert imported & SLOW == set()


def test_another_system_is_named_before_anything_is_started():
    code = "import sys, launcher.__main__ as main; sys.platform = 'darwin'; main.main()"
    done = subprocess.run([sys.executable, "-c", code, "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 125
    assert done.stderr.startswith("launch: this system is darwin, and launch needs Linux")


def test_the_man_page_is_roff_and_has_every_option(launch: Launch, tmp_path: Path):
    page = launch(command=(sys.executable, "-m", "launcher.cli.manpage")).out
    options = re.findall(r"(?m)^  (--?[a-z][a-z-]*)", launch.here("--help-all").out)
    assert all(option.replace("-", "\\-") in page for option in options)
    if shutil.which("groff"):
        command = ["groff", "-man", "-Tutf8", "-ww"]
        done = subprocess.run(command, input=page.encode(), capture_output=True, check=True)
        assert done.stderr == b"" and b"share/doc/tf-launcher/docs" in done.stdout.replace("‐".encode(), b"-")


def test_a_program_called_like_a_command(launch: Launch, tmp_path: Path):
    """``launch ps`` lists runs, ``launch run ps`` runs ps."""
    assert "nothing is running" in launch.here("ps").err
    program = executable(tmp_path / "bin/ps", "#!/bin/sh\necho the other ps\n")
    ended = launch("run", "ps", env={"PATH": f"{program.parent}:{os.environ['PATH']}"}, code=0)
    assert ended.out.startswith("worker/0 | the other ps\n")


@pytest.mark.promise("a `.py` file, `-m`, `-c`, any program; its arguments are its own")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["echo", "--workers", "3", "-m", "x", "--", "y"], "echo --workers 3 -m x -- y"),
        (["--", "echo", "--", "--flags"], "echo -- --flags"),
        (["-m", "json.tool", "--workers", "3", "-m"], f"{sys.executable} -m json.tool --workers 3 -m"),
        (["--workers", "2", "-m", "json.tool", "a", "--", "b"], f"{sys.executable} -m json.tool a -- b"),
        (["-c", "pass", "--workers", "3", "--", "-c"], f"{sys.executable} -c pass --workers 3 -- -c"),
        (["--workers", "2", "--", "-c", "pass", "a.yaml"], f"{sys.executable} -c pass a.yaml"),
    ],
)
def test_all_that_follows_the_program_is_its_own(launch: Launch, words: list[str], expected: str):
    shown = json.loads(launch.here("--dry-run", "--json", *words).out)
    assert " ".join(shown["tasks"][0]["argv"]) == expected


# ---------------------------------------------------------------------- dry run


@pytest.mark.promise("`--dry-run` starts nothing and can be pasted")
def test_what_a_dry_run_prints_can_be_pasted(launch: Launch, weird_path: Path):
    """Each task's command, taken from the page into a shell, does what the task would."""
    odd = 'it\'s "$(odd)" `and`\nworse'
    words = ["--workers", "2", "--workdir", str(weird_path), "-x", f"ODD={odd}", "--dry-run"]
    script = 'echo "$TASK_INDEX of $CLUSTER_SPEC in $PWD: $ODD $1"'
    shown = launch.here(*words, "--", "sh", "-c", script, "sh", "{task_address} " + odd).out
    assert not launch.state.exists()
    blocks = re.split(r"^# worker/\d on localhost, (.*)\n", shown, flags=re.MULTILINE)[1:]
    assert len(blocks) == 4
    for index, (address, pasted) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
        done = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f'{index} of {{"worker":["127.0.0.1:')
        assert done.stdout.endswith(f" in {weird_path}: {odd} {address} {odd}\n")


def test_a_dry_run_of_many_tasks_is_short(launch: Launch):
    words = ["--ps", "2", "--workers", "300", "-x", "ODD=a\nb", "--dry-run", "echo", "{worker_hosts}"]
    ended = launch.here(*words, code=0)
    assert len(ended.out) < 30_000
    lines = ended.out.splitlines()
    assert all(line.startswith("#") for line in lines if line), "cut commands can't be pasted"
    echoes = [line for line in lines if " echo " in line]
    assert echoes and all(line.startswith("#  echo ") and line.endswith("…'") for line in echoes)
    assert "# worker/299 on localhost, 127.0.0.1:20299" in lines
    assert sum("TF_CONFIG" in line for line in lines) == 2, "of the first worker and the first ps"
    shown = json.loads(launch.here("--workers", "300", "--dry-run", "--json", "true").out)
    assert len(shown["tasks"]) == 300


# ---------------------------------------------------------------------- hosts


def test_hosts(launch: Launch):
    ended = launch.here("hosts", "hostfiles/ranges.yaml", code=0)
    assert re.search(r"\d+ hosts", ended.out)
    assert "2 hosts, 2 slots, GPUs not known" in launch.here("hosts", "h1,h2").out
    hosts = json.loads(launch.here("hosts", "--json", "h[1-3]:2").out)
    assert [host["name"] for host in hosts] == ["h1", "h2", "h3"]


# ---------------------------------------------------------------------- logs, ps, stop


def _running(launch: Launch, *words: str, tasks: int = 1) -> Started:
    started = launch.start(*words, "--", "sh", "-c", "echo up $TASK_INDEX; exec sleep 60")
    soon(lambda: launch.state.exists() and any(launch.state.glob("*/plan.json")))
    started.until(lambda it: it.out.count("| up ") == tasks)
    return started


def test_ps_and_stop(launch: Launch, family: Family):
    started = _running(launch, "--ps", "1", "--workers", "2", tasks=3)
    (record,) = json.loads(launch.here("ps", "--json").out)
    assert (record["state"], record["pid"]) == ("running", started.pid)
    assert record["tasks"] == {"worker": 2, "ps": 1}
    assert record["processes"] >= 6
    name = record["run"]
    assert name in launch.here("ps").out
    stopped = launch.here("stop", name[-5:], code=0)
    assert "exit code 143" in stopped.out
    ended = started.wait(code=143)
    assert ended.out.endswith("stopped by launch stop, exit code 143\n")
    assert "nothing is running" in launch.here("ps").err
    assert "stopped by launch stop" in launch.here("ps", "--all").out
    assert "already ended" in launch.here("stop", name).out
    family.gone(0.5)


def test_stop_and_logs_show_which_runs_there_are(launch: Launch):
    first = _running(launch)
    names = [run.name for run in launch.state.glob("*")]
    second = _running(launch, "-x", "SECRET=s3cret", "--workers", "2", tasks=2)
    names += [run.name for run in launch.state.glob("*") if run.name not in names]
    words = r"sh -c 'echo up \$TASK_INDEX; exec sleep 60'"
    for command, start in ((["stop"], "2 runs are running; expected one of"), (["logs", names[0][:6]], "")):
        ended = launch(*command)
        head, *lines = ended.err.splitlines()
        assert ended.code == 2 and head.startswith(f"launch: {start}")
        assert len(lines) == 2
        assert re.fullmatch(rf"  {names[0]}, started \d+\.\ds ago: {words}", lines[0]), lines
        second_words = rf"{words} \(--workers 2 -x SECRET=\.\.\.\)"
        assert re.fullmatch(rf"  {names[1]}, started \d+\.\ds ago: {second_words}", lines[1])
    header, *rows = launch.here("ps", "--all").out.splitlines()
    assert header.split()[:5] == ["RUN", "PROGRAM", "STATE", "BEGAN", "TIME"]
    assert [row.split()[0] for row in rows] == [names[1], names[0]], "the newest first"
    assert "  2 workers  " in rows[0] and "  1 worker  " in rows[1]
    assert re.search(r" running +(today|yesterday) \d\d:\d\d +\d", rows[0])
    for started in (first, second):
        started.stop(signal.SIGTERM)


def test_stop_now(launch: Launch, family: Family):
    started = family.started(launch, 2, "ignore", "child", grace="300")
    launch.here("stop", "--now", code=0)
    assert started.wait().code == 143
    family.gone(0.5)


def test_logs(launch: Launch):
    launch("--workers", "2", "--", "sh", "-c", r"printf 'I am %s\n\377' $TASK_INDEX")
    assert launch.here("logs").out == "worker/0 | I am 0\nworker/0 | �\nworker/1 | I am 1\nworker/1 | �\n"
    assert launch.here("logs", "worker/1").stdout == b"I am 1\n\xff"
    assert launch.here("logs", "worker/1").err == ""
    mistaken = launch.here("logs", "worker1", code=2)
    assert mistaken.err == "launch: no run and no task 'worker1'; did you mean worker/1?\n"
    assert "no run './worker1'" in launch.here("logs", "./worker1", code=2).err
    assert launch.here("logs", last_run(launch).path.name[-5:], "-n", "1", "worker/0").stdout == b"\xff"
    launch("true")
    assert launch.here("logs").err == f"launch: worker/0 printed nothing in {last_run(launch).path.name}\n"


def test_logs_that_were_removed(launch: Launch):
    """A task that printed something is not said to have printed nothing."""
    assert launch("--workers", "2", "--", "echo", "printed").code == 0
    (last_run(launch).path / "logs" / "worker-1.log").unlink()
    ended = launch.here("logs")
    assert ended.out == "worker/0 | printed\n"
    assert "worker/1" in ended.err and "removed" in ended.err
    assert "printed nothing" not in ended.err


@pytest.mark.parametrize(
    "words",
    [("check",), ("check", "--hosts", "localhost"), ("prepare", "--hosts", "localhost", "six"), ("true",)],
)
def test_a_current_folder_that_is_gone(launch: Launch, tmp_path: Path, words: tuple[str, ...]):
    shell = in_shell('mkdir gone; cd gone; rmdir ../gone; exec "$@"')
    ended = launch(*words, command=shell, cwd=tmp_path, code=2, timeout=10)
    assert "the current folder is gone" in ended.err


def test_logs_of_another_folder_follow_no_links(launch: Launch, tmp_path: Path):
    """The folder may be another user's: a link in it could lead to a file that only we can read."""
    assert launch("--", "echo", "printed").code == 0
    run, secret = last_run(launch).path, tmp_path / "secret"
    secret.write_text("s3cret\n")
    (run / "logs" / "worker-0.log").unlink()
    (run / "logs" / "worker-0.log").symlink_to(secret)
    ended = launch.here("logs", run)
    assert (ended.code, "s3cret" in ended.out) == (125, False)
    (run / "logs" / "worker-0.log").unlink()
    (run / "logs").rename(tmp_path / "logs")
    (tmp_path / "logs" / "worker-0.log").write_text("s3cret\n")
    (run / "logs").symlink_to(tmp_path / "logs")
    ended = launch.here("logs", run)
    assert (ended.code, "s3cret" in ended.out) == (125, False)


def test_logs_are_followed_to_the_end(launch: Launch, tmp_path: Path):
    go = tmp_path / "go"
    script = f"echo first; until test -e {go}; do sleep 0.02; done; echo last; test $TASK_INDEX = 0 || exit 7"
    started = launch.start("--workers", "2", "--on-failure", "continue", "--", "sh", "-c", script)
    started.until(lambda it: it.out.count("first") == 2)
    following = launch.start("logs", "-f").until(lambda it: it.out.count("first") == 2)
    go.touch()
    started.wait()
    ended = following.wait(code=7)
    assert re.fullmatch(r"launch: job \S+: failed, exit code 7 \(worker/1\)\n", ended.err)
    lines = [f"worker/{n} | {word}" for n in (0, 1) for word in ("first", "last")]
    assert sorted(ended.out.splitlines()) == lines


# ---------------------------------------------------------------------- in process lists


@pytest.mark.promise("`-x NAME`, `PRE*`, `NAME=VALUE`; no secret on a command line")
def test_pkill_finds_the_launcher_only(launch: Launch, family: Family):
    """``pkill -f launch`` ends a job orderly: neither its agent nor the agent's watchdog is hit, too.

    No command line has the value of a variable.
    """
    started = launch.start("-x", "TOK*", "--", "sleep", "60", env={"TOKEN": "s3cret"})
    (agent,) = soon(lambda: named(family.alive(), "sleep") and named(family.alive(), "launch-agent"))
    (watchdog,) = named(family.alive(), "launch-watchdog")
    assert b"launcher" in proc(started.pid, "cmdline") and b"s3cret" not in proc(started.pid, "cmdline")
    for pid in (agent, watchdog):
        assert proc(pid, "cmdline").rstrip(b"\0") == b"tf-agent localhost"
    assert started.stop(15).code == 143


# ---------------------------------------------------------------------- completion


_BASH = """
source "$1"
shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9; COMP_KEY=9
COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
complete -p launch | grep -o -- '-F [^ ]*' | { read _ name; $name launch "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"; }
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch", "lo"], ["logs"]),
        (["launch", "--work"], ["--workers", "--workdir"]),
        (["launch", "he"], ["help"]),
        (["launch", "help", "lo"], ["logs"]),
        (["launch", "--nn"], []),  # an option of other launchers
        (["launch", "run", "--on-failure", ""], ["stop", "continue"]),
        (["launch", "stop", "--n"], ["--now"]),
        (["launch", "st"], ["stacks", "stop", "steps.py"]),  # a program may stand where a command may
        (["launch", "ste"], ["steps.py"]),
        (["launch", "--hosts", "l"], ["lab.yaml"]),
        (["launch", "stop", "2"], ["20261121-080000-bbbbb"]),
        (["launch", "stop", "20261121-080000-bbbbb", "w"], ["worker/0", "worker/1"]),
        (["launch", "rm", "2"], ["20261121-070000-aaaaa", "20261121-080000-bbbbb"]),
        (["launch", "logs", "20261121-07"], ["20261121-070000-aaaaa"]),
        (["launch", "logs", "w"], ["worker/0", "worker/1"]),
        (["launch", "logs", "-f", "my"], ["my-role/0"]),
        (["launch", "export", "sl"], ["slurm"]),
        (["launch", "export", "slurm", "--work"], ["--workers", "--workdir"]),
    ],
)
def test_bash_completes(launch: Launch, tmp_path: Path, words: list[str], expected: list[str]):
    script, environ = _script_and_runs(launch, tmp_path)
    command = ["bash", "--norc", "-c", _BASH, "bash", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "here", env=environ)
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr


def _script_and_runs(launch: Launch, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The script; and two runs, the newer of which has not ended, and two files."""
    script = tmp_path / "launch.bash"
    script.write_bytes(launch.here("completion", "bash").stdout)
    runs = tmp_path / "state" / "tf-launcher" / "runs"
    plan = {"tasks": [{"task": task} for task in ("worker/0", "worker/1", "ps/0", "my-role/0")]}
    for name in ("20261121-070000-aaaaa", "20261121-080000-bbbbb"):
        (runs / name).mkdir(parents=True)
        (runs / name / "plan.json").write_text(json.dumps(plan))
    (runs / "20261121-070000-aaaaa" / "report.json").touch()
    (tmp_path / "here").mkdir()
    for name in ("steps.py", "lab.yaml"):
        (tmp_path / "here" / name).touch()
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return str(script), {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.mark.timeout(300)
def test_zsh_script(launch: Launch, tmp_path: Path):
    """Evaluated by zsh where there is one; else what can be seen without it."""
    ended = launch("completion", "zsh", code=0)
    assert ended.out.startswith("#compdef launch")
    if shutil.which("zsh"):
        (tmp_path / "_launch").write_text(ended.out)
        script = f"fpath=({tmp_path} $fpath); autoload -U compinit && compinit -u -D && autoload +X _launch"
        subprocess.run(["zsh", "-f", "-e", "-c", script], check=True)


# ---------------------------------------------------------------------- nested, and nowhere


def test_a_nested_launch_is_stopped_with_its_tasks(launch: Launch, family: Family):
    inner = [sys.executable, "-m", "launcher", "--workers", "2", "--"]
    words = [*inner, *stub("family", "child", "daemon", "sleep")]
    started = launch.start("--workers", "2", "-x", f"PYTHONPATH={ROOT}", "--", *words)
    started.until(lambda _: len(os.listdir(family.folder)) >= 4 * 3)
    assert started.stop(15).code == 143
    family.gone(0.5)


def test_clean_where_there_is_no_docker(launch: Launch, tmp_path: Path):
    """What is not there has nothing to clean."""
    ended = launch("clean", env={"PATH": str(tmp_path)})
    assert (ended.code, ended.out, ended.err) == (0, "nothing to remove\n", "")
    ended = launch("clean", "--foreign", "20260101-000000-abcde", env={"PATH": str(tmp_path)})
    assert ended.code == 125 and "nothing of this run is there" in ended.err


def test_clean_where_no_docker_engine_runs(launch: Launch, tmp_path: Path):
    says = "echo 'Cannot connect to the Docker daemon at unix:///x. Is it running?' >&2; exit 1"
    executable(tmp_path / "docker", f'#!/bin/sh\n[ "$1" = --version ] || {{ {says}; }}\n')
    ended = launch("clean", "--dry-run", env={"PATH": str(tmp_path)}, code=0)
    assert ended.out == "nothing to remove\n" and "no Docker engine responds" in ended.err
    ended = launch("clean", env={"PATH": str(tmp_path)}, code=125)
    assert "no Docker engine responds" in ended.err
