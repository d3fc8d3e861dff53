"""Say which tests prove which promise: `make promises` writes the table at the end of ``tests/README.md``.

``promises.toml`` has the promises. A test is marked with each promise that it proves, a module by its
``pytestmark`` if all of its tests prove it. ``test_layout.py`` compares the table with the markers.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).resolve().parent
README = TESTS / "README.md"
#: Everything below this heading is the table.
HEADING = "## Which test proves what\n"

_MARKER = "pytest.mark.promise"


def promises() -> dict[str, list[str]]:
    """Return the promises of each section, in the order of the table."""
    sections: dict[str, list[str]] = tomllib.loads((TESTS / "promises.toml").read_text(encoding="utf-8"))
    return sections


def proofs() -> dict[str, list[str]]:
    """Return what proves each promise that a marker names: tests as ``file::name``, and whole modules.

    Modules are read and not imported, so that this takes no libraries and no time.

    Raises:
        ValueError: A marker stands where no test has it for certain, perhaps in a list of cases.
    """
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if _MARKER not in text:
            continue
        file = path.relative_to(TESTS).as_posix()
        marked = 0
        for node in ast.parse(text).body:
            place = file
            expressions: list[ast.expr] = []
            if isinstance(node, ast.FunctionDef):
                place, expressions = f"{file}::{node.name}", node.decorator_list
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                expressions = [node.value]
            for name in _names(expressions):
                found[name].append(place)
                marked += 1
        if marked != text.count(f"{_MARKER}("):
            raise ValueError(f"{path}: a {_MARKER} decorates a test or is in pytestmark, and has one name")
    return found


def _names(expressions: Iterable[ast.expr]) -> list[str]:
    """Return the promises that the markers among these expressions name."""
    parts = [part for expression in expressions for part in ast.walk(expression)]
    calls = [part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == _MARKER]
    return [ast.literal_eval(name) for call in calls for name in call.args]


def table() -> str:
    """Return what stands below `HEADING`."""
    tests = proofs()
    lines = []
    for section, names in promises().items():
        lines += ["", f"### {section}", "", "| promise | tests |", "|---|---|"]
        lines += [f"| {name} | {', '.join(f'`{test}`' for test in tests[name])} |" for name in names]
    return "\n".join([*lines, ""])


def main() -> None:
    text, heading, _ = README.read_text(encoding="utf-8").partition(HEADING)
    README.write_text(text + heading + table(), encoding="utf-8")


if __name__ == "__main__":
    main()
