"""What travels, and that nothing is changed by that."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest

from launcher.api.bundle import bundle
from launcher.api.payload import dumps, own_modules
from launcher.errors import LaunchError
from launcher.feed.knock import install


def test_modules_of_the_user_travel_as_code():
    names = {module.__name__ for module in own_modules()}
    assert any(name.endswith("test_payload") for name in names)
    assert not {"json", "pytest", "cloudpickle", "launcher", "launcher.errors", "__main__"} & names
    assert not cloudpickle.list_registry_pickle_by_value()
    dumps(test_modules_of_the_user_travel_as_code, "a function")
    assert not cloudpickle.list_registry_pickle_by_value()


def test_what_can_not_travel():
    with pytest.raises(LaunchError, match="arguments can't be carried"):
        dumps(threading.Lock(), "its arguments")


def test_nothing_of_ours_need_be_installed_where_it_arrives(tmp_path: Path):
    """A Python that sees nothing but the standard library and what it was given."""
    word = "carried"
    (tmp_path / "bundle").write_bytes(bundle())
    (tmp_path / "work").write_bytes(
        dumps(lambda: (word, __import__("launcher").TFNode.__name__), "a function")
    )
    code = (
        f"import importlib.util, pickle, sys\n"
        f"spec = importlib.util.spec_from_file_location('knock', {install.__code__.co_filename!r})\n"
        f"knock = importlib.util.module_from_spec(spec); spec.loader.exec_module(knock)\n"
        f"knock.install(open({str(tmp_path / 'bundle')!r}, 'rb').read())\n"
        f"import launcher.api.runner, launcher.api.instances, launcher.feed.datafeed\n"
        f"print(*pickle.load(open({str(tmp_path / 'work')!r}, 'rb'))())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=tmp_path,
    )
    assert ended.stdout == "carried TFNode\n", ended.stderr


def test_it_is_not_large():
    print(f"{len(bundle()):,} bytes of modules")
    assert len(bundle()) < 1_000_000
    assert pickle.loads(dumps([1, 2], "a list")) == [1, 2]


def test_a_task_with_an_old_python_can_say_so():
    """What a task runs first is understood by every Python since 3.8."""
    text = Path(install.__code__.co_filename).read_text()
    ast.parse(text, feature_version=(3, 8))
    used = {name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names}
    assert {name.name.partition(".")[0] for name in used} <= sys.stdlib_module_names
