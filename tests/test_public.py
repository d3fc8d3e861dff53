"""What is public stays as it is: names, options, keys, files, labels, exit codes, requests to launchers.

The first tests collect facts by the command and the Python API, as users have them, and compare them with the
JSON files in ``tests/public``. After a change that is meant, ``make public`` renews these files, so that the
difference can be reviewed.

The last tests give the command what version 0.1 has left: a run that has ended (``tests/public/run``), one
whose launcher runs (``old_launcher.py``), died, or waits in a queue; and containers, Jobs and jobs of Slurm.
These files are never renewed, because users install a new version while they have runs of an old one.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import launcher
from launcher import data, testing

# The only module here that is not public: it lists the events.
from launcher.output.renderers import DisplayEvent
from tests.conftest import COMMAND, Ended, Launch, Started
from tests.public.facts import names_of, shape
from tests.seeing import RunFolder, asked, connected, soon

TOP = Path(__file__).resolve().parents[1]
FILES = TOP / "tests" / "public"
STORED = FILES / "run"
#: The name of the stored run.
RUN = "20261128-120000-first"
#: Events that no file and no program gets.
NOT_PUBLIC = {
    "Measured", "OutputDelayed", "StepsRead", "TaskStarted", "TaskNotStarted", "TaskExited", "TaskGone",
}  # fmt: skip
#: How objects name their launcher: pid, start, boot, user, machine, pid namespace, checksum of its id.
OWNER = r"\d+:\d+:[0-9a-f-]{36}:\d+:[\w.-]+:pid:\[\d+\]:[0-9a-f-]+"


def check(name: str, facts: object) -> None:
    """Compare facts with those of a file, or renew the file."""
    path = FILES / f"{name}.json"
    found = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("LAUNCH_RENEW_PUBLIC"):
        path.write_text(found)
    frozen = path.read_text()
    changes = difflib.unified_diff(frozen.splitlines(), found.splitlines(), "public", "found", "", "", 6, "")
    assert frozen == found, "\n".join(["this is public, see the top of tests/test_public.py", *changes])


# ---------------------------------------------------------------------- options, Python, events


def test_commands_and_their_options(launch: Launch):
    """A change of a description is none; one of its ``(default: X)`` is."""
    overview = launch.here("--help").out
    commands = re.findall(r"(?m)^  (\w+) ", overview.partition("\ncommands (")[2].partition("\n\n")[0])
    texts = {name: launch.here("help", name).out for name in commands}
    texts["run"] = launch.here("--help-all").out
    check("options", {name: dict(_rows(text)) for name, text in texts.items()})


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of options and arguments in a help text: what is typed, and its default."""
    sections = text.partition("\n\nexamples:\n")[0].split("\n\n")
    for section in sections:
        title, _, body = section.partition(":\n")
        if title.startswith(("usage", "commands")) or not body.startswith("  "):
            continue
        for row in re.sub(r"\n {4,}(?=\S)", " ", body).splitlines():
            name, _, description = row.strip().partition("  ")
            default = re.search(r"\(default: ([^,;)]+)", description)
            yield name, default[1] if default else ""


def test_names_of_the_python_api():
    modules = {"launcher": launcher, "launcher.data": data, "launcher.testing": testing}
    check("python", {name: names_of(module) for name, module in modules.items()})


def test_the_pytest_plugin(request: pytest.FixtureRequest):
    assert request.config.getoption("--cluster-backend") is None
    assert request.config.getini("cluster_backend") == "local"


def test_events():
    """As events.jsonl, ``launch --json`` and ``launch ps --watch --json`` have them."""
    kinds = {kind.__name__: sorted({"at", *kind._fields}) for kind in get_args(DisplayEvent)}
    check("events", {name: fields for name, fields in kinds.items() if name not in NOT_PUBLIC})


# ---------------------------------------------------------------------- a run


