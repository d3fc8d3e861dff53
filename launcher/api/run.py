"""``launcher.run``: a program on a cluster, from its start to its report; and the options of all launches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from launcher.api.driver import Driver
from launcher.backends import rows
from launcher.backends.docker.rows import DOCKER
from launcher.common import arguments
from launcher.common.arguments import Arguments, named_arguments
from launcher.common.report import Report
from launcher.config import table, values
from launcher.config.settings import Setting
from launcher.job import MAX_TASKS

if TYPE_CHECKING:
    from typing_extensions import Unpack

AnyPath = str | os.PathLike[str]
Words = Sequence[str | os.PathLike[str]]

_CALLER = "launcher.run"


class RunOptions(TypedDict, total=False):
    """Where and how a job runs: keyword arguments of `run`, `TFCluster.run` and `TFParallel.run`.

    ``None``, or an argument that is not given, stands for the default of ``launch``.

    Attributes:
        hosts: a hostfile, or ``host:slots,...``; default: this machine.
        docker: an image: each task runs in a container of its own.
        env: names and values for the tasks; they are not on any command line.
        flags: append ``--ps_hosts= --worker_hosts= --job_name= --task_index=`` to the program's arguments.
        gpus: GPUs per task (ps tasks get none).
        workdir: the folder in which the tasks run; default: the current one.
        python: the Python of ``.py`` programs and functions; default: this one here, ``python3`` on other
            machines.
        venv: the Python environment of the tasks: a name of ``launch prepare``, or a folder; instead of
            ``python``.
        on_failure: ``"stop"`` (default): the job ends when one task fails; ``"continue"``: the others go on.
        grace: seconds from SIGTERM to SIGABRT, which SIGKILL follows, for a task that is stopped; default:
            10.
        timeout: seconds for the whole job; default: no limit.
        stall: seconds; a task that prints nothing for so long has failed; default: no limit.
        restarts: how often failed tasks start again, in all; default: 0.
        restart: what starts again: ``"auto"`` (default; as the strategy needs it), ``"task"`` or ``"job"``.
        preload: modules that each host imports once, as ``"tensorflow,keras"``; tasks are forked from there.
        sync: a folder, or a list of them, that is copied to every host before the job starts: ``DIR``,
            ``DIR:REMOTE``.
        collect: a path, or a list of them, that is copied here from the tasks when the job ends: ``PATH``,
            ``TASK=PATH:DIR``.
        run_dir: the folder for logs and report, new or empty; default: among the runs of ``launch ps``.
        quiet: print nothing; failures are exceptions anyway.
        options: more options of ``launch``, as on its command line.
    """

    hosts: AnyPath | None
    docker: str | None
    env: Mapping[str, str] | None
    flags: bool
    gpus: int | None
    workdir: AnyPath | None
    python: AnyPath | None
    venv: AnyPath | None
    on_failure: str | None
    grace: float | None
    timeout: float | None
    stall: float | None
    restarts: int | None
    restart: str | None
    preload: str | None
    sync: AnyPath | Words | None
    collect: AnyPath | Words | None
    run_dir: AnyPath | None
    quiet: bool
    options: Words


def seconds(value: Any) -> float:
    """Read seconds: a number, or a text with a unit as ``launch`` accepts it, such as ``"5m"``."""
    if isinstance(value, str):
        return values.duration(value)
    found: float = arguments.number(0, values.MAX_DAYS * 86400)(value)
    return found


def _variable(name: Any) -> str:
    return values.env_name(arguments.text(name))


def _reader(row: Setting[Any]) -> arguments.Reader:
    """Return what reads the argument of a row: its type. `launch` itself reports values that do not fit."""
    if row.is_switch:
        return arguments.flag
    if row.choices:
        return arguments.choice(*row.choices)
    if row.repeatable:
        return arguments.one_or_several(arguments.path, "paths")
    if row in (table.GPUS, table.RESTARTS):
        return arguments.whole()
    if isinstance(row.default, float):
        return seconds
    return arguments.text if row.path is None else arguments.path


#: How each of `RunOptions` is read.
_READERS: Mapping[str, arguments.Reader] = {
    **{row.name: _reader(row) for row in (*table.ROWS, DOCKER) if row.name in RunOptions.__annotations__},
    "env": arguments.mapping(_variable, arguments.text, "expected a dict of names and values"),
    "options": arguments.several(arguments.path),
}


def context_fault(given: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the fault of a call for TensorFlowOnSpark, where the function is not the first argument.

    Returns:
        None if the function is the first argument, or there is none.
    """
    functions = [*given[1:2], named.get("map_fun")]
    if given and not callable(given[0]) and any(map(callable, functions)):
        return function_fault(given[0])
    return None


