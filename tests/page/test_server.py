"""``launch page`` and ``--page``, asked by HTTP: what they show, to whom, and what stays."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch, Started, executable
from tests.page.viewer import Viewer, page_of, viewer_of
from tests.seeing import RunFolder, alive, command_line, last_run, resident, run_of, soon, stat_field

#: A task that runs until it is stopped.
WAITS = ("sh", "-c", "echo up; exec sleep 300")
#: Output with markup, colours, a clipboard sequence, and letters in the other direction.
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \x1b]52;c;cHduZWQ=\x07 \u202etxt.exe"


@pytest.fixture
def ended(launch: Launch) -> RunFolder:
    """A run of one task that has ended."""
    launch("--workers", "1", "--", "sh", "-c", "echo hello; echo step 5/10", code=0)
    return last_run(launch)


def test_a_run_that_runs_and_its_end(launch: Launch):
    """The first answer has the verdict and the tasks; a stop and a restart are seen; at last none is left."""
    started = launch.start("--workers", "2", "--on-failure", "continue", *WAITS).up(2)
    page, viewer = page_of(launch)
    first = viewer.ask("/")
    assert "runs: 2 of 2 tasks" in first.text and "worker/1" in first.text and ">running<" in first.text
    assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", first.text)
    with viewer.events() as events:
        assert viewer.act("/restart?task=worker/0").json["text"].startswith("worker/0: attempt 2")
        seen: dict[str, list[tuple[str, int]]] = {"worker/0": [], "worker/1": []}
        answer = viewer.act("/stop?task=worker/1")
        assert answer.status == 200 and "worker/1: stopped" in answer.text
        assert viewer.act("/stop?task=worker").status in (200, 202)
        for event in events:
            for row in event.get("tasks", ()):
                seen[row["task"]].append((row["state"], row["attempt"]))
            if event.get("state") == "ended":
                break
    assert started.wait().code and seen["worker/0"][-1] == ("stopped", 2) and seen["worker/1"][-1][1] == 1
    assert "already ended" in viewer.act("/stop").json["text"]
    for path in ("/restart?task=worker/0", "/stacks"):
        refused = viewer.act(path)
        assert refused.status == 409 and "has ended" in refused.json["error"]
    assert page.stop(signal.SIGINT).code == 130


def test_a_run_that_died_or_has_not_begun(launch: Launch, tmp_path: Path):
    started = launch.start("--workers", "1", *WAITS).up(1)
    folder = run_of(launch, started)
    started.kill()
    page, viewer = page_of(launch, str(folder.path))
    with viewer.events() as events:
        assert next(events)["state"] == "died"
    page.stop(signal.SIGINT, code=130)
    (folder.path / "plan.json").unlink()
    (folder.path / "events.jsonl").write_bytes(b'{"event": []}\n\xff\n' + b"[" * 100_000)
    page, viewer = page_of(launch, str(folder.path))
    assert viewer.ask("/").status == 200
    page.stop(signal.SIGTERM, code=143)


@pytest.mark.promise("the page answers only who has its token, and changes nothing for others")
def test_who_gets_nothing(launch: Launch, ended: RunFolder):
    page, viewer = page_of(launch, "--share", "--allow-host", "hub.example.com")
    reader = viewer_of(page, shared=True)
    port = viewer.port
    evil: dict[str, dict[str, str | None]] = {
        "another user": {"cookie": ""},
        "a wrong token": {"cookie": viewer.cookie[:-1] + ("a" if viewer.cookie[-1] != "a" else "b")},
        "another cookie": {"cookie": viewer.cookie.replace("launch-page", "launch-pag")},
        "a domain that points here": {"host": "evil.example.com"},
        "and its port": {"host": f"evil.example.com:{port}"},
        "a name before it": {"host": f"127.0.0.1@evil.example.com:{port}"},
        "no name": {"host": "[::1"},
    }
    paths = ("/", "/events", "/graphs", "/log?task=worker/0", "/log?task=worker/0&download=1", "/metrics",
             "/static/page.js", "/nothing", "/?token=x", "/?token=%C3%A9%00")  # fmt: skip
    for what, headers in evil.items():
        answers = [viewer.ask(path, **headers) for path in paths]
        answers += [viewer.act("/stop", **headers)]
        assert {answer.status for answer in answers} == {403}, what
        assert not any(b"worker" in answer.body or b"hello" in answer.body for answer in answers), what
    origins: tuple[str | None, ...] = (
        None,
        "null",
        "http://evil.example.com",
        f"http://127.0.0.1:{port + 1}",
    )
    for path in ("/stop", "/restart", "/stacks"):
        refused = [viewer.act(path, origin=origin) for origin in origins]
        refused += [viewer.act(path, sec_fetch_site="same-site"), reader.act(path)]
        assert {answer.status for answer in refused} == {403}
        assert viewer.ask(path).status == 405
    # A proxy with this name may ask for the same: the run has ended.
    names: dict[str, str | None] = {"host": "hub.example.com", "origin": "https://hub.example.com"}
    assert viewer.act("/stacks", **names).status == 409
    assert reader.ask("/").status == viewer.ask("/", host=f"localhost:{port + 1}").status == 200
    assert "data-act" not in reader.ask("/").text
    # Other ports of this machine get cookies, too, but only those of the folder that they are asked for.
    folder, viewer.folder = viewer.folder, ""
    assert len(folder) > 20 and {viewer.ask(path).status for path in paths} == {403}
    viewer.folder = folder
    assert "path" not in viewer.set_cookie.lower()
    assert reader.cookie != viewer.cookie and {"HttpOnly", "SameSite=strict"} <= set(
        viewer.set_cookie.split("; ")
    )
    answered = viewer.ask("/").headers
    parts = [part.partition(" ") for part in answered["content-security-policy"].split("; ")]
    policy = {name: value for name, _, value in parts}
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'" and policy["script-src"] == "'self'"
    assert answered["cache-control"] == "no-store" and answered["x-content-type-options"] == "nosniff"
    assert not any(viewer.token in viewer.ask(path).text for path in paths[:2:2])
    written = [path for path in ended.path.rglob("*") if path.is_file()]
    assert not any(viewer.token.encode() in path.read_bytes() for path in written)
    page.stop(signal.SIGINT, code=130)


def test_wrong_requests_are_refused(launch: Launch, ended: RunFolder):
    """Nothing outside the run's logs is read, and no input is a fault of the page."""
    (ended.path / "secret.log").write_text("secret\n")
    page, viewer = page_of(launch)
    outside = (
        "../secret",
        "..%2fsecret",
        "worker/0/../../secret",
        "/etc/passwd",
        "worker/00",
        "%00",
        "worker/9",
    )
    for task in outside:
        for rest in ("", "&download=1", "&search=s"):
            assert viewer.ask(f"/log?task={task}{rest}").status == 404
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/log/../../x", "/.."):
        assert viewer.ask(path).status in (403, 404)
    (ended.path / "logs" / "worker-0.log").unlink()
    assert viewer.ask("/log?task=worker/0&search=s").json == {"error": "nothing was printed yet"}
    (ended.path / "logs" / "worker-0.log").symlink_to("/etc/passwd")
    assert viewer.ask("/log?task=worker/0").status == 404
    for names in ("task=worker/9", "task=worker/0&task=--now", "task=", "task=worker/0%00", "task=../worker"):
        assert viewer.act(f"/stop?{names}").status == 404
    assert viewer.act("/stop?tasks=worker/0").status == 400
    for query in ("start=-1", "start=x", "start=1e9", f"start={'9' * 30}", "since=nan"):
        assert viewer.ask(f"/graphs?{query}").status == 200
    assert page.stop(signal.SIGTERM, code=143).err == ""


