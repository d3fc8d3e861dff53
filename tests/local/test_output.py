"""What a job prints: whole lines on the console, every byte in the logs, bounded memory."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch, Started, in_shell
from tests.seeing import Family, last_run, named, resident, stub

MiB = 1 << 20
#: What launcher and agent may each have resident, whatever is printed.
ROOM = 150 * MiB


def _piped(tail: str) -> tuple[str, ...]:
    """The command with its output into another one; the exit code is its own."""
    return in_shell(f'"$@" | {tail}; exit ${{PIPESTATUS[0]}}', "bash")


@pytest.mark.promise("whole lines with prefixes, never torn")
def test_whole_lines_with_prefixes(launch: Launch):
    ended = launch("--workers", "4", "--", *stub("printer", "lines", 3000), code=0)
    lines = ended.out.splitlines()[:12000]
    for task in range(4):
        mine = [line for line in lines if line.startswith(f"worker/{task} | ")]
        assert mine == [f"worker/{task} | {task}:{n}:{'y' * (n * 7 % 150)}:end" for n in range(3000)]
        assert last_run(launch).log(f"worker/{task}").count(b"\n") == 3000


STARTS_AS_TENSORFLOW_DOES = """
import sys
message = "I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on"
print(message, "step 1", message, "step 2", sep="\\n", flush=True)
"""


@pytest.mark.promise("TensorFlow's start-up messages are hidden everywhere, and nothing else is")
def test_start_up_messages_are_hidden(launch: Launch):
    words = ["--workers", "2", "-c", STARTS_AS_TENSORFLOW_DOES]
    said = "launch: hid 4 TensorFlow start-up messages (-v shows them)\n"

    def seen(*arguments: str) -> tuple[int, int, bool]:
        ended = launch(*arguments, code=0)
        return ended.out.count("| step "), ended.out.count("port.cc"), said in ended.err

    assert seen(*words) == seen("--fold", *words) == (4, 0, True)
    assert seen("-v", *words) == seen("--verbose", "--fold", *words) == (4, 4, False)
    assert seen("logs") == seen("logs", "-f") == (4, 0, True)
    assert seen("logs", "-v") == seen("logs", "-f", "-v") == seen("logs", "worker") == (4, 4, False)
    assert launch("logs", "worker/0").stdout == last_run(launch).log("worker/0")
    assert (
        launch("--json", *words).out.count("port.cc")
        == last_run(launch).log("worker/0").count(b"port.cc") * 2
        == 4
    )
    launch(*words[2:], code=0)
    assert [launch("logs", *more).out.count("port.cc") for more in ([], ["-f"], ["-v"])] == [0, 0, 2]
    launch("-d", *words, code=0)
    assert seen("attach") == (4, 0, True)
    assert seen("attach", "-v") == (4, 4, False)


@pytest.mark.promise("progress bars do not flood")
@pytest.mark.parametrize(("kind", "last"), [("progress", "2000/2000 done"), ("backspace", "002000")])
def test_a_line_that_is_rewritten_does_not_flood(launch: Launch, kind: str, last: str):
    ended = launch("--", *stub("printer", kind, 2000))
    shown = [line for line in ended.out.splitlines() if line.startswith("worker/0 | ")]
    assert shown[-1] == f"worker/0 | {last}"
    assert len(shown) <= 2 + ended.elapsed
    assert last_run(launch).log("worker/0").count(b"\r" if kind == "progress" else b"\b") >= 2000


@pytest.mark.promise("logs have every byte; a bad byte loses nothing")
def test_binary(launch: Launch):
    """Every byte is in the log; the console gets text that can't harm a terminal."""
    ended = launch("--", *stub("printer", "binary", 20))
    assert last_run(launch).log("worker/0") == bytes(range(256)) * 20 + b"\n"
    assert ended.code == 0
    shown = ended.stdout.partition(b"TASK")[0]
    assert shown.decode("utf-8")
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", shown)


@pytest.mark.promise("logs have every byte; a bad byte loses nothing")
def test_one_bad_byte_loses_nothing(launch: Launch):
    ended = launch("--", "sh", "-c", r"printf 'before \377 after\nna\303\257ve'")
    assert "worker/0 | before \N{REPLACEMENT CHARACTER} after\nworker/0 | naïve\n" in ended.out
    assert last_run(launch).log("worker/0") == b"before \xff after\nna\xc3\xafve"


# ---------------------------------------------------------------------- much


