"""What there is to see of a run: by files that may be damaged, that grow, or that are copies of others."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from launcher.agent.identity import this_process
from launcher.backends.watcher import RunWatcher
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.output.logs import last_line_of
from launcher.runs.history import HistoryReader
from launcher.runs.mirror import receive_files, send_files
from launcher.runs.run import RunState, load
from launcher.runs.view import RunView, named_and_folded
from tests.unit.odd_values import with_odd_values
from tests.unit.runs.conftest import made

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    1e300,
    float("nan"),
    "",
    "x",
    "\x1b[2J\nlaunch: ",
    [],
    {},
    [[]],
    {"a": 1},
    "running",
)


def moved(task: str, state: str, attempt: int = 1, *, at: float = 1e9, **more: Any) -> dict[str, Any]:
    """The event of a task in a new state."""
    running = {"pid": 7, "host": "node1", "address": "node1:1", "status": {"code": None, "signal": None}}
    rest = {"reason": None, "detail": "", "peak_rss": None, "cpu_s": None, "node": "", "restarting": False}
    return {
        "event": "TaskMoved",
        "at": at,
        "task": task,
        "attempt": attempt,
        "state": state,
        **running,
        **rest,
        **more,
    }


EVENTS: list[Any] = [
    {"event": "Tell", "at": 1e9, "text": "job a: 2 workers", "urgent": False},
    moved("worker/0", "running"),
    moved("worker/1", "failed", status={"code": 3, "signal": None}, detail="exit code 3", restarting=True),
    {"event": "Restarting", "at": 1e9 + 1, "attempts": {"worker/1": 1}, "number": 1},
    {"event": "Noticed", "at": 1e9 + 2, "kind": "slow", "task": "worker/0", "text": "worker/0 is slow"},
    {"event": "AgentLost", "at": 1e9 + 3, "host": "node2", "why": "node2: gone"},
]
PLAN: Any = {
    "restarts": 2, "timeout": 60.0, "tensorboard": None, "command": ["launch", "train.py"],
    "tasks": [{"task": "worker/0", "host": "node1"}, {"task": "worker/1", "host": "node1"}],
}  # fmt: skip
SAMPLES: list[Any] = [
    {"at": 1e9 + n, "tasks": {"worker/0": {"attempt": 1, "cpu": 0.5, "memory": 1 << 20, "step": 10 * n}}}
    for n in range(3)
]


def written(root: str, plan: Any = PLAN, events: Any = EVENTS, samples: Any = SAMPLES) -> None:
    """Write the files of a run, one line for each item of a list."""
    for name, content in (("plan.json", [plan]), ("events.jsonl", events), ("samples.jsonl", samples)):
        Path(root, name).write_text("".join(f"{json.dumps(item)}\n" for item in content))


def seen(root: str) -> RunView:
    """What a watcher sees at its first look."""
    run = load(root)
    assert run is not None
    with RunWatcher(run) as watcher:
        return watcher.look(0.0)


@pytest.fixture
def root(state: Path) -> str:
    """The folder of a run whose launcher was killed."""
    return made("20261121-070912-k3f9m", at=1e9).root


def test_what_files_tell(root: str):
    written(root)
    Path(root, "logs").mkdir(exist_ok=True)
    Path(root, "logs/worker-0.log").write_text("\x1b[31mloss 0.5\x1b[0m\n")
    view = seen(root)
    assert (view.state, view.has_ended, view.restarts_left) == (RunState.DIED, True, 1)
    first, second = view.rows()
    assert (first.task, first.host, first.step) == ("worker/0", "node1", 20.0)
    assert last_line_of(root, first.task) == "loss 0.5"
    assert first.state_text == "lost, slow" and second.state_text == "failed, starts again"
    assert view.headline.startswith("died")
    assert [host["host"] for host in view.history.lost_hosts] == ["node2"]


def test_before_any_task(state: Path):
    paths = made("20261121-070912-a1b2c", this_process())
    assert seen(paths.root).headline == "starts: no task runs yet"


@pytest.mark.promise("whatever is in the files of a run, it can be watched")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(with_odd_values([{"plan": PLAN, "events": EVENTS, "samples": SAMPLES}], ODD, most=3))
def test_no_odd_value_stops_a_view(root: str, documents: Any):
    """Nor does it hide the tasks that are whole, as long as the plan names them."""
    files = {name: value if isinstance(value, list) else [value] for name, value in documents.items()}
    written(root, documents["plan"], files["events"], files["samples"])
    view = seen(root)
    rows = view.rows()
    named_and_folded(rows, 1)
    for text in (
        view.headline,
        view.note,
        *(f"{row.task}{row.host}{row.state_text}{row.detail}" for row in rows),
    ):
        assert text.isprintable()


def test_events_are_read_in_bounded_pieces(root: str):
    events = Path(root, "events.jsonl")
    events.write_bytes((b"{}" + b" " * 1021 + b"\n") * (3 << 10) + json.dumps(EVENTS[1]).encode())
    reader = HistoryReader(load(root).paths)  # type: ignore[union-attr]
    assert sum(reader.read() for _ in range(10)) == 3
    assert not reader.history().attempts, "its line has no end yet"
    with events.open("a") as file:
        file.write("\n")
    assert reader.read() and list(reader.history().attempts) == ["worker/0"]
    events.write_text(json.dumps(moved("ps/0", "running")) + "\n")
    assert reader.read() and list(reader.history().attempts) == ["ps/0"], "another file"
    with events.open("ab") as junk:
        junk.write(b"\n" * (3 << 20))
    assert not reader.read(), "nobody is kept busy by what is no event"


def test_long_texts_of_events_are_not_kept(root: str):
    """So a file of a gigabyte is read in little memory, and a page has few bytes to send."""
    long, lost = "x" * 100_000, {"event": "AgentLost", "at": 1e9, "host": "node1", "why": "gone"}
    events = [moved("worker/0", "failed", 2, detail=long), {**lost, "why": long}, lost]
    events += [{"event": "Tell", "at": 1e9, "text": long}] * 3
    paths = load(root).paths  # type: ignore[union-attr]
    Path(paths.events).write_text("".join(f"{json.dumps(event)}\n" for event in [*EVENTS, *events]))
    reader = HistoryReader(paths)
    while reader.read():
        continue
    history = reader.history()
    assert len(str(history)) < 60_000 and 2 not in history.attempts["worker/0"]
    assert history.lost_hosts[-1]["why"] == "gone" and history.messages[-1][1].startswith("xxx")


def test_many_tasks_are_folded_and_the_bad_ones_named(state: Path):
    names = [f"worker/{n}" for n in range(990)] + [f"ps/{n}" for n in range(10)]
    plan = {**PLAN, "tasks": [{"task": name, "host": "node1"} for name in names]}
    events = [moved(name, "running") for name in names]
    events.append(moved("worker/700", "failed", detail="exit code 1", reason="exit"))
    events.append({"event": "Noticed", "at": 1e9, "kind": "nan", "task": "ps/3", "text": "ps/3: loss is nan"})
    path = made("20261121-070912-a1b2c", this_process()).root
    written(path, plan, events, [])
    view = seen(path)
    assert view.headline == "ends: worker/700 failed: exit code 1"
    named, folded = named_and_folded(view.rows())
    assert [str(row.task) for row in named] == ["worker/700", "ps/3"]
    assert [(row.role, row.state_text, row.count) for row in folded] == [
        ("worker", "running", 989), ("ps", "running", 9),
    ]  # fmt: skip


# ---------------------------------------------------------------------- copies


def received(target: Path, *messages: bytes) -> int:
    """Receive files from a stream: how many rounds were whole."""
    target.mkdir(exist_ok=True)
    return sum(1 for _ in receive_files(io.BytesIO(b"".join(messages)), str(target)))


def sent(source: str) -> bytes:
    """The files of a run that is over, as they are sent to another machine."""
    run = load(source)
    assert run is not None
    stream = io.BytesIO()
    send_files(run, stream)
    return stream.getvalue()


def test_files_are_copied_but_of_long_logs_only_the_end(root: str, tmp_path: Path):
    written(root)
    logs = Path(root, "logs")
    logs.mkdir(exist_ok=True)
    (logs / "worker-0.log").write_bytes(b"x" * (1 << 20) + b"last\n")
    (logs / "worker-1.log").symlink_to("/etc/passwd")
    Path(root, "secret").write_text("secret")
    assert received(tmp_path / "copy", sent(root)) == 1
    names = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*.*")}
    assert names == {"plan.json", "events.jsonl", "samples.jsonl", "logs/worker-0.log"}
    log = (tmp_path / "copy/logs/worker-0.log").read_bytes()
    assert len(log) == 64 << 10 and log.endswith(b"xlast\n")
    assert (tmp_path / "copy/events.jsonl").read_text() == Path(root, "events.jsonl").read_text()


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "logs/../x.log", "logs/.x.log", "launcher.json", "report.json", "on-end.json", ""],
)
def test_no_other_end_writes_elsewhere(name: str, tmp_path: Path):
    with pytest.raises(ProtocolError):
        received(tmp_path / "copy", f"replace 1 {name}\nx\n".encode())
    assert os.listdir(tmp_path) == ["copy"] and os.listdir(tmp_path / "copy") == ["logs"]


@pytest.mark.parametrize(
    "header", ["replace -1 plan.json", "append 1000000000 plan.json", "write 1 plan.json", "{}", "x" * 2000]
)
def test_no_other_end_sends_too_much(header: str, tmp_path: Path):
    with pytest.raises(ProtocolError):
        received(tmp_path, f"{header}\nx\n".encode())


def test_a_copy_of_a_log_that_grows_stays_small(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is new is appended, until the copy begins anew with the end of the log."""
    source = made("20261121-070912-a1b2c", this_process())
    log, stream, sizes = Path(source.log(TaskId("worker/0"))), io.BytesIO(), list[int]()
    log.parent.mkdir(exist_ok=True)

    def grow(_: float) -> None:
        sizes.append(len(stream.getvalue()))
        if len(sizes) == 100:
            raise KeyboardInterrupt
        with log.open("ab") as file:
            file.write(b"a line %d\n" % len(sizes) * 1000)

    monkeypatch.setattr("launcher.runs.mirror.time.sleep", grow)
    with pytest.raises(KeyboardInterrupt):
        send_files(load(source.root), stream)  # type: ignore[arg-type]
    assert received(tmp_path, stream.getvalue()) == 100
    copy = (tmp_path / "logs/worker-0.log").read_bytes()
    assert 64 << 10 <= len(copy) <= 256 << 10 and log.read_bytes().endswith(copy)
    assert sizes[-1] < 2 * log.stat().st_size
