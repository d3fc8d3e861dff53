"""The table of hints: where each row fits, and where it does not; and texts that real programs print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.record import replace
from launcher.output.hints import FailureFacts, Hint, hints, known_hints
from launcher.package_data import read_table
from tests.conftest import executable

HERE = FailureFacts(python="/usr/bin/python3")
HOST = replace(HERE, elsewhere=True, over_ssh=True, prepare="launch prepare --hosts node1")
NODE = replace(HOST, over_ssh=False)
POD = FailureFacts(in_container=True, files="--sync DIR copies a folder into each pod")
KERAS_2 = replace(HERE, passed=frozenset({"TF_USE_LEGACY_KERAS"}))
FACTS = {
    "here": HERE,
    "host": HOST,
    "node": NODE,
    "pod": POD,
    "here, Keras 2": KERAS_2,
    "nothing": FailureFacts(),
    "host, LD_LIBRARY_PATH": replace(HOST, not_passed=frozenset({"LD_LIBRARY_PATH"})),
    "host, PYTHONPATH": replace(HOST, not_passed=frozenset({"PYTHONPATH"})),
    "host, module": replace(HOST, modules_here=frozenset({"mypackage"})),
    "pod, module": replace(POD, modules_here=frozenset({"mypackage"})),
    "here, module": replace(HERE, modules_here=frozenset({"mypackage"})),
    "host, other module": replace(HOST, modules_here=frozenset({"part"})),
    "host, module, synced": replace(HOST, modules_here=frozenset({"mypackage"}), synced=True),
    "here, active": replace(HERE, beside_active_environment=True),
    "host, venv": replace(HOST, venv="tf"),
    "here, venv": replace(HERE, venv="tf"),
    "host, synced": replace(HOST, synced=True),
}

#: By the name of a row: what is known, and lines that get its hint (+) or do not (-). `PROGRAMS` print more.
CASES = Path(__file__).with_name("hint_cases.txt").read_text()
#: Variables of other launchers, and the name of the placeholder that takes their place.
VARIABLES = {
    "SLURM_PROCID": "rank", "WORLD_SIZE": "world_size", "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_size", "SLURM_NODEID": "node_rank", "MASTER_ADDR": "first_host",
    "MASTER_PORT": "first_port",
}  # fmt: skip
VARIABLE = """
    + here | KeyError: 'NAME'
    + here | train.sh: line 2: NAME: unbound variable
    + here | sh: 1: NAME: parameter not set
    + here | ValueError: environment variable NAME expected, but not set
    - here | KeyError: 'MY_NAME'
    - here | KeyError: 'rank'
"""


def cases() -> dict[str, list[tuple[bool, FailureFacts, str]]]:
    """Return for each row the lines, what is known, and whether it fits them."""
    table = CASES + "".join(
        f"variable {placeholder}{VARIABLE.replace('NAME', name)}" for name, placeholder in VARIABLES.items()
    )
    found: dict[str, list[tuple[bool, FailureFacts, str]]] = {}
    name = ""
    for line in filter(None, table.splitlines()):
        if case := re.fullmatch(r"    ([+-]) (.*?) \| (.*)", line):
            found[name].append((case[1] == "+", FACTS[case[2]], case[3]))
        else:
            name = line
            found[name] = []
    return found


@pytest.mark.parametrize("row", known_hints(), ids=lambda row: row.name)
@pytest.mark.promise("hints of failed tasks: each fits its lines and no others, and those of real programs")
def test_each_row_fits_some_lines_and_not_others(row: Hint, snapshot: SnapshotAssertion):
    answers = []
    for fits, facts, line in cases()[row.name]:
        own = hints([line], facts, [row])
        assert len(own) == fits, line
        assert not fits or hints([line], facts) == own, "another row is first"
        answers += own
    assert len({fits for fits, _, _ in cases()[row.name]}) == 2, "each row needs lines of both kinds"
    assert "\n".join(dict.fromkeys(answers)) == snapshot


def test_the_names_of_the_rows_are_those_of_the_cases():
    assert {row.name for row in known_hints()} == cases().keys()


def test_a_hint_stands_once_and_hints_are_in_the_order_of_the_table():
    lines = ["EOFError: EOF when reading a line", "KeyError: 'RANK'", "KeyError: 'RANK'"]
    stdin, rank = hints(lines, HERE)
    assert "{rank}" in rank and "/dev/null" in stdin


#: Programs, and the row for what they print last with the TensorFlow of the tests; a dash: there is none.
LINES = Path(__file__).with_name("hint_programs.txt").read_text().splitlines()
PROGRAMS = {program: name for name, program in (line.split(" | ") for line in LINES)}
#: Runs each program of its arguments, and prints its exception and a mark. Then prints the names of
#: ``tensorflow1_names.toml`` that TensorFlow 2 has, too, or that compat.v1 does not have.
RUNS = """
import os, sys, traceback
for code in sys.argv[1:]:
    try:
        exec(code, {})
    except Exception as error:
        print(*traceback.format_exception_only(type(error), error), sep="")
    print("===", flush=True)

import tensorflow as tf
from launcher.package_data import read_table
del os.environ["TF_USE_LEGACY_KERAS"]
for module, names in read_table("output/tensorflow1_names.toml").items():
    inner = module != "tensorflow"
    new, old = (getattr(tf, module), getattr(tf.compat.v1, module)) if inner else (tf, tf.compat.v1)
    for name in names.split():
        if hasattr(new, name) or not hasattr(old, name):
            print(module, name)
"""


@pytest.mark.promise("hints of failed tasks: each fits its lines and no others, and those of real programs")
@pytest.mark.tensorflow
def test_real_programs():
    """One process runs all of them, because the import of TensorFlow takes seconds."""
    env = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-W", "ignore", "-c", RUNS, *PROGRAMS]
    ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    *printed, names = ended.stdout.split("===\n")
    assert len(printed) == len(PROGRAMS), ended.stderr
    assert (ended.returncode, names) == (0, ""), ended.stderr
    assert sum(len(each.split()) for each in read_table("output/tensorflow1_names.toml").values()) > 500
    for (program, name), text in zip(PROGRAMS.items(), printed, strict=True):
        expected = [row for row in known_hints() if row.name == name]
        assert text and hints(text.splitlines(), KERAS_2) == hints(text.splitlines(), KERAS_2, expected), text
        assert bool(expected) == bool(hints(text.splitlines(), KERAS_2)), (program, text)


@pytest.mark.parametrize(
    ("command", "script", "name"),
    [
        ("set -u; echo $RANK", "", "variable rank"),
        ("echo ${WORLD_SIZE?}", "", "variable world_size"),
        ("no-such-command x", "", "command over ssh"),
        ("./script", "#!/usr/bin/env python3\r\nprint(1)\r\n", "carriage return"),
        ("bash script", "true\r\n\r\n", "carriage return"),
        ("python3 -m no_such_module", "", "module on a host"),
    ],
)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_real_scripts(shell: str, command: str, script: str, name: str, tmp_path: Path):
    executable(tmp_path / "script", script)
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    ended = subprocess.run([shell, "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    (row,) = [row for row in known_hints() if row.name == name]
    lines = ended.stderr.splitlines()
    assert lines and hints(lines, HOST) == hints(lines, HOST, [row]) != []
