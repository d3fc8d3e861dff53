"""What a test asks of a cluster, as a command line of ``launch``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.testing.trouble import ClusterError

Words = Sequence[str | os.PathLike[str]]

_DOCKER = "docker:"


class Backend(NamedTuple):
    """Where tasks run when a test does not say it: on this machine, or in containers of an image."""

    #: Empty: on this machine.
    image: str = ""

    @classmethod
    def of(cls, text: str) -> Backend:
        """``local``, or ``docker:IMAGE``.

        Raises:
            ClusterError: it is neither.
        """
        if text == "local":
            return cls()
        if text.startswith(_DOCKER) and len(text) > len(_DOCKER):
            return cls(text[len(_DOCKER) :])
        raise ClusterError(f"{text!r} is no backend for clusters; expected local, or docker:IMAGE")


class Wanted(NamedTuple):
    """One cluster, as `launcher.testing.Cluster.start` takes it."""

    program: Words = ()
    ps: int | None = None
    workers: int | None = None
    chief: bool = False
    evaluator: bool = False
    roles: Mapping[str, int | Mapping[str, Any]] = {}
    flags: bool = False
    env: Mapping[str, str] = {}
    hosts: str | os.PathLike[str] | None = None
    workdir: str | os.PathLike[str] | None = None
    python: str | os.PathLike[str] | None = None
    on_failure: str | None = None
    grace: float | None = None
    timeout: float | None = None
    options: Words = ()


def in_containers(wanted: Wanted, backend: Backend) -> bool:
    """Whether its tasks run in containers."""
    said = (word.partition("=")[0] for word in _texts(wanted.options))
    return bool(backend.image) or "--docker" in said


def command_line(wanted: Wanted, backend: Backend, folder: Path) -> list[str]:
    """The arguments of ``launch``.

    Values of the environment are not among them: they are expected in the launcher's own.

    Args:
        wanted: the cluster.
        backend: where its tasks run.
        folder: of this launch: the run's files go to ``run`` in it, a job file is written into it.
    """
    words = [*_settings(wanted), *_texts(wanted.options), "--run-dir", str(folder / "run")]
    if backend.image:
        words += ["--docker", backend.image]
    if wanted.roles:
        return [*words, "--", _job_file(wanted, folder)]
    program = _texts(wanted.program)
    return words + _tasks(wanted) + (program if program[:1] == ["-m"] else ["--", *program])


def _settings(wanted: Wanted) -> list[str]:
    """All but the program and who runs it."""
    words = ["--flags"] if wanted.flags else []
    for name in wanted.env:
        words += ["-x", name]
    given = {
        "--hosts": wanted.hosts,
        "--workdir": wanted.workdir,
        "--python": wanted.python,
        "--on-failure": wanted.on_failure,
        "--grace": wanted.grace,
        "--timeout": wanted.timeout,
    }
    for option, value in given.items():
        if value is not None:
            words += [option, str(value)]
    return words


def _tasks(wanted: Wanted) -> list[str]:
    words = []
    for option, count in (("--ps", wanted.ps), ("--workers", wanted.workers)):
        if count is not None:
            words += [option, str(count)]
    return words + ["--chief"] * wanted.chief + ["--evaluator"] * wanted.evaluator


def _job_file(wanted: Wanted, folder: Path) -> str:
    """The path of a job file: only there can roles have any name. (JSON is YAML.)"""
    counts = {"chief": int(wanted.chief), "worker": wanted.workers, "ps": wanted.ps}
    counts["evaluator"] = int(wanted.evaluator)
    job: dict[str, Any] = {"roles": {role: count for role, count in counts.items() if count}}
    job["roles"].update({role: _role(what) for role, what in wanted.roles.items()})
    if wanted.program:
        job["command"] = _texts(wanted.program)
    path = folder / "job.yaml"
    path.write_text(json.dumps(job, indent=2), encoding="utf-8")
    return str(path)


def _texts(words: Words) -> list[str]:
    return [os.fspath(word) for word in words]


def _role(what: int | Mapping[str, Any]) -> int | dict[str, Any]:
    return what if isinstance(what, int) else dict(what)
