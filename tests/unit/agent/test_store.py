"""What the host's end of a sync keeps and clears away, and what it says of its disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.agent.store import home, work
from launcher.agent.store.blobs import Blobs
from launcher.agent.store.give import _collect
from launcher.agent.store.home import Failed, Lock, Store, open_store
from launcher.agent.store.place import task_of
from launcher.agent.store.talk import Hung, Talk
from launcher.agent.store.tree import remove
from launcher.agent.store.work import Run, clean_up
from launcher.model.luggage import LuggageError, digest_of
from tests.local.seeing import soon

DAY = 24 * 3600.0
#: The name of a run that no process of this machine belongs to.
JOB = f"job-{os.urandom(8).hex()}"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return open_store()


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    reading, writing = os.pipe()
    yield Talk(reading, writing)
    os.close(reading)
    os.close(writing)


@contextmanager
def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """So much later."""
    later = time.time() + seconds
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        yield


def run_of(store: Store, job: str) -> Run:
    new = store.new()
    os.mkdir(new)
    Path(new, "train.py").write_text("x")
    run = Run(store, job)
    run.settle("project", "digest", new, lambda: None)
    return run


def test_a_run_that_nobody_finished_goes_when_nobody_was_seen_twice_a_day_apart(
    store: Store, talk: Talk, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(store, JOB)
    for hours, there in ((0, True), (1, True), (23, True), (25, False)):
        with at(monkeypatch, hours * 3600.0):
            clean_up(store, talk)
        assert os.path.exists(run.folder) == there, f"after {hours} hours"
    assert os.listdir(store.work) == []


def test_a_run_whose_tasks_are_seen_stays(store: Store, talk: Talk, monkeypatch: pytest.MonkeyPatch):
    run = run_of(store, JOB)
    clean_up(store, talk)
    with subprocess.Popen(["sleep", "60"], cwd=f"{run.folder}/project") as process:
        with at(monkeypatch, 2 * DAY):
            clean_up(store, talk)
        process.kill()
    environment = {**os.environ, "TF_LAUNCHER_TASK": f"{JOB}:ps/0"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        soon(lambda: task_of(str(process.pid)))  # exec shows it a little after it has begun the program
        with at(monkeypatch, 4 * DAY):
            clean_up(store, talk)
        process.kill()
    with at(monkeypatch, 6 * DAY):
        clean_up(store, talk)
    assert os.path.exists(run.folder), "seen dead only once since it was seen alive"
    with at(monkeypatch, 8 * DAY):
        clean_up(store, talk)
    assert not os.path.exists(run.folder)


def test_a_run_that_another_machine_uses_stays(store: Store, talk: Talk, monkeypatch: pytest.MonkeyPatch):
    run = run_of(store, JOB)
    with monkeypatch.context() as patch:
        patch.setattr(work, "_machine", lambda: "other")
        Run(store, JOB).used()
    for days in (0, 2, 4):
        with at(monkeypatch, days * DAY):
            clean_up(store, talk)
    assert os.path.exists(run.folder)


def test_a_collect_shows_that_it_is_wanted(store: Store, talk: Talk, monkeypatch: pytest.MonkeyPatch):
    run = run_of(store, JOB)
    clean_up(store, talk)
    _collect(talk, {"job": JOB, "squeeze": False, "wanted": []})
    with at(monkeypatch, 2 * DAY):
        clean_up(store, talk)
    assert os.path.exists(run.folder)
    with at(monkeypatch, 4 * DAY):
        clean_up(store, talk)
    assert not os.path.exists(run.folder), "nobody has collected anything since"


def test_a_collect_brings_no_run_back(store: Store, talk: Talk):
    _collect(talk, {"job": JOB, "squeeze": False, "wanted": []})
    assert os.listdir(store.work) == []


@pytest.mark.parametrize("job", ["", "..", "a/b", ".hidden", "/etc"])
def test_no_job_has_such_a_name(store: Store, job: str):
    with pytest.raises(LuggageError):
        Run(store, job)


def test_what_is_half_done_goes_only_when_nobody_is_at_work(store: Store):
    with Lock(f"{store.root}/lock") as one, Lock(f"{store.root}/lock") as other:
        one.share(lambda: None)
        assert not other.alone()
        other.share(lambda: None)
        assert not one.alone()


def test_a_lock_that_passes_leaves_nothing_and_keeps_others_out(tmp_path: Path):
    path = str(tmp_path / "lock")
    with Lock(path, passing=True) as one:
        one.take(lambda: None)
        other = Lock(path, passing=True)
        assert not other.alone()
    with other:
        other.take(lambda: None)
        third = Lock(path, passing=True)
        assert not third.alone(), "the first has removed the file that the second waited for"
        with third:
            pass
    assert os.listdir(tmp_path) == []


def test_a_content_counts_when_it_is_right(store: Store):
    blobs = Blobs(store)
    content = digest_of(b"hello")
    assert not blobs.add(content, [b"hel", b"p!"])
    assert not blobs.has(content, 5)
    assert blobs.add(content, [b"hel", b"lo"])
    assert blobs.has(content, 5)
    assert not blobs.has(content, 4)
    assert blobs.read(content) == b"hello"
    Path(blobs.path(content)).write_bytes(b"help!")
    assert blobs.read(content) == b""
    assert not blobs.has(content, 5), "damaged: away with it"
    assert os.listdir(store.tmp) == []


def test_the_least_recently_used_goes_first(store: Store):
    blobs = Blobs(store)
    contents = [os.urandom(10_000) for _ in range(5)]
    for age, data in enumerate(contents):
        blobs.add(digest_of(data), [data])
        os.utime(blobs.path(digest_of(data)), (1000 - age, 1000 - age))
    assert blobs.has(digest_of(contents[4]), 10_000)  # the oldest, used now
    blobs.prune(3 * 4096 * 2 + 100)
    left = [index for index, data in enumerate(contents) if os.path.exists(blobs.path(digest_of(data)))]
    assert left == [0, 4]


def test_removing_follows_no_link_and_is_not_stopped_by_permissions(tmp_path: Path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/x").write_text("x")
    tree = tmp_path / "tree"
    (tree / "deep/closed").mkdir(parents=True)
    (tree / "deep/closed/y").write_text("y")
    (tree / "deep/link").symlink_to(tmp_path / "precious")
    (tree / "deep/closed").chmod(0o000)
    remove(str(tree), lambda: None)
    remove(str(tree), lambda: None)
    (tmp_path / "link").symlink_to("precious")
    remove(str(tmp_path / "link"), lambda: None)
    assert sorted(os.listdir(tmp_path)) == ["precious"]
    assert os.listdir(tmp_path / "precious") == ["x"]


def test_a_disk_without_room_is_told_of_before_anything_travels(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(home, "room", lambda path: 12_000_000)
    home.check_room(store.root, 12_000_000)
    with pytest.raises(Failed, match=r"disk full: .*/tf-launcher needs 3.4 GB, and 12 MB are free there"):
        home.check_room(store.root, 3_400_000_000)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, r"disk full: no space left at {path} \(\S+ \wB free\)"),
        (errno.EDQUOT, r"disk full: the quota is used up at {path} \(\S+ \wB free\)"),
        (errno.EROFS, r"the home {home} is not writable: Read-only file system \({path}\)"),
        (errno.EIO, r"{path}: Input/output error"),
    ],
)
def test_what_the_disk_says_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = f"{tmp_path}/.cache/tf-launcher"
    said = home.worded(OSError(number, os.strerror(number), path))
    import re

    assert re.fullmatch(text.format(path=re.escape(path), home=re.escape(str(tmp_path))), said)


def test_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    with pytest.raises(Failed, match=r"the home folder .*/gone is not there"):
        open_store()
    assert not (tmp_path / "gone").exists()


def test_a_launcher_that_is_gone_ends_the_errand(tmp_path: Path):
    """With the end of its stdin, in no time, and without a trace on stderr."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from launcher.agent.store.receive import sync; "
    code += "tree = {'manifest': '0' * 40, 'size': 9, 'number': 0, 'earlier': ['1' * 40]}; "
    code += "sys.exit(sync({'job': 'j', 'limit': 9, 'trees': [tree]}))"
    root = str(Path(__file__).resolve().parents[3])
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"HOME": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        out = b""
        while b'"need":"manifests"' not in out and (data := os.read(process.stdout.fileno(), 1 << 16)):
            out += data
        _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert b'"need":"manifests"' in out
    assert err == b""


def test_clearing_up_goes_on_when_the_launcher_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("launcher.agent.store.talk._PULSE", -1.0)
    reading, writing = os.pipe()
    os.close(reading)
    talk = Talk(0, writing)
    with pytest.raises(Hung):
        talk.alive()
    talk.pulse()
    os.close(writing)


def test_whoever_knows_that_a_run_is_over_may_discard_it(store: Store):
    run = run_of(store, JOB)
    work.discard(JOB, lambda: None)
    assert not os.path.exists(run.folder)
    assert not os.path.exists(store.work)
    work.discard(JOB, lambda: None)
