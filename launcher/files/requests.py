"""What the user asks to travel: ``--sync`` and ``--collect``, read from the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.errors import Fault, JobError
from launcher.job import TaskId

_SYNC, _COLLECT = "--sync", "--collect"
_SYNC_FORM = "expected a folder, or FOLDER:PLACE_ON_THE_HOSTS"
_COLLECT_FORM = "expected PATH, PATH:FOLDER, or ROLE[/INDEX]=PATH[:FOLDER]"
#: The tasks in ``worker/0=PATH``. A path with ``=`` in it is ``./a=b``.
_TASKS = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(?:/(\d+))?=(.*)", re.DOTALL)


class SyncRequest(NamedTuple):
    """``--sync DIR`` or ``--sync DIR:REMOTE``."""

    #: As written.
    text: str
    #: The folder here: absolute, links resolved.
    folder: str
    #: What it is called in the run's folder on the hosts.
    name: str
    #: Where it goes on the hosts, absolute or relative to the home; ``None``: to a folder of the run.
    remote: str | None

    @classmethod
    def parse(cls, text: str) -> SyncRequest:
        """Read one.

        Raises:
            JobError: there is no such folder, or it can't go there.
        """
        folder, remote = _split(text, os.path.isdir)
        if not os.path.isdir(folder):
            what = "is not a folder" if os.path.exists(folder) else "is not there"
            raise _wrong(_SYNC, f"{folder!r} {what}", _SYNC_FORM)
        path = os.path.realpath(folder)
        name = os.path.basename(os.path.abspath(folder))
        if not name or path == "/":
            raise _wrong(_SYNC, "'/' can't travel", "expected a folder in it")
        return cls(text, path, name, None if remote is None else _place(remote))

    def inside(self, path: str) -> str | None:
        """Where in this folder a path is, empty at its top; ``None``: it is elsewhere."""
        path = os.path.realpath(path)
        if path == self.folder:
            return ""
        return path[len(self.folder) + 1 :] if path.startswith(self.folder + "/") else None


def _split(text: str, is_whole: Callable[[str], bool]) -> tuple[str, str | None]:
    """At the last colon, unless the whole is what comes before one."""
    before, colon, after = text.rpartition(":")
    return (before, after) if colon and not is_whole(text) else (text, None)


def _place(remote: str) -> str:
    """A place on the hosts, in its one spelling."""
    place = remote[2:] if remote.startswith("~/") else remote
    parts = [part for part in place.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or parts[0].startswith("~") or "\0" in place:
        raise _wrong(
            _SYNC, f"{remote!r} can't be a place on the hosts", "expected a folder below the home, or /a/path"
        )
    return ("/" if place.startswith("/") else "") + "/".join(parts)


def parse_syncs(texts: Iterable[str], where: str = _SYNC) -> tuple[SyncRequest, ...]:
    """Read all ``--sync`` of a launch.

    Args:
        texts: as written.
        where: they were written; for messages.

    Raises:
        JobError: all that is wrong with them, also with one beside the other.
    """
    requests: list[SyncRequest] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            request = SyncRequest.parse(text)
        except JobError as error:
            faults += error.faults
            continue
        faults += (fault for other in requests if (fault := _collision(other, request)) is not None)
        requests.append(request)
    if faults:
        raise JobError(fault._replace(where=where) for fault in faults)
    return tuple(requests)


def _collision(first: SyncRequest, second: SyncRequest) -> Fault | None:
    if (first.remote is None) != (second.remote is None):
        return None
    if first.remote is None or second.remote is None:
        if first.name != second.name:
            return None
        where = f"a folder {first.name!r}"
    else:
        one, other = sorted((first.remote + "/", second.remote + "/"))
        if not other.startswith(one):
            return None
        where = f"{first.remote!r}" if one == other else f"{one!r}, one into the other"
    return Fault(
        _SYNC, f"{first.text!r} and {second.text!r} both go to {where}", "expected DIR:REMOTE for one of them"
    )


class Item(NamedTuple):
    """One thing to be fetched for one task."""

    #: The name of the task, for messages.
    task: str
    host: str
    #: The folder on the host that ``path`` is relative to; empty: the home.
    base: str
    #: A path or a pattern there.
    path: str
    #: The folder here that it goes to; made when there is something for it.
    into: str
    #: That it can't be fetched is a remark, and no failure.
    spare: bool = False


class CollectRequest(NamedTuple):
    """``--collect PATH[:DIR]`` (from all tasks) or ``--collect ROLE[/INDEX]=PATH[:DIR]`` (from those)."""

    #: As written.
    text: str
    #: Of which role; empty: all tasks.
    role: str
    #: Which task of the role; ``None``: all of them.
    number: int | None
    path: str
    #: The folder here; ``None``: ``collected/`` in the run's folder.
    into: str | None

    @classmethod
    def parse(cls, text: str) -> CollectRequest:
        """Read one.

        Raises:
            JobError: it has not this form.
        """
        named = _TASKS.fullmatch(text)
        role, number, rest = named.groups() if named else ("", None, text)
        path, into = _split(rest, lambda whole: False)
        if not path or into == "" or "\0" in rest:
            raise _wrong(_COLLECT, f"{text!r} is no path", _COLLECT_FORM)
        if into is not None and os.path.exists(into) and not os.path.isdir(into):
            raise _wrong(_COLLECT, f"{into!r} is a file", _COLLECT_FORM)
        return cls(text, role, None if number is None else int(number), path, into)

    def concerns(self, task: TaskId) -> bool:
        """Whether this task has it."""
        return (not self.role or task.role == self.role) and (
            self.number is None or task.index == self.number
        )

    def folder(self, task: TaskId, run_dir: str) -> str:
        """The folder here for one task: its own, unless it is the only one that can be meant."""
        if self.into is not None and self.number is not None:
            return os.path.abspath(self.into)
        top = os.path.join(run_dir, "collected") if self.into is None else self.into
        return os.path.join(os.path.abspath(top), task.file_stem)


def parse_collects(
    texts: Iterable[str], roles: Mapping[str, int], where: str = _COLLECT
) -> tuple[CollectRequest, ...]:
    """Read all ``--collect`` of a launch.

    Args:
        texts: as written.
        roles: how many tasks of each the job has.
        where: they were written; for messages.

    Raises:
        JobError: all that is wrong with them.
    """
    requests: list[CollectRequest] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            request = CollectRequest.parse(text)
        except JobError as error:
            faults += error.faults
            continue
        faults += (fault for fault in [_nobody(request, roles)] if fault is not None)
        requests.append(request)
    if faults:
        raise JobError(fault._replace(where=where) for fault in faults)
    return tuple(requests)


def _nobody(request: CollectRequest, roles: Mapping[str, int]) -> Fault | None:
    """What is wrong if the job has no task that is meant."""
    text, role, number = request.text, request.role, request.number
    if not role:
        return None
    count = roles.get(role, 0)
    if not count:
        known = ", ".join(sorted(name for name in roles if roles[name]))
        expected = f"expected one of {known}, or ./{text} for a path with '=' in it"
        return Fault(_COLLECT, f"{text!r}: no task of this job is a {role!r}", expected)
    if number is None or number < count:
        return None
    last = f" to {role}/{count - 1}" if count > 1 else ""
    return Fault(_COLLECT, f"{text!r}: this job has no {role}/{number}", f"expected {role}/0{last}")


def items_of(
    requests: Iterable[CollectRequest],
    tasks: Sequence[tuple[TaskId, str, str]],
    run_dir: str,
    filled: Callable[[str, TaskId], str],
) -> list[Item]:
    """What is to be fetched, task by task.

    Args:
        requests: what the user asked for.
        tasks: each with its host and the folder it ran in there (empty: the home).
        run_dir: the run's folder.
        filled: fills ``{job_name}``, ``{task_index}`` and so on in a path.
    """
    return [
        Item(task, host, base, filled(request.path, task), request.folder(task, run_dir))
        for request in requests
        for task, host, base in tasks
        if request.concerns(task)
    ]


def _wrong(option: str, what: str, expected: str) -> JobError:
    return JobError([Fault(option, what, expected)])