def test_logs(launch: Launch, ended: RunFolder):
    """A log is shown as plain text in parts of bounded size, also one of 1 GB; a download is whole."""
    log = ended.path / "logs" / "worker-0.log"
    page, viewer = page_of(launch)
    log.write_text(f"{HOSTILE}\nhalf")
    part = viewer.ask("/log?task=worker/0").json
    assert part["text"] == "<script>alert(1)</script> red  \\u202etxt.exe\n" and part["rest"] == "half\n"
    with open(log, "a") as file:
        file.write(" a line\nnext\n")
    more = viewer.ask(f"/log?task=worker/0&start={part['end']}").json
    assert more["text"] == "half a line\nnext\n" and more["end"] == more["size"] == log.stat().st_size
    assert viewer.ask("/log?task=worker/0&download=1").body == log.read_bytes()
    found = viewer.ask("/log?task=worker/0&search=SCRIPT").json
    assert found["complete"] and "<script>alert" in found["lines"][0]
    os.truncate(log, 10**9)
    with open(log, "a") as file:
        file.write("\nthe Needle\nthe end")
    before = resident(page.pid)
    assert viewer.ask("/log?task=worker/0").json["text"].endswith("the Needle\n")
    found = viewer.ask("/log?task=worker/0&search=needle").json
    assert found["lines"] == ["the Needle"] and not found["complete"]
    assert len(viewer.ask("/log?task=worker/0&start=5000").body) < 200_000
    assert resident(page.pid) - before < 64 << 20
    page.stop(signal.SIGINT, code=130)


