"""Holds what docs/architecture.md says: which room may import which, and the manners of the house."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import launcher

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "launcher"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

#: They neither wait, nor look, nor touch anything.
PURE = {
    "errors", "model", "hostfile", "jobfile", "marked", "planning", "supervision", "wire", "stream",
    "checking",
}  # fmt: skip
HANDS = {"os", "time", "socket", "subprocess", "threading", "asyncio"}

#: They run on the hosts: Python 3.8 and nothing installed.
TRAVELLERS = {"__init__", "errors", "model", "wire", "stream", "processes", "agent"}

#: The path of a plain launch and of ``import launcher`` does without them.
HEAVY = (
    "fabric", "paramiko", "pathspec", "docker", "tensorflow", "yaml", "rich", "psutil", "shtab", "asyncio",
    "cloudpickle", "numpy",
)  # fmt: skip

PUBLIC = [
    "CsvFiles", "DataFeed", "ExitStatus", "Failure", "FeedError", "FeedTimeout", "Host",
    "HostfileError", "InputError", "InputMode", "JobError", "JobFailed", "JobSpec", "LaunchError",
    "OnFailure", "PlacementError", "Policy", "Program", "Reason", "Report", "Role", "TFCluster",
    "TFNode", "TFNodeContext", "TFParallel", "TFRecordFiles", "TaskFailed", "TaskId", "TaskReport",
    "TaskState", "TextFiles", "TransportError", "WireError", "compat", "partitions", "rows",
]  # fmt: skip

MOST_LINES = 400


class Import(NamedTuple):
    """One import: of which module, by which file, where."""

    file: Path
    line: int
    module: str
    #: What it takes from there.
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


class Rule(NamedTuple):
    """What a room may import: the names of rooms; those of its own row of the table are always among them."""

    rooms: frozenset[str]


def python_files(*folders: str) -> list[Path]:
    """Every Python file of ours below these folders of the checkout."""
    found = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return [file for file in found if "__pycache__" not in file.parts]


def text(file: Path) -> str:
    """What a file says."""
    return file.read_text(encoding="utf-8")


def room_of(file: Path) -> str:
    """``agent`` for ``launcher/agent/ports.py``, ``wire`` for ``launcher/wire.py``."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rules() -> dict[str, Rule]:
    """The table of docs/architecture.md, read row by row: a room, and what it may import."""
    table: dict[str, Rule] = {}
    for names, may in re.findall(r"^\| (`[^|]*) \|[^|]*\| ([^|]*) \|$", text(ARCHITECTURE), re.MULTILINE):
        row = {name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([^`]+)`", names)}
        row.update(re.findall(r"\w+", re.sub(r"`[^`]*`", "", names)))
        if may.startswith("nothing"):
            allowed: set[str] = set()
        elif may.startswith("all of the above"):
            allowed = set(table) - {"agent"}
        else:
            allowed = set(re.findall(r"\w+", may))
        table.update({room: Rule(frozenset(allowed | row)) for room in row})
    return table


def tree(file: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(text(file), str(file))


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, also those within functions, relative ones made absolute."""
    return _imports(file, tree(file))


def _imports(file: Path, parsed: ast.AST) -> Iterator[Import]:
    here = file.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = tuple(alias.name for alias in node.names)
            if module == "launcher":
                yield from (Import(file, node.lineno, f"launcher.{name}") for name in names)
            else:
                yield Import(file, node.lineno, module, names)


def imported_room(module: str) -> str | None:
    """The room that a module of ours is in; ``None`` for everybody else's."""
    first, _, rest = module.partition(".")
    if first != "launcher":
        return None
    room = rest.partition(".")[0]
    is_room = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
    return room if room and is_room else "__init__"


ALL_IMPORTS = [found for file in python_files("launcher") for found in imports(file)]


def test_every_room_is_in_the_table_and_the_table_has_no_other():
    rooms = {room_of(file) for file in python_files("launcher")}
    assert rooms == set(rules())


def test_imports_go_one_way():
    table = rules()
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if (room := imported_room(found.module)) is not None
        and room != room_of(found.file)
        and room not in table[room_of(found.file)].rooms
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_agent():
    wrong = [f for f in ALL_IMPORTS if imported_room(f.module) == "agent" and room_of(f.file) != "agent"]
    assert not wrong, "\n".join(map(str, wrong))


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what only the type checker reads."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else node


def module_of(file: Path) -> str:
    """``launcher.agent.ports`` for ``launcher/agent/ports.py``, ``launcher.agent`` for its ``__init__``."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def needed(file: Path) -> set[str]:
    """The modules of ours that a file imports when it is run, be it in a function."""
    found = _imports(file, _AtRunTime().visit(tree(file)))
    return {module for one in found for module in _meant(one)} & MODULES.keys()


def _meant(one: Import) -> list[str]:
    """Of ``from a_package import name`` the module of that name, or the package if it has none."""
    names = (f"{one.module}.{name}" for name in one.names)
    return [name if name in MODULES else one.module for name in names] or [one.module]


MODULES = {module_of(file): file for file in python_files("launcher")}


def test_no_module_imports_itself_in_a_circle():
    graph = {module: needed(file) for module, file in MODULES.items()}
    assert graph["launcher.processes.sweep"] >= {"launcher.processes.kernel"}, "imports are not seen"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_pure_rooms_have_no_hands():
    wrong = [f for f in ALL_IMPORTS if room_of(f.file) in PURE and f.module.partition(".")[0] in HANDS]
    assert not wrong, "\n".join(map(str, wrong))


def test_what_travels_needs_the_standard_library_only():
    travelling = [f for f in ALL_IMPORTS if room_of(f.file) in TRAVELLERS]
    known = {*sys.stdlib_module_names, "launcher"}
    wrong = [f for f in travelling if f.module.partition(".")[0] not in known]
    assert not wrong, "\n".join(map(str, wrong))


TRAVELLING = [file for file in python_files("launcher") if room_of(file) in TRAVELLERS]


@pytest.mark.parametrize("file", TRAVELLING, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_travels_is_python_3_8(file: Path):
    ast.parse(text(file), str(file), feature_version=(3, 8))


def oldest_python() -> str | None:
    """A Python 3.8 of this machine, if it has one."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))]
    for python in filter(None, found):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def test_what_travels_can_be_imported_by_python_3_8():
    python = oldest_python()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in TRAVELLING]
    names = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    argv = [python, "-B", "-W", "error", "-c", code, *names]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_public_names():
    assert launcher.__all__ == PUBLIC == sorted(PUBLIC)
    assert all(getattr(launcher, name).__name__ == name for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(launcher))
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        _ = launcher.nobody


@pytest.mark.parametrize("module", ["launcher", "launcher.__main__", "launcher.cli.main", "launcher.runs"])
def test_importing_costs_nothing_that_is_not_used(module: str):
    code = f"import sys; bare = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - bare))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = ended.stdout.split()
    assert not set(HEAVY) & set(loaded), loaded


def test_what_importing_costs_is_printed():
    """Printed, not judged: a busy machine must not fail it. ``make bench`` measures."""
    code = "import time; t = time.perf_counter(); import launcher; print(time.perf_counter() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    print(f"import launcher: {min(times) * 1000:.2f} ms")


def _calls(file: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call))


@pytest.mark.parametrize("folder", ["launcher", "bench", "tests"])
def test_commands_are_lists_never_strings(folder: str):
    for file in python_files(folder):
        for call in _calls(file):
            shells = [k for k in call.keywords if k.arg == "shell" and not _is(k.value, False)]
            assert not shells, f"{file}:{call.lineno}: a shell"
            assert ast.unparse(call.func) not in ("os.system", "os.popen"), f"{file}:{call.lineno}: a shell"


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_exception_is_swallowed_blindly():
    for file in python_files("launcher"):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ExceptHandler) and _catches_all(node):
                again = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                assert again, f"{file}:{node.lineno}: catches everything and does not raise it again"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or "BaseException" in ast.unparse(handler.type)


def test_no_drawer_for_odds_and_ends():
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert not [str(file) for file in python_files("launcher", "tests", "bench") if file.name in drawers]


@pytest.mark.parametrize("folder", ["launcher", "tests", "bench", "examples"])
def test_no_file_swallows_the_rest(folder: str):
    long = {str(f): n for f in python_files(folder) if (n := len(text(f).splitlines())) > MOST_LINES}
    assert not long


def documents() -> list[Path]:
    """Everything a reader is sent to."""
    found = (sorted(ROOT.glob(pattern)) for pattern in ("docs/*.md", "examples/*/README.md"))
    return [ROOT / "README.md", *(file for files in found for file in files)]


@pytest.mark.parametrize("document", documents(), ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    prose = re.sub(r"^```.*?^```", "", text(document), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    relative = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert not [link for link in relative if not (document.parent / link).exists()]


def test_one_version_for_all():
    assert f"## [{launcher.__version__}]" in text(ROOT / "CHANGELOG.md")
    assert 'dynamic = ["version"]' in text(ROOT / "pyproject.toml")
