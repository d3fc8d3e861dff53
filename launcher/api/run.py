"""``launcher.run``: runs a program on a cluster, from its start to its report.

User programs call `run`. The rest of the API and the pytest plug-in use the other functions: they read the
keyword arguments that all launches share (`RunOptions`) and turn them into the command line of ``launch``.
Values are converted here, and their meaning is checked only by ``launch``, so that both report the same
faults.
"""

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
        hosts: The path of a hostfile, or a list such as ``"node1:2,node2:2"`` with the number of slots of
            each host. By default the job runs on this machine.
        docker: The name of an image. Each task then runs in a container of its own.
        env: The names and values of variables for the tasks. They are not on any command line.
        flags: Whether ``--ps_hosts= --worker_hosts= --job_name= --task_index=`` are appended to the arguments
            of the program.
        gpus: The number of GPUs of each task. Tasks of the role ps receive none.
        workdir: The folder in which the tasks run. By default it is the current folder.
        python: The Python of ``.py`` programs and functions. By default it is that of this program here, and
            ``python3`` on other machines.
        venv: The Python environment of the tasks, instead of ``python``: a name that ``launch prepare``
            knows, or a folder.
        on_failure: What happens when a task fails. ``"stop"``, the default, stops the job. ``"continue"``
            lets the other tasks run on.
        grace: The seconds between SIGTERM and SIGABRT for a task that is stopped. SIGKILL follows. By default
            they are 10.
        timeout: The seconds that the whole job may take. By default there is no limit.
        stall: The seconds after which a task that prints nothing has failed. By default there is no limit.
        restarts: How many times in all failed tasks start again. By default they do not.
        restart: What starts again: ``"task"``, ``"job"``, or ``"auto"``, the default, which follows the
            strategy of the job.
        preload: The modules that each host imports once, such as ``"tensorflow,keras"``. Tasks are forked
            from the process that has imported them.
        sync: The folder, or a list of folders, that is copied to every host before the job starts, as ``DIR``
            or ``DIR:REMOTE``.
        collect: The path, or a list of paths, that is copied from the tasks to this machine when the job
            ends, as ``PATH`` or ``TASK=PATH:DIR``, or to a URL in place of the folder.
        run_dir: The folder for logs and report, which is new or empty. By default it is made among the runs
            that ``launch ps`` lists.
        quiet: Whether nothing is printed. Failures raise exceptions in any case.
        options: Further options of ``launch``, as on its command line.
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
    """Return a time in seconds from a number, or from a text with a unit such as ``"5m"``.

    Raises:
        ValueError: It is neither. The message says what was expected.
    """
    if isinstance(value, str):
        return values.duration(value)
    return float(arguments.number(0, values.MAX_DAYS * 86400)(value))


def _variable(name: Any) -> str:
    """Read the name of a variable in ``env``, which must not be one that launch sets itself."""
    return values.env_name(arguments.text(name))


def _reader(row: Setting[Any]) -> arguments.Reader:
    """Return the function that converts a keyword argument to the type of its setting.

    The function checks no more than the type. `launch` itself reports values that the setting does not allow.

    Args:
        row: The row of the setting in the table of all settings, which says of what kind its values are.
    """
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
    # Only settings whose values are paths have a function ``path``, which makes paths absolute.
    return arguments.text if row.path is None else arguments.path


#: The function that converts each argument of `RunOptions`, by the name of the argument.
_READERS: Mapping[str, arguments.Reader] = {
    **{row.name: _reader(row) for row in (*table.ROWS, DOCKER) if row.name in RunOptions.__annotations__},
    "env": arguments.mapping(_variable, arguments.text, "expected a dict of names and values"),
    "options": arguments.several(arguments.path),
}


