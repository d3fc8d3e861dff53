"""``--collect PATH:URL``, ``--output-to`` and ``--report URL``, against real servers."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

import launcher
from tests.conftest import Launch
from tests.seeing import last_run
from tests.storage.stores import S3, Hdfs

#: A task that leaves files in its folder and in OUTPUT_DIR.
_LEAVE = """
mkdir -p "$TASK_INDEX/model/sub"; cd "$TASK_INDEX"
printf "$TASK_INDEX" >model/number; : >'model/sub/no content'; printf odd >'model/a b,c%41+é'
ln -sf number model/link
printf "$TASK_INDEX" >"$OUTPUT_DIR/result"
cd "$OLDPWD"
"""
_MODEL = ["model/a b,c%41+é", "model/number", "model/sub/no content"]


def left(launch: Launch) -> list[str]:
    """What is in the folder of the last run of what tasks have left."""
    top = last_run(launch).path
    return sorted(
        str(path.relative_to(top))
        for name in ("output", "collected")
        for path in (top / name).rglob("*")
        if not path.is_dir()
    )


@pytest.mark.promise("results and reports at URLs")
def test_results_and_the_report_are_at_their_urls(launch: Launch, s3: S3, tmp_path: Path):
    """Each task has a folder, unless a task is named. What is there stays, unless it has the same name."""
    s3.put("all/worker-0/model/number", b"old")
    s3.put("all/worker-0/other", b"stays")
    options = [
        *("--collect", f"{{task_index}}/model:{s3.of('all')}", "--output-to", s3.of("out/")),
        *("--collect", f"worker/1=1/model/num*:{s3.of('one')}", "--report", s3.of("report.json")),
    ]
    ended = launch("--workers", "2", *options, "--", "sh", "-c", _LEAVE, cwd=tmp_path, env=s3.environ, code=0)
    names = [f"all/worker-{task}/{name}" for task in (0, 1) for name in _MODEL]
    outputs = ["out/worker-0/result", "out/worker-1/result"]
    assert s3.names() == sorted([*names, "all/worker-0/other", "one/number", *outputs, "report.json"])
    for task in (0, 1):
        contents = [s3.read(f"all/worker-{task}/{name}") for name in _MODEL]
        assert contents == [b"odd", b"%d" % task, b""]
        assert s3.read(outputs[task]) == b"%d" % task
    assert s3.read("one/number") == b"1"
    assert json.loads(s3.read("report.json")) == json.loads(
        (last_run(launch).path / "report.json").read_text()
    )
    # A store has no links, and no copy of what was collected for it stays here.
    assert "links" in ended.err and "model/link" in ended.err
    assert left(launch) == ["output/worker-0/result", "output/worker-1/result"]


@pytest.mark.promise("results and reports at URLs")
def test_results_and_the_report_are_on_hdfs(launch: Launch, hdfs: Hdfs, tmp_path: Path):
    """The second time they replace those of the first."""
    for number in "12":
        script = f'{_LEAVE} printf {number} >"$OUTPUT_DIR/run"'
        options = ["--collect", f"0/model:{hdfs.of('all')}", "--output-to", hdfs.of("out")]
        report = ["--report", hdfs.of("new/report.json"), "--", "sh", "-c", script]
        folder = tmp_path / number
        folder.mkdir()
        launch(*options, *report, cwd=folder, env=hdfs.environ, code=0)
        model = [f"all/worker-0/{name}" for name in _MODEL]
        assert hdfs.names() == sorted([*model, "new/report.json", "out/worker-0/result", "out/worker-0/run"])
        assert hdfs.read("out/worker-0/run") == number.encode()
        assert json.loads(hdfs.read("new/report.json"))["job"] == last_run(launch).path.name


@pytest.mark.promise("results and reports at URLs")
def test_a_first_attempt_is_safe_before_the_next_one_starts(launch: Launch, s3: S3, tmp_path: Path):
    """The second attempt removes what the first has left, and waits until the user stops it."""
    script = """
        if [ "$LAUNCH_ATTEMPT" = 1 ]; then echo one >"$OUTPUT_DIR/first"; exit 5; fi
        rm "$OUTPUT_DIR/first"; echo two >"$OUTPUT_DIR/second"; echo up; exec sleep 60
    """
    options = ["--restarts", "1", "--output-to", s3.of("out")]
    started = launch.start(*options, "--", "sh", "-c", script, cwd=tmp_path, env=s3.environ).up(1)
    assert s3.names() == ["out/worker-0/first"]
    started.stop(signal.SIGTERM, code=143)
    assert s3.names() == ["out/worker-0/first", "out/worker-0/second"]


@pytest.mark.promise("results and reports at URLs")
def test_what_cannot_be_stored_is_named_and_stays_here(launch: Launch, s3: S3, tmp_path: Path):
    """The bucket is missing: no restart waits for long, and a job that is ok ends with 125."""
    gone = "s3://no-such-bucket-here"
    options = ["--collect", f"{{task_index}}/model:{gone}/c", "--output-to", f"{gone}/o", "--restarts", "1"]
    script = f'{_LEAVE} test "$LAUNCH_ATTEMPT" = 2'
    words = (*options, "--report", f"{gone}/r.json", "--", "sh", "-c", script)
    ended = launch(*words, cwd=tmp_path, env=s3.environ, code=125)
    files = ["output/worker-0/result", *(f"collected/worker-0/url-0/{name}" for name in _MODEL)]
    for file in files:
        (line,) = {line for line in ended.err.splitlines() if f"/{file}: " in line}
        assert gone in line
    # Once before the restart, and once at the end.
    assert ended.err.count("/output/worker-0/result: ") == 2
    assert f"cannot write the report: {gone}/r.json: " in ended.err
    assert left(launch) == sorted([*files, "collected/worker-0/url-0/model/link"])
    assert json.loads((last_run(launch).path / "report.json").read_text())["exit_code"] == 125

    ended = launch(
        "--output-to", gone, "--", "sh", "-c", f"{_LEAVE} exit 7", env=s3.environ, code=7, cwd=tmp_path
    )
    assert "/output/worker-0/result: " in ended.err


@pytest.mark.promise("results and reports at URLs")
def test_the_report_of_a_job_that_does_not_start(launch: Launch, s3: S3, tmp_path: Path):
    words = ("--hosts", "host.invalid", "--report", s3.of("r.json"), "true")
    launch(*words, cwd=tmp_path, env=s3.environ, timeout=60, code=125)
    assert json.loads(s3.read("r.json"))["exit_code"] == 125


@pytest.mark.promise("results and reports at URLs")
def test_ctrl_c_ends_a_copy_to_a_store_that_hangs(launch: Launch, s3: S3, tmp_path: Path):
    """The second one at once; the files are still here."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = s3.at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        words = ("--output-to", s3.of("out"), "--", "sh", "-c", _LEAVE)
        started = launch.start(*words, cwd=tmp_path, env=environ)
        started.until(lambda it: f"waiting for {s3.of('out')}: copying" in it.err)
        started.send(signal.SIGINT)
        started.until(lambda it: "Ctrl-C again stops it at once" in it.err)
        time.sleep(0.5)  # sooner it would be the same one, sent twice
        ended = started.stop(signal.SIGINT, code=130)
    assert f"all are still in ~/state/tf-launcher/runs/{last_run(launch).path.name}" in ended.err
    assert left(launch) == ["output/worker-0/result"]


