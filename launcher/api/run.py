"""``launcher.run``: a program on a cluster, from its start to its report; and the options of all launches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.api.driver import Driver
from launcher.config.values import names_job_file
from launcher.errors import Fault, InputError
from launcher.report import Report
from launcher.text import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack

AnyPath = str | os.PathLike[str]
Arguments = Sequence[str | os.PathLike[str]]

_RUN = "launcher.run"


class Options(TypedDict, total=False):
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
    venv: str | None
    on_failure: str | None
    grace: float | None
    timeout: float | None
    stall: float | None
    restarts: int | None
    restart: str | None
    preload: str | None
    sync: AnyPath | Arguments | None
    collect: AnyPath | Arguments | None
    run_dir: AnyPath | None
    quiet: bool
    options: Arguments


#: Those that are not options of ``launch`` with a value.
_OTHERS = ("env", "flags", "quiet", "options")
#: Those that may be lists: the option is repeated.
_LISTS = ("sync", "collect")


def run(
    program: Arguments | AnyPath,
    *,
    ps: int | None = None,
    workers: int | None = None,
    chief: bool = False,
    evaluator: bool = False,
    roles: Mapping[str, int | Mapping[str, Any]] | None = None,
    check: bool = True,
    **options: Unpack[Options],
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
            ``sync``, ``collect``, ``run_dir``, ``quiet``, ``options``: see `Options`.

    Returns:
        How the job and each of its tasks ended; ``exit_code`` is that of the command.

    Raises:
        InputError: an argument is wrong, nothing was started; with all faults.
        TaskFailed: with ``check``: a task failed; has its ``task``, ``last_lines`` and the ``report``.
        JobFailed: with ``check``: the job failed in another way (its time was up, a host was lost); has the
            ``report``. Without ``check``: there is no report, as the job did not begin, or the launcher was
            killed.
    """
    driver = program_driver(_RUN, program, (ps, workers, chief, evaluator), roles, options)
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
    program: Arguments | AnyPath,
    counts: tuple[int | None, int | None, bool, bool],
    roles: Mapping[str, int | Mapping[str, Any]] | None,
    options: Options,
    environ: Mapping[str, str] | None = None,
    output: int | None = None,
    defaults: bool = True,
) -> Driver:
    """The launch of a program, not started yet.

    Args:
        caller: the function whose arguments these are, for messages.
        program: see `run`.
        roles: see `run`.
        options: see `run`.
        counts: ``ps``, ``workers``, ``chief`` and ``evaluator`` of `run`.
        environ: more variables for the launcher.
        output: see `Driver`.
        defaults: read the defaults of the project, as the command does.

    Raises:
        InputError: an argument is wrong.
    """
    argv: Any = [program] if isinstance(program, (str, os.PathLike)) else program
    faults = list_faults(caller, "program", argv) + option_faults(caller, options)
    ps, workers, chief, evaluator = counts
    given = {"chief": int(chief) or None, "worker": workers, "ps": ps, "evaluator": int(evaluator) or None}
    tasks = {name: role for name, role in {**given, **(roles or {})}.items() if role is not None}
    for name, role in tasks.items():
        if not isinstance(role, Mapping):
            faults += count_faults(caller, "workers" if name == "worker" else name, role)
    if not faults and not argv:
        faults.append(Fault(caller, "program is empty", "expected a file, or a list: ['train.py', ...]"))
    if faults:
        raise InputError(faults)
    command = [os.fspath(text) for text in argv]
    argv = option_arguments(options) + ([] if defaults else ["--no-defaults"])
    is_job_file = names_job_file(command[0])
    overlay: dict[str, Mapping[str, Any]] = {}
    if roles or is_job_file:
        overlay = {
            name: role if isinstance(role, Mapping) else {"count": int(role)} for name, role in tasks.items()
        }
    if is_job_file:
        argv += ["--", *command]
    elif roles:
        overlay = {name: {"command": command, **role} for name, role in overlay.items()}
    else:  # the words of the command, so that its defaults are those of the command
        argv += [*["--chief"] * bool(chief), *["--evaluator"] * bool(evaluator)]
        argv += [] if ps is None else ["--ps", str(int(ps))]
        argv += [] if workers is None else ["--workers", str(int(workers))]
        argv += command if command[0] in ("-m", "-c") else ["--", *command]
    environ = {**option_environ(options), **(environ or {})}
    return Driver(argv, environ, overlay, bool(options.get("quiet")), output)


def option_environ(options: Options) -> dict[str, str]:
    """The environment of the launcher."""
    return {**os.environ, **(options.get("env") or {})}


def option_arguments(options: Options) -> list[str]:
    """The options of ``launch``; it finds the values of ``env`` in its environment."""
    argv = [os.fspath(text) for text in options.get("options") or ()]
    argv += ["--flags"] if options.get("flags") else []
    argv += ["-q"] if options.get("quiet") else []
    for name in options.get("env") or {}:
        argv += ["-x", name]
    given: Mapping[str, Any] = options
    for name in Options.__annotations__:
        if name not in _OTHERS and given.get(name) is not None:
            for value in _as_list(given[name]) if name in _LISTS else [given[name]]:
                argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def _as_list(value: AnyPath | Arguments) -> Arguments:
    """A list of one value, or the list."""
    return [value] if isinstance(value, (str, os.PathLike)) else value


def option_faults(caller: str, options: Mapping[str, Any]) -> list[Fault]:
    """The faults in the keyword arguments of ``caller``; `launch` itself reports faults in their values."""
    known = Options.__annotations__
    faults = []
    for name in sorted(options.keys() - known.keys()):
        faults.append(Fault(caller, f"there is no argument {name!r}", did_you_mean(name, [*known])))
    env = options.get("env") or {}
    if not isinstance(env, Mapping):
        faults.append(Fault(caller, f"env={env!r}", "expected a dict of names and values"))
        env = {}
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            expected = f"expected texts: {str(name)!r}: {str(value)!r}"
            faults.append(Fault(caller, f"env: {name!r} is {value!r}", expected))
    for name in _LISTS:
        faults += list_faults(caller, name, _as_list(options.get(name) or ()))
    return faults + list_faults(caller, "options", options.get("options") or ())


def count_faults(caller: str, name: str, value: Any, least: int = 0) -> list[Fault]:
    """The fault in a number of things, if it has one."""
    is_number = hasattr(value, "__index__") and not isinstance(value, bool)  # NumPy's integers, too
    if is_number and value.__index__() >= least:
        return []
    return [Fault(caller, f"{name}={value!r}", f"expected a whole number, {least} or more")]


def list_faults(caller: str, name: str, value: Any) -> list[Fault]:
    """The fault in a list of texts, if it has one. (A text would be taken for a list of its letters.)"""
    is_list = isinstance(value, (list, tuple, set, frozenset))
    if is_list and all(isinstance(text, (str, os.PathLike)) for text in value):
        return []
    example = f"[{value!r}]" if isinstance(value, str) else "['...', '...']"
    return [Fault(caller, f"{name}={value!r}", f"expected a list of texts: {name}={example}")]
