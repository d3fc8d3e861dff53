"""The table of hints: where each row fits, and where it does not; and texts that real programs print."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.record import replace
from launcher.output.hints import HINTS, FailureFacts, Hint, hints
from launcher.package_data import read_table

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

#: By the name of a row: what is known, and lines that get its hint (+) or do not (-).
CASES = r"""
estimators
    + here | AttributeError: module 'tensorflow' has no attribute 'estimator'
    + here | AttributeError: module 'tensorflow._api.v2.compat.v1' has no attribute 'estimator'
    + here | ModuleNotFoundError: No module named 'tensorflow_estimator'
    + host | ModuleNotFoundError: No module named 'tensorflow.estimator'
    + here | ImportError: cannot import name 'estimator' from 'tensorflow.compat.v1' (/x.py)
    - here | AttributeError: module 'tensorflow' has no attribute 'estimators'
    - here | ModuleNotFoundError: No module named 'estimator'
contrib and examples
    + here | ModuleNotFoundError: No module named 'tensorflow.contrib'
    + here | ModuleNotFoundError: No module named 'tensorflow.examples'
    + here | AttributeError: module 'tensorflow' has no attribute 'contrib'
    - here | ModuleNotFoundError: No module named 'examples'
TensorFlow 1
    + here | AttributeError: module 'tensorflow' has no attribute 'app'
    + here | AttributeError: module 'tensorflow._api.v2.train' has no attribute 'replica_device_setter'
    + here | AttributeError: module 'tensorflow._api.v2.summary' has no attribute 'FileWriter'
    - here | AttributeError: module 'tensorflow' has no attribute 'keraz'
    - here | AttributeError: module 'tensorflow._api.v2.distribute' has no attribute 'MirrorStrategy'
    - here | AttributeError: module 'tensorflow._api.v2.nn' has no attribute 'placeholder'
    - here | AttributeError: partially initialized module 'tensorflow' has no attribute 'Variable'
TensorFlow 1, imported
    + here | ImportError: cannot import name 'Session' from 'tensorflow' (/x.py)
    - here | ImportError: cannot import name 'keras2' from 'tensorflow' (/x.py)
internals of TensorFlow
    + here | ImportError: cannot import name 'x' from 'tensorflow.python.keras' (/x.py)
    + here | ModuleNotFoundError: No module named 'tensorflow.python.estimator_x'
    - here | ImportError: cannot import name 'x' from 'tensorflow.keras' (/x.py)
NumPy before 1.24
    + here | AttributeError: module 'numpy' has no attribute 'int'.
    + here | AttributeError: module 'numpy' has no attribute 'bool'.
    - here | AttributeError: module 'numpy' has no attribute 'nonsense'
flags of absl
    + here | absl.flags._exceptions.DuplicateFlagError: The flag 'log_dir' is defined twice. First from absl.logging, second from
    - here | absl.flags._exceptions.DuplicateFlagError: The flag 'log_dir' is defined twice. First from train.py, second from
Keras 2 without its package
    + here, Keras 2 | ImportError: Keras cannot be imported. Check that it is installed.
    + here, Keras 2 | ModuleNotFoundError: No module named 'tf_keras'
    - here | ImportError: Keras cannot be imported. Check that it is installed.
