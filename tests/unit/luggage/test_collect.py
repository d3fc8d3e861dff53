"""Fetching what tasks have made: what arrives, where, and what is never touched."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import cast

import pytest

from launcher.errors import TransportError
from launcher.luggage import mending
from launcher.luggage.collect import Collected, collect
from launcher.luggage.fetch import Fetch
from launcher.luggage.landing import Arrival, Landing
from launcher.luggage.meter import Meter
from launcher.luggage.progress import Silent
from launcher.luggage.requests import Wanted
from launcher.luggage.talk import Conversation
from launcher.model.luggage import (
    FILE,
    FOLDER,
    LINK,
    PLAIN,
    Entry,
    Frames,
    LuggageError,
    digest_of,
    framed,
    tell,
)
from launcher.model.shrinking import packed
from tests.unit.luggage.hosts import LocalErrand, LocalHosts, quietly, snapshot


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where things go; not there yet."""
    return tmp_path / "out"


def fetch(hosts: LocalHosts, *wanted: Wanted) -> Collected:
    return collect(hosts, wanted, "job1", Silent(), 8)


def wanted(path: str, into: Path, host: str = "a", base: str = "", task: str = "worker/0") -> Wanted:
    return Wanted(task, host, base, path, str(into))


def test_a_tree_arrives_as_it_is(hosts: LocalHosts, folder: Path, out: Path):
    result = fetch(hosts, wanted("project", out, base=str(folder.parent)))
    assert snapshot(out / "project") == snapshot(folder)
    assert result == Collected(
        13, sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()), (), ()
    )
    assert (out / "project/train.py").stat().st_mtime_ns == (folder / "train.py").stat().st_mtime_ns


def test_a_file_of_the_home_and_one_below_it(hosts: LocalHosts, out: Path):
    home = hosts.home("a")
    (home / "ckpt").mkdir()
    (home / "ckpt/7").write_text("seven")
    (home / "log").write_text("log")
    fetch(hosts, wanted("log", out), wanted("ckpt/7", out), wanted("~/log", out / "again"))
    assert snapshot(out) == {
        b"log": ("file", 0o644, b"log"), b"7": ("file", 0o644, b"seven"), b"again": ("folder", 0o755, None),
        b"again/log": ("file", 0o644, b"log"),
    }  # fmt: skip


def test_the_whole_folder_of_a_task(hosts: LocalHosts, folder: Path, out: Path):
    for number, path in enumerate((".", "./", "src/.."), 1):
        fetch(hosts, wanted(path, out / str(number), base=str(folder)))
        assert snapshot(out / str(number)) == snapshot(folder)