class Observed(NamedTuple):
    """What could be seen of a run of two tasks, one of which was started again, that was stopped."""

    run: RunFolder
    code: int
    #: The lines of ``launch --json``.
    printed: Sequence[Mapping[str, Any]]
    #: What `launch ps --json` printed, without a run and with it.
    runs: Any
    tasks: Any
    #: Request to the control socket -> the answer.
    answers: Mapping[str, Any]
    #: What a follower got.
    followed: Sequence[Mapping[str, Any]]
    #: The tag of the process of a task.
    tag: int

    @property
    def launcher(self) -> Any:
        """``launcher.json``."""
        return json.loads((self.run.path / "launcher.json").read_text())


#: The environment of that launch, with what else it needs.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0", "http_proxy": "http://proxy:1", "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A run that has ended."""
    home = tmp_path_factory.mktemp("public") / "home"
    home.mkdir()
    launch = Launch(home)
    environment = {**ENVIRONMENT, "PATH": os.environ["PATH"], **launch.environment()}
    variables = (f"{name}={value}" for name, value in environment.items())
    alone = ("env", "-i", *variables, *COMMAND)
    tasks = ("--ps", "1", "--workers", "1", "--gpus", "1", "--flags", "--output-dirs", "--restarts", "1")
    program = ("sh", "-c", "env; echo up; exec sleep 60")
    try:
        yield observe(launch, launch.start("--json", *tasks, "--", *program, command=alone))
    finally:
        for started in launch.started:
            started.kill()


def observe(launch: Launch, started: Started) -> Observed:
    """Look at all that a run shows, restart a task, and stop the run."""
    started.until(lambda it: it.out.count('"up"') == 2)
    (folder,) = launch.state.iterdir()
    measured, tasks = ({"request": "tasks", "measure": True}, {"request": "tasks"})
    answers = {json.dumps(measured): ask(folder.name, measured)}
    answers[json.dumps(tasks)] = soon(lambda: _measured(ask(folder.name, tasks)))
    runs, shown = (json.loads(launch.here("ps", "--json", *words).out) for words in ([], [folder.name]))
    limits = Path(f"/proc/{shown[0]['pid']}/limits").read_text()
    tag = int(re.findall(r"Max realtime timeout +(\d+)", limits)[0])
    with connected(folder.name) as follower:
        follow = {"request": "follow", "from": 1, "output": True}
        answers[json.dumps(follow)] = asked(follower, json.dumps(follow).encode())
        for task in ("worker/0", "no/0"):
            restart = {"request": "restart", "tasks": [task]}
            answers[json.dumps(restart)] = ask(folder.name, restart)
        started.until(lambda it: it.out.count('"up"') == 3)
        for task in ("ps/0", "no/0"):
            stop = {"request": "stop", "tasks": [task]}
            answers[json.dumps(stop)] = ask(folder.name, stop)
        assert launch.here("stop", folder.name).code == 0
        text = b"".join(iter(lambda: follower.recv(1 << 16), b""))
    code = started.wait().code
    printed, followed = ([json.loads(line) for line in lines.splitlines()] for lines in (started.out, text))
    return Observed(RunFolder(folder), code, printed, runs, shown, answers, followed, tag)


