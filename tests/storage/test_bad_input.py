"""Wrong URLs, and stores that refuse: one clear line each, within seconds, and nothing half done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests.seeing import ROOT
from tests.storage.stores import S3, Bucket, Gcs, Hdfs


class Error(NamedTuple):
    """What an error must say."""

    pattern: str


pytestmark = pytest.mark.promise("wrong URLs, and stores that refuse: one line each, and nothing half done")
#: hdfs-native alone would try for three minutes. Many things are tried at once, on a busy machine.
TIME_LIMIT = 90.0


def tried(environ: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What became of pairs of a command and a URL, see `tests.storage.tries`."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.storage.tries"], input=json.dumps(pairs), capture_output=True,
        text=True, cwd=ROOT, env={**os.environ, **environ}, timeout=TIME_LIMIT,
    )  # fmt: skip
    assert not ended.returncode, ended.stderr
    results: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return results


def check_table(environ: Mapping[str, str], table: Sequence[tuple[str, str, Any]]) -> None:
    """Check what becomes of commands: ``Error`` has the pattern of an error, everything else is a result."""
    results = tried(environ, [(command, url) for command, url, _ in table])
    wrong = []
    for (command, url, expected), result in zip(table, results, strict=True):
        if not isinstance(expected, Error):
            is_right = result == {"found": expected}
        else:
            start, _, why = result.get("error", "").partition(f"{url}: ")
            # A stack of Java, or the name of an exception, says nothing to the user.
            is_right = (
                not start and len(why) < 400 and not re.search(r"\n|\tat |Traceback|Error\(|org\.apache", why)
            )
            is_right = is_right and re.search(expected.pattern, why) is not None
        if not is_right:
            wrong.append((command, url, expected, result))
    assert not wrong


def with_common_cases(bucket: Bucket) -> list[tuple[str, str, Any]]:
    """Cases that are the same in all stores."""
    bucket.put("data/a.txt", b"a\n")
    if isinstance(bucket, Gcs):  # The emulator itself fails at an upload without content.
        tried(bucket.environ, [("write", bucket.of("data/empty.txt"))])
    else:
        bucket.put("data/empty.txt", b"")
    return [
        ("find", bucket.of("data/none.txt"), Error("there is no such file$")),
        ("find", bucket.of("data/*.csv"), Error("no file has such a name")),
        ("find", bucket.of("none/*"), Error("no file has such a name|no such file")),
        ("find", bucket.of("data"), Error("is a folder")),
        ("find", bucket.of("data/"), Error("is a folder")),
        ("find", bucket.of("data/*"), [bucket.of("data/a.txt"), bucket.of("data/empty.txt")]),
        ("read", bucket.of("data/empty.txt"), ""),
        ("check", bucket.of("none/at/all"), None),
        ("empty", bucket.of("none"), True),
        ("empty", bucket.of("data"), False),
        ("empty", bucket.of("data/a.txt"), False),
        ("find", "nonsense://x/y", Error("nonsense")),
        ("find", "hdfs://[::1/x", Error("expected a URL")),
        ("write", "https://example.com/x", Error("cannot be written")),
    ]


def test_hdfs(hdfs: Hdfs):
    private = hdfs.make_folder("private", "700")
    hdfs.put("private/x", b"x")
    address, web = hdfs.servers.address, hdfs.web_url.split("/")[2]
    table = with_common_cases(hdfs)
    for scheme in ("hdfs", "webhdfs"):
        table += [
            ("find", f"{scheme}://no-such-host.invalid:8020/x", Error("no-such-host")),
            ("check", f"{scheme}://no-such-host.invalid:8020/x", Error("no-such-host")),
            ("find", f"{scheme}://{address}:1/x", Error("refused")),
            ("check", f"{scheme}://{address}:1/x", Error("refused")),
            ("empty", f"{scheme}://{address}:1/x", Error("refused")),
        ]
    table += [
        ("find", f"hdfs://{web}/x", Error("no NameNode|Broken pipe|reset by peer")),
        ("find", f"web{hdfs.root}/x", Error("Not Found")),
        ("find", f"{private}/x", Error("denied")),
        ("find", f"{private}/*", Error("denied")),
        ("check", f"{private}/x", Error("denied")),
        ("empty", f"{private}/x", Error("denied")),
        ("write", f"{private}/y", Error("denied")),
        ("write", f"{private}/deep/y", Error("denied")),
        ("write", hdfs.of("data/a.txt/y"), Error("not a directory")),
        ("write", hdfs.of("data"), Error("directories")),
    ]
    check_table({"HADOOP_USER_NAME": "somebody"}, table)
    assert hdfs.names() == ["data/a.txt", "data/empty.txt", "private/x"]


def test_s3(s3: S3):
    table = with_common_cases(s3)
    s3.put("denied/x", b"x")
    s3.deny("denied/*")
    table += [
        ("find", "s3://no-such-bucket/x", Error("no bucket 'no-such-bucket'")),
        ("find", "s3://no-such-bucket/*", Error("no bucket")),
        ("check", "s3://no-such-bucket/x", Error("no bucket")),
        ("empty", "s3://no-such-bucket/x", Error("no bucket")),
        ("write", "s3://no-such-bucket/x", Error("no such file or bucket")),
        ("find", "s3:///x", Error("no bucket")),
        ("find", s3.of("denied/x"), Error("denied")),
        # As a web server it shows nothing to strangers.
        ("find", f"{s3.endpoint}/{s3.url.removeprefix('s3://')}/denied/x", Error("denied")),
        ("find", "http://no-such-host.invalid/x", Error("no-such-host")),
        ("find", "http://127.0.0.1:1/x", Error("refused")),
        ("check", "http://127.0.0.1:1/x", Error("refused")),
        ("write", s3.of("denied/y"), Error("denied")),
    ]
    check_table(s3.environ, table)
    assert s3.names() == ["data/a.txt", "data/empty.txt", "denied/x"]
    # Where there is no such server, and where nobody has said who the user is.
    absent = [("find", s3.of("x"), Error("127.0.0.1:1/")), ("check", s3.of("x"), Error("127.0.0.1:1/"))]
    check_table(s3.at("http://127.0.0.1:1"), absent)
    unknown = {**s3.environ, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": "/nonexistent"}
    check_table(
        unknown, [("find", s3.of("x"), Error("credentials")), ("check", s3.of("x"), Error("credentials"))]
    )


def test_gcs(gcs: Gcs):
    table = with_common_cases(gcs)
    table += [
        ("find", "gs://no-such-bucket/x", Error("no bucket")),
        ("check", "gs://no-such-bucket/x", Error("no bucket")),
        ("empty", "gs://no-such-bucket/x", Error("no bucket")),
        ("write", "gs://no-such-bucket/x", Error("no such file or bucket")),
    ]
    check_table(gcs.environ, table)
    assert gcs.names() == ["data/a.txt", "data/empty.txt"]
