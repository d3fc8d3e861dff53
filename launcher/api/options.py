"""What a program asks of a launch: checked, and as a command line of ``launch``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher.errors import Fault

Path_ = str | os.PathLike[str]
Words = Sequence[str | os.PathLike[str]]

_JOB_FILES = (".yaml", ".yml")


class Settings(NamedTuple):
    """Where and how a job runs. ``None``: as ``launch`` has it.

    Attributes:
        hosts: a hostfile, or ``host:slots,...``; ``None``: this machine.
        docker: an image; ``None``: no containers.
        job: a job file.
        env: for the tasks; its values are never on a command line.
        workdir, python: where the tasks run, and with which Python.
        on_failure: ``stop`` or ``continue``.
        grace, timeout: seconds from SIGTERM to SIGKILL, and for the whole job.
        run_dir: the folder for its files; must be new or empty.
        gpus: GPUs for each task (ps tasks get none).
        flags: append ``--ps_hosts= --worker_hosts= --job_name= --task_index=`` to the program's arguments.
        quiet: print nothing; failures are exceptions.
        options: more options of ``launch``, as its command line has them.
    """

    hosts: Path_ | None = None
    docker: str | None = None
    job: Path_ | None = None
    env: Mapping[str, str] | None = None
    workdir: Path_ | None = None
    python: Path_ | None = None
    on_failure: str | None = None
    grace: float | None = None
    timeout: float | None = None
    run_dir: Path_ | None = None
    gpus: int | None = None
    flags: bool = False
    quiet: bool = False
    options: Words = ()

    def environ(self) -> dict[str, str]:
        """The environment of the launcher."""
        return {**os.environ, **(self.env or {})}

    def words(self) -> list[str]:
        """The options of ``launch``; it finds the values of ``env`` in its environment."""
        given = {
            "--hosts": self.hosts,
            "--docker": self.docker,
            "--workdir": self.workdir,
            "--python": self.python,
            "--on-failure": self.on_failure,
            "--grace": self.grace,
            "--timeout": self.timeout,
            "--run-dir": self.run_dir,
            "--gpus": self.gpus,
        }
        words = [os.fspath(word) for word in self.options]
        words += ["--flags"] if self.flags else []
        words += ["-q"] if self.quiet else []
        for name in self.env or {}:
            words += ["-x", name]
        for option, value in given.items():
            if value is not None:
                words += [option, str(value)]
        return words


class Program(NamedTuple):
    """A program, and how many tasks run it.

    Attributes:
        words: the program and its arguments, as on the command line of ``launch``; or a job file.
        ps, workers: how many; ``None``: not said.
        chief, evaluator: whether there is one.
        roles: further roles by name: how many, or what a job file says of a role.
    """

    words: Words
    ps: int | None = None
    workers: int | None = None
    chief: bool = False
    evaluator: bool = False
    roles: Mapping[str, int | Mapping[str, Any]] | None = None

    def command_line(self) -> tuple[list[str], Mapping[str, Any]]:
        """The last words of a command line of ``launch``, and what to give it by ``--roles-fd``."""
        words = [os.fspath(word) for word in self.words]
        is_file = words[0].endswith(_JOB_FILES) if words else False
        counts = {"chief": 1 if self.chief else None, "worker": self.workers, "ps": self.ps}
        counts["evaluator"] = 1 if self.evaluator else None
        roles: dict[str, Any] = {
            name: {"count": count} for name, count in counts.items() if count is not None
        }
        for name, role in (self.roles or {}).items():
            roles[name] = dict(role) if isinstance(role, Mapping) else {"count": role}
        if is_file:
            return ["--", *words], roles
        if words:
            roles = {name: {"command": words, **role} for name, role in (roles or {"worker": {}}).items()}
        return [], roles


def settings_faults(caller: str, settings: Settings) -> list[Fault]:
    """What is wrong with the settings that ``caller`` (``TFCluster.run``) was given.

    `launch` itself reports what is wrong with the value of an option.
    """
    faults = [] if settings.gpus is None else count_faults(caller, "gpus", settings.gpus)
    env: Any = {} if settings.env is None else settings.env
    if not isinstance(env, Mapping):
        faults.append(Fault(caller, f"env={env!r}", "expected a dict of names and values"))
        env = {}
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            expected = f"expected texts: {str(name)!r}: {str(value)!r}"
            faults.append(Fault(caller, f"env: {name!r} is {value!r}", expected))
    return faults + list_faults(caller, "options", settings.options)


def count_faults(caller: str, name: str, value: Any, least: int = 0) -> list[Fault]:
    """What is wrong with a number of things."""
    is_number = hasattr(value, "__index__") and not isinstance(value, bool)  # NumPy's integers, too
    if is_number and value.__index__() >= least:
        return []
    return [Fault(caller, f"{name}={value!r}", f"expected a whole number, {least} or more")]


def list_faults(caller: str, name: str, value: Any) -> list[Fault]:
    """What is wrong with a list of texts. (One text would be taken for a list of its letters.)"""
    is_list = isinstance(value, (list, tuple, set, frozenset))
    if is_list and all(isinstance(word, (str, os.PathLike)) for word in value):
        return []
    example = f"[{value!r}]" if isinstance(value, str) else "['...', '...']"
    return [Fault(caller, f"{name}={value!r}", f"expected a list of texts: {name}={example}")]