def context_fault(given: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the fault of a call in TensorFlowOnSpark's own form, with a SparkContext before the function.

    Args:
        given: The positional arguments of the call.
        named: The keyword arguments of the call.

    Returns:
        The problem and what was expected, or None if the function is the first argument, or there is no
        function.
    """
    # The function is the second argument then, or is passed by its name.
    later_arguments = [*given[1:2], named.get("map_fun")]
    if given and not callable(given[0]) and any(map(callable, later_arguments)):
        return function_fault(given[0])
    return None


def function_fault(given: object) -> tuple[str, str]:
    """Return the fault that the first argument is not a function: the problem, and what was expected."""
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
    """Run a program on a cluster, as the command ``launch`` does, and wait until the job ends.

    ::

        report = launcher.run(["train.py", "--epochs", "3"], ps=1, workers=2, flags=True)
        print(report.exit_code)

    Like the command it reads the defaults of the project, ``launch.toml`` or ``[tool.launch]`` of
    ``pyproject.toml`` (docs/jobfile.md), for everything that the call leaves out.

    It may be called in any thread. A Ctrl-C stops the job: its tasks have time to exit. A second one kills
    them. Then `KeyboardInterrupt` is raised. The job is stopped when this process exits, however it exits.

    Args:
        program: A ``.py`` file, an executable, or a job file (``.yaml``), relative to ``workdir``. With
            arguments it is a list, such as ``["train.py", "--epochs", "3"]`` or ``["-m", "package.train"]``.
        ps: The number of parameter servers. By default there are none. With a job file it replaces the number
            there.
        workers: The number of workers. By default there is one, if the call names no other role. With a job
            file it replaces the number there.
        chief: Whether there is a chief.
        evaluator: Whether there is an evaluator.
        roles: Further roles by name. A value is a number of tasks, or a dict of the keys that a role has in a
            job file (docs/jobfile.md). With this argument the numbers of tasks in the defaults of the project
            are not used.
        check: Whether an exception is raised if the exit code is not 0.
        options: Where and how the job runs: ``hosts``, ``docker``, ``env``, ``flags``, ``gpus``, ``workdir``,
            ``python``, ``venv``, ``on_failure``, ``grace``, ``timeout``, ``stall``, ``restarts``,
            ``restart``, ``preload``, ``sync``, ``collect``, ``run_dir``, ``quiet`` and ``options``.
            `RunOptions` describes each.

    Returns:
        How the job and each of its tasks ended. ``exit_code`` is that of the command.

    Raises:
        InputError: Arguments are wrong, and nothing was started. The message lists all faults.
        TaskFailed: A task failed, and ``check`` is true. The error contains the name of the task (``task``),
            its last lines (``last_lines``) and the ``report``.
        JobFailed: The job failed in another way, for example because its time was up or a host was lost, and
            ``check`` is true. The error contains the ``report``. It is raised without ``check``, too, if
            there is no report, because the job did not start or the launcher was killed.
    """
    tasks = {"ps": ps, "workers": workers, "chief": chief, "evaluator": evaluator, "roles": roles}
    driver = program_driver(_CALLER, program, tasks, options)
    if check:  # The exception tells of the first failure, so `launch` does not, too.
        driver.argv = [table.NO_LAST_LINES.flag, *driver.argv]
    driver.start()
    try:
        driver.wait()
    except BaseException:
        driver.end()
        raise
    # Without a report there is nothing to return, so the error is raised in any case.
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
    """Return the launch of a program, which is not started yet.

    The arguments become a command line of ``launch``, and where that cannot express them, roles in the form
    of a job file:

    - The program is a job file: its roles are changed by those of the call.
    - The call has ``roles``: all roles of the call are passed on, each with the program as its command.
    - Otherwise the numbers of tasks are options, such as ``--workers``.

    Args:
        caller: The name of the function that the user has called, for messages.
        program: The program and its arguments, see `run`.
        tasks: The arguments ``ps``, ``workers``, ``chief``, ``evaluator`` and ``roles`` of `run`, by these
            names.
        options: The other keyword arguments, see `RunOptions`.
        environ: Further variables for the launcher.
        defaults: Whether the defaults of the project are read, as the command does.

    Raises:
        InputError: Arguments are wrong. The message lists all faults.
    """
    call = Arguments(caller)
    command = call.read("program", program, arguments.one_or_several(arguments.path))
    if command == []:
        call.add("program is empty", "expected a file, or a list: ['train.py', ...]")
    options = read_options(call, options)
    number = arguments.whole(0, MAX_TASKS)
    ps, workers = (call.optional(name, tasks[name], number) for name in ("ps", "workers"))
    chief = call.optional("chief", tasks["chief"], arguments.flag, default=False)
    evaluator = call.optional("evaluator", tasks["evaluator"], arguments.flag, default=False)
    read_roles = arguments.mapping(arguments.text, _role, "expected a dict of roles, as in {'reader': 2}")
    given_roles: dict[str, Any] = call.optional("roles", tasks["roles"], read_roles, {})
    # All faults were collected. From here on the values are right.
    call.check()
    argv = option_arguments(options) + ([] if defaults else ["--no-defaults"])
    is_job_file = values.names_job_file(command[0])
    # The roles that launch receives in the form of a job file. They replace those of a job file.
    roles: dict[str, Mapping[str, Any]] = {}
    if given_roles or is_job_file:
        # A role with None is left to the job file. False is the default of ``chief`` and ``evaluator``, so it
        # says nothing about the role either.
        counts = {
            "chief": int(chief) or None,
            "worker": workers,
            "ps": ps,
            "evaluator": int(evaluator) or None,
        }
        roles = {name: {"count": count} for name, count in counts.items() if count is not None}
        roles |= given_roles
    # The words for the program follow the options. After ``--`` nothing is mistaken for an option.
    if is_job_file:
        words = ["--", *command]
    elif given_roles:
        roles = {name: {"command": command, **role} for name, role in roles.items()}
        words = []
    else:  # on the command line, so that the defaults of the command hold
        argv += [*["--chief"] * chief, *["--evaluator"] * evaluator]
        argv += [] if ps is None else ["--ps", str(ps)]
        argv += [] if workers is None else ["--workers", str(workers)]
        # ``-m`` and ``-c`` are options of launch, too. After ``--`` they would be taken for a file.
        words = command if command[0] in ("-m", "-c") else ["--", *command]
    environ = {**option_environ(options), **(environ or {})}
    return Driver(argv, environ, roles, bool(options.get("quiet")), program=words)


def _role(value: Any) -> Mapping[str, Any]:
    """Read a role in the form of a job file, or a number of tasks, which is short for it.

    Raises:
        ValueError: It is neither. The message says what was expected.
    """
    if isinstance(value, Mapping):
        keys: Mapping[str, Any] = arguments.plain(value)
        return keys
    try:
        return {"count": arguments.whole(0, MAX_TASKS)(value)}
    except ValueError as error:
        raise ValueError(f"{error}, or a dict of keys of a job file") from None


def read_options(call: Arguments, options: Mapping[str, Any]) -> RunOptions:
    """Convert the keyword arguments of a call to the types that `launch` expects.

    Args:
        call: Collects the faults of these arguments.
        options: The arguments of `RunOptions` as the user has passed them.

    Returns:
        The arguments that are given and not None. Those with a fault are missing.
    """
    names = list(RunOptions.__annotations__)
    call.add_unknown(options, names)
    read = {name: call.optional(name, options.get(name), _READERS[name]) for name in names}
    return cast(RunOptions, {name: value for name, value in read.items() if value is not None})


def option_environ(options: RunOptions) -> dict[str, str]:
    """Return the environment of the launcher: that of this process, and the variables of ``env``."""
    return {**os.environ, **(options.get("env") or {})}


def option_arguments(options: RunOptions) -> list[str]:
    """Return the options of the command ``launch`` for these arguments.

    Values of ``env`` are passed in the environment of ``launch``, where other users cannot see them. Only the
    names are on its command line (``-x NAME``), which others can list.

    Args:
        options: The arguments that `read_options` has returned.
    """
    # ``options`` contains ready words for the command line, for what has no argument of its own.
    argv = [os.fspath(text) for text in options.get("options") or ()]
    for name in options.get("env") or {}:
        argv += [table.VARIABLES.flag, name]
    given: Mapping[str, Any] = options
    # Each row of the table of settings describes an option of the command. Its name is that of the argument.
    for row in rows():
        # The setting ``env`` has no option. Its variables were passed by ``-x`` above.
        if row is table.ENV or given.get(row.name) is None:
            continue
        value = given[row.name]
        if row.is_switch:
            argv += [row.flag] if value else []
            continue
        for item in value if isinstance(value, list) else [value]:
            # Options accept no exponents, as in 1e-05.
            text = f"{item:.9f}".rstrip("0").rstrip(".") if isinstance(item, float) else str(item)
            # A word that begins with a dash would be the next option.
            argv += [f"{row.flag}={text}"] if text.startswith("-") else [row.flag, text]
    return argv
