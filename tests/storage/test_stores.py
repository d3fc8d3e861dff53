"""launcher.storage against real servers: what it writes is read, and what servers do to it meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.seeing import ROOT
from tests.storage.servers import Servers
from tests.storage.stores import Bucket


class Access:
    """`tests.storage.access` as a process that does one thing."""

    def __init__(self, environ: Mapping[str, str], *words: str) -> None:
        argv = [sys.executable, "-m", "tests.storage.access", *words]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ},
        )

    def paused(self) -> Access:
        """This, once it has read or written some megabytes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "paused\n", line
        return self

    def result(self, timeout: float = 120.0) -> dict[str, Any]:
        """What it found at its end; a pause ends."""
        try:
            out, _ = self.process.communicate("\n", timeout)
        finally:
            self.process.kill()
        assert self.process.returncode == 0
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


@pytest.fixture(params=["hdfs", "s3", "gcs"])
def bucket(request: pytest.FixtureRequest, servers: Servers) -> Bucket:
    """A folder of each store."""
    bucket: Bucket = request.getfixturevalue(request.param)
    return bucket


def test_what_is_written_is_found_and_read(bucket: Bucket, tmp_path: Path):
    content = os.urandom(9_000_001)
    (tmp_path / "content").write_bytes(content)
    url = bucket.of("deep/down/part 1 é")
    assert "error" not in Access(bucket.environ, "write", str(tmp_path / "content"), url).result()
    assert bucket.names() == ["deep/down/part 1 é"]
    assert bucket.read("deep/down/part 1 é") == content
    found = Access(bucket.environ, "find", bucket.of("deep/*/part*")).result()
    assert found["files"] == [[url, len(content)]]
    read = Access(bucket.environ, "read", url, "4194305").result()
    assert (read["size"], read["sha256"]) == (4_805_696, hashlib.sha256(content[4194305:]).hexdigest())
