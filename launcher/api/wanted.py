"""What a program asks of a launch, as a command line of ``launch``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.errors import Fault, JobError
from launcher.feed.remote.arrival import KNOCK

Path_ = str | os.PathLike[str]

#: Roles that the command line has options for.
_PLAIN = ("ps", "worker", "chief", "evaluator")


class Place(NamedTuple):
    """Where a job runs, and how; what is not said is as ``launch`` has it.

    Attributes:
        hosts: a hostfile, or ``host:slots,...``; ``None``: this machine.
        docker: an image; ``None``: no containers.
        job: a job file that says these things; its roles are counted by the program.
        env: for the tasks; never on a command line.
        workdir, python: where the tasks run, and with which Python.
        on_failure: ``stop`` or ``continue``.
        grace, timeout: seconds from SIGTERM to harder signals; and for the whole job.
        run_dir: the folder for its files; must be new or empty.
        quiet: show nothing; failures are exceptions.
        options: more options of ``launch``, as its command line has them.
    """

    hosts: Path_ | None = None
    docker: str | None = None
    job: Path_ | None = None
    env: Mapping[str, str] = {}
    workdir: Path_ | None = None
    python: Path_ | None = None
    on_failure: str | None = None
    grace: float | None = None
    timeout: float | None = None
    run_dir: Path_ | None = None
    quiet: bool = False
    options: Sequence[str] = ()

    @property
    def is_here(self) -> bool:
        """Whether all tasks run on this machine, and see its files as the program does."""
        return self.hosts is None and self.docker is None and self.job is None


def command_line(
    roles: Mapping[str, Mapping[str, Any]], place: Place, carried: Sequence[str], folder: str
) -> list[str]:
    """The arguments of ``launch``.

    Args:
        roles: by name, what a job file says of a role: ``{"worker": {"count": 2}}``.
        place: where they run.
        carried: names of variables of the launcher's environment, for the tasks.
        folder: a private one, for a job file.

    Raises:
        JobError: the program's job file can't be used.
    """
    words = _settings(place)
    for name in (*carried, *place.env):
        words += ["-x", name]
    if place.job is not None or not _is_plain(roles):
        return [*words, "--", _job_file(roles, place.job, folder)]
    for name, role in roles.items():
        words += {"ps": ["--ps", str(role["count"])], "worker": ["--workers", str(role["count"])]}.get(
            name, [f"--{name}"]
        )
    return [*words, "-c", KNOCK]


def goes_on(place: Place) -> bool:
    """Whether the job goes on without a task that has failed."""
    if place.on_failure is None and place.job is not None:
        return _read(place.job).get("on_failure") == "continue"
    return place.on_failure == "continue"


def _is_plain(roles: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether options can say it: reading a job file takes the launcher longer than all of the rest."""
    single = {name: role["count"] for name, role in roles.items() if name in ("chief", "evaluator")}
    return (
        all(name in _PLAIN and list(role) == ["count"] for name, role in roles.items())
        and all(count == 1 for count in single.values())
        and "worker" in roles
    )


def _settings(place: Place) -> list[str]:
    """All but the program and who runs it."""
    given = {
        "--hosts": place.hosts,
        "--docker": place.docker,
        "--workdir": place.workdir,
        "--python": place.python,
        "--on-failure": place.on_failure,
        "--grace": place.grace,
        "--timeout": place.timeout,
        "--run-dir": place.run_dir,
    }
    # The exception has the last lines of the task that failed.
    words = [*place.options, "--output-dirs", "--no-last-lines", *(["-q"] if place.quiet else [])]
    for option, value in given.items():
        if value is not None:
            words += [option, str(value)]
    return words


def _job_file(roles: Mapping[str, Mapping[str, Any]], theirs: Path_ | None, folder: str) -> str:
    """The path of a job file with these roles, and all else that the program's own one says. (JSON is
    YAML.)"""
    job = {} if theirs is None else _read(theirs)
    said = job.get("roles") or {}
    job["roles"] = {name: {**_role(said.get(name)), **role} for name, role in roles.items()}
    for name, role in said.items():  # roles with a program of their own run beside ours
        if name not in roles and isinstance(role, Mapping) and "command" in role:
            job["roles"][name] = dict(role)
    for name in roles:
        job["roles"][name].setdefault("command", ["-c", KNOCK])
    path = Path(folder, "job.yaml")
    path.write_text(json.dumps(job, indent=2), encoding="utf-8")
    return str(path)


def _role(said: Any) -> dict[str, Any]:
    """What a file says of a role, but for its program: that is the function."""
    return (
        {key: value for key, value in said.items() if key != "command"} if isinstance(said, Mapping) else {}
    )


def _read(path: Path_) -> dict[str, Any]:
    """The program's job file, with paths that mean the same elsewhere.

    Raises:
        JobError: it can't be read.
    """
    import yaml

    where = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            job = yaml.safe_load(file)
    except OSError as error:
        raise JobError([Fault(where, f"the job file can't be read: {error.strerror}")]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError([Fault(where, f"the job file is no YAML: {error}")]) from error
    if not isinstance(job, dict):
        raise JobError(
            [Fault(where, "the job file has no settings", "expected roles: and what else is known of it")]
        )
    job.pop("command", None)
    folder = os.path.dirname(os.path.abspath(where))
    return {key: _rooted(key, value, folder) for key, value in job.items()}


def _below(folder: str, path: Any) -> Any:
    """Of a path that is relative to a folder; who reads the setting knows where ``~`` is."""
    return os.path.join(folder, path) if isinstance(path, str) and not path.startswith("~") else path


def _rooted(key: str, value: Any, folder: str) -> Any:
    """A setting; a path in it is relative to the file that it is in."""
    if key in ("workdir", "run_dir") or (key == "python" and "/" in str(value)):
        return _below(folder, value)
    if key == "sync":
        return [os.path.join(folder, each) for each in ([value] if isinstance(value, str) else value)]
    if key == "hosts" and isinstance(value, str) and os.path.exists(os.path.join(folder, value)):
        return os.path.join(folder, value)
    return value