def _largest(started: Started, family: Family, seconds: float) -> dict[str, int]:
    """The largest resident sizes of launcher and agent until the end."""
    largest = {"launcher": 0, "launch-agent": 0}
    agents: list[int] = []
    end = time.monotonic() + seconds
    while started.process.poll() is None:
        assert time.monotonic() < end, f"still running after {seconds} s"
        agents = [*filter(resident, agents)] or named(family.alive(), "launch-agent")
        largest["launcher"] = max(largest["launcher"], resident(started.pid))
        largest["launch-agent"] = max(largest["launch-agent"], *map(resident, agents), 0)
        time.sleep(0.02)
    assert all(largest.values())
    return largest


@pytest.mark.promise("bounded memory")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["--quiet", "--json", "--show=worker"])
def test_a_line_without_an_end(launch: Launch, family: Family, how: str):
    """256 MiB of it where only the log takes it, less where it is shown too: bounded memory, nothing lost."""
    size = 256 if how == "--quiet" else 64
    started = launch.start(how, "--", *stub("printer", "endless", size))
    largest = _largest(started, family, 250)
    ended = started.wait(code=0)
    assert max(largest.values()) < ROOM, {name: f"{size / MiB:.0f} MiB" for name, size in largest.items()}
    log = last_run(launch).path / "logs" / "worker-0.log"
    assert log.stat().st_size == size * MiB
    if how != "--quiet":
        assert ended.stdout.count(b"x") >= size * MiB
    log.unlink()


# ---------------------------------------------------------------------- readers and disks


@pytest.mark.promise("slow, stopped, closed readers")
def test_a_reader_that_closes_its_pipe_ends_the_job(launch: Launch, family: Family):
    """``launch ... | head -1``: as SIGPIPE ends any other program, and nothing is left."""
    words = ["--workers", "2", "--", "sh", "-c", "while :; do echo y; sleep 0.05; done"]
    started = launch.start(*words, command=_piped("head -1"))
    ended = started.wait()
    assert ended.out in ("worker/0 | y\n", "worker/1 | y\n")
    assert ended.code == 141
    assert "the reader of the output has gone" in ended.err
    assert "again kills" not in ended.err, "a pipe breaks only once"
    assert "Traceback" not in ended.err
    family.gone(0.5)
    assert last_run(launch).report["exit_code"] == 141


@pytest.mark.promise("slow, stopped, closed readers")
def test_a_reader_that_stops_for_a_while_loses_nothing(launch: Launch, tmp_path: Path):
    """It holds the tasks up meanwhile; the log is written before the console."""
    took = tmp_path / "took"
    words = ["-x", f"TOOK={took}", "--", *stub("printer", "mebibytes", 40)]
    ended = launch.start(*words, command=_piped("(sleep 4; cat)")).wait(code=0)
    assert last_run(launch).log("worker/0") == (b"z" * 99 + b"\n") * 40 * 10486
    assert ended.out.count("worker/0 | " + "z" * 99 + "\n") == 40 * 10486
    assert float(took.read_text()) > 2
    assert "succeeded" in ended.out


def test_tasks_whose_output_is_held_up_are_not_silent(launch: Launch):
    """The reader stops for 6 s, and so do the tasks, which print all the time."""
    options = ["--stall", "3s", "--workers", "2", "-x", "TOOK=/dev/null"]
    words = [*options, "--", *stub("printer", "mebibytes", 40)]
    launch(*words, command=_piped("(sleep 6; cat)"), timeout=90, code=0)
    assert set(last_run(launch).states().values()) == {"succeeded"}