def _measured(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return None if answer["measuring"] else answer


def ask(run: str, request: Mapping[str, Any]) -> Any:
    """The answer to a request on a connection of its own."""
    with connected(run) as peer:
        return asked(peer, json.dumps(request).encode())


def _events(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The shape of each event, of those that each such run has on any machine."""
    names = {event["event"] for event in events} - {"HostGpus", "HostNotice", "TimeUp", "Tell", "Printed"}
    return {name: shape(*(event for event in events if event["event"] == name)) for name in names}


def test_files_of_a_run(observed: Observed):
    run = observed.run
    # The first sample is there when tasks have run for two seconds at most.
    names = sorted({"samples.jsonl", *(str(path.relative_to(run.path)) for path in run.path.rglob("*"))})
    files = {"launcher.json": observed.launcher, "plan.json": run.plan, "report.json": run.report}
    shapes = {name: shape(content) for name, content in files.items()}
    check("files", {"names": names, **shapes, "events.jsonl": _events(run.events)})
    assert b"\nlaunch: attempt 2 starts here\n" in run.log("worker/0")
    assert run.path.parts[-4:-1] == ("state", "tf-launcher", "runs")
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-z]{5}", run.path.name)


def test_json_of_a_run(observed: Observed, launch: Launch):
    """`launch --json`, `launch ps --json`, `launch ps --json RUN`, `launch report --json RUN`."""
    reported = json.loads(launch.here("report", "--json", observed.run.path).out)
    # A sample may have been taken before.
    tasks = [{**task, "cpu": None, "printed_at": None} for task in observed.tasks]
    listed = {"ps": shape(observed.runs), "ps RUN": shape(tasks), "report": shape(reported)}
    check("json-of-a-run", {"launch": _events(observed.printed), **listed})
    assert (observed.code, observed.run.report["exit_code"]) == (143, 143)


def test_the_control_socket(observed: Observed):
    """What an old client may ask; the other way round, see `test_a_launcher_that_runs`."""
    answers = {request: shape(answer) for request, answer in observed.answers.items()}
    check("control", {"answers": answers, "followers": _events(observed.followed)})
    assert [event["number"] for event in observed.followed if "number" in event][:3] == [1, 2, 3]


def test_variables_of_a_task(observed: Observed):
    lines = observed.run.log("worker/0").decode().partition("\nup\n")[0].splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    others = "XDG_|PATH|HOME|PWD|SHLVL|_|OLDPWD|LC_ALL|http_proxy"
    own = {name for name in variables if not re.match(others, name)}
    shapes = {name: shape(json.loads(variables[name])) for name in ("TF_CONFIG", "CLUSTER_SPEC")}
    same = ("JOB_NAME", "TASK_INDEX", "LAUNCH_ATTEMPT", "CUDA_VISIBLE_DEVICES", "grpc_proxy")
    values = {name: variables[name] for name in (*same, "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER")}
    check("variables", {"names": sorted(own), **shapes, **values})
    assert variables["TF_LAUNCHER_TASK"] == f"{observed.run.path.name}:worker/0"
    assert variables["OUTPUT_DIR"] == f"{observed.run.path}/output/worker-0"
    cluster, config = json.loads(variables["CLUSTER_SPEC"]), json.loads(variables["TF_CONFIG"])
    assert [variables["TASK_ADDRESS"]] == cluster["worker"] == config["cluster"]["worker"]


def test_the_mark_of_processes(observed: Observed):
    """A limit of each process of a run, by which a later `launch` finds what a killed one has left."""
    record = observed.launcher
    assert (observed.tag - (5 << 60)) >> 24 in record["agents"]
    boots = Path(f"/var/tmp/tf-launcher-{os.getuid()}/boots").read_text()
    assert f"{record['boot_id']} {record['pid_namespace']}\n" in boots


# ---------------------------------------------------------------------- files of the user, other JSON


def test_keys_of_files(launch: Launch, tmp_path: Path):
    """Each key that ``keys.json`` has is accepted, in a file of its own; others are refused."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    tables: Mapping[str, Mapping[str, Any]] = json.loads((FILES / "keys.json").read_text())
    refused = [
        f"{table}: {key}: {value}\n{ended.out}{ended.err}"
        for table, keys in tables.items()
        for key, value in keys.items()
        if (ended := WRITERS[table](launch, tmp_path, key, value)).code
    ]
    assert not refused, "\n".join(refused)
    assert {WRITERS[table](launch, tmp_path, "neverheardof", 1).code for table in tables} == {2}


def _in_job_file(launch: Launch, folder: Path, key: str, value: object, section: str = "") -> Ended:
    needed: Mapping[str, Mapping[str, Any]] = {
        "docker": {"image": "an-image"},
        "kubernetes": {"image": "an-image"},
        "slurm": {"nodes": 1},
    }
    role: dict[str, Any] = {"count": 1}
    job: dict[str, Any] = {"command": ["true"], "roles": {"worker": role}}
    if section == "worker":
        role[key] = value
        if key == "resources":
            role["image"] = "an-image"
        if key == "drain":
            job["roles"]["chief"] = 1
    elif section:
        job[section] = {**needed[section], key: value}
    else:
        job[key] = value
    (folder / "job.yaml").write_text(json.dumps(job))
    return launch.here("job.yaml", "--dry-run", cwd=folder)


def _in_defaults(launch: Launch, folder: Path, key: str, value: object) -> Ended:
    (folder / "launch.toml").write_text(f"{key} = {_toml(value)}\n")
    ended = launch.here("--dry-run", "true", cwd=folder)
    (folder / "launch.toml").unlink()
    return ended


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _in_hostfile(launch: Launch, folder: Path, key: str, value: object, in_host: bool = False) -> Ended:
    in_file: dict[str, Any] = {"hosts": ["node1"], key: value}
    hosts = {"hosts": [{"name": "node1", key: value}]} if in_host else in_file
    (folder / "hosts.yaml").write_text(json.dumps(hosts))
    return launch.here("hosts", "hosts.yaml", cwd=folder)


def _in_lines(launch: Launch, folder: Path, key: str, value: object) -> Ended:
    (folder / "hosts").write_text(f"node1 {key}={value}\n")
    return launch.here("hosts", "./hosts", cwd=folder)


WRITERS: Mapping[str, Callable[[Launch, Path, str, Any], Ended]] = {
    "job file": _in_job_file,
    "role": partial(_in_job_file, section="worker"),
    "docker": partial(_in_job_file, section="docker"),
    "kubernetes": partial(_in_job_file, section="kubernetes"),
    "slurm": partial(_in_job_file, section="slurm"),
    "launch.toml": _in_defaults,
    "hostfile": _in_hostfile,
    "host": partial(_in_hostfile, in_host=True),
    "line of a hostfile": _in_lines,
}


def test_json_of_other_commands(launch: Launch, tmp_path: Path):
    """`launch hosts --json`, `launch check --json`, `launch --dry-run --json`."""
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": [{"name": "node1", "slots": 2}]}))
    plan = ("--dry-run", "--json", "--ps", "1", "--workers", "2", "--flags", "--", "true")
    commands: Mapping[str, Sequence[Sequence[str]]] = {
        "hosts": [["hosts", "--json", str(tmp_path / "hosts.yaml")]],
        "check": [["check", "--json", "--python", python] for python in (sys.executable, "/bin/false")],
        "dry run": [plan],
    }

    def printed(words: Sequence[str]) -> Any:
        return json.loads(launch.here(*words, env={"CUDA_VISIBLE_DEVICES": "0"}).out)

    check("json-of-commands", {name: shape(*map(printed, each)) for name, each in commands.items()})


# ---------------------------------------------------------------------- exit codes


def test_exit_codes_of_commands(launch: Launch):
    """Those of `launch` are in `test_exit_codes_of_launch`."""
    words = (
        "--version", "--help", "--nonsense", "help nonsense", "ps", "ps nonsense", "ps --watch nonsense",
        "logs nonsense", "report nonsense", "attach nonsense", "stop", "stop nonsense",
        "restart nonsense worker/0", "hosts", "hosts a:b", "hosts no-such-file.yaml", "check --hosts a:b",
        "export", "export slurm -- true", "export compose --docker an-image -- true",
        "export kubernetes --docker an-image -- true", "clean --foreign nonsense", "completion bash",
        "completion fish", "./no-such-program", "/tmp", "--workers 1 no-such-job.yaml",
    )  # fmt: skip
    codes = {each: launch.here(*each.split(), env={"PATH": "/bin"}).code for each in words}
    check("exits-of-commands", codes)


@pytest.mark.promise("exit codes, the same everywhere")
def test_exit_codes_of_launch(launch: Launch):
    """Each code in the table of docs/errors.md."""
    ended = {
        "0": launch.start("true"),
        "1..255": launch.start("--", "sh", "-c", "exit 3"),
        "128 + n": launch.start("--", "sh", "-c", "kill -9 $$"),
        "124 --timeout": launch.start("--timeout", "0.3", "sleep", "60"),
        "124 --stall": launch.start("--stall", "0.3", "sleep", "60"),
        "125 could not be written": launch.start("--report", "/dev/full", "true"),
        "126": launch.start("/tmp"),
        "127": launch.start("./no-such-program"),
        "141": launch.start("--", "sh", "-c", _CHATTY, command=("bash", "-c", _INTO_HEAD, sys.executable)),
    }
    codes = {"INT": 130, "TERM": 143, "HUP": 129, "QUIT": 131, "PWR": 158, "USR1": 124}
    signalled = {name: launch.start("--", "sh", "-c", "echo up; exec sleep 60") for name in codes}
    for name, started in signalled.items():
        started.until(lambda it: "up" in it.out)
        started.send(getattr(signal, f"SIG{name}"))
    table = (TOP / "docs" / "errors.md").read_text().partition("\n| code |")[2].partition("\n\n")[0]
    documented = re.findall(r"(?m)^\| ([\d., n+]+) \|", table)
    found = {name: started.wait().code for name, started in {**ended, **signalled}.items()}
    check("exits-of-launch", {"documented": documented, **found})


#: Prints until it is ended; and a command whose output is closed after its first line.
_CHATTY = "while echo up; do sleep 0.05; done"
_INTO_HEAD = '"$0" -m launcher "$@" | head -1 >/dev/null; exit ${PIPESTATUS[0]}'


# ---------------------------------------------------------------------- runs of version 0.1


#: What ``launcher.json`` says about the process of the launcher.
IDENTITY = ("pid", "start_ticks", "boot_id", "machine", "pid_namespace", "machine_id")


def store(launch: Launch, *left_out: str, **changed: object) -> Path:
    """Put the stored run among those of the user, with changes to ``launcher.json``. Returns its folder."""
    folder = launch.state / RUN
    shutil.copytree(STORED, folder, ignore=shutil.ignore_patterns("answers.json", *left_out))
    record = json.loads((folder / "launcher.json").read_text())
    record = {name: value for name, value in {**record, **changed}.items() if value is not None}
    (folder / "launcher.json").write_text(json.dumps(record))
    return folder


def test_a_run_that_has_ended(launch: Launch):
    folder = store(launch)
    report = json.loads((folder / "report.json").read_text())
    (run,) = json.loads(launch.here("ps", "--all", "--json").out)
    tasks = json.loads(launch.here("ps", "--json", RUN).out)
    assert run.pop("run_dir") == str(folder)
    check("stored-run", {"ps": run, "ps RUN": tasks})
    assert all(task.items() >= kept.items() for task, kept in zip(tasks, report["tasks"], strict=True))
    logs = {task: (folder / "logs" / f"{task}.log").read_bytes() for task in ("ps-0", "worker-0")}
    assert launch.here("logs", RUN, "worker/0").stdout == logs["worker-0"]
    assert launch.here("logs", RUN).out.count("\n") == sum(log.count(b"\n") for log in logs.values())
    assert "SIGTERM" in launch.here("ps", "first").out
    codes = {"attach": 143, "logs -f": 143, "logs": 0, "report": 0, "stop": 0, "restart": 125}
    tasks = {"restart": ["worker/0"]}
    assert codes == {each: launch.here(*each.split(), RUN, *tasks.get(each, [])).code for each in codes}


class OldLauncher:
    """`tests/public/old_launcher.py`, which runs."""

    def __init__(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True)
        argv = [sys.executable, "-I", "-S", str(FILES / "old_launcher.py"), str(folder)]
        self._output = folder.parents[3] / "old-launcher"
        with open(self._output, "wb") as file:
            self.process = subprocess.Popen(argv, stdout=file)
        soon(lambda: self.said())

    def said(self) -> list[Mapping[str, Any]]:
        """What it has printed so far: requests, and how it was asked to stop."""
        return [json.loads(line) for line in self._output.read_text().splitlines()]

    def __enter__(self) -> OldLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_a_launcher_that_runs(launch: Launch):
    """A new version asks an old launcher only what that understands."""
    with OldLauncher(launch.state / RUN) as old:
        (run,) = json.loads(launch.here("ps", "--json").out)
        tasks, reported = (json.loads(launch.here(each, "--json", RUN).out) for each in ("ps", "report"))
        words = (["attach"], ["logs", "-f"], ["ps", "-w", "--json"])
        followers = [launch.start(*each, RUN) for each in words]
        soon(lambda: sum(said.get("request") == "follow" for said in old.said()) == len(followers))
        restarted = launch.here("restart", RUN, "worker/0", "--timeout", "5")
        stopped = launch.here("stop", RUN, "--timeout", "10")
        attached, logs, watched = (each.wait() for each in followers)
        assert (run["run"], run["state"], run["pid"]) == (RUN, "running", old.process.pid)
        assert all(task["state"] == "running" and task["memory"] > 1 << 16 for task in tasks)
        assert (reported["state"], len(reported["tasks"])) == ("running", len(tasks))
        assert (restarted.code, stopped.code) == (0, 0), restarted.err + stopped.err
        assert (attached.code, logs.code, watched.code) == (143, 143, 0)
        assert "up" in attached.out and "up" in logs.out
        moves = map(json.loads, watched.out.splitlines())
        assert ("worker/0", 2, "running") in {(it["task"], it["attempt"], it["state"]) for it in moves}
        assert old.said()[-1] == {"stop-asked": ""}


def test_a_launcher_that_is_stopped_at_once(launch: Launch):
    with OldLauncher(launch.state / RUN) as old:
        assert launch.here("stop", "--now", "--timeout", "10").code == 0
        assert old.said()[-1] == {"stop-asked": "now"}


def test_a_launcher_that_died(launch: Launch, observed: Observed):
    """What it has left is found by the mark of processes."""
    agent = 4711
    own = {name: observed.launcher[name] for name in IDENTITY}
    store(launch, "report.json", "launcher.log", **own, agents=[agent])
    limit = resource.RLIMIT_RTTIME
    mark = ((5 << 60) + (agent << 24) + 1, resource.getrlimit(limit)[1])
    left = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: resource.setrlimit(limit, mark))
    (run,) = json.loads(launch.here("ps", "--all", "--json").out)
    assert (run["state"], run["exit_code"]) == ("died", None)
    assert left.wait(10) == -signal.SIGKILL, "launch ps kills it"
    assert launch.here("logs", RUN, "worker/0").stdout == (STORED / "logs" / "worker-0.log").read_bytes()
    codes = {"attach": 125, "ps": 125, "report": 0, "restart": 125, "stop": 0}
    tasks = {"restart": ["worker/0"]}
    assert codes == {each: launch.here(each, RUN, *tasks.get(each, [])).code for each in codes}


def test_an_environment_of_launch_prepare(launch: Launch):
    folder = launch.home / ".local" / "share" / "tf-launcher" / "environments"
    (folder / "0a1b2c-py3.11.x" / "bin").mkdir(parents=True)
    (folder / "0a1b2c-py3.11.x" / "bin" / "python").symlink_to(sys.executable)
    (folder / "0a1b2c-py3.11.x" / "environment.json").write_text("{}")
    (folder / "tf").symlink_to("0a1b2c-py3.11.x")
    ended = launch("--venv", "tf", "--", "sh", "-c", "echo in $VIRTUAL_ENV", env={"XDG_DATA_HOME": ""})
    assert f"in {folder}/0a1b2c-py3.11.x\n" in ended.out, ended.err


# ---------------------------------------------------------------------- containers, Jobs, jobs of Slurm


class Clusters:
    """`tests/public/clusters.py` in place of the commands of Docker, Kubernetes and Slurm."""

    COMMANDS = ("docker", "kubectl", "squeue", "scontrol", "scancel", "salloc", "sbatch", "srun")

    def __init__(self, folder: Path, objects: Mapping[str, Any]) -> None:
        self._folder = folder
        folder.mkdir()
        program = (FILES / "clusters.py").read_text()
        for name in self.COMMANDS:
            (folder / name).write_text(f"#!{sys.executable} -ISB\n{program}")
            (folder / name).chmod(0o755)
        objects = {"docker": {}, "kubernetes": {}, "slurm": [], **objects}
        (folder / "objects.json").write_text(json.dumps(objects))
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}"}

    def calls(self, command: str, *words: str) -> list[Mapping[str, Any]]:
        """The calls of a command that have all these words."""
        calls = map(json.loads, (self._folder / "calls.jsonl").read_text().splitlines())
        return [call for call in calls if call["command"] == command and {*words} <= {*call["words"]}]


