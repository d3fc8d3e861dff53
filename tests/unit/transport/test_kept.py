"""A bundle that is kept beside the modules is never older than they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.transport import bundle as bundle_module
from launcher.transport.bundle import Bundle, bundle

Fresh = Callable[..., tuple[str, ...]]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fresh]:
    """The names of what travels for ``thing``, as another process would find them; how often it was made."""
    made: list[str] = []
    make = bundle_module._made

    def counted(module: str) -> Bundle:
        made.append(module)
        return make(module)

    monkeypatch.setattr(bundle_module, "_made", counted)
    monkeypatch.setattr("sys.dont_write_bytecode", False)

    def forget() -> None:
        for cached in (bundle_module._file, bundle_module._listed, bundle_module.bundle):
            cached.cache_clear()

    def names(root: Path, times: int) -> tuple[str, ...]:
        monkeypatch.setattr(bundle_module, "_FOLDER", str(root))
        forget()
        made.clear()
        found = bundle("launcher.thing:x").names
        assert len(made) == times, f"made {len(made)} times"
        return tuple(name.removeprefix("launcher.") for name in found)

    yield names
    forget()


def package(root: Path) -> Path:
    """A package of a module that imports another."""
    (root / "__pycache__").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "thing.py").write_text("from launcher import one, two\n")
    (root / "one.py").write_text("A = 1\n")
    os.utime(root, (1000, 1000))  # what changes from now on is later, however coarse the clock of files is
    return root


def test_it_is_made_once(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    assert fresh(root, times=1) == fresh(root, times=0) == ("launcher", "thing", "one")
    assert [path.suffix for path in (root / "__pycache__").iterdir()].count(".bundle") == 1


def test_a_file_that_changed(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    fresh(root, times=1)
    before = (root / "one.py").stat()
    (root / "one.py").write_text("A = 2\n")  # as long as before
    os.utime(root / "one.py", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    fresh(root, times=1)
    fresh(root, times=0)


def test_a_module_that_was_not_there(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    assert "two" not in fresh(root, times=1)
    (root / "two.py").write_text("")
    assert "two" in fresh(root, times=1)


def test_a_module_that_is_gone(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    fresh(root, times=1)
    (root / "one.py").unlink()
    assert fresh(root, times=1) == ("launcher", "thing")


def test_a_copy_of_the_folder_is_asked_about_its_own_files(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    fresh(root, times=1)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (copy / "one.py").write_text("import launcher.three\n")
    (copy / "three.py").write_text("")
    assert "three" in fresh(copy, times=1)


def test_what_is_damaged_or_of_another_python(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    fresh(root, times=1)
    [kept] = (root / "__pycache__").glob("*.bundle")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:3], whole[:40], whole[:-9], b"none" + whole[4:]):
        kept.write_bytes(damaged)
        fresh(root, times=1)
        fresh(root, times=0)


def test_where_nothing_can_be_written(fresh: Fresh, tmp_path: Path):
    root = package(tmp_path / "p")
    (root / "__pycache__").rmdir()
    (root / "__pycache__").write_text("a file")
    fresh(root, times=1)
    fresh(root, times=1)