def function_fault(given: object) -> tuple[str, str]:
    """Return the problem that this is no function, and what was expected."""
    expected = "expected the function first, without a SparkContext before it"
    return f"map_fun is a {type(given).__name__}", expected


@named_arguments(_CALLER, RunOptions.__annotations__)
def run(  # noqa: PLR0913 - public
    program: Words | AnyPath,
    *,
    ps: int | None = None,
    workers: int | None = None,
    chief: bool = False,
    evaluator: bool = False,
    roles: Mapping[str, int | Mapping[str, Any]] | None = None,
    check: bool = True,
    **options: Unpack[RunOptions],
) -> Report:
    """Run a program on a cluster, as the command ``launch`` does, and wait for its end.

    ::

        report = launcher.run(["train.py", "--epochs", "3"], ps=1, workers=2, flags=True)

    Like the command it reads the defaults of the project, ``launch.toml`` or ``[tool.launch]`` of
    ``pyproject.toml`` (docs/jobfile.md), for all that the call leaves out.

    It may be called in any thread. A Ctrl-C stops the job in order, a second one at once; then
    `KeyboardInterrupt` is raised. The job ends with this process, however this process ends.

    Args:
        program: a ``.py`` file, an executable, or a job file (``.yaml``); or a list, with its arguments
            (``["train.py", "--epochs", "3"]``, ``["-m", "package.train"]``). Relative to ``workdir``.
        ps: number of parameter servers; default: none. With a job file: instead of its number.
        workers: number of workers; default: one, if no other role is given. With a job file: instead of its
            number.
        chief: whether there is a chief.
        evaluator: whether there is an evaluator.
        roles: further roles by name: how many tasks, or a dict of the keys that a job file has for a role
            (docs/jobfile.md). With it the numbers of tasks in the defaults of the project are not used.
        check: raise an exception if the exit code is not 0.
        options: ``hosts``, ``docker``, ``env``, ``flags``, ``gpus``, ``workdir``, ``python``, ``venv``,
            ``on_failure``, ``grace``, ``timeout``, ``stall``, ``restarts``, ``restart``, ``preload``,
            ``sync``, ``collect``, ``run_dir``, ``quiet``, ``options``: see `RunOptions`.

    Returns:
        How the job and each of its tasks ended; ``exit_code`` is that of the command.

    Raises:
        InputError: an argument is wrong, nothing was started; with all faults.
        TaskFailed: with ``check``: a task failed; has its ``task``, ``last_lines`` and the ``report``.
        JobFailed: with ``check``: the job failed in another way (its time was up, a host was lost); has the
            ``report``. Without ``check``: there is no report, as the job did not begin, or the launcher was
            killed.
    """
    tasks = {"ps": ps, "workers": workers, "chief": chief, "evaluator": evaluator, "roles": roles}
    driver = program_driver(_CALLER, program, tasks, options)
    driver.start()
    try:
        driver.wait()
    except BaseException:
        driver.end()
        raise
    if (driver.report is None or check) and (error := driver.error()):
        raise error
    assert driver.report is not None
    return driver.report