def test_what_launches_make(launch: Launch, tmp_path: Path):
    """Names and labels, by which later commands find it."""
    clusters = Clusters(tmp_path / "bin", {"docker": {"containers": [], "networks": []}})
    options = (
        "--docker an-image --keep", "--kubernetes an-image", "--kubernetes an-image -d", "--slurm",
        "--slurm -d --restarts 1",
    )  # fmt: skip
    started = [launch.start(*words.split(), "--workers", "1", "true", env=clusters.env) for words in options]
    assert {each.wait().code for each in started} == {125}, [each.err for each in started]
    (network,) = clusters.calls("docker", "network", "create")
    (container,) = clusters.calls("docker", "run")
    (salloc,), (sbatch,) = clusters.calls("salloc"), clusters.calls("sbatch")
    created = [json.loads(call["stdin"])["items"] for call in clusters.calls("kubectl", "create")]
    jobs = [item for items in created for item in items if item["kind"] == "Job"]
    jobs.sort(key=lambda job: "annotations" in job["metadata"])
    chosen = ("--job-name", "--comment", "--output", "--requeue", "--no-kill")
    made = {
        "docker network": [_labels(network), network["words"][-1]],
        "docker container": [_labels(container), container["words"][container["words"].index("--name") + 1]],
        "kubernetes": [[job["metadata"], job["spec"]["template"]["metadata"]["labels"]] for job in jobs],
        "slurm": [[word for word in call["words"] if word.startswith(chosen)] for call in (salloc, sbatch)],
        "variables of sbatch": sbatch["variables"],
    }  # fmt: skip
    # The name of this machine may be so short that the random name of a run contains it.
    text = re.sub(r"\d{8}-\d{6}-[0-9a-z]{5}", "RUN", json.dumps(made).replace(str(launch.state), "RUNS"))
    text = text.replace(os.uname().nodename, "MACHINE")
    check("labels", json.loads(re.sub(OWNER.replace(r"[\w.-]+", "MACHINE"), "OWNER", text)))


