"""``launcher.run``: a program on a cluster, from its start to its report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from launcher.api.driver import Driver
from launcher.api.options import (
    Path_,
    Program,
    Settings,
    Words,
    count_faults,
    list_faults,
    settings_faults,
)
from launcher.errors import Fault, InputError
from launcher.report import Report

_RUN = "launcher.run"


def run(
    program: Words | Path_,
    *,
    ps: int | None = None,
    workers: int | None = None,
    chief: bool = False,
    evaluator: bool = False,
    roles: Mapping[str, int | Mapping[str, Any]] | None = None,
    hosts: Path_ | None = None,
    docker: str | None = None,
    env: Mapping[str, str] | None = None,
    flags: bool = False,
    gpus: int | None = None,
    workdir: Path_ | None = None,
    python: Path_ | None = None,
    on_failure: str | None = None,
    grace: float | None = None,
    timeout: float | None = None,
    run_dir: Path_ | None = None,
    quiet: bool = False,
    options: Words = (),
    check: bool = True,
) -> Report:
    """Run a program on a cluster, as the command ``launch`` does, and wait for its end.

    ::

        report = launcher.run(["train.py", "--epochs", "3"], ps=1, workers=2, flags=True)

    It may be called in any thread. A Ctrl-C stops the job in order, a second one at once; then
    `KeyboardInterrupt` is raised. The job ends with this process, however this process ends.

    Args:
        program: a ``.py`` file, an executable, or a job file (``.yaml``); or a list, with its arguments
            (``["train.py", "--epochs", "3"]``, ``["-m", "package.train"]``). Relative to ``workdir``.
        ps, workers: number of parameter servers and of workers; default: one worker. With a job file: instead
            of its numbers.
        chief, evaluator: whether there is one of each.
        roles: further roles by name: how many tasks, or a dict of what a job file says of a role
            (docs/jobfile.md).
        hosts: a hostfile, or ``host:slots,...``; default: this machine.
        docker: an image: each task runs in a container of its own.
        env: names and values for the tasks; they are not on any command line.
        flags: append ``--ps_hosts= --worker_hosts= --job_name= --task_index=`` to the program's arguments.
        gpus: GPUs for each task (ps tasks get none).
        workdir: the folder in which the tasks run; default: the current one.
        python: the Python of ``.py`` programs; default: this one here, ``python3`` on other machines.
        on_failure: ``"stop"`` (default): the job ends when one task fails; ``"continue"``: the others go on.
        grace: seconds from SIGTERM to SIGKILL for a task that is stopped; default: 10.
        timeout: seconds for the whole job; default: no limit.
        run_dir: the folder for logs and report; default: among the runs of ``launch ps``.
        quiet: print nothing; default: the tasks' output and the result are printed as by the command.
        options: more options of ``launch``, as on its command line.
        check: raise an exception if the exit code is not 0.

    Returns:
        How the job and each of its tasks ended; ``exit_code`` is that of the command.

    Raises:
        InputError: what is asked for is wrong, nothing was started; with all faults.
        TaskFailed: with ``check``: a task failed; has its ``task``, ``last_lines`` and the ``report``.
        JobFailed: with ``check``: the job failed in another way (its time was up, a host was lost); has the
            ``report``. Without ``check``: there is no report, as the job did not begin, or the launcher was
            killed.
    """
    settings = Settings(
        hosts, docker, None, env, workdir, python, on_failure, grace, timeout, run_dir, gpus, flags, quiet,
        options,
    )  # fmt: skip
    is_one = isinstance(program, (str, os.PathLike))
    words: Any = [program] if is_one else program
    faults = list_faults(_RUN, "program", words) + settings_faults(_RUN, settings)
    for name, value in (("ps", ps), ("workers", workers)):
        faults += [] if value is None else count_faults(_RUN, name, value)
    if not faults and not words:
        faults.append(Fault(_RUN, "program is empty", "expected a file, or a list: ['train.py', ...]"))
    if faults:
        raise InputError(faults)
    words, overlay = Program(words, ps, workers, chief, evaluator, roles).command_line()
    driver = Driver([*settings.words(), *words], settings.environ(), roles=overlay, quiet=quiet)
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