@pytest.mark.promise("results and reports at URLs")
def test_two_files_for_one_place_are_not_both_stored(launch: Launch, s3: S3, tmp_path: Path):
    """Their names are known only at the end."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_text(name)
    options = ["--collect", f"a/model:{s3.of('c')}", "--collect", f"worker=b/mod*:{s3.of('c/')}"]
    ended = launch(*options, "true", cwd=tmp_path, env=s3.environ, code=125)
    assert s3.names() == ["c/worker-0/model"] and s3.read("c/worker-0/model") == b"a"
    assert "collected/worker-0/url-1/model: " in ended.err


WRONG = {
    "--output-to results": "'results'",
    "--output-to hdfss://namenode/x": "hdfs://",
    "--output-to http://web/x": "hdfs://",
    "--output-to s3://[x": "expected a URL",
    "--output-to hdfs://namenode:x/y": "expected a URL",
    "--collect s3://bucket/x": "PATH:URL",
    "--collect worker=s3://bucket/x": "PATH:URL",
    "--collect model:ftp://x/y": "hdfs://",
    "--output-to s3://key:pa55word@bucket/x": "password",
    "--output-to s3://key:pa55/word@bucket/x": "password",
    "--collect model:s3://key:pa55word@bucket/x": "password",
    "--collect worker=s3://key:pa55word@bucket/x": "PATH:URL",
    "--report webhdfs://user:pa55word@host:9870/x": "password",
}


@pytest.mark.promise("results and reports at URLs")
@pytest.mark.parametrize("words", WRONG)
def test_wrong_urls_are_found_before_anything_starts(launch: Launch, words: str, tmp_path: Path):
    for where in (["--dry-run"], []):
        ended = launch.here(*words.split(), *where, "--", "touch", "ran", cwd=tmp_path, code=2)
        assert WRONG[words] in ended.err and "pa55" not in ended.err
    assert not (tmp_path / "ran").exists() and not launch.state.exists()


@pytest.mark.promise("results and reports at URLs")
def test_wrong_urls_of_a_job_file(launch: Launch, tmp_path: Path):
    lines = ["command: [touch, ran]", "roles: {worker: 1}", "collect: ['a:s3://k:pa55@b/x', 'b:x://y']"]
    (tmp_path / "job.yaml").write_text("\n".join([*lines, "output_to: s3://k:pa55@b/x", ""]))
    ended = launch.here("job.yaml", cwd=tmp_path, code=2)
    assert "job.yaml:3: " in ended.err and "job.yaml:4: " in ended.err and "pa55" not in ended.err


@pytest.mark.promise("results and reports at URLs")
@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["-d"]], ids=["run", "dry-run", "detached"])
def test_a_missing_package_is_known_before_tasks_start(launch: Launch, mode: list[str], tmp_path: Path):
    code = "import sys; sys.modules['hdfs_native'] = None; import launcher.__main__; launcher.__main__.main()"
    options = ["--collect", "x:hdfs://n/x", "--output-to", "hdfs://n/x", "--report", "hdfs://n/r"]
    words = (*mode, *options, "--", "touch", "ran")
    ended = launch(*words, command=(sys.executable, "-c", code), cwd=tmp_path, code=2)
    assert ended.err.count("hdfs-native is not installed: pip install 'tf-launcher[hdfs]'") == 3
    assert not (tmp_path / "ran").exists()


@pytest.mark.promise("results and reports at URLs")
def test_a_dry_run_names_the_targets(launch: Launch, tmp_path: Path):
    options = [
        "--collect",
        "worker/0=m:s3://b/one",
        "--collect",
        "m:webhdfs://me@n:9870/all",
        "--restarts",
        "1",
    ]
    more = ["--output-to", "gs://b/out", "--report", "s3://b/report.json"]
    ended = launch.here("--dry-run", "--workers", "2", *options, *more, "true", cwd=tmp_path, code=0)
    for text in ("s3://b/one ", "n:9870/all/TASK ", "gs://b/out/TASK before", "s3://b/report.json"):
        assert text in ended.out
    assert "OUTPUT_DIR=" in ended.out


@pytest.mark.promise("results and reports at URLs")
def test_results_of_a_detached_job_and_of_the_api(
    launch: Launch, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ("-d", "--collect", f"0/model/number:{s3.of('c')}", "--output-to", s3.of("o"))
    run = launch(*words, "--", "sh", "-c", _LEAVE, cwd=tmp_path, env=s3.environ, code=0).out.strip()
    launch("attach", run, env=s3.environ, code=0)
    assert s3.names() == ["c/worker-0/number", "o/worker-0/result"]

    for name, value in {**launch.environment(), **s3.environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    options = ["--output-to", s3.of("api")]
    launcher.run(
        ["sh", "-c", _LEAVE],
        collect=f"0/model/number:{s3.of('api')}",
        options=options,
    )
    assert s3.names()[:2] == ["api/worker-0/number", "api/worker-0/result"]


@pytest.mark.promise("results and reports at URLs")
def test_a_file_url_is_a_folder_of_this_machine(launch: Launch, tmp_path: Path):
    out = tmp_path / "out"
    options = ["--collect", f"0/model/number:file://{out}", "--output-to", f"file://{out}"]
    script = f'{_LEAVE} : >"$OUTPUT_DIR/50%41#?"'
    launch(*options, "--report", f"file://{out}/r.json", "--", "sh", "-c", script, cwd=tmp_path, code=0)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert files == ["r.json", "worker-0/50%41#?", "worker-0/number", "worker-0/result"]