def _labels(call: Mapping[str, Any]) -> list[str]:
    words = call["words"]
    return sorted(after for word, after in zip(words, words[1:], strict=False) if word == "--label")


def test_clean(launch: Launch, tmp_path: Path, observed: Observed):
    """Removes what a launcher that has ended has labelled, and leaves what one elsewhere may have made."""
    record = observed.launcher
    fields = [record[name] for name in IDENTITY]
    dead = ":".join(map(str, [*fields[:3], os.getuid(), *fields[3:]]))
    assert re.fullmatch(OWNER, dead)
    boot = "11111111-2222-3333-4444-555555555555"
    unknown = dead.replace(record["boot_id"], boot).replace(record["machine"], "other")
    clusters = Clusters(tmp_path / "bin", _objects(dead=dead, unknown=unknown))
    ended = [launch.here("clean", *words, env=clusters.env) for words in ([], ["--kubernetes"])]
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    removals = (["docker", "rm"], ["kubectl", "delete"], ["scancel"])
    removed = [call["words"] for words in removals for call in clusters.calls(*words)]
    named = [word for words in removed for word in words if word in ("dead", "unknown", "11", "12")]
    assert sorted(named) == ["11", "dead", "dead", "dead"], "at Slurm; a container, a network, a Job"
    assert "on other" in "".join(each.err for each in ended)
    assert launch.here("clean", "--foreign", RUN, env=clusters.env).code == 0
    assert len(clusters.calls("docker", "rm", "unknown")) == 2
    assert len(clusters.calls("scancel", "12")) == 1


