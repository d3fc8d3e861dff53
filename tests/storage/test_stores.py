"""launcher.storage against real servers: what it writes is read, and what becomes of it when they fail."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.seeing import ROOT
from tests.storage.servers import Servers
from tests.storage.stores import S3, Bucket, Hdfs

pytestmark = pytest.mark.promise(
    "a store fails for a while or for good: the job goes on, or one clear error within a minute"
)


class Access:
    """`tests.storage.access` as a process that does one thing."""

    def __init__(self, environ: Mapping[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.access", *words], cwd=ROOT, env={**os.environ, **environ},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def paused(self) -> Access:
        """This, once it has read or written some megabytes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "paused\n", line
        return self

    def go_on(self) -> None:
        """End its pause."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self, timeout: float = 150.0) -> dict[str, Any]:
        """What it found at its end; a pause ends."""
        try:
            out, _ = self.process.communicate("\n", timeout)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode == 0
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        print(result)
        return result


class Content:
    """Bytes that compress badly, in a file."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.data = path, os.urandom(size)
        path.write_bytes(self.data)

    def is_what(self, read: Mapping[str, Any], start: int = 0) -> bool:
        """Whether somebody has read this."""
        data = self.data[start:]
        return (read.get("size"), read.get("sha256")) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture(params=["hdfs", "s3", "gcs"])
def bucket(request: pytest.FixtureRequest, servers: Servers) -> Bucket:
    """A folder of each store."""
    bucket: Bucket = request.getfixturevalue(request.param)
    return bucket


@pytest.fixture
def content(tmp_path: Path) -> Content:
    """More than the buffers of all who pass it on."""
    return Content(tmp_path / "content", 50_000_001)


def test_what_is_written_is_found_and_read(bucket: Bucket, tmp_path: Path):
    content = Content(tmp_path / "content", 9_000_001)
    url = bucket.of("deep/down/part 1 é")
    assert "error" not in Access(bucket.environ, "write", str(content.path), url).result()
    assert bucket.names() == ["deep/down/part 1 é"]
    assert bucket.read("deep/down/part 1 é") == content.data
    found = Access(bucket.environ, "find", bucket.of("deep/*/part*")).result()
    assert found["files"] == [[url, len(content.data)]]
    assert content.is_what(Access(bucket.environ, "read", url, "4194305").result(), 4194305)


def test_hdfs_over_http(hdfs: Hdfs, tmp_path: Path):
    content = Content(tmp_path / "content", 9_000_001)
    url = f"{hdfs.web_url}/down/part"
    assert "error" not in Access({}, "write", str(content.path), url).result()
    assert hdfs.names() == ["down/part"]
    assert content.is_what(Access({}, "read", url, "77").result(), 77)


@pytest.mark.long
def test_a_disk_that_is_full(tmp_path: Path):
    """Nothing half written stays there."""
    content, folder = Content(tmp_path / "content", 100), tmp_path / "folder"
    access = [sys.executable, "-m", "tests.storage.access", "write", str(content.path), f"file://{folder}/x"]
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *access]
    ended = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150
    )
    assert json.loads(ended.stdout.splitlines()[-1])["error"].startswith(f"file://{folder}/x: ")
    assert not os.listdir(folder)


# ---------------------------------------------------------------------- HDFS fails


def test_a_datanode_is_killed(hdfs_alone: Hdfs, content: Content):
    """What is read goes on, what is written goes on or begins again, and what begins afterwards waits."""
    url, written = hdfs_alone.put("read", content.data), hdfs_alone.of("written")
    reader = Access({}, "read", url).paused()
    writer = Access({}, "write", str(content.path), written).paused()
    hdfs_alone.kill("datanode1")
    assert content.is_what(reader.result())
    assert "error" not in writer.result()
    assert hdfs_alone.read("written") == content.data
    assert "error" not in Access({}, "write", str(content.path), hdfs_alone.of("later")).paused().result()
    assert hdfs_alone.read("later") == content.data
    assert hdfs_alone.names() == ["later", "read", "written"]


