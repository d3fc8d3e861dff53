"""The table of hints: where each row fits, and where it does not; and texts that real programs print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.common.record import replace
from launcher.output.hints import HINTS, FailureFacts, Hint, hints
from launcher.package_data import read_table

HERE = FailureFacts(python="/usr/bin/python3")
HOST = replace(HERE, elsewhere=True, over_ssh=True, prepare="launch prepare --hosts node1")
NODE = replace(HOST, over_ssh=False)
POD = FailureFacts(in_container=True, files="--sync DIR copies a folder into each pod")
KERAS_2 = replace(HERE, passed=frozenset({"TF_USE_LEGACY_KERAS"}))

NO_MODULE = "ModuleNotFoundError: No module named 'mypackage.part'"
NO_LIBRARY = "OSError: libcudart.so.12: cannot open shared object file: No such file or directory"
NO_PROGRAM = "worker/0 could not be started on node1: program not found: '/data/train.py'"
NO_COMMAND = "worker/0 could not be started on node1: program not found: {!r} is nowhere along PATH"
NO_TENSORFLOW_1 = "AttributeError: module 'tensorflow._api.v2.{}' has no attribute '{}'"
DUPLICATE = (
    "absl.flags._exceptions.DuplicateFlagError: The flag {!r} is defined twice. First from {}, second from"
)


class Cases(NamedTuple):
    """Lines of tasks for a row: some that get its hint, with a part of it, and some that do not."""

    fits: list[tuple[str, FailureFacts, str]]
    does_not: list[tuple[str, FailureFacts]]


def variable(name: str, placeholder: str) -> Cases:
    advice = f"-x '{name}={{{placeholder}}}'"
    return Cases(
        [
            (f"KeyError: '{name}'", HERE, advice),
            (f"train.sh: line 2: {name}: unbound variable", HERE, advice),
            (f"sh: 1: {name}: parameter not set", HERE, advice),
            (f"ValueError: environment variable {name} expected, but not set", HERE, advice),
        ],
        [(f"KeyError: 'MY_{name}'", HERE), ("KeyError: 'rank'", HERE)],
    )


CASES = {
    "estimators": Cases(
        [
            ("AttributeError: module 'tensorflow' has no attribute 'estimator'", HERE, "tensorflow==2.15"),
            (NO_TENSORFLOW_1.format("compat.v1", "estimator"), HERE, "also not in compat.v1"),
            ("ModuleNotFoundError: No module named 'tensorflow_estimator'", HERE, "launch prepare --name"),
            ("ModuleNotFoundError: No module named 'tensorflow.estimator'", HOST, "prepare --hosts node1"),
            ("ImportError: cannot import name 'estimator' from 'tensorflow.compat.v1' (/x.py)", HERE, "2.15"),
        ],
        [
            ("AttributeError: module 'tensorflow' has no attribute 'estimators'", HERE),
            ("ModuleNotFoundError: No module named 'estimator'", HERE),
        ],
    ),
    "contrib and examples": Cases(
        [
            ("ModuleNotFoundError: No module named 'tensorflow.contrib'", HERE, "TensorFlow 1.15"),
            ("ModuleNotFoundError: No module named 'tensorflow.examples'", HERE, "Python 3.7"),
            ("AttributeError: module 'tensorflow' has no attribute 'contrib'", HERE, "replace them"),
        ],
        [("ModuleNotFoundError: No module named 'examples'", HERE)],
    ),
    "TensorFlow 1": Cases(
        [
            (
                "AttributeError: module 'tensorflow' has no attribute 'app'",
                HERE,
                "tensorflow.compat.v1 as tf",
            ),
            (NO_TENSORFLOW_1.format("train", "replica_device_setter"), HERE, "TensorFlow 1.15"),
            (NO_TENSORFLOW_1.format("summary", "FileWriter"), HERE, "--venv DIR"),
        ],
        [
            ("AttributeError: module 'tensorflow' has no attribute 'keraz'", HERE),  # a misspelling
            (NO_TENSORFLOW_1.format("distribute", "MirrorStrategy"), HERE),
            (NO_TENSORFLOW_1.format("nn", "placeholder"), HERE),  # a name of another module
            ("AttributeError: partially initialized module 'tensorflow' has no attribute 'Variable'", HERE),
        ],
    ),
    "TensorFlow 1, imported": Cases(
        [("ImportError: cannot import name 'Session' from 'tensorflow' (/x.py)", HERE, "compat.v1")],
        [("ImportError: cannot import name 'keras2' from 'tensorflow' (/x.py)", HERE)],
    ),
    "internals of TensorFlow": Cases(
        [
            ("ImportError: cannot import name 'x' from 'tensorflow.python.keras' (/x.py)", HERE, "which one"),
            ("ModuleNotFoundError: No module named 'tensorflow.python.estimator_x'", HERE, "which one"),
        ],
        [("ImportError: cannot import name 'x' from 'tensorflow.keras' (/x.py)", HERE)],
    ),
    "NumPy before 1.24": Cases(
        [
            ("AttributeError: module 'numpy' has no attribute 'int'.", HERE, "write `int`"),
            ("AttributeError: module 'numpy' has no attribute 'bool'.", HERE, "numpy<1.24"),
        ],
        [("AttributeError: module 'numpy' has no attribute 'nonsense'", HERE)],
    ),
    "flags of absl": Cases(
        [(DUPLICATE.format("log_dir", "absl.logging"), HERE, "--log_dir")],
        [(DUPLICATE.format("log_dir", "train.py"), HERE)],
    ),
    "Keras 2 without its package": Cases(
        [
            ("ImportError: Keras cannot be imported. Check that it is installed.", KERAS_2, "tf_keras"),
            ("ModuleNotFoundError: No module named 'tf_keras'", KERAS_2, "tf_keras"),
        ],
        [("ImportError: Keras cannot be imported. Check that it is installed.", HERE)],
    ),
    "Keras 3 fits no strategy": Cases(
        [
            ("ValueError: Attempt to convert a value (PerReplica:{", HERE, "-x TF_USE_LEGACY_KERAS=1"),
            (
                "to use it, pass this dataset to ClusterCoordinator.create_per_worker_dataset",
                HERE,
                "strategies",
            ),
        ],
        [("ValueError: Attempt to convert a value (None) with an unsupported type", HERE)],
    ),
    "Keras 3 resets its state": Cases(
        [("AttributeError: 'Mean' object has no attribute 'reset_states'", HERE, "TF_USE_LEGACY_KERAS=1")],
        [("AttributeError: 'Mean' object has no attribute 'reset'", HERE)],
    ),
    "LD_LIBRARY_PATH is not passed": Cases(
        [(NO_LIBRARY, replace(HOST, not_passed=frozenset({"LD_LIBRARY_PATH"})), "-x LD_LIBRARY_PATH")],
        [(NO_LIBRARY, HOST), (NO_LIBRARY, HERE), ("OSError: x.so: invalid ELF header", HOST)],
    ),
    "PYTHONPATH is not passed": Cases(
        [(NO_MODULE, replace(HOST, not_passed=frozenset({"PYTHONPATH"})), "-x PYTHONPATH")],
        [(NO_MODULE, HERE), (NO_MODULE, HOST)],
    ),
    "module of this folder": Cases(
        [
            (NO_MODULE, replace(HOST, modules_here=frozenset({"mypackage"})), "--sync DIR"),
            (NO_MODULE, replace(POD, modules_here=frozenset({"mypackage"})), "--sync DIR"),
        ],
        [
            (NO_MODULE, replace(HERE, modules_here=frozenset({"mypackage"}))),
            (NO_MODULE, replace(HOST, modules_here=frozenset({"part"}))),
            (NO_MODULE, replace(HOST, modules_here=frozenset({"mypackage"}), synced=True)),
        ],
    ),
    "module beside an active environment": Cases(
        [(NO_MODULE, replace(HERE, beside_active_environment=True), '--python "$VIRTUAL_ENV/bin/python"')],
        [(NO_MODULE, HERE)],
    ),
    "module in an image": Cases(
        [(NO_MODULE, POD, "add it to the image")],
        [(NO_MODULE, HERE), ("ValueError: No module named 'x'", POD)],
    ),
    "module of a prepared environment": Cases(
        [(NO_MODULE, replace(HOST, venv="tf"), "`launch prepare --hosts node1 --name tf PACKAGE...`")],
        [(NO_MODULE, HOST), (NO_MODULE, replace(HERE, venv="tf"))],
    ),
    "module on a host": Cases(
        [
            (NO_MODULE, HOST, "`launch prepare --hosts node1 --name NAME`"),
            ("ImportError: cannot import name 'a' from 'b'", HOST, "is it a package?"),
        ],
        [(NO_MODULE, HERE), ("ValueError: not an ImportError: x", HOST)],
    ),
    "module": Cases(
        [
            (NO_MODULE, HERE, "ran with /usr/bin/python3"),
            (NO_MODULE, FailureFacts(), "ran with the Python that its command names"),
            ("/usr/bin/python3.11: No module named trainer", HERE, "--venv DIR"),
        ],
        [("ImportError: cannot import name 'a' from 'b'", HERE), ("error: No module named x", HERE)],
    ),
    "conda": Cases(
        [
            (NO_COMMAND.format("conda"), HOST, "--python /opt/conda/envs/NAME/bin/python"),
            ("sh: 1: conda: not found", HOST, "login"),
            ("bash: line 1: mamba: command not found", HOST, "mamba by its path"),
        ],
        [("sh: 1: conda: not found", HERE), ("sh: 1: condas: not found", HOST)],
    ),
    "command over ssh": Cases(
        [
            (NO_COMMAND.format("horovodrun"), HOST, "shorter than that of a login"),
            ("bash: line 1: nvcc: command not found", HOST, "nvcc by its path"),
        ],
        [("bash: line 1: nvcc: command not found", NODE), (NO_COMMAND.format("nvcc"), HERE)],
    ),
    "command in an image": Cases(
        [(NO_COMMAND.format("nvcc"), POD, "the image has no nvcc")], [(NO_COMMAND.format("nvcc"), HERE)]
    ),
    "file that --sync left out": Cases(
        [(NO_PROGRAM, replace(HOST, synced=True), ".gitignore")], [(NO_PROGRAM, HOST), (NO_PROGRAM, HERE)]
    ),
    "program on a host": Cases(
        [
            (NO_PROGRAM, HOST, "--sync DIR"),
            ("program not found: 'train.py' (looked in '/root')", NODE, "--sync DIR"),
        ],
        [(NO_PROGRAM, HERE), (NO_COMMAND.format("nvcc"), NODE)],
    ),
    "file in a container": Cases(
        [
            ("python: can't open file '/x.py': [Errno 2] No such file or directory", POD, "into each pod"),
            (NO_PROGRAM, POD, "into each pod"),
        ],
        [
            ("python: can't open file '/x.py': [Errno 13] Permission denied", POD),
            (NO_LIBRARY, POD),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", HERE),
        ],
    ),
    "carriage return": Cases(
        [
            ("/usr/bin/env: ‘python3\\r’: No such file or directory", HERE, "sed -i"),
            ("run.sh: line 2: $'\\r': command not found", HERE, "sed -i"),
            ("bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", HERE, "sed -i"),
        ],
        [("/usr/bin/env: ‘python3’: No such file or directory", HERE)],
    ),
    "variable rank": variable("SLURM_PROCID", "rank"),
    "variable world_size": variable("WORLD_SIZE", "world_size"),
    "variable local_rank": variable("OMPI_COMM_WORLD_LOCAL_RANK", "local_rank"),
    "variable local_size": variable("LOCAL_WORLD_SIZE", "local_size"),
    "variable node_rank": variable("SLURM_NODEID", "node_rank"),
    "variable first_host": variable("MASTER_ADDR", "first_host"),
    "variable first_port": variable("MASTER_PORT", "first_port"),
    "input": Cases(
        [("EOFError: EOF when reading a line", HERE, "/dev/null")], [("EOFError: Ran out of input", HERE)]
    ),
    "port": Cases(
        [("OSError: [Errno 98] Address already in use", HERE, "SO_REUSEADDR")],
        [("OSError: [Errno 99] Cannot assign requested address", HERE)],
    ),
    "end of a coordinator": Cases(
        [("FATAL: exception not rethrown", HERE, "os._exit(0) as the last line of the chief")],
        [("FATAL: kernel panic", HERE)],
    ),
    "flags that are missing": Cases(
        [
            (
                "train.py: error: the following arguments are required: --ps_hosts, --x",
                HERE,
                "--flags appends",
            ),
            (
                "flag --job_name=None: Flag --job_name must have a value other than None.",
                HERE,
                "--flags appends",
            ),
        ],
        [("train.py: error: the following arguments are required: --data", HERE)],
    ),
    "flags that are empty": Cases(
        [('InvalidArgumentError: Could not interpret "" as a host-port pair.', HERE, "--ps N starts some")],
        [('InvalidArgumentError: Could not interpret "node1" as a host-port pair.', HERE)],
    ),
    "flags that are unknown": Cases(
        [
            ("train.py: error: unrecognized arguments: --ps_hosts=a:1 --task_index=0", HERE, "--flags added"),
            (
                "  Unknown command line flag 'ps_hosts'. Did you mean: hosts ?",
                HERE,
                "--job_name={job_name} --task_index={task_index}",
            ),
        ],
        [("train.py: error: unrecognized arguments: --epochs=3", HERE)],
    ),
}


@pytest.mark.promise("hints of failed tasks: each fits its lines and no others, and those of real programs")
@pytest.mark.parametrize("row", HINTS, ids=lambda row: row.name)
def test_each_row_fits_some_lines_and_not_others(row: Hint):
    cases = CASES[row.name]
    assert cases.fits and cases.does_not, "each row needs lines of both kinds"
    for line, facts, part in cases.fits:
        (hint,) = hints([line], facts)
        (own,) = hints([line], facts, [row])
        assert hint == own, "another row is first"
        assert part in hint
    for line, facts in cases.does_not:
        assert not hints([line], facts, [row]), line


def test_the_names_of_the_rows_are_those_of_the_cases():
    assert {row.name for row in HINTS} == CASES.keys()


def test_a_hint_stands_once_and_hints_are_in_the_order_of_the_table():
    lines = ["EOFError: EOF when reading a line", "KeyError: 'RANK'", "KeyError: 'RANK'"]
    stdin, rank = hints(lines, HERE)
    assert "{rank}" in rank and "/dev/null" in stdin


#: Programs, and the row for what they print last with the TensorFlow and NumPy of the tests.
PROGRAMS = {
    "import tensorflow as tf; tf.estimator.Estimator": "estimators",
    "import tensorflow as tf; tf.compat.v1.estimator.RunConfig()": "estimators",
    "from tensorflow import estimator": "estimators",
    "import tensorflow.estimator": "estimators",
    "import tensorflow_estimator": "estimators",
    "import tensorflow as tf; tf.app.run()": "TensorFlow 1",
    "import tensorflow as tf; tf.train.Server": "TensorFlow 1",
    "import tensorflow as tf; tf.nn.dynamic_rnn": "TensorFlow 1",
    "import tensorflow as tf; tf.keraz": "",
    "import tensorflow as tf; tf.distribute.MirorStrategy": "",
    "from tensorflow import placeholder": "TensorFlow 1, imported",
    "import tensorflow as tf; tf.contrib.layers": "contrib and examples",
    "from tensorflow.contrib import learn": "contrib and examples",
    "import tensorflow.examples.tutorials.mnist": "contrib and examples",
    "from tensorflow.python.keras.utils import multi_gpu_model": "internals of TensorFlow",
    "import tensorflow.python.estimator": "estimators",
    "import tensorflow.python.nosuch": "internals of TensorFlow",
    "import numpy; numpy.int": "NumPy before 1.24",
    "import numpy; numpy.object": "NumPy before 1.24",
    "import numpy; numpy.nonsense": "",
    "from absl import flags, logging; flags.DEFINE_string('log_dir', '', 'x')": "flags of absl",
    "from absl import flags; flags.DEFINE_string('a', '', 'x'); flags.DEFINE_string('a', '', 'y')": "",
    "import os; os.environ['SLURM_PROCID']": "variable rank",
    "import no_such_module": "module",
    "input()": "input",
    "import tensorflow as tf; tf.keras.Model": "Keras 2 without its package",
}
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
        expected = [row for row in HINTS if row.name == name]
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
    (tmp_path / "script").write_text(script)
    (tmp_path / "script").chmod(0o755)
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    ended = subprocess.run([shell, "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    (row,) = [row for row in HINTS if row.name == name]
    lines = ended.stderr.splitlines()
    assert lines and hints(lines, HOST) == hints(lines, HOST, [row]) != []
