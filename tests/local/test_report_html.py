"""``launch report --html``: a run as one file that needs no server and no script; ``launch report A B``."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch
from tests.seeing import RunFolder, last_run, run_of

#: What a task, a metric and a note may contain, and what a browser must not run or turn round.
HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>"
TURNED = "abc\u202egpj.exe"
FAILS = f"""
import os
print({HOSTILE!r}, {TURNED!r}, "\\x1b[31mred\\x1b[0m \\x07", flush=True)
if os.environ["TASK_INDEX"] == "1":
    raise ValueError({HOSTILE!r})
import time; time.sleep(60)
"""
#: Attributes by which a page loads something or runs a script.
LOADING = ("src", "href", "action", "data", "srcset", "poster", "background")


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1], data))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def of(self, tag: str) -> list[str]:
        """The texts in elements of this kind."""
        return [text for name, text in self.texts if name == tag]

    def loads(self) -> Iterator[str]:
        """What makes it load something, or run a script."""
        for tag, attributes in self.tags:
            if tag in ("script", "iframe", "object", "embed", "base", "form", "img"):
                yield tag
            for name, value in attributes.items():
                if name.startswith("on") or name in LOADING:
                    yield f"{tag} {name}={value}"


def page(launch: Launch, path: Path, run: str = "latest") -> Page:
    """The page of a run; it loads nothing, whatever the run."""
    launch.here("report", run, "--html", path, code=0)
    text = path.read_text()
    made = Page(text)
    assert [*made.loads()] == []
    assert "@import" not in text and "url(" not in text
    visible = "".join(words for tag, words in made.texts if tag != "style")
    assert not [char for char in visible if not char.isprintable() and char != "\n"]
    return made


def with_samples(run: RunFolder, metric: str = "loss", memory: int = 1 << 30) -> None:
    """Let the samples of a run be those of worker/0 and worker/1 in ten seconds."""
    start = json.loads((run.path / "launcher.json").read_text())["started_at"]
    fields = {"attempt": 1, "memory": memory, "cpu": 1.0, "total": 100}
    lines = [
        {
            "at": start + second,
            "tasks": {
                f"worker/{index}": {**fields, "step": 7 * second + 1, "metrics": {metric: 1 / (1 + second)}}
                for index in range(2)
            },
        }
        for second in range(10)
    ]
    (run.path / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.promise("`launch report --html`: one file without a script, whatever tasks print")
def test_a_run_that_failed(launch: Launch, tmp_path: Path):
    launch(
        "--name",
        "night",
        "--note",
        "new <b>data</b>",
        "--workers",
        "2",
        "-x",
        "KEY=T0K3N",
        "-c",
        FAILS,
        code=1,
    )
    with_samples(last_run(launch), HOSTILE)
    shown = page(launch, tmp_path / "run.html")
    (verdict,) = shown.of("h1")
    assert "worker/1" in verdict and "exit code 1" in verdict
    names = [text for _, text in shown.texts if text in ("worker/0", "worker/1")]
    assert names[0] == "worker/1", "what failed stands first"
    failure = shown.of("pre")[0]
    assert "Traceback" in failure and f"ValueError: {HOSTILE}" in failure
    facts = dict(zip(shown.of("dt"), shown.of("dd"), strict=True))
    assert facts["Note"] == "new <b>data</b>" and "--workers 2" in facts["Command"]
    assert "T0K3N" not in (tmp_path / "run.html").read_text()
    graphs = shown.of("figcaption")
    assert {"Steps per second", "Memory", "CPU (cores)"} < {*graphs} and any(
        "<script>" in title for title in graphs
    )
    assert [attributes.get("class") for tag, attributes in shown.tags if tag == "path"].count("bad") == len(
        graphs
    )
    assert any("abc\\u202egpj.exe red" in text for text in shown.of("pre"))
    assert (tmp_path / "run.html").stat().st_size < 100_000


def test_a_run_that_runs_and_then_its_launcher_is_killed(launch: Launch, tmp_path: Path):
    started = launch.start("--workers", "2", "--", "sh", "-c", "echo up; exec sleep 300").up(2)
    (verdict,) = page(launch, tmp_path / "run.html").of("h1")
    assert "2 of 2 tasks" in verdict
    run = run_of(launch, started)
    started.send(signal.SIGKILL)
    started.wait()
    with_samples(run)
    died = page(launch, tmp_path / "run.html")
    assert "died" in died.of("h1")[0] and {"Memory", "loss"} < {*died.of("figcaption")}
    assert launch.here("report", "--html", tmp_path / "no" / "run.html").code == 125


def big_run(folder: Path, count: int) -> None:
    """The folder of a run of many tasks with many attempts, metrics and long last lines."""
    (folder / "logs").mkdir(parents=True)
    now = time.time()
    hour_ago, tasks, names = now - 3600, [], [f"worker/{number}" for number in range(count)]
    for number, name in enumerate(names):
        (folder / "logs" / f"worker-{number}.log").write_text("x" * 400 + "\n" + "y" * 400 + "\n")
        ended = {"state": "failed" if number == 777 else "stopped", "reason": "exit", "detail": "exit code 1"}
        attempt = {
            "status": {"code": 1, "signal": None},
            "pid": 1,
            "started_at": hour_ago,
            "ended_at": now,
            **ended,
        }
        earlier = [{"attempt": 1, "host": "node1", **attempt}] if number % 2 else []
        fields = {"task": name, "host": f"node{number}", "address": "h:1", "port": 1, "attempt": 2, **attempt}
        tasks.append(
            {
                **fields,
                "peak_rss": 1 << 30,
                "cpu_s": 1.0,
                "leftovers": 0,
                "unkillable": [],
                "earlier": earlier,
            }
        )
    report: dict[str, Any] = {"job": "big", "schema": 1, "exit_code": 1, "tasks": tasks, "restarts": 1}
    report |= {"started_at": hour_ago, "ended_at": now, "run_dir": str(folder), "tensorboard": None}
    failure = {
        "reason": "exit",
        "task": "worker/777",
        "host": "node777",
        "at": now,
        "text": "worker/777 failed",
    }
    (folder / "report.json").write_text(json.dumps({**report, "failure": failure}))
    plan = [{"task": name, "host": f"node{number}"} for number, name in enumerate(names)]
    (folder / "plan.json").write_text(json.dumps({"tasks": plan, "command": ["launch", "x" * 50_000]}))
    metrics = {f"metric{number}": 0.5 for number in range(4)}
    sample = {
        "attempt": 2,
        "memory": 1 << 30,
        "cpu": 1.0,
        "gpu": 50,
        "gpu_memory": 1 << 30,
        "metrics": metrics,
    }
    with open(folder / "samples.jsonl", "w") as file:
        for number in range(12):
            moment = {name: {**sample, "step": number} for name in names}
            file.write(json.dumps({"at": hour_ago + 300 * number, "tasks": moment}) + "\n")


def test_a_run_of_a_thousand_tasks(launch: Launch, tmp_path: Path):
    big_run(tmp_path / "big", 1000)
    shown = page(launch, tmp_path / "run.html", os.fspath(tmp_path / "big"))
    assert (tmp_path / "run.html").stat().st_size < 2_000_000
    names = [text for _, text in shown.texts if text.startswith("worker/") and text[7:].isdecimal()]
    assert names[0] == "worker/777" and len({*names}) == 1000


# ---------------------------------------------------------------------- two runs


@pytest.mark.promise(
    "`launch report A B`: options that differ, verdicts, times, metrics, memory side by side"
)
def test_two_runs(launch: Launch):
    program = "import sys; sys.exit(int(sys.argv[1].partition('=')[2]))"
    words = ("--name", "a", "--workers", "2", "-x", "KEY=T0K3N")
    launch(*words, "-c", program, "--code=0", "--rate", "0.1", code=0)
    with_samples(last_run(launch))
    launch(
        "--name", "b", "--workers", "3", "-x", "KEY=other", "-c", program, "--code=7", "--rate", "0.1", code=7
    )
    with_samples(last_run(launch), memory=3 << 30)
    answer = json.loads(launch.here("report", "a", "b", "--json", code=0).out)
    rows = {row["name"]: row["values"] for row in answer["compared"]}
    assert rows["--workers"] == ["2", "3"] and rows["program's --code"] == ["0", "7"]
    assert not [name for name in rows if "rate" in name or "--name" in name]
    assert "ok in" in rows["verdict"][0] and "exit code 7" in rows["verdict"][1]
    assert rows["loss, last"] == [0.1, 0.1] and rows["loss, best"] == [0.1, 0.1]
    assert rows["steps/s"] == [7.0, 7.0] and rows["peak memory of worker"] == [1 << 30, 3 << 30]
    text = launch.here("report", "a", "b", code=0).out
    assert "T0K3N" not in text and "+200.0 %" in text
    assert [line.split()[1::2] for line in text.splitlines()[1:2]] == [["a", "b"]]


def test_no_difference_is_cut(launch: Launch):
    for last in "ab":
        launch("--", "true", f"--path={'x' * 300}{last}", code=0)
    first, second = (path.name for path in sorted(launch.state.iterdir())[-2:])
    text = launch.here("report", first, second, code=0).out
    assert f"{'x' * 300}a" in text and f"{'x' * 300}b" in text


def test_three_runs_are_too_many(launch: Launch):
    launch("true", code=0)
    assert launch.here("report", "latest", "latest", "latest").code == 2
    for option in ("--junit", "--html"):
        assert launch.here("report", "latest", "latest", option, "x").code == 2
    assert launch.here("report", "latest", "latest", code=0).out.count("ok in") == 2, "it differs in nothing"