def test_the_namenode_is_killed_and_starts_again(hdfs_alone: Hdfs, content: Content):
    """It is in its safe mode first, in which nothing can be written."""
    url, written = hdfs_alone.put("read", content.data), hdfs_alone.of("written")
    reader = Access({}, "read", url).paused()
    writer = Access({}, "write", str(content.path), written).paused()
    hdfs_alone.kill("namenode")
    asked = Access({}, "find", hdfs_alone.of("*")).result()
    assert hdfs_alone.url in asked["error"] and asked["seconds"] < 15
    assert content.is_what(reader.result())
    writer.go_on()
    hdfs_alone.begin("namenode")
    assert "error" not in writer.result()
    hdfs_alone.start()
    assert hdfs_alone.read("written") == content.data
    assert hdfs_alone.names() == ["read", "written"]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victims", [("namenode",), ("datanode1", "datanode2")], ids=" ".join)
def test_hdfs_is_gone_for_good(hdfs_alone: Hdfs, content: Content, victims: tuple[str, ...]):
    """One failure within a minute, and nothing half written."""
    url, written = hdfs_alone.put("read", content.data), hdfs_alone.of("written")
    writer = Access({}, "write", str(content.path), written).paused()
    reader = Access({}, "read", url).paused()
    for victim in victims:
        hdfs_alone.kill(victim)
    since = time.monotonic()
    writer.go_on()
    read = reader.result()
    assert content.is_what(read) if victims == ("namenode",) else read["error"].startswith(url)
    assert "\n" not in read.get("error", "") and time.monotonic() - since < 60
    failed = writer.result()
    assert failed["error"].startswith(written) and "\n" not in failed["error"]
    assert time.monotonic() - since < 60
    hdfs_alone.start()
    # A file without a NameNode cannot be removed either. It has no name that a pattern finds.
    assert [name for name in hdfs_alone.names() if not name.startswith(".")] == ["read"]


# ---------------------------------------------------------------------- S3 fails


class Proxy:
    """`tests.storage.faulty` in front of an S3 server."""

    def __init__(self, s3: S3) -> None:
        words = [s3.endpoint.removeprefix("http://"), s3.servers.address]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.faulty", *words], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.environ = s3.at(f"http://{s3.servers.address}:{self._line()}")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def behave(self, how: str) -> None:
        """Behave like this from now on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how}\n")
        self.process.stdin.flush()
        assert self._line() == how


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    """A proxy that behaves well so far."""
    proxy = Proxy(s3)
    yield proxy
    proxy.process.kill()
    proxy.process.communicate()


@pytest.mark.parametrize("seconds", [2.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_s3_is_busy_for_a_while(s3: S3, proxy: Proxy, content: Content, seconds: float):
    url = s3.put("read", content.data)
    reader = Access(proxy.environ, "read", url).paused()
    writer = Access(proxy.environ, "write", str(content.path), s3.of("written")).paused()
    proxy.behave("busy")
    reader.go_on()
    writer.go_on()
    time.sleep(seconds)
    proxy.behave("well")
    assert content.is_what(reader.result())
    assert "error" not in writer.result()
    assert s3.read("written") == content.data


def test_connections_to_s3_are_cut(s3: S3, proxy: Proxy, content: Content):
    url = s3.put("read", content.data)
    reader = Access(proxy.environ, "read", url).paused()
    proxy.behave("cut")
    reader.go_on()
    time.sleep(2)
    proxy.behave("well")
    assert content.is_what(reader.result())


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["busy", "silent", "closed"])
def test_s3_is_gone_for_good(s3: S3, proxy: Proxy, content: Content, how: str):
    """One failure within a minute, and nothing half written."""
    url = s3.put("read", content.data)
    reader = Access(proxy.environ, "read", url).paused()
    writer = Access(proxy.environ, "write", str(content.path), s3.of("written")).paused()
    if how == "closed":
        proxy.process.kill()
    else:
        proxy.behave(how)
    since = time.monotonic()
    writer.go_on()
    for access, name in ((reader, url), (writer, s3.of("written"))):
        failed = access.result()
        assert failed["error"].startswith(name) and "\n" not in failed["error"]
        assert time.monotonic() - since < 60
    assert s3.names() == ["read"]
