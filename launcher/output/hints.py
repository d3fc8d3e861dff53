"""Hints for tasks that failed: a table of what their last lines show, and what the user can do.

`launcher.output.failure` reads it, only when a task has failed. A line gets the hint of the first row that
fits it, so special rows stand above general ones. A row whose lines can have several causes asks the question
that tells them apart. ``tests/unit/output/test_hints.py`` shows for each row where it fits, and where it
does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from launcher.common.record import Record, as_dict


class FailureFacts(Record):
    """What the launcher knows about the task that failed."""

    #: The Python that ran it; empty if that is not known.
    python: str = ""
    #: Whether that is launch's own, though another environment is active.
    beside_active_environment: bool = False
    #: Whether it ran on another machine, and not in a container.
    elsewhere: bool = False
    #: Whether that machine was reached over SSH.
    over_ssh: bool = False
    in_container: bool = False
    #: Whether ``--sync`` copied folders to its host.
    synced: bool = False
    #: The name of its environment, if it is one that ``launch prepare`` makes.
    venv: str = ""
    #: The command that prepares its host.
    prepare: str = "launch prepare"
    #: How files get into a container, if it ran in one.
    files: str = ""
    #: Modules in the folders of launch and of the program.
    modules_here: frozenset[str] = frozenset()
    #: Variables that are set for launch, and not for the task.
    not_passed: frozenset[str] = frozenset()
    #: Variables that are set for the task, as far as that is known.
    passed: frozenset[str] = frozenset()


#: Returns whether a row fits, from what is known about the task and the match of the pattern in a line of it.
Condition = Callable[[FailureFacts, "re.Match[str]"], bool]


class Hint(Record):
    """A row of the table."""

    #: Its name, for the tests.
    name: str
    #: A regular expression for a line.
    pattern: str
    #: What to do. Names in braces stand for `FailureFacts`, or for groups of the pattern.
    text: str
    #: Another condition than the pattern.
    when: Condition = lambda facts, found: True


# ---------------------------------------------------------------------- conditions


def _is_elsewhere(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.elsewhere


def _is_over_ssh(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.over_ssh


def _is_copied(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.elsewhere and facts.synced


def _is_in_container(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.in_container


def _has_named_environment(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.elsewhere and bool(facts.venv)


def _ran_beside_active_environment(facts: FailureFacts, _: re.Match[str]) -> bool:
    return facts.beside_active_environment


def _is_module_here(facts: FailureFacts, found: re.Match[str]) -> bool:
    away = facts.elsewhere or facts.in_container
    return away and not facts.synced and found["module"].partition(".")[0] in facts.modules_here


def _pythonpath_is_missing(facts: FailureFacts, _: re.Match[str]) -> bool:
    return "PYTHONPATH" in facts.not_passed


def _library_path_is_missing(facts: FailureFacts, _: re.Match[str]) -> bool:
    return "LD_LIBRARY_PATH" in facts.not_passed


def _wants_keras_2(facts: FailureFacts, _: re.Match[str]) -> bool:
    return "TF_USE_LEGACY_KERAS" in facts.passed


def _is_name_of_tensorflow_1(_: FailureFacts, found: re.Match[str]) -> bool:
    from launcher.output.tensorflow1_names import NAMES

    return found["name"] in NAMES.get(found["module"] or "", "").split()


# ---------------------------------------------------------------------- the table

_KERAS_2_ADVICE = "install tf_keras of TensorFlow's version, and launch with -x TF_USE_LEGACY_KERAS=1"
_FLAGS_ADVICE = (
    "write after the program those that it defines, as in --job_name={{job_name}} --task_index={{task_index}}"
    " --ps_hosts={{ps_hosts}} --worker_hosts={{worker_hosts}}"
)
_TENSORFLOW_1_ADVICE = "an environment with TensorFlow 1.15, which needs Python 3.7: --venv DIR"
_TENSORFLOW_MODULE = r"tensorflow(?:_core)?(?:\._api\.v2)?(?:\.(?P<module>\w+))?"
_NO_MODULE = r"(?:^ModuleNotFoundError: |^\S*python\S*: )No module named '?(?P<module>[\w.]+)"
_NOT_IMPORTED = rf"^(?:ModuleNotFound|Import)Error: |{_NO_MODULE}"
_NO_COMMAND = (
    r"program not found: '(?P<command>{0})' is nowhere along PATH"
    r"|(?:^|: )(?P<command_>{0}): (?:command )?not found$"
)
_NO_FILE = r"(?<!shared object file)[:;] (?:\[Errno 2\] )?No such file or directory"
_NO_PROGRAM = r"program not found: '(?P<program>[^']*(?:/|\.py\b)[^']*)'|there is no working folder"
#: Variables of other launchers by the placeholder of launch that has the same meaning.
_FOREIGN_VARIABLES = {
    "rank": "RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK",
    "world_size": "WORLD_SIZE|SLURM_NTASKS|SLURM_NPROCS|OMPI_COMM_WORLD_SIZE|PMI_SIZE",
    "local_rank": "LOCAL_RANK|SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID",
    "local_size": "LOCAL_WORLD_SIZE|OMPI_COMM_WORLD_LOCAL_SIZE|MPI_LOCALNRANKS",
    "node_rank": "NODE_RANK|GROUP_RANK|SLURM_NODEID|OMPI_COMM_WORLD_NODE_RANK",
    "first_host": "MASTER_ADDR",
    "first_port": "MASTER_PORT",
}


def _variable_hint(placeholder: str, names: str) -> Hint:
    """Return the row for a program that reads a variable of another launcher.

    Args:
        placeholder: The placeholder of launch with the same meaning.
        names: A pattern of the names that the variable has in other launchers.
    """
    return Hint(
        f"variable {placeholder}",
        rf"^KeyError: '(?P<variable>{names})'|environment variable (?P<variable_>{names}) expected"
        rf"|(?:^|: )(?P<variable__>{names}): (?:unbound variable|parameter (?:null or )?not set)",
        f"another launcher sets {{variable}}; this one passes it by -x '{{variable}}={{{{{placeholder}}}}}'"
        " (docs/tasks.md, Placeholders)",
    )


HINTS = (
    # Programs of other versions of TensorFlow, Keras and NumPy.
    Hint(
        "estimators",
        r"module 'tensorflow[\w.]*' has no attribute 'estimator'|No module named 'tensorflow[\w.]*estimator\b"
        r"|cannot import name 'estimator' from 'tensorflow",
        "TensorFlow has no estimators since 2.16, also not in compat.v1: run the program with 2.15, which"
        " needs Python 3.9 to 3.11 (`{prepare} --name tf215 tensorflow==2.15.1`, then --venv tf215), or"
        " port it",
    ),
    Hint(
        "contrib and examples",
        r"No module named 'tensorflow\.(?:contrib|examples)"
        r"|module 'tensorflow[\w.]*' has no attribute '(?:contrib|examples)'",
        "tensorflow.contrib and tensorflow.examples exist only in TensorFlow 1: replace them; or run the"
        f" program unchanged in {_TENSORFLOW_1_ADVICE}",
    ),
    Hint(
        "TensorFlow 1",
        rf"^AttributeError: module '{_TENSORFLOW_MODULE}' has no attribute '(?P<name>\w+)'",
        "the program is for TensorFlow 1: write `import tensorflow.compat.v1 as tf`; or run it unchanged in"
        f" {_TENSORFLOW_1_ADVICE}",
        _is_name_of_tensorflow_1,
    ),
    Hint(
        "TensorFlow 1, imported",
        rf"^ImportError: cannot import name '(?P<name>\w+)' from '{_TENSORFLOW_MODULE}'",
        "the program is for TensorFlow 1: import it from tensorflow.compat.v1; or run it unchanged in"
        f" {_TENSORFLOW_1_ADVICE}",
        _is_name_of_tensorflow_1,
    ),
    Hint(
        "internals of TensorFlow",
        r"^ImportError: cannot import name '\w+' from 'tensorflow\.python"
        r"|No module named 'tensorflow\.python\b"
        r"|^AttributeError: module 'tensorflow\.python[\w.]*' has no attribute '",
        "tensorflow.python differs from version to version: for which one was the program written? Run it in"
        " an environment with that one (--venv DIR), or use a public name of tensorflow",
    ),
    Hint(
        "NumPy before 1.24",
        r"^AttributeError: module 'numpy' has no attribute"
        r" '(?P<type>int|bool|float|object|complex|str|long|unicode)'",
        "NumPy has no np.{type} since 1.24: write `{type}` in the program, or run it in an environment with"
        " numpy<1.24 (--venv DIR)",
    ),
    Hint(
        "flags of absl",
        r"DuplicateFlagError: The flag '(?P<flag>\w+)' is defined twice\. First from absl\.",
        "since TensorFlow 1.14 absl defines --{flag} itself: give the flag of the program another name, or"
        " run it in an environment with TensorFlow 1.13, which needs Python 3.7 (--venv DIR)",
    ),
    Hint(
        "Keras 2 without its package",
        r"^ImportError: Keras cannot be imported\.|No module named 'tf_keras'",
        "TF_USE_LEGACY_KERAS=1 needs the package tf_keras of TensorFlow's version where the task runs:"
        " install it there, or do not set the variable",
        _wants_keras_2,
    ),
    Hint(
        "Keras 3 fits no strategy",
        r"Attempt to convert a value \(PerReplica:|pass this dataset to ClusterCoordinator.create_per_worker"
        r"|Unrecognized data type: x=<.*\.PerWorker|module 'keras.utils' has no attribute 'experimental'",
        "`model.fit` of Keras 3 can't do that: write the loop yourself (docs/strategies.md); or "
        f"{_KERAS_2_ADVICE}",
    ),
    Hint(
        "Keras 3 resets its state",
        "has no attribute 'reset_states'",
        f"Keras 3 has reset_state() only; to keep Keras 2: {_KERAS_2_ADVICE}",
    ),
    # Modules and libraries that are missing.
    Hint(
        "LD_LIBRARY_PATH is not passed",
        r"(?P<library>[\w.+-]+): cannot open shared object file",
        "LD_LIBRARY_PATH is set here, and the task does not have it: -x LD_LIBRARY_PATH passes it, if"
        " {library} is in its folders there, too",
        _library_path_is_missing,
    ),
    Hint(
        "PYTHONPATH is not passed",
        _NO_MODULE,
        "PYTHONPATH is set here, and the task does not have it: -x PYTHONPATH passes it, if its folders exist"
        " there, too",
        _pythonpath_is_missing,
    ),
    Hint(
        "module of this folder",
        _NO_MODULE,
        "{module} is a file or folder here: --sync DIR copies a folder to where the tasks run",
        _is_module_here,
    ),
    Hint(
        "module beside an active environment",
        _NO_MODULE,
        "the task ran with launch's own Python, {python}, which does not have this module; the Python of the"
        ' active environment: --python "$VIRTUAL_ENV/bin/python"',
        _ran_beside_active_environment,
    ),
    Hint(
        "module in an image",
        _NO_MODULE,
        "the image does not have the module {module} for {python}: check its name, or add it to the image",
        _is_in_container,
    ),
    Hint(
        "module of a prepared environment",
        _NOT_IMPORTED,
        "`{prepare} --name {venv} PACKAGE...` makes the environment {venv} again: name all its packages",
        _has_named_environment,
    ),
    Hint(
        "module on a host",
        _NOT_IMPORTED,
        "is it a package? `{prepare} --name NAME` installs the same packages on all hosts, for --venv NAME"
        " (the task ran with {python}); is it a file of yours? --sync DIR copies a folder there",
        _is_elsewhere,
    ),
    Hint(
        "module",
        _NO_MODULE,
        "the task ran with {python}, which does not have the module {module}: check its name, install it"
        " there, or choose the environment that has it: --venv DIR (or --python FILE)",
    ),
    # Programs and files that are missing.
    Hint(
        "conda",
        _NO_COMMAND.format("conda|mamba|micromamba"),
        "only login shells have {command} along PATH, and a command over ssh is none: name the Python of the"
        " environment, as in --python /opt/conda/envs/NAME/bin/python, or {command} by its path",
        _is_over_ssh,
    ),
    Hint(
        "command over ssh",
        _NO_COMMAND.format(r"[\w.+-]+"),
        "is {command} installed there? Then the PATH of a command over ssh is shorter than that of a login:"
        " name {command} by its path, or pass a PATH (-x PATH=...); the Python of a host is its venv: or"
        " python:",
        _is_over_ssh,
    ),
    Hint(
        "command in an image",
        _NO_COMMAND.format(r"[\w.+-]+"),
        "the image has no {command} along PATH: name it by its path, or add it to the image",
        _is_in_container,
    ),
    Hint(
        "file that --sync left out",
        _NO_PROGRAM,
        "if it is missing there: --sync leaves out files that .gitignore names",
        _is_copied,
    ),
    Hint(
        "program on a host",
        _NO_PROGRAM,
        "if it is missing there: --sync DIR copies a folder to every host, and runs the tasks in the copy",
        _is_elsewhere,
    ),
    Hint(
        "file in a container",
        f"{_NO_FILE}|{_NO_PROGRAM}",
        "{files}",
        _is_in_container,
    ),
    Hint(
        "carriage return",
        r"python[\d.]*\\r['’]?: No such file|\$'\\r': command not found|(?:\\r|\^M): bad interpreter",
        r"the lines of the script end as on Windows, in carriage returns: sed -i 's/\r$//' FILE removes them",
    ),
    # What a task has, and has not.
    *(_variable_hint(*row) for row in _FOREIGN_VARIABLES.items()),
    Hint(
        "input",
        "EOFError: EOF when reading a line",
        "the standard input of a task is /dev/null: the program can't read from the terminal",
    ),
    Hint(
        "port",
        "Address already in use",
        "launch holds the port of a task: a server binds it only with SO_REUSEADDR (see docs/tasks.md)",
    ),
    Hint(
        "end of a coordinator",
        "FATAL: exception not rethrown",
        "Python ended while threads of TensorFlow were at work: os._exit(0) as the last line of the chief"
        " avoids that (docs/hangs.md)",
    ),
    # Flags.
    Hint(
        "flags that are missing",
        "arguments are required: .*--(?:ps_hosts|worker_hosts|job_name)|flag --(?:ps_hosts|job_name)=None: ",
        f"the program expects flags: --flags appends these and more; or {_FLAGS_ADVICE}",
    ),
    Hint(
        "flags that are empty",
        'Could not interpret "" as a host-port pair',
        "a list of hosts is empty, as --ps_hosts= of --flags is in a job without ps: --ps N starts some",
    ),
    Hint(
        "flags that are unknown",
        "(?:unrecognized arguments: .*--|Unknown command line flag ')(?:ps_hosts|worker_hosts)",
        f"--flags added these: remove it, and {_FLAGS_ADVICE}",
    ),
)


def hints(lines: Iterable[str], facts: FailureFacts, table: Sequence[Hint] = HINTS) -> list[str]:
    """Return the hints for these lines, each once, in the order of the table.

    Args:
        lines: What the task printed last, or why it could not be started.
        facts: What is known about the task.
        table: The rows.
    """
    found: dict[str, str] = {}
    for line in lines:
        for row in table:
            match = re.search(row.pattern, line)
            if match and row.when(facts, match):
                found.setdefault(row.name, _text(row, match, facts))
                break
    return [found[row.name] for row in table if found.get(row.name)]


def _text(row: Hint, match: re.Match[str], facts: FailureFacts) -> str:
    """Return the text of a row for a line.

    A pattern can't have two groups of one name, so groups with one meaning have a ``_`` more at the end.
    """
    groups = {name.rstrip("_"): text for name, text in match.groupdict().items() if text}
    known = {**as_dict(facts), "python": facts.python or "the Python that its command names"}
    return row.text.format_map({**known, **groups})
