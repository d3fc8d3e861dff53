"""Rules of the layout that import-linter and ruff do not check."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import cloudpickle
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import promises
from tests.pythons import oldest_python

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "launcher"
#: Files and packages that run on hosts: Python 3.8 and the standard library only.
TRAVELS = ("agent", "common", "feed/remote", "api/remote")


def travelling() -> list[str]:
    """Names of the modules that run on hosts."""
    paths = [PACKAGE / name for name in TRAVELS]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.exists()]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def test_what_runs_on_hosts_can_be_imported_by_python_3_8(tmp_path: Path):
    """cloudpickle travels with it."""
    python = oldest_python()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    (tmp_path / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    argv = [python, "-B", "-W", "error", "-c", code, *travelling()]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def is_typing_only(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_no_class_name_is_used_twice():
    """Two classes whose names differ only in the underscore of a private one count as well.

    What only type checkers see of a class does not count.
    """
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        typing_only = [node for node in nodes if isinstance(node, ast.If) and is_typing_only(node)]
        unseen = {part for node in typing_only for child in node.body for part in ast.walk(child)}
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node not in unseen:
                places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_importing_the_package_imports_no_library():
    code = "import sys, launcher; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())
    assert not loaded & {"yaml", "rich", "paramiko", "fabric", "psutil", "cloudpickle", "tensorflow", "numpy"}


def test_the_constraints_name_one_release_of_every_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    required = {Requirement(text) for texts in [project["dependencies"], *extras] for text in texts}
    made, *lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert re.match(r"# Made by make constraints on 20\d\d-\d\d-\d\d\.", made)
    pins = [Requirement(line) for line in lines]  # no option, no address of an index
    assert all(re.fullmatch(r"==[\w.+]+", str(pin.specifier)) and not pin.url for pin in pins)
    names = {canonicalize_name(pin.name) for pin in pins}
    assert {canonicalize_name(one.name) for one in required} - names == {"tf-launcher"}
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        python = {"python_version": version, "python_full_version": f"{version}.9", "sys_platform": "linux"}
        chosen = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(python)]
        assert len(chosen) == len(set(chosen))
        assert {"tensorflow-cpu", "pytest", "mkdocs"} <= set(chosen)


def test_each_action_of_a_workflow_is_pinned_to_a_commit():
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    used = [line for text in workflows for line in re.findall(r"\buses: *(.*)", text)]
    assert used
    assert not [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", line)]


PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("*/README.md"),
    *ROOT.glob("examples/*/README.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_to_files(page: Path):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    made = ("reference/",) if page.parent.name == "docs" else ()  # `make docs` makes and checks these
    own = [link for link in links if "://" not in link and not link.startswith(made)]
    assert not [link for link in own if not (page.parent / link).exists()]


def test_the_places_that_the_architecture_names_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"\| `([\w/]+\.py)`: `([\w.]+)` \|", text)
    assert len(rows) >= 10
    for file, place in rows:
        *owner, name = place.split(".")
        scope: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
        for kind in owner:
            (scope,) = (node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == kind)
        assert name in {getattr(node, "name", "") for node in scope}, f"{file} has no {place}"


def test_every_promise_has_a_test_and_every_marker_a_promise():
    promised = [name for names in promises.promises().values() for name in names]
    proofs = promises.proofs()
    assert len(promised) == len(set(promised))
    assert not set(promised) - set(proofs), "promises of tests/promises.toml without a test"
    assert not set(proofs) - set(promised), "markers of promises that tests/promises.toml does not have"


def test_the_table_of_promises_is_that_of_the_markers():
    _, _, table = promises.README.read_text(encoding="utf-8").partition(promises.HEADING)
    assert table == promises.table(), "make promises renews it"
