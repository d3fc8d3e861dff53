"""What travels, and that nothing is changed by that."""

from __future__ import annotations

import ast
import linecache
import pickle
import subprocess
import sys
import tempfile
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

import cloudpickle
import pytest

from launcher.api.bundle import arrival, bundle
from launcher.api.payload import dumps
from launcher.errors import LaunchError
from launcher.feed.remote.own_modules import own_modules


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


def test_several_threads_pickle_at_once():
    """cloudpickle's list of modules that travel as code is one for all of them."""
    wrong: list[object] = []

    def pickle_often() -> None:
        for _ in range(30):
            try:
                if b"is not a name" not in dumps(_Own, "a class"):
                    wrong.append("it was only named")
            except Exception as error:  # noqa: BLE001 - whatever it is: it is a fault
                wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=pickle_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong and not cloudpickle.list_registry_pickle_by_value()


class _Own:
    """A class of a module that is not installed."""

    text = "is not a name"


def annotated(args: Decimal, ctx: "Fraction | no.such") -> list[str]:  # type: ignore[name-defined] # noqa: F821, UP037
    """Its annotations are texts, and so are those of the function within."""

    def inner(one: PurePath) -> None: ...

    return [str(inner), str(args)]


lock = threading.Lock()


def test_what_annotations_name_travels():
    names = carried(annotated)
    assert {"Decimal", "Fraction", "PurePath"} <= names and "lock" not in names
    text = "import typing\ndef fun(args: typing.Any, ctx: typing.Any) -> str:\n    return ''\n"
    assert "typing" in carried(from_file(text))


def test_what_only_an_annotation_needs_is_no_reason_to_fail():
    fun = from_file("import threading\nlock = threading.Lock()\ndef fun(one: 'lock') -> None: ...\n")
    assert carried(fun) == set()


def from_file(text: str) -> Any:
    """The function ``fun`` of a module with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a_module.py")
        path.write_text(text)
        names: dict[str, Any] = {"__name__": "a_module"}
        exec(compile(text, path, "exec"), names)
        linecache.getlines(str(path))
    return names["fun"]


def carried(function: Any) -> set[str]:
    """The globals that a function has where it arrives."""
    there = pickle.loads(dumps(function, "it")).__globals__
    return {name for name in there if not name.startswith("__")}


def test_nothing_of_ours_need_be_installed_where_it_arrives(tmp_path: Path):
    """A Python that sees nothing but the standard library and what it was given."""
    word = "carried"
    (tmp_path / "arrival").write_text(arrival())
    (tmp_path / "bundle").write_bytes(bundle())
    (tmp_path / "work").write_bytes(
        dumps(lambda: (word, __import__("launcher").TFNode.__name__), "a function")
    )
    code = (
        f"import pickle\n"
        f"exec(open({str(tmp_path / 'arrival')!r}).read(), arrival := {{'__name__': 'arrival'}})\n"
        f"arrival['install'](open({str(tmp_path / 'bundle')!r}, 'rb').read())\n"
        f"import launcher.api.task, launcher.feed.remote.data_feed\n"
        f"print(*pickle.load(open({str(tmp_path / 'work')!r}, 'rb'))())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        cwd=tmp_path,
    )
    assert ended.stdout == "carried TFNode\n", ended.stderr


def test_it_is_not_large():
    print(f"{len(bundle()):,} bytes of modules")
    assert len(bundle()) < 1_000_000
    assert pickle.loads(dumps([1, 2], "a list")) == [1, 2]


def test_a_task_with_an_old_python_can_say_so():
    """What a task runs first is understood by every Python since 3.8."""
    text = arrival()
    ast.parse(text, feature_version=(3, 8))
    used = {name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names}
    assert {name.name.partition(".")[0] for name in used} <= sys.stdlib_module_names