Keras 3 fits no strategy
    + here | ValueError: Attempt to convert a value (PerReplica:{
    + here | to use it, pass this dataset to ClusterCoordinator.create_per_worker_dataset
    - here | ValueError: Attempt to convert a value (None) with an unsupported type
Keras 3 resets its state
    + here | AttributeError: 'Mean' object has no attribute 'reset_states'
    - here | AttributeError: 'Mean' object has no attribute 'reset'
LD_LIBRARY_PATH is not passed
    + host, LD_LIBRARY_PATH | OSError: libcudart.so.12: cannot open shared object file: No such file or directory
    - host | OSError: libcudart.so.12: cannot open shared object file: No such file or directory
    - here | OSError: libcudart.so.12: cannot open shared object file: No such file or directory
    - host | OSError: x.so: invalid ELF header
PYTHONPATH is not passed
    + host, PYTHONPATH | ModuleNotFoundError: No module named 'mypackage.part'
    - here | ModuleNotFoundError: No module named 'mypackage.part'
    - host | ModuleNotFoundError: No module named 'mypackage.part'
module of this folder
    + host, module | ModuleNotFoundError: No module named 'mypackage.part'
    + pod, module | ModuleNotFoundError: No module named 'mypackage.part'
    - here, module | ModuleNotFoundError: No module named 'mypackage.part'
    - host, other module | ModuleNotFoundError: No module named 'mypackage.part'
    - host, module, synced | ModuleNotFoundError: No module named 'mypackage.part'
module beside an active environment
    + here, active | ModuleNotFoundError: No module named 'mypackage.part'
    - here | ModuleNotFoundError: No module named 'mypackage.part'
module in an image
    + pod | ModuleNotFoundError: No module named 'mypackage.part'
    - here | ModuleNotFoundError: No module named 'mypackage.part'
    - pod | ValueError: No module named 'x'
module of a prepared environment
    + host, venv | ModuleNotFoundError: No module named 'mypackage.part'
    - host | ModuleNotFoundError: No module named 'mypackage.part'
    - here, venv | ModuleNotFoundError: No module named 'mypackage.part'
module on a host
    + host | ModuleNotFoundError: No module named 'mypackage.part'
    + host | ImportError: cannot import name 'a' from 'b'
    - here | ModuleNotFoundError: No module named 'mypackage.part'
    - host | ValueError: not an ImportError: x
module
    + here | ModuleNotFoundError: No module named 'mypackage.part'
    + nothing | ModuleNotFoundError: No module named 'mypackage.part'
    + here | /usr/bin/python3.11: No module named trainer
    - here | ImportError: cannot import name 'a' from 'b'
    - here | error: No module named x
conda
    + host | worker/0 could not be started on node1: program not found: 'conda' is nowhere along PATH
    + host | sh: 1: conda: not found
    + host | bash: line 1: mamba: command not found
    - here | sh: 1: conda: not found
    - host | sh: 1: condas: not found
command over ssh
    + host | worker/0 could not be started on node1: program not found: 'horovodrun' is nowhere along PATH
    + host | bash: line 1: nvcc: command not found
    - node | bash: line 1: nvcc: command not found
    - here | worker/0 could not be started on node1: program not found: 'nvcc' is nowhere along PATH
command in an image
    + pod | worker/0 could not be started on node1: program not found: 'nvcc' is nowhere along PATH
    - here | worker/0 could not be started on node1: program not found: 'nvcc' is nowhere along PATH
file that --sync left out
    + host, synced | worker/0 could not be started on node1: program not found: '/data/train.py'
    - host | worker/0 could not be started on node1: program not found: '/data/train.py'
    - here | worker/0 could not be started on node1: program not found: '/data/train.py'
program on a host
    + host | worker/0 could not be started on node1: program not found: '/data/train.py'
    + node | program not found: 'train.py' (looked in '/root')
    - here | worker/0 could not be started on node1: program not found: '/data/train.py'
    - node | worker/0 could not be started on node1: program not found: 'nvcc' is nowhere along PATH
file in a container
    + pod | python: can't open file '/x.py': [Errno 2] No such file or directory
    + pod | worker/0 could not be started on node1: program not found: '/data/train.py'
    - pod | python: can't open file '/x.py': [Errno 13] Permission denied
    - pod | OSError: libcudart.so.12: cannot open shared object file: No such file or directory
    - here | FileNotFoundError: [Errno 2] No such file or directory: 'x'
carriage return
    + here | /usr/bin/env: ‘python3\r’: No such file or directory
    + here | run.sh: line 2: $'\r': command not found
    + here | bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory
    - here | /usr/bin/env: ‘python3’: No such file or directory
input
    + here | EOFError: EOF when reading a line
    - here | EOFError: Ran out of input
port
    + here | OSError: [Errno 98] Address already in use
    - here | OSError: [Errno 99] Cannot assign requested address
end of a coordinator
    + here | FATAL: exception not rethrown
    - here | FATAL: kernel panic
flags that are missing
    + here | train.py: error: the following arguments are required: --ps_hosts, --x
    + here | flag --job_name=None: Flag --job_name must have a value other than None.
    - here | train.py: error: the following arguments are required: --data
flags that are empty
    + here | InvalidArgumentError: Could not interpret "" as a host-port pair.
    - here | InvalidArgumentError: Could not interpret "node1" as a host-port pair.
flags that are unknown
    + here | train.py: error: unrecognized arguments: --ps_hosts=a:1 --task_index=0
    + here |   Unknown command line flag 'ps_hosts'. Did you mean: hosts ?
    - here | train.py: error: unrecognized arguments: --epochs=3
"""
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


@pytest.mark.parametrize("row", HINTS, ids=lambda row: row.name)
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
    assert {row.name for row in HINTS} == cases().keys()


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
