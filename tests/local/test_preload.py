"""``--preload``: a task that is forked with its modules imported is like one with a Python of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch
from tests.seeing import Family, RunFolder, alive, command_line, last_run, named, soon

#: A module that takes long to import: it writes down by whom it was imported.
HEAVY = """
import os, sys
if os.environ.get("THREADS"):
    import threading, time
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{os.getpid()}\\n")
os.environ["SET_BY_HEAVY"] = "1"
if os.environ.get("SLEEP"):
    import time
    time.sleep(float(os.environ["SLEEP"]))
"""
#: Prints all that a program can see of how it was started.
LOOK = """
import heavy, os, resource, signal, sys
def shown(name):
    return repr(globals().get(name, "none"))
if __name__ == "__main__":
    print(sys.argv, sys.path, sys.flags, sys.executable, getattr(sys, "orig_argv", None))
    print(*map(shown, ("__name__", "__file__", "__package__", "__cached__", "__doc__")))
    print(type(__loader__), __spec__ and __spec__.name)
    print(sorted(globals()), os.getcwd(), os.readlink("/proc/self/fd/0"), sorted(os.listdir("/proc/self/fd")))
    own = ("JOB_NAME", "TASK_ADDRESS", "TF_CONFIG", "CLUSTER_SPEC", "TF_LAUNCHER_TASK")
    print(sorted((name, value) for name, value in os.environ.items() if name not in own))
    os.system("env | sort | grep -Ev '^(%s)='" % "|".join(own))
    print([(number, signal.getsignal(number)) for number in sorted(signal.valid_signals())])
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), resource.getrlimit(resource.RLIMIT_NOFILE))
    print(os.getsid(0) == os.getpid() == os.getpgrp(), os.umask(0), sys.stdin.read())
    print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding, sys.stdout.errors)
    print(open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"))
"""
EXCEPTION = "def f(): raise ValueError('it failed')\nf()\n"
AT_END = """
import atexit, threading, time, sys
kept = open(sys.argv[1], "w"); kept.write("not flushed")
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
sys.stdout.write("no newline")
"""
POOL = """
import multiprocessing, os, sys
def square(number):
    return number * number, __name__, os.getppid() == PARENT
PARENT = os.getppid()
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print([found[:2] for found in pool.map(square, range(5))])
"""
HOOK = "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\n1 / 0\n"

#: Roles, each with a command; ``{}`` is the folder of the programs.
CASES: dict[str, list[str]] = {
    "script": ["look.py", "a", "--b", ""],
    "dotted": ["./sub/../look.py"],
    "absolute": ["{}/link.py"],
    "module": ["-m", "look", "a"],
    "package": ["-m", "package", "a"],
    "missing-module": ["-m", "no_such_module"],
    "code": ["-c", LOOK, "a"],
    "exit-3": ["-c", "import sys; sys.exit(3)"],
    "exit-none": ["-c", "import sys; sys.exit()"],
    "exit-text": ["-c", "import sys; sys.exit('a text')"],
    "exit-300": ["-c", "raise SystemExit(300)"],
    "exit-now": ["-c", "import os; print('lost?'); os._exit(7)"],
    "exception": ["exception.py"],
    "exception-module": ["-m", "exception"],
    "exception-code": ["-c", EXCEPTION],
    "hook": ["hook.py"],
    "syntax": ["syntax.py"],
    "interrupt": ["-c", "raise KeyboardInterrupt"],
    "signal": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
    "crash": ["-c", "import ctypes; ctypes.string_at(0)"],
    "end": ["end.py", "{}/kept"],
    "pool": ["pool.py"],
    "plain": ["sh", "-c", "echo $0"],
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    (folder / "package").mkdir(parents=True)
    (folder / "sub").mkdir()
    texts = {
        "heavy": HEAVY, "look": LOOK, "package/__main__": LOOK, "package/__init__": "",
        "exception": EXCEPTION, "end": AT_END, "pool": POOL, "hook": HOOK, "syntax": "1 +\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "link.py").symlink_to("sub/real.py")
    (folder / "sub/real.py").write_text(LOOK)
    (tmp_path / "modules").mkdir()
    (folder / "heavy.py").rename(tmp_path / "modules/heavy.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("IMPORTED", str(tmp_path / "imported"))
    monkeypatch.chdir(folder)
    return folder


def _imports(programs: Path) -> int:
    """How often the heavy module was imported."""
    imported = programs.parent / "imported"
    return len(imported.read_text().splitlines()) if imported.exists() else 0


def _job(folder: Path, commands: dict[str, list[str]]) -> str:
    """A job file with a role for each command."""
    roles = {name: {"command": words} for name, words in commands.items()}
    text = json.dumps({"roles": roles, "on_failure": "continue"}).replace("{}", str(folder))
    (folder / "job.yaml").write_text(text)
    return str(folder / "job.yaml")


def _ends(run: RunFolder, names: dict[str, list[str]]) -> dict[str, tuple[Any, ...]]:
    tasks = {name: run.task(f"{name}/0") for name in names}
    logs = {name: run.log(f"{name}/0").decode() for name in names}
    return {name: (task["status"], logs[name].splitlines()) for name, task in tasks.items()}


@pytest.mark.promise("`--preload`: forked tasks are like cold ones")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_forked_task_is_like_a_cold_one(launch: Launch, family: Family, programs: Path, unbuffered: str):
    more = ["-x", f"PYTHONUNBUFFERED={unbuffered}", _job(programs, CASES)]
    launch(*more, timeout=100)
    cold = _ends(last_run(launch), CASES)
    assert (programs / "kept").read_text() == "not flushed"
    (programs / "kept").unlink()
    (programs.parent / "imported").unlink()
    ended = launch("--preload", "heavy", *more, timeout=100)
    forked = _ends(last_run(launch), CASES)
    for ends in (cold, forked):  # faulthandler shows the frames of the template too
        ends["crash"] = (ends["crash"][0], ends["crash"][1][0])
    for name, end in cold.items():
        assert forked[name] == end, name
    assert (programs / "kept").read_text() == "not flushed"
    assert "no effect" not in ended.err
    # Processes of multiprocessing's spawn do not import it, as their program does not.
    assert _imports(programs) == 1
    family.gone(1.0)


def test_variables_that_are_read_early_make_a_template_of_their_own(
    launch: Launch, family: Family, programs: Path
):
    look = ["-c", "import heavy, os; print(os.environ['OMP_NUM_THREADS'], os.environ['OWN'])"]
    threads = {"a": "1", "b": "1", "c": "2"}
    env = {name: {"OMP_NUM_THREADS": number, "OWN": name} for name, number in threads.items()}
    roles = {name: {"command": look, "env": env[name]} for name in threads}
    (programs / "job.yaml").write_text(json.dumps({"roles": roles, "preload": "heavy"}))
    launch("job.yaml", code=0)
    logs = [last_run(launch).log(f"{name}/0") for name in "abc"]
    assert logs == [b"1 a\n", b"1 b\n", b"2 c\n"]
    assert _imports(programs) == 2


# ---------------------------------------------------------------------- cold all the same


@pytest.mark.parametrize(
    ("module", "variable", "why"),
    [
        ("no_such_module", "", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("heavy", "THREADS", "4 threads run after the import"),
        ("heavy,no_such_module", "", "ModuleNotFoundError"),
        ("antigravity_exit", "", "SystemExit: 3"),
        ("exits_at_once", "", "its process exited with code 7"),
    ],
)
def test_where_a_fork_is_not_safe_tasks_start_cold(
    launch: Launch, family: Family, programs: Path, module: str, variable: str, why: str
):
    (programs.parent / "modules/antigravity_exit.py").write_text("raise SystemExit(3)")
    (programs.parent / "modules/exits_at_once.py").write_text("import os\nos._exit(7)")
    more = ["-x", f"{variable}=1"] if variable else []
    words = ["--workers", "2", "-c", "import heavy; print('it ran')"]
    ended = launch("--preload", module, *more, *words, code=0)
    assert ended.out.count("it ran") == 2
    (line,) = [line for line in ended.err.splitlines() if "--preload" in line]
    assert why in line and f"--preload {module} has no effect" in line
    family.gone(1.0)


def test_a_program_that_is_missing_is_reported_as_ever(launch: Launch, family: Family, programs: Path):
    (programs / "gone.py").write_text("")
    job = _job(programs, {"a": ["gone.py"], "b": ["-c", "print('b')"]})
    # It goes while the modules are imported, after the check before the start.
    started = launch.start("--preload", "heavy", "-x", "SLEEP=2", job)
    soon(lambda: _imports(programs))
    (programs / "gone.py").unlink()
    ended = started.wait(code=127)
    assert "program not found: 'gone.py'" in ended.err
    assert "has no effect" not in ended.err


def test_a_template_that_is_killed(launch: Launch, family: Family, programs: Path):
    started = launch.start("--preload", "heavy", "-x", "SLEEP=60", "-c", "print('it ran')")
    soon(lambda: _imports(programs))
    os.kill(int((programs.parent / "imported").read_text()), signal.SIGKILL)
    ended = started.wait(code=0)
    assert "it ran" in ended.out
    assert "--preload heavy has no effect: its process was killed by SIGKILL" in ended.err


# ---------------------------------------------------------------------- the end


def test_ctrl_c_while_modules_are_imported(launch: Launch, family: Family, programs: Path):
    # A task that waits for its imports is started without them, and stopped. A short one could end before.
    long = "import time; time.sleep(60)"
    started = launch.start("--preload", "heavy", "--workers", "2", "-x", "SLEEP=60", "-c", long)
    soon(lambda: _imports(programs))
    started.until(lambda it: "to start: --preload imports heavy first" in it.err)
    assert started.stop(signal.SIGINT).code == 130
    assert set(last_run(launch).states().values()) == {"stopped"}
    family.gone(1.0)


def test_the_stop_sequence_of_a_forked_task(launch: Launch, family: Family, programs: Path):
    code = "import heavy, signal, time; signal.signal(15, signal.SIG_IGN); print('up')\ntime.sleep(600)"
    started = launch.start("--preload", "heavy", "--workers", "2", "--grace", "0.5", "-c", code).up(2)
    ended = started.stop(signal.SIGINT, code=130)
    assert ended.out.count("Fatal Python error: Aborted") == 2
    assert [last_run(launch).task(f"worker/{n}")["status"]["signal"] for n in (0, 1)] == [6, 6]
    family.gone(1.0)


@pytest.mark.parametrize(
    ("process", "when"),
    [
        ("launch-agent", "importing"), ("launch-watchdog", "running"), ("launcher", "importing"),
        ("launcher", "running"), ("both", "running"),
    ],
)  # fmt: skip
def test_whichever_is_killed_no_template_is_left(
    launch: Launch, family: Family, programs: Path, process: str, when: str
):
    slow = ["-x", "SLEEP=60"] if when == "importing" else []
    code = "import heavy, time; print('up'); time.sleep(600)"
    started = launch.start("--preload", "heavy", *slow, "--workers", "2", "--grace", "1", "-c", code)
    soon(lambda: _imports(programs))
    if when == "running":
        started.up(2)
    names = ["launch-watchdog", "launch-agent"] if process == "both" else [process]
    pids = [started.pid] if process == "launcher" else [named(family.alive(), name)[0] for name in names]
    (template,) = (pid for pid in family.alive() if command_line(pid).startswith("launch-template"))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    if process == "launcher":
        started.kill()
    else:
        assert started.wait().code == 125
    if process != "both":  # else the next launch kills the tasks
        family.gone(5.0)
    elif when == "running":
        soon(lambda: not alive(template))


# ---------------------------------------------------------------------- TensorFlow

SERVER = """
import json, os
import numpy as np, tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(config["cluster"], job_name=task["type"], task_index=task["index"])
dataset = tf.data.Dataset.range(100).map(lambda number: number * 2, num_parallel_calls=2)
print("sum", int(sum(dataset.as_numpy_iterator())), server.target)
print("random", np.random.rand(), float(tf.random.normal(())))
"""


@pytest.mark.promise("`--preload`: forked tasks are like cold ones")
@pytest.mark.tensorflow
@pytest.mark.long
@pytest.mark.timeout(200)
def test_tensorflow_is_imported_once(launch: Launch, family: Family, tmp_path: Path):
    (tmp_path / "server.py").write_text(SERVER)
    python = os.environ.get("LAUNCH_TEST_PYTHON", sys.executable)
    words = ["--preload", "tensorflow", "--python", python, "-x", "TF_CPP_MIN_LOG_LEVEL=2"]
    ended = launch(*words, "--workers", "4", str(tmp_path / "server.py"), timeout=150, code=0)
    assert "no effect" not in ended.err
    assert ended.out.count("| sum 9900 grpc://") == 4
    numbers = [line.split()[3:] for line in ended.out.splitlines() if "| random" in line]
    assert len(set(map(tuple, numbers))) == 4 and len({number for pair in numbers for number in pair}) == 8
    # A cold start of TensorFlow takes seconds of the CPU.
    assert all(task["cpu_s"] < 1.5 for task in last_run(launch).report["tasks"])