def _is_served(stream: socket.socket) -> bool:
    """Whether a viewer gets what the page shows. Otherwise its connection is closed."""
    answer = b""
    while not any(end in answer for end in (b"data: {", b"\r\n0\r\n\r\n", b"already\n")):
        answer += stream.recv(65536)
    if b"data: {" in answer:
        return True
    stream.close()
    return False


def test_many_viewers_and_slow_ones(launch: Launch, tmp_path: Path):
    """A viewer who reads nothing holds up nobody, and gets the latest when it reads; the 101st gets none."""
    go_on = tmp_path / "go-on"
    script = f"echo up; while [ ! -e {go_on} ]; do sleep 0.2; done; echo last; exec sleep 300"
    started = launch.start("--workers", "1", "sh", "-c", script).up(1)
    page, viewer = page_of(launch, "--until-end")
    asking = [viewer.stream() for _ in range(130)]  # At once, so that no answer has begun before.
    streams = [stream for stream in asking if _is_served(stream)]
    try:
        assert len(streams) == 100
        assert viewer.ask("/events").status == 503
        before = resident(page.pid)
        go_on.touch()
        rest = [b""] * len(streams)
        for index, stream in enumerate(streams[1:], 1):  # The first one reads nothing.
            while b'"last"' not in rest[index]:
                rest[index] += stream.recv(65536)
        assert resident(page.pid) - before < 32 << 20
        started.stop(signal.SIGINT)
        page.wait(code=0)
        while data := streams[0].recv(65536):
            rest[0] += data
        assert rest[0].count(b'"state":"ended"') == 1
    finally:
        for stream in streams:
            stream.close()


