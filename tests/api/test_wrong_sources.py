"""Sources that name nothing, or something else, or broken files: one clear error each."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys

import pyarrow
import pyarrow.parquet
import pytest

from launcher import InputError, TextFiles
from tests.api.reading import read
from tests.storage.stores import S3, Gcs, Hdfs

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.promise("wrong URLs, and stores that refuse: one line each, and nothing half done"),
]


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A bucket, which the programs of the test reach."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return s3


def test_urls_that_name_no_files(bucket: S3, hdfs: Hdfs, gcs: Gcs, monkeypatch: pytest.MonkeyPatch):
    """The program knows them before anything is read, and its cluster takes other data afterwards."""
    for name, value in gcs.environ.items():
        monkeypatch.setenv(name, value)
    bucket.put("empty.txt", b"\n")
    bucket.put("folder/a.txt", b"a\nb\n")
    refused = [
        ("TextFiles", bucket.of("none.txt"), "no such file"),
        ("CsvFiles", bucket.of("folder"), "is a folder"),
        ("ParquetFiles", bucket.of("folder/*.parquet"), "no file has such a name"),
        ("TextFiles", "s3://no-such-bucket/x", "no bucket"),
        ("TFRecordFiles", hdfs.of("none"), "no such file"),
        ("TextFiles", hdfs.of("none/*"), "no such file"),
        ("TextFiles", f"hdfs://{hdfs.servers.address}:1/x", "refused"),
        ("TextFiles", "hdfs://no-such-host.invalid/x", "no-such-host"),
        ("TextFiles", gcs.of("none"), "no such file"),
        ("TextFiles", "nonsense://x/y", "nonsense"),
        ("TextFiles", "gs:///x", "no bucket"),
    ]
    right = [("TextFiles", bucket.of("*.txt")), ("TextFiles", bucket.of("folder/*"))]
    *errors, empty, rows = read([*[(source, url) for source, url, _ in refused], *right])
    for (_, url, why), error in zip(refused, errors, strict=True):
        assert url in error and why in error and "\n" not in error, (url, error)
    assert (empty, rows) == ([""], ["a", "b"])


def _parquet(rows: int) -> bytes:
    """A Parquet file."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": range(rows)}), file)
    return file.getvalue()


def test_files_that_are_broken(bucket: S3):
    """The task that reads them fails, and its error names the file."""
    broken = [
        ("TextFiles", "cut.gz", gzip.compress(os.urandom(5000))[:3000], "cut off|damaged"),
        ("TextFiles", "a.txt", b"good\n\xff\xfe\xff\n", "encoding"),
        ("TFRecordFiles", "a.tfrecord", b"no record, but text of some length", "not a TFRecord file"),
        ("ParquetFiles", "cut.parquet", _parquet(9)[:-9], "(?i:parquet)"),
    ]
    pairs = [(source, bucket.put(name, content)) for source, name, content, _ in broken]
    for (_, url), (_, _, _, why), error in zip(pairs, broken, read(pairs), strict=True):
        assert url in error and re.search(f"{re.escape(url)}: .*({why})", error), error


@pytest.mark.parametrize(("module", "extra"), [("s3fs", "s3"), ("hdfs_native", "hdfs"), ("gcsfs", "gcs")])
def test_a_package_that_the_program_lacks(module: str, extra: str, monkeypatch: pytest.MonkeyPatch):
    """The error comes before a cluster could start."""
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    url = f"{extra.replace('gcs', 'gs')}://name/x"
    with pytest.raises(
        InputError, match=rf"{url}: .* is not installed: pip install 'tf-launcher\[{extra}\]'"
    ):
        TextFiles([url, url])
