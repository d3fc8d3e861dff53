"""What travels: all that an entry needs, nothing else, and never stale."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import TransportError
from launcher.transport import bundle as bundle_module
from launcher.transport.bundle import Bundle, bundle

AGENT = "launcher.agent.__main__:main"


def modules(data: bytes) -> dict[str, tuple[bool, bytes]]:
    """What is in one."""
    found: dict[str, tuple[bool, bytes]] = marshal.loads(zlib.decompress(data[4:]))
    return found


def test_the_agent_has_all_that_it_imports_and_no_more_than_what_may_travel():
    names = set(bundle(AGENT).names)
    assert {"launcher", "launcher.agent", "launcher.agent.loop", "launcher.events"} <= names
    rooms = {name.split(".")[1] for name in names if "." in name}
    assert rooms <= {"agent", "model", "wire", "errors", "stream", "processes", "events", "job", "text"}
    code = f"import sys; import {AGENT.partition(':')[0]}, launcher.agent.loop; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert {name for name in loaded if name.partition(".")[0] == "launcher"} <= names


def test_both_forms():
    made = bundle(AGENT)
    assert made.compiled[:4] == importlib.util.MAGIC_NUMBER and made.source()[:4] == bytes(4)
    compiled, source = modules(made.compiled), modules(made.source())
    assert set(compiled) == set(source) == set(made.names)
    assert compiled["launcher"][0] and source["launcher"] == (True, b"")
    for name, (is_package, code) in source.items():
        assert compiled[name][0] is is_package
        compile(code, name, "exec")


def test_it_is_made_once():
    assert bundle(AGENT) is bundle(AGENT)


@pytest.mark.parametrize("entry", ["launcher.agent.nothing:main", "os:system", "launcher..agent:x", ""])
def test_only_ours(entry: str):
    with pytest.raises(TransportError, match="no such module of ours"):
        bundle(entry)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another folder takes the place of ours."""
    monkeypatch.setattr(bundle_module, "_FOLDER", str(tmp_path))
    for cached in (bundle_module._file, bundle_module._listed, bundle_module.bundle):
        cached.cache_clear()
    yield tmp_path
    for cached in (bundle_module._file, bundle_module._listed, bundle_module.bundle):
        cached.cache_clear()


def text_of(made: Bundle, module: str) -> str:
    """A constant that a module of the bundle sets."""
    space: dict[str, str] = {}
    exec(marshal.loads(modules(made.compiled)[module][1]), space)
    return space["TEXT"]


def test_stale_and_damaged_caches_are_not_taken(package: Path):
    file = package / "thing.py"
    file.write_text("TEXT = 'one'\n")
    cached = Path(importlib.util.cache_from_source(str(file)))
    subprocess.run([sys.executable, "-m", "py_compile", str(file)], check=True)
    assert cached.exists()
    assert text_of(bundle("launcher.thing:x"), "launcher.thing") == "one"
    # As big as before, and a second younger.
    file.write_text("TEXT = 'two'\n")
    os.utime(file, (file.stat().st_mtime + 1,) * 2)
    bundle.cache_clear()
    assert text_of(bundle("launcher.thing:x"), "launcher.thing") == "two"
    cached.write_bytes(cached.read_bytes()[:20])
    bundle.cache_clear()
    assert text_of(bundle("launcher.thing:x"), "launcher.thing") == "two"
    shutil.rmtree(cached.parent)
    bundle.cache_clear()
    assert text_of(bundle("launcher.thing:x"), "launcher.thing") == "two"


def test_a_cache_that_is_cut_off_but_looks_fresh(package: Path):
    file = package / "thing.py"
    file.write_text("TEXT = 'one'\n")
    subprocess.run([sys.executable, "-m", "py_compile", str(file)], check=True)
    cached = Path(importlib.util.cache_from_source(str(file)))
    cached.write_bytes(cached.read_bytes()[:-5])
    assert text_of(bundle("launcher.thing:x"), "launcher.thing") == "one"


def test_every_way_to_import_is_followed(package: Path):
    for name in ("a", "b", "c", "d", "e", "unused"):
        (package / f"{name}.py").write_text("")
    (package / "sub").mkdir()
    (package / "sub/__init__.py").write_text("import launcher.e\n")
    (package / "sub/deep.py").write_text("")
    (package / "thing.py").write_text(
        "import launcher.a\nfrom launcher import b\nfrom launcher.c import x\n"
        "def f():\n    from launcher.sub import deep\n    return [__import__('os') for _ in deep]\n"
        "class C:\n    def g(self):\n        import launcher.d as other\n        return other\n"
    )
    assert set(bundle("launcher.thing:x").names) == {
        "launcher", *(f"launcher.{name}" for name in ("thing", "a", "b", "c", "d", "e", "sub", "sub.deep"))
    }  # fmt: skip