def _objects(**owners: str) -> Mapping[str, Any]:
    """What launches have left, each with the label of its launcher."""
    pod_labels = {**MANAGED, "tf-launcher/run": RUN, "tf-launcher/host": "worker-0"}
    docker, jobs, slurm = [], [], []
    for number, (name, owner) in enumerate(owners.items(), 11):
        labels = {"tf-launcher.owner": owner, "tf-launcher.job": RUN}
        docker.append({"ID": name, "Name": f"tf-launcher-{RUN}-{name}", "labels": labels})
        annotations = {"tf-launcher/owner": owner}
        metadata = {"name": name, "namespace": "ml", "labels": pod_labels, "annotations": annotations}
        jobs.append({"metadata": metadata})
        fields = {"A": str(number), "j": f"launch-{RUN}", "T": "RUNNING"}  # the letters are those of squeue
        slurm.append({**fields, "batch": "0", "comment": f"launch@node1:{owner}"})
    found = {"docker": {"containers": docker, "networks": docker}, "kubernetes": {"jobs": jobs}}
    return {**found, "slurm": slurm}


MANAGED = {"app.kubernetes.io/managed-by": "tf-launcher"}
#: Changes of ``launcher.json`` for a launcher that is elsewhere.
NOT_HERE = dict.fromkeys((*IDENTITY, "agents"))


