"""``--collect`` from real hosts."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import soon
from tests.ssh.host import TIME_LIMIT, LabHost
from tests.ssh.lab import ALL, ONE, TWO
from tests.ssh.test_sync import size_of
from tests.storage.stores import S3
from tests.unit.files.hosts import snapshot

pytestmark = pytest.mark.timeout(180)


def furnish(hosts: list[LabHost]) -> None:
    """Results on each host."""
    for host in hosts:
        host.expected.append("results")
        top = host.there(host.home) / "results"
        (top / "ckpt-7/empty").mkdir(parents=True)
        (top / "ckpt-7/weights").write_bytes(os.urandom(3_000_000) + host.name.encode())
        (top / "ckpt-7/new\nline").write_text("odd")
        (top / "ckpt-7/run").write_text("x")
        (top / "ckpt-7/run").chmod(0o750)
        (top / "latest").symlink_to("ckpt-7")
        with open(os.fsencode(top) + b"/log\xff", "wb") as file:
            file.write(host.name.encode())


def collects(*paths: str) -> list[str]:
    """Options."""
    return [option for path in paths for option in ("--collect", path)]


@pytest.mark.promise("collect from hosts; output folders")
def test_from_four_hosts(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    furnish(hosts)
    out = tmp_path / "out"
    options = collects(*(f"~/results/{path}:{out}" for path in ("latest", "log*", "ckpt-7", "not there")))
    ended = ssh_launch(*ALL, *options, "--", "sh", "-c", "exit 3", cwd="/", timeout=60, code=3)
    assert re.search(rf"launch: collected 28 files \(24 MB\) from 4 hosts into .*{out.name} in ", ended.err)
    assert ended.err.rindex("--collect: ") < ended.err.index("first to fail: "), "the verdict is last"
    for number, host in enumerate(hosts):
        assert f"--collect: {host.name}: worker/{number}: '~/results/not there' is not there" in ended.err
        whole = snapshot(host.there(host.home) / "results/ckpt-7")
        got = out / f"worker-{number}"
        assert snapshot(got / "ckpt-7") == snapshot(got / "latest") == whole
        logs = {path: found[2] for path, found in snapshot(got).items() if path.startswith(b"log")}
        assert logs == {b"log\xff": host.name.encode()}


@pytest.mark.promise("results and reports at URLs")
def test_results_of_hosts_are_at_their_urls(ssh_launch: Launch, hosts: list[LabHost], s3: S3):
    """They come over the connections, also before a restart. The hosts need nothing for that."""
    script = """
        mkdir -p ~/results; echo $JOB_NAME $TASK_INDEX >~/results/weights
        if [ "$LAUNCH_ATTEMPT" = 1 ]; then echo one >"$OUTPUT_DIR/first"; exit $((5 * TASK_INDEX)); fi
        rm "$OUTPUT_DIR/first"; echo two >"$OUTPUT_DIR/second"
    """
    for host in hosts[:2]:
        host.expected.append("results")
    options = ["--restarts", "1", "--restart", "task", "--output-to", s3.of("out")]
    words = (*TWO, *options, "--collect", f"~/results:{s3.of('all')}", "--", "sh", "-c", script)
    ended = ssh_launch(*words, cwd="/", env=s3.environ, timeout=90, code=0)
    models = [f"all/worker-{task}/results/weights" for task in (0, 1)]
    results = ["out/worker-0/first", "out/worker-1/first", "out/worker-1/second"]
    assert s3.names() == [*models, *results], ended.err
    assert [s3.read(name) for name in models] == [b"worker 0\n", b"worker 1\n"]


@pytest.mark.promise("sshd killed, cable cut, in sync and collect")
def test_connections_that_break_in_the_middle(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """The file that was on its way begins again, over another connection."""
    furnish(hosts)
    node = hosts[0]
    (node.there(node.home) / "results/ckpt-7/zz").write_bytes(os.urandom(50_000_000))
    node.slow(delay=50)
    out = tmp_path / "out"
    started = ssh_launch.start(*ALL, *collects(f"~/results:{out}"), "true", cwd="/")
    parts = out / "worker-0/results/ckpt-7"
    soon(lambda: size_of(parts.glob(".tf-launcher-*")) > 8_000_000, TIME_LIMIT, "half has come")
    for host in hosts:
        host.kill_sshd_sessions()
    ended = started.wait(90, code=0)
    assert "collected 17 files (62 MB) from 4 hosts into " in ended.err
    assert f"launch: {node.name}: connection lost (" in ended.err
    for number, host in enumerate(hosts):
        assert snapshot(out / f"worker-{number}/results") == snapshot(host.there(host.home) / "results")


def test_a_host_that_is_gone_keeps_nothing_from_the_others(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    furnish(hosts)
    gone, out = hosts[1], tmp_path / "out"
    big = gone.there(gone.home) / "results/ckpt-7/zz"
    big.write_bytes(os.urandom(50_000_000))
    gone.slow(delay=50)
    options = ["--lease", "6", *ALL, *collects(f"~/results/latest:{out}"), "true"]
    started = ssh_launch.start(*options, cwd="/")
    soon(lambda: (out / "worker-1/latest").exists(), TIME_LIMIT, "some of it has come")
    gone.stop_sshd()
    gone.kill_sshd_sessions()
    ended = started.wait(60, code=125)
    message = r"--collect: node2: no answer for \d+s: .*; not fetched: '~/results/latest' of"
    assert re.search(message, ended.err), ended.err
    for number, host in enumerate(hosts):
        if host is not gone:
            got = snapshot(out / f"worker-{number}/latest")
            assert got == snapshot(host.there(host.home) / "results/ckpt-7")


def test_the_second_ctrl_c_ends_it(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    (tmp_path / "code").mkdir()
    hosts[0].slow(delay=300)
    options = [*ONE, "--sync", ".", "--collect", f"big:{tmp_path}/out"]
    make = ["sh", "-c", "head -c 60000000 /dev/urandom >big"]
    started = ssh_launch.start(*options, "--", *make, cwd=tmp_path / "code")
    soon(lambda: list((tmp_path / "out/worker-0").glob(".tf-*")), TIME_LIMIT, "some of it has come")
    started.send(signal.SIGINT)
    started.until(lambda run: "Ctrl-C: 30s for" in run.err)
    time.sleep(0.4)  # sooner it would be one request with the first
    ended = started.stop(signal.SIGINT, 15, code=130)
    assert "launch: files that were not fetched are still in ~/.cache/tf-launcher/work/" in ended.err
    assert "stopped before all files of node1 were here" in ended.err
    assert not os.listdir(tmp_path / "out/worker-0")
    hosts[0].expected.append(".cache/tf-launcher/work")