@pytest.mark.parametrize(
    "words", ["-- sh -c 'echo y'", "ps", "ps --all", "ps latest", "logs", "attach", "--version", "check"]
)
def test_a_closed_stdout_is_no_fault(launch: Launch, words: str):
    """``launch ps >&-``: there is nobody to read it."""
    launch("true")
    ended = launch(*shlex.split(words), command=in_shell('exec "$@" >&-'), code=0)
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "words", ["--dry-run --workers 300 true", "ps --all --json", "hosts hostfiles/lab.yaml", "--help"]
)
@pytest.mark.parametrize("to", [">/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_is_one_line(launch: Launch, words: str, to: str):
    for _ in range(2):
        launch("--", "true")
    ended = launch(*words.split(), command=in_shell(f'"$@" {to}'), code=125)
    expected = "" if "2>" in to else "launch: cannot write the output: [Errno 28] No space left on device\n"
    assert ended.err == expected


NARROW = [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}]


@pytest.mark.parametrize("narrow", NARROW)
def test_a_name_outside_the_character_set_is_shown_with_escapes(
    launch: Launch, narrow: dict[str, str], weird_path: Path
):
    env = {**narrow, "PYTHONUTF8": "0"}
    ended = launch("--dry-run", "--workdir", weird_path, "true", env=env)
    assert (ended.code, ended.err) == (0, "")
    assert any(spelled in ended.out for spelled in (r"\xe9", r"\udcc3\udca9", r"\303\251"))
    hosts = weird_path / "hosts.yaml"
    hosts.write_text("hosts:\n- {name: a, workdir: /\u00e9}\n", encoding="utf-8")
    assert launch("hosts", hosts, env=env).code == 0
    assert launch("--", "echo", "\u00e9", env=env).code == 0
    assert launch("ps", "--all", env=env).code == 0


# ---------------------------------------------------------------------- forms


def test_quiet(launch: Launch):
    ended = launch("--workers", "2", "--quiet", "--", "sh", "-c", "echo loud")
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", b"")
    assert last_run(launch).log("worker/0") == b"loud\n"


def test_quiet_shows_failures(launch: Launch):
    script = "echo why; exit $((TASK_INDEX * 3))"
    ended = launch("--workers", "2", "--quiet", "--", "sh", "-c", script, code=3)
    assert ended.out == ""
    assert "worker/1" in ended.err and "exit code 3" in ended.err and "why" in ended.err


def test_json(launch: Launch):
    script = r"echo I am $TASK_INDEX; printf 'bad \377\n'; printf end; exit $((TASK_INDEX * 5))"
    ended = launch("--workers", "2", "--on-failure", "continue", "--json", "--", "sh", "-c", script, code=5)
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert all(isinstance(event["event"], str) for event in events)
    for task in ("worker/0", "worker/1"):
        mine = [event for event in events if event["event"] == "TaskOutput" and event["task"] == task]
        lines = [event["line"] for event in mine]
        assert lines == [f"I am {task[-1]}", "bad \N{REPLACEMENT CHARACTER}", "end"]
    assert [event["event"] for event in events].count("Report") == 1
    assert {**last_run(launch).report, "event": "Report"} == events[-1]
    assert {"AgentReady", "PortsHeld", "TaskMoved", "AgentClosed"} <= {event["event"] for event in events}


def test_show(launch: Launch, tmp_path: Path):
    words = ["--ps", "2", "--workers", "3", "--show", "ps/1,worker/1-2", "--workdir", str(tmp_path)]
    servers = "echo shown; : > ps-$TASK_INDEX; exec sleep 60"
    workers = "echo shown; until test -e ps-0 -a -e ps-1; do sleep 0.05; done"
    script = f"if test $JOB_NAME = ps; then {servers}; fi; {workers}"
    ended = launch(*words, "--", "sh", "-c", script)
    shown = [line.partition(" | ")[0].rstrip() for line in ended.out.splitlines() if line.endswith("| shown")]
    assert sorted(shown) == ["ps/1", "worker/1", "worker/2"]
    assert last_run(launch).log("ps/0") == b"shown\n"


def test_timestamps(launch: Launch):
    script = "echo one; echo two"
    ended = launch("--timestamps", "--", "sh", "-c", script)
    lines = [line for line in ended.out.splitlines() if "worker/0 |" in line]
    assert len(lines) == 2
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} worker/0 \| (one|two)", line) for line in lines)
    assert last_run(launch).log("worker/0") == b"one\ntwo\n"


@pytest.mark.parametrize("own", [True, False])
def test_a_module_that_is_missing_beside_an_active_environment(launch: Launch, tmp_path: Path, own: bool):
    """The hint names that environment only if the task ran with launch's own Python."""
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    words = [] if own else ["--python", str(python)]
    env = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    ended = launch(*words, "-c", "import no_such_module", env=env, code=1)
    hint = f"ran with launch's own Python, {sys.executable}, which does not have this module"
    assert (hint in ended.err) is ('--python "$VIRTUAL_ENV/bin/python"' in ended.err) is own


def test_no_colours_into_a_file(launch: Launch):
    script = r"printf '\033[31mred\033[0m\n'"
    ended = launch("--", "sh", "-c", script)
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert "worker/0 | red" in ended.out
    assert b"\x1b[31m" in launch("--", "sh", "-c", script, env={"FORCE_COLOR": "1"}).stdout
    assert b"\x1b[31mred" in last_run(launch).log("worker/0")


def test_tasks_see_no_terminal_and_no_stdin(launch: Launch):
    script = "test ! -t 1 && test ! -t 0 && cat && echo $PYTHONUNBUFFERED"
    assert "worker/0 | 1\n" in launch("--", "sh", "-c", script).out