def test_a_launcher_that_waits_in_a_queue_of_slurm(launch: Launch, tmp_path: Path):
    store(launch, "report.json", "plan.json", "events.jsonl", batch=["slurm", "", "", ""], **NOT_HERE)
    job = {"A": "12", "j": f"launch-{RUN}", "T": "PENDING", "r": "Priority", "S": "N/A"}
    clusters = Clusters(tmp_path / "bin", {"slurm": [job]})
    (run,) = json.loads(launch.here("ps", "--json", env=clusters.env).out)
    assert (run["run"], run["state"]) == (RUN, "pending") and "12" in run["queued"]
    assert launch.here("stop", RUN, env=clusters.env).code == 0
    (call,) = clusters.calls("scancel")
    assert f"--name=launch-{RUN}" in call["words"]


def test_a_launcher_in_a_pod(launch: Launch, tmp_path: Path):
    """The command asks the launch in the pod, which is of the old version."""
    batch = ["kubernetes", f"ml/launch-{RUN}-launcher", "pod-1", "prod"]
    store(launch, "report.json", "plan.json", "events.jsonl", batch=batch, **NOT_HERE)
    labels = {**MANAGED, "tf-launcher/launcher": RUN, "tf-launcher/host": "launcher"}
    container = {"name": "task", "state": {"running": {"startedAt": "2026-11-28T12:00:00Z"}}}
    status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [container]}
    pod = {"metadata": {"name": "pod-1", "uid": "uid-1", "labels": labels}, "status": status}
    clusters = Clusters(tmp_path / "bin", {"kubernetes": {"pods": [pod]}})
    (run,) = json.loads(launch.here("ps", "--json", env=clusters.env).out)
    assert (run["run"], run["state"]) == (RUN, "running")
    answered = ("logs RUN worker/0", "ps RUN", "ps -w --json RUN", "restart RUN worker/0")
    codes = {**dict.fromkeys(answered, 0), "attach RUN": 125}
    words = {each: each.replace("RUN", RUN).split() for each in codes}
    assert codes == {each: launch.here(*words[each], env=clusters.env).code for each in codes}
    calls = [call["words"] for call in clusters.calls("kubectl", "exec", "pod/pod-1", "--container=task")]
    assert all({"--context=prod", "--namespace=ml"} <= {*words} for words in calls)
    asked = [" ".join(words[words.index("--") + 1 :]) for words in calls]
    check("asked-in-pods", [text for text in asked if text.startswith("/tmp/launch/bin/launch ")])
