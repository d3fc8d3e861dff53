"""``launch check --url``: what the Python of tasks can reach, and which packages it lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch
from tests.storage.stores import S3

pytestmark = pytest.mark.promise(
    "`launch check --url`: which URLs each host reaches, and which packages are missing"
)


def findings(printed: str) -> list[tuple[str, str]]:
    """Severity and text of the findings about URLs."""
    found = json.loads(printed)["findings"]
    return [(each["severity"], each["seen"]) for each in found if each["kind"] == "url"]


def test_a_store_and_what_is_not_there(launch: Launch, s3: S3):
    there, none, nowhere = s3.put("data/x", b"x"), s3.of("none/yet"), "s3://no-such-bucket/x"
    refused, unmounted = "webhdfs://127.0.0.1:1/x", "file:///no-such-mount/data/*"
    words = [word for url in (there, none, nowhere, refused, unmounted) for word in ("--url", url)]
    ended = launch("check", "--json", *words, env=s3.environ, timeout=60, code=1)
    problems = {
        ("problem", f"{nowhere}: there is no bucket 'no-such-bucket'"),
        ("problem", f"{refused}: Connection refused"),
        ("problem", f"{unmounted}: there is no such file"),
    }
    assert set(findings(ended.out)) == problems
    (host,) = json.loads(ended.out)["hosts"]
    assert [each["url"] for each in host["urls"] if not each["error"]] == [there, none]
    text = launch("check", "--url", there, env=s3.environ, timeout=60)
    assert f"{there} is reached by 1 of 1 host\n" in text.out and "problem" not in text.out


def test_packages_that_are_missing(launch: Launch, tmp_path: Path):
    """A Python in which nothing is installed; the launcher's own Python has all packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    urls = {"hdfs": "hdfs://nn/x", "s3": "s3://bucket/x", "gcs": "gs://bucket/x", "http": "https://host/x"}
    # A path needs none.
    words = [word for url in (*urls.values(), f"file://{tmp_path}/new") for word in ("--url", url)]
    ended = launch("check", "--json", "--venv", tmp_path / "bare", *words, timeout=60, code=1)
    found: list[dict[str, Any]] = [
        each for each in json.loads(ended.out)["findings"] if each["kind"] == "url"
    ]
    assert len(found) == len(urls)
    for (extra, url), finding in zip(urls.items(), found, strict=True):
        assert finding["seen"].startswith(f"{url}: ") and "is not installed" in finding["seen"]
        assert f"pip install 'tf-launcher[{extra}]'" in finding["advice"]
        assert "launch prepare" in finding["advice"]


def test_a_python_that_hangs(launch: Launch, tmp_path: Path):
    """It answers about itself, and not about URLs: the check ends all the same, and says so."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "fsspec.py").write_text("import time\ntime.sleep(600)\n")
    (site / "s3fs.py").write_text("")
    env = {"PYTHONPATH": str(site)}
    words = ["--url", "s3://bucket/x", "--timeout", "2"]
    ended = launch("check", "--json", *words, env=env, timeout=60, code=1)
    assert findings(ended.out) == [("problem", "s3://bucket/x: no answer in time")]


def test_what_is_no_url_or_has_a_password(launch: Launch):
    for word in ("/data", "data/x", "s3://me:s3cret/s3cret@bucket/x", "hdfs://me:s3cret@nn:8020/x"):
        ended = launch.here("check", "--url", word, code=2)
        assert "--url" in ended.err and "s3cret" not in ended.err + ended.out