def test_a_pattern_keeps_the_folders_it_left_open(hosts: LocalHosts, out: Path):
    home = hosts.home("a")
    for path in ("runs/a/model/w", "runs/b/model/w", "runs/b/other", "runs/c/x", "runs/[b]/model"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    fetch(
        hosts,
        wanted("runs/*/model", out / "1"),
        wanted(f"{home}/runs/?/*er", out / "2"),
        wanted("runs/**", out / "3"),
    )
    assert [key for key, value in sorted(snapshot(out / "1").items()) if value[0] == "file"] == [
        b"[b]/model", b"a/model/w", b"b/model/w",
    ]  # fmt: skip
    assert sorted(snapshot(out / "2")) == [b"b", b"b/other"]
    assert snapshot(out / "3") == snapshot(home / "runs")
    fetch(hosts, wanted("runs/[b]/model", out / "4"))
    assert (out / "4/model").read_text() == "runs/[b]/model", "a name that looks like a pattern is a name"


def test_each_task_gets_its_own_though_they_share_a_host(hosts: LocalHosts, out: Path):
    (hosts.home("a") / "log").write_text("log")
    (hosts.home("b") / "log").write_text("other log")
    fetch(
        hosts,
        *(
            wanted("log", out / task, host, task=task)
            for task, host in (("w-0", "a"), ("w-1", "a"), ("w-2", "b"))
        ),
    )
    assert {p.parent.name: p.read_text() for p in out.rglob("log")} == {
        "w-0": "log", "w-1": "log", "w-2": "other log",
    }  # fmt: skip


def test_the_line_at_the_end_says_where_to(
    hosts: LocalHosts, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for host in ("a", "b"):
        (hosts.home(host) / "log").write_text("log")
    said: list[str] = []
    both = [wanted("log", out / "w-0"), wanted("log", out / "w-1", "b")]
    for these in (both[:1], both, [*both, wanted("log", tmp_path / "x/y")], [wanted("gone", out)]):
        collect(hosts, these, "job1", quietly(said), 8)
    assert [line.rpartition(" in ")[0] for line in said] == [
        "collected 1 file (3 bytes) from 1 host into ~/out/w-0",
        "collected 2 files (6 bytes) from 2 hosts into ~/out",
        "collected 3 files (9 bytes) from 2 hosts into ~/out, ~/x",
        "collected 0 files (0 bytes) from 1 host",
    ]


class Liar:
    """A host that says what it likes."""

    def __init__(self, said: bytes) -> None:
        self._frames = Frames().feed(packed(said))

    def hear(self) -> tuple[int, bytes]:
        """See `Conversation.hear`."""
        return self._frames.pop(0)

    def broken(self, why: object) -> TransportError:
        """See `Conversation.broken`."""
        return TransportError(f"a: {why}")


def test_files_that_begin_and_never_end_leave_nothing(out: Path):
    said = b"".join(tell(item=0, entry=Entry(f"f{number}", FILE, 0o644, 1, 1)) for number in range(50))
    before = len(os.listdir("/proc/self/fd"))
    it = Fetch("a", [wanted("x", out)], Meter(["a"]))
    with it:
        it.take_all(cast(Conversation, Liar(said + tell(over=True))))
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(out) == []


def test_a_time_that_no_file_can_have(out: Path):
    said = tell(item=0, entry=Entry("x", FILE, 0o644, 1, 2**100)) + framed(PLAIN, b"a")
    it = Fetch("a", [wanted("x", out)], Meter(["a"]))
    with it, pytest.raises(TransportError, match="^a: .*(too large|out of range)"):
        it.take_all(cast(Conversation, Liar(said + tell(end=digest_of(b"a")))))
    assert os.listdir(out) == []


def test_what_is_not_there_is_a_remark(hosts: LocalHosts, out: Path):
    (hosts.home("a") / "log").write_text("log")
    result = fetch(hosts, wanted("nowhere", out), wanted("no*", out), wanted("log", out))
    home = hosts.home("a")
    assert result.remarks == (
        f"a: worker/0: 'nowhere' is not there (looked in {home})",
        f"a: worker/0: 'no*' is not there (looked in {home})",
    )
    assert (result.files, result.failures) == (1, ())
    assert os.listdir(out) == ["log"]


def test_what_can_not_be_read_or_sent_is_a_remark(open_hosts: LocalHosts, out: Path):
    hosts, home = open_hosts, open_hosts.home("a")
    (home / "mix").mkdir()
    os.mkfifo(home / "mix/pipe")
    (home / "mix/closed").write_text("x")
    (home / "mix/closed").chmod(0)
    (home / "mix/open").write_text("x")
    result = fetch(hosts, wanted("mix", out))
    assert result.remarks == (
        f"a: worker/0: {home}/mix/pipe is neither file, folder nor link: left out",
        f"a: worker/0: {home}/mix/closed: Permission denied",
    )
    assert os.listdir(out / "mix") == ["open"]


def test_the_users_own_link_leads_to_what_is_meant(hosts: LocalHosts, out: Path):
    home = hosts.home("a")
    (home / "ckpt-9").mkdir()
    (home / "ckpt-9/w").write_text("w")
    (home / "latest").symlink_to("ckpt-9")
    (home / "broken").symlink_to("nowhere")
    fetch(hosts, wanted("latest", out), wanted("broken", out))
    assert snapshot(out) == {
        b"latest": ("folder", 0o755, None),
        b"latest/w": ("file", 0o644, b"w"),
        b"broken": ("link", 0, b"nowhere"),
    }


def test_the_mark_of_a_sync_does_not_come_back(hosts: LocalHosts, out: Path):
    (hosts.home("a") / "p").mkdir()
    (hosts.home("a") / "p/.tf-launcher-sync").write_text("x")
    fetch(hosts, wanted("p", out))
    assert os.listdir(out / "p") == []


def test_what_is_there_is_replaced(hosts: LocalHosts, out: Path):
    (hosts.home("a") / "log").write_text("new")
    out.mkdir()
    (out / "precious").write_text("precious")
    (out / "log").symlink_to("precious")
    fetch(hosts, wanted("log", out))
    assert (out / "log").read_text() == "new"
    assert not (out / "log").is_symlink()
    assert (out / "precious").read_text() == "precious"


def test_what_can_not_be_written_here_is_a_failure_and_the_rest_arrives(hosts: LocalHosts, out: Path):
    home = hosts.home("a")
    (home / "d/sub").mkdir(parents=True)
    (home / "d/sub/x").write_text("x")
    (home / "d/y").write_text("y")
    (out / "d").mkdir(parents=True)
    (out / "d/sub").write_text("a file")
    result = fetch(hosts, wanted("d", out))
    assert result.failures == (
        f"a: 'd/sub' can't be put into {out}: Not a directory",
        f"a: 'd/sub/x' can't be put into {out}: Not a directory",
    )
    assert (out / "d/y").read_text() == "y"
    assert (out / "d/sub").read_text() == "a file"


def test_a_full_disk_names_the_file(hosts: LocalHosts, out: Path, monkeypatch: pytest.MonkeyPatch):
    (hosts.home("a") / "d").mkdir()
    for name in ("x", "y"):
        (hosts.home("a") / "d" / name).write_text(name)
    whole = Arrival.write

    def write(arrival: Arrival, data: bytes) -> None:
        if data == b"x":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(arrival, data)

    monkeypatch.setattr(Arrival, "write", write)
    result = fetch(hosts, wanted("d", out))
    assert result.failures == (f"a: 'd/x' can't be put into {out}: No space left on device",)
    assert (os.listdir(out / "d"), result.failed) == (["y"], ("a",))


def test_what_is_spare_and_can_not_be_fetched_is_a_remark(
    hosts: LocalHosts, out: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its host is lost, or there is no place for it here; what must come from elsewhere does count."""
    monkeypatch.setattr(mending, "_LEAST", 0.3)
    out.mkdir()
    (out / "full").write_text("a file")
    (hosts.home("a") / "d").mkdir()
    (hosts.home("a") / "d/x").write_text("x")
    hosts.cuts["b"] = hosts.cuts["c"] = 0
    hosts.away.update("bc")
    spare = [wanted("d", out / "full")._replace(spare=True), wanted("d", out, "b")._replace(spare=True)]
    result = fetch(hosts, wanted("d", out), *spare)
    assert (result.files, result.failures, result.failed) == (1, (), ())
    assert [text[:3] for text in result.remarks if "can't be put" in text] == ["a: ", "a: "]
    assert [text[:3] for text in result.remarks if "not back after" in text] == ["b: "]
    result = fetch(hosts, wanted("d", out), wanted("d", out, "c"))
    assert (len(result.failures), result.failed) == (1, ("c",))


def test_a_link_here_leads_nowhere(hosts: LocalHosts, out: Path, tmp_path: Path):
    home = hosts.home("a")
    (home / "d/sub").mkdir(parents=True)
    (home / "d/sub/x").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (out / "d").mkdir(parents=True)
    (out / "d/sub").symlink_to(tmp_path / "elsewhere")
    result = fetch(hosts, wanted("d", out))
    assert len(result.failures) == 2
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", "./x", "x\0y"])
def test_a_host_that_sends_a_path_out_of_the_folder(out: Path, path: str):
    with Landing(str(out)) as landing, pytest.raises(LuggageError):
        landing.file(Entry(path, FILE, 0o644, 1))
    assert not (out.parent / "x").exists()


def test_a_host_that_sends_a_link_and_then_a_file_through_it(out: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    with Landing(str(out)) as landing:
        landing.put(Entry("sub", LINK, content=str(tmp_path / "elsewhere")))
        with pytest.raises(NotADirectoryError):
            landing.file(Entry("sub/x", FILE, 0o644, 1))
        with pytest.raises(NotADirectoryError):
            landing.put(Entry("sub/x", FOLDER, 0o755))
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_file_is_seen_when_it_is_complete_and_right(out: Path):
    with Landing(str(out)) as landing:
        out.mkdir()
        (out / "x").write_text("old")
        arrival = landing.file(Entry("x", FILE, 0o640, 6))
        arrival.write(b"new")
        assert (out / "x").read_text() == "old"
        arrival.write(b"est")
        arrival.complete(digest_of(b"newest"))
        assert (out / "x").read_text() == "newest"
        arrival = landing.file(Entry("x", FILE, 0o640, 6))
        arrival.write(b"damage")
        with pytest.raises(LuggageError, match="damaged on the way"):
            arrival.complete(digest_of(b"newest"))
    assert os.listdir(out) == ["x"]
    assert (out / "x").read_text() == "newest"


class Broken(LocalHosts):
    """Connections to the first host break after so many bytes were received, one after the other."""

    def __init__(self, folder: Path, *after: int) -> None:
        super().__init__(folder)
        self._after = list(after)

    def errand(self, host: str, entry: str, arguments: object) -> LocalErrand:
        errand = super().errand(host, entry, arguments)
        if host == "a" and self._after:
            errand.breaks_after = self._after.pop(0)
        return errand


def test_what_is_fetched_goes_on_over_another_connection(folder: Path, out: Path, tmp_path: Path):
    """The file that was on its way begins again, what had come does not come again; remarks are said once."""
    (folder / "a first one").write_bytes(os.urandom(1_000_000))
    hosts = Broken(tmp_path / "homes", 3_500_000)
    result = fetch(
        hosts, wanted("nowhere", out), wanted("project", out, base=str(folder.parent)), wanted("x*", out)
    )
    assert hosts.redialled == ["a"]
    assert snapshot(out / "project") == snapshot(folder)
    assert (result.files, result.failures, len(result.remarks)) == (14, (), 2)
    first, second = hosts.errands
    assert first.received > 3_500_000
    assert second.received < 3_200_000, "what had arrived came again"


def test_a_host_that_stays_away(folder: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mending, "_LEAST", 0.3)
    hosts = Broken(tmp_path / "homes", 1_500_000)
    hosts.away.add("a")
    result = fetch(
        hosts,
        wanted("run.sh", out, base=str(folder)),
        wanted("project", out, base=str(folder.parent)),
        wanted("later", out, task="worker/1"),
        wanted("x", out, host="b"),
    )
    (failure,) = result.failures
    assert re.match(
        r"a: the connection was lost \(the connection broke\), and not back after \d+ s: no ", failure
    )
    assert failure.endswith(
        f"; not fetched: 'project' of worker/0, 'later' of worker/1 ({result.files} files came)"
    )
    assert len(result.remarks) == 1, "what the other host says counts all the same"
    whole, arrived = snapshot(folder), snapshot(out / "project")
    assert b"src/big" not in arrived
    assert all(value == whole[path] for path, value in arrived.items() if value[0] == "file")


def test_connections_that_break_before_anything_has_come(folder: Path, out: Path, tmp_path: Path):
    hosts = Broken(tmp_path / "homes", *[1_500_000] * 20)
    (failure,) = fetch(hosts, wanted("src/big", out, base=str(folder))).failures
    broke, _, missing = failure.partition("; ")
    assert broke == "a: the connection broke, 5 times before anything more was complete"
    assert missing == "not fetched: 'src/big' of worker/0"
    assert len(hosts.redialled) == 5
    assert os.listdir(out) == []


def test_a_big_sparse_file(hosts: LocalHosts, out: Path):
    with open(hosts.home("a") / "big", "wb") as file:
        file.truncate(100_000_000)
        file.seek(50_000_000)
        file.write(b"here")
    result = fetch(hosts, wanted("big", out))
    assert (result.files, result.size) == (1, 100_000_000)
    assert hosts.errands[0].received < 2_000_000
    with open(out / "big", "rb") as file:
        file.seek(50_000_000)
        assert file.read(4) == b"here"