def program_driver(
    caller: str,
    program: Words | AnyPath,
    tasks: Mapping[str, Any],
    options: RunOptions,
    environ: Mapping[str, str] | None = None,
    defaults: bool = True,
) -> Driver:
    """The launch of a program, not started yet.

    Args:
        caller: the function whose arguments these are, for messages.
        program: see `run`.
        tasks: ``ps``, ``workers``, ``chief``, ``evaluator`` and ``roles`` of `run`, by these names.
        options: see `run`.
        environ: more variables for the launcher.
        defaults: read the defaults of the project, as the command does.

    Raises:
        InputError: an argument is wrong.
    """
    found = Arguments(caller)
    command = found.read("program", program, arguments.one_or_several(arguments.path))
    if command == []:
        found.add("program is empty", "expected a file, or a list: ['train.py', ...]")
    options = read_options(found, options)
    number = arguments.whole(0, MAX_TASKS)
    ps, workers = (found.optional(name, tasks[name], number) for name in ("ps", "workers"))
    chief = found.optional("chief", tasks["chief"], arguments.flag, False)
    evaluator = found.optional("evaluator", tasks["evaluator"], arguments.flag, False)
    role = arguments.mapping(arguments.text, _role, "expected a dict of roles, as in {'reader': 2}")
    of_roles: dict[str, Any] = found.optional("roles", tasks["roles"], role, {})
    found.check()
    argv = option_arguments(options) + ([] if defaults else ["--no-defaults"])
    is_job_file = values.names_job_file(command[0])
    overlay: dict[str, Mapping[str, Any]] = {}
    if of_roles or is_job_file:
        given = {
            "chief": int(chief) or None,
            "worker": workers,
            "ps": ps,
            "evaluator": int(evaluator) or None,
        }
        overlay = {name: {"count": count} for name, count in given.items() if count is not None}
        overlay |= of_roles
    if is_job_file:
        words = ["--", *command]
    elif of_roles:
        overlay = {name: {"command": command, **role} for name, role in overlay.items()}
        words = []
    else:  # the words of the command, so that its defaults are those of the command
        argv += [*["--chief"] * chief, *["--evaluator"] * evaluator]
        argv += [] if ps is None else ["--ps", str(ps)]
        argv += [] if workers is None else ["--workers", str(workers)]
        words = command if command[0] in ("-m", "-c") else ["--", *command]
    environ = {**option_environ(options), **(environ or {})}
    return Driver(argv, environ, overlay, bool(options.get("quiet")), program=words)


def _role(value: Any) -> Mapping[str, Any]:
    """Read a role as a job file has it. A number of tasks is short for it."""
    if isinstance(value, Mapping):
        found: Mapping[str, Any] = arguments.plain(value)
        return found
    try:
        return {"count": arguments.whole(0, MAX_TASKS)(value)}
    except ValueError as error:
        raise ValueError(f"{error}, or a dict of keys of a job file") from None


def read_options(found: Arguments, options: Mapping[str, Any]) -> RunOptions:
    """Convert the keyword arguments of a call; `launch` itself reports faults in their meaning.

    Args:
        found: gets their faults.
        options: those of `RunOptions`, as they were given.

    Returns:
        Those that are given, without None. Values with a fault are missing.
    """
    names = list(RunOptions.__annotations__)
    found.add_unknown(options, names)
    read = {name: found.optional(name, options.get(name), _READERS[name]) for name in names}
    return cast(RunOptions, {name: value for name, value in read.items() if value is not None})


def option_environ(options: RunOptions) -> dict[str, str]:
    """The environment of the launcher."""
    return {**os.environ, **(options.get("env") or {})}


def option_arguments(options: RunOptions) -> list[str]:
    """Return the options of ``launch``, which finds the values of ``env`` in its environment.

    Args:
        options: What `read_options` returned.
    """
    argv = [os.fspath(text) for text in options.get("options") or ()]
    for name in options.get("env") or {}:
        argv += [table.VARIABLES.flag, name]
    given: Mapping[str, Any] = options
    for row in rows():
        found = None if row is table.ENV else given.get(row.name)
        if row.is_switch:
            argv += [row.flag] if found else []
        elif found is not None:
            for value in found if isinstance(found, list) else [found]:
                text = f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
                # A word that begins with a dash would be the next option.
                argv += [f"{row.flag}={text}"] if text.startswith("-") else [row.flag, text]
    return argv
