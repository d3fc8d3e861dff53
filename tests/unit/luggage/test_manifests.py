"""How a host comes to the list of what it is to have: as changes, if it can be; as it is, in any case."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launcher.luggage import manifests, mending
from launcher.luggage.manifests import delta
from launcher.luggage.sync import SyncResult, finish
from launcher.model.luggage import digest_of
from tests.unit.luggage.conftest import Bring
from tests.unit.luggage.hosts import LocalHosts, snapshot

#: Bytes that a list of changes takes at most, and a list of 300 files at least.
CHANGES, WHOLE = 4000, 10_000


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """300 files."""
    root = tmp_path / "many"
    for number in range(300):
        path = root / f"package{number % 20}/module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number = {number}\n")
    return root


@pytest.fixture
def edited(bring: Bring, many: Path) -> Path:
    """They were brought to host a, and one has changed since."""
    assert bring(many).sent > WHOLE
    (many / "package7/module7.py").write_text("changed = True\n")
    return many


def lists(hosts: LocalHosts, host: str = "a") -> list[Path]:
    """The manifests that are kept on a host."""
    return [path for path in hosts.cache(host).glob("blobs/*/*") if path.read_bytes().startswith(b"[[")]


def check(result: SyncResult, folder: Path, host: str = "a") -> None:
    assert snapshot(Path(result.workdirs[host])) == snapshot(folder)


def test_of_a_long_list_what_changed_travels(bring: Bring, edited: Path):
    result = bring(edited, job="job2")
    assert 0 < result.sent < CHANGES
    check(result, edited)


def test_after_the_run_and_in_a_place_that_stays_too(bring: Bring, hosts: LocalHosts, many: Path):
    for number in range(3):
        (many / "package7/module7.py").write_text(f"changed = {number}\n")
        (many / f"package{number}/module{number + 40}.py").unlink(missing_ok=True)
        result = bring(many, f"{many}:there", job=f"job{number}")
        assert result.sent > WHOLE if number == 0 else result.sent < 2 * CHANGES
        check(result, many)
        finish(hosts, ("a",), f"job{number}", 1)


def test_each_host_is_told_what_it_needs(bring: Bring, hosts: LocalHosts, many: Path):
    bring(many, to=("a", "b"))
    (many / "package7/module7.py").write_text("changed = True\n")
    bring(many, to=("a",), job="job2")
    (many / "package8/module8.py").write_text("changed = True\n")
    results = {host: bring(many, to=(host,), job="job3") for host in ("a", "b", "c")}
    for host, result in results.items():
        check(result, many, host)
    assert [result.sent < CHANGES for result in results.values()] == [True, True, False]


def test_a_launcher_that_forgot_tells_all_of_it(bring: Bring, own_cache: Path, edited: Path):
    shutil.rmtree(own_cache)
    result = bring(edited, job="job2")
    assert result.sent > WHOLE
    check(result, edited)


def test_a_host_that_forgot_is_told_all_of_it(bring: Bring, hosts: LocalHosts, edited: Path):
    for path in lists(hosts):
        path.unlink()
    result = bring(edited, job="job2")
    assert result.sent > WHOLE
    check(result, edited)


def test_an_earlier_list_that_is_damaged_does_not_count(bring: Bring, hosts: LocalHosts, edited: Path):
    (path,) = lists(hosts)
    path.write_bytes(path.read_bytes().replace(b"module9.py", b"module0.py"))
    result = bring(edited, job="job2")
    assert result.sent > WHOLE
    check(result, edited)
    assert [digest_of(path.read_bytes())[2:] for path in lists(hosts)] == [path.name for path in lists(hosts)]


def test_a_list_that_is_damaged_comes_again(bring: Bring, hosts: LocalHosts, many: Path):
    bring(many)
    (path,) = lists(hosts)
    path.write_bytes(path.read_bytes().replace(b"module9.py", b"module0.py"))
    result = bring(many, job="job2")
    assert result.sent > WHOLE
    check(result, many)


def test_changes_that_make_another_list_are_not_believed(
    bring: Bring, hosts: LocalHosts, edited: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when two pieces have one name: then all of it comes."""
    asked: list[str] = []

    def misleading(manifest: bytes, each: int, signature: str) -> bytes:
        asked.append(signature)
        return delta(
            manifest.replace(b"module9.py", b"module0.py") if signature else manifest, each, signature
        )

    monkeypatch.setattr(manifests, "delta", misleading)
    result = bring(edited, job="job2")
    assert result.sent > WHOLE
    assert list(map(bool, asked)) == [True, False]
    check(result, edited)


@pytest.mark.parametrize("after", [0, 1, 100])
def test_a_cut_while_the_changes_travel(
    bring: Bring, hosts: LocalHosts, edited: Path, after: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mending, "_PAUSE", 0.01)
    hosts.cuts["a"] = after
    result = bring(edited, job="job2")
    assert hosts.redialled == ["a"]
    assert result.sent < 2 * CHANGES
    check(result, edited)


def test_what_is_remembered_is_bounded(bring: Bring, own_cache: Path, many: Path):
    seen = [bring(many, to=(), job=f"job{number}") and _touched(many, number) for number in range(12)]
    assert len(seen) == 12
    (file,) = (own_cache / "tf-launcher/hashes").iterdir()
    assert len(json.loads(file.read_text())["manifests"]) == 8


def _touched(folder: Path, number: int) -> int:
    (folder / "new.py").write_text(str(number))
    return number