def test_metrics(launch: Launch, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o644)
    metric = '<b>"x"</b>'
    launch("--workers", "1", "--", "echo", f"step 5 {metric} 1.5", code=0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert "expected --port" in launch.here("page", "--token-file", str(token), code=2).err
    assert "only you can read" in launch.here("page", "--port", port, "--token-file", str(token), code=2).err
    token.chmod(0o600)
    _add_samples(last_run(launch).path, metric)
    page, viewer = page_of(launch, "--port", port, "--token-file", str(token))
    assert viewer.port == int(port)
    assert "Address already in use" in launch.here("page", "--port", port, code=125).err
    assert viewer.ask("/metrics").status == 403
    assert viewer.ask("/metrics", cookie="", authorization="Bearer 0123456789abcdeg").status == 403
    answer = viewer.ask("/metrics", cookie="", authorization="Bearer 0123456789abcdef")
    run = last_run(launch).path.name
    assert answer.status == 200 and f'launch_run_state{{run="{run}",state="ended"}} 1.0\n' in answer.text
    assert f'launch_task_step{{run="{run}",task="worker/0"}} 5.0\n' in answer.text
    assert 'metric="<b>\\"x\\"</b>"' in answer.text
    drawn = viewer.ask("/graphs")
    assert drawn.headers["content-type"] == "application/json" and metric in str(drawn.json)
    page.stop(signal.SIGINT, code=130)


def _add_samples(run: Path, metric: str) -> None:
    fields = {"attempt": 1, "step": 5, "metrics": {metric: 1.5}}
    with open(run / "samples.jsonl", "w") as file:
        file.write(json.dumps({"at": time.time(), "tasks": {"worker/0": fields}}) + "\n")


def test_a_browser_is_opened_without_the_token_in_its_command(
    launch: Launch, ended: RunFolder, tmp_path: Path
):
    noted = tmp_path / "noted"
    script = f"""#!/bin/sh
path=${{1#file://}}
{{ stat -c %a "$path"; echo "$0 $*"; cat "$path"; }} >{noted}.new
mv {noted}.new {noted}
"""
    browser = executable(tmp_path / "browser", script)
    page = launch.start("page", env={"BROWSER": f"{browser} %s", "DISPLAY": ":9"})
    viewer = viewer_of(page)
    soon(noted.exists)
    mode, command, leads = noted.read_text().split("\n", 2)
    assert mode == "600" and f"url=http://127.0.0.1:{viewer.port}/?token={viewer.token}" in leads
    assert viewer.token not in command and viewer.token not in command_line(page.pid)
    assert "ssh" not in page.out
    page.stop(signal.SIGTERM, code=143)
    assert not (ended.path / "page.html").exists()


@pytest.fixture
def beside(launch: Launch, tmp_path: Path) -> Iterator[tuple[Started, Viewer, int]]:
    """A job with ``--page``, a viewer of it, and the process of the page."""
    started = launch.start("--page", "--workers", "1", *WAITS, env={"TMPDIR": str(tmp_path)}).up(1)
    viewer = viewer_of(started)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    (page,) = (int(pid) for pid in children if " page " in command_line(int(pid)))
    yield started, viewer, page


@pytest.mark.promise("the page of a job ends with its launcher, and harms neither the job nor its end")
def test_the_page_beside_a_job_shows_its_end(launch: Launch, beside: tuple[Started, Viewer, int]):
    started, viewer, page = beside
    with viewer.events() as events:
        assert next(events)["state"] == "running"
        started.stop(signal.SIGINT, code=130)
        last = [event for event in events if "state" in event][-1]
    assert last["state"] == "ended" and "130" in last["verdict"] and not alive(page)
    assert viewer.token not in (last_run(launch).path / "events.jsonl").read_text()


def test_the_page_beside_a_job_may_stop_it(beside: tuple[Started, Viewer, int]):
    """It answers, although it ends with the job for whose end `launch stop` waits."""
    started, viewer, page = beside
    assert viewer.act("/stop").status in (200, 202)
    assert started.wait().code == 143 and not alive(page)


def test_a_page_that_is_killed_leaves_nothing(
    launch: Launch, beside: tuple[Started, Viewer, int], tmp_path: Path
):
    started, _, page = beside
    os.kill(page, signal.SIGKILL)
    soon(lambda: not stat_field(page, 3), why="it is no zombie")
    started.until(lambda it: "the page has ended" in it.err)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    started.stop(signal.SIGINT, code=130)


def test_a_page_whose_launcher_is_killed_ends(launch: Launch, beside: tuple[Started, Viewer, int]):
    started, viewer, page = beside
    with viewer.events() as events:
        next(events)
        started.kill()
        assert [event["state"] for event in events if "state" in event] == ["died"]
    soon(lambda: not alive(page))


def test_the_address_of_a_job_in_the_background_is_shown(launch: Launch):
    ended = launch("-d", "--page", "--workers", "1", *WAITS, code=0)
    (url,) = re.findall(r"page of .*: (http://\S+)\n", ended.err)
    assert "worker/0" in Viewer(url).ask("/").text
    launch("stop", code=0)
