"""Parses ``--sync`` and ``--collect`` as the user has written them, into requests and items.

A launch uses it before any host is connected, and so does one that starts its launcher elsewhere. It checks
that folders exist, and reads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, JobError
from launcher.common.record import Record
from launcher.common.text import task_range

_SYNC_FORM = "expected a folder, or FOLDER:PLACE_ON_THE_HOSTS"
_COLLECT_FORM = "expected PATH, PATH:FOLDER, or ROLE[/INDEX]=PATH[:FOLDER]"
#: The tasks in ``worker/0=PATH``. A path with ``=`` in it is ``./a=b``.
_TASKS_PATTERN = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(?:/(\d+))?=(.*)", re.DOTALL)


class SyncRequest(Record):
    """``--sync DIR`` or ``--sync DIR:REMOTE``."""

    #: As written.
    text: str
    #: The folder here: absolute, links resolved.
    folder: str
    #: What it is called in the run's folder on the hosts.
    name: str
    #: Where it goes on the hosts, absolute or relative to the home; ``None``: to a folder of the run.
    remote: str | None

    def inside(self, path: str) -> str | None:
        """Return where in this folder a path is, empty at its top, or None if it is elsewhere."""
        path = os.path.realpath(path)
        if path == self.folder:
            return ""
        return path[len(self.folder) + 1 :] if path.startswith(self.folder + "/") else None


def parse_syncs(texts: Iterable[str], where: str = "--sync") -> tuple[SyncRequest, ...]:
    """Read all ``--sync`` of a launch.

    Args:
        texts: As written.
        where: They were written; for messages.

    Raises:
        JobError: All faults, also of two that have the same target.
    """
    requests: list[SyncRequest] = []
    faults: list[Fault] = []
    for text in texts:
        request = _parse_sync(text, where)
        if isinstance(request, Fault):
            faults.append(request)
            continue
        for other in requests:
            if (other.remote, other.remote or other.name) == (request.remote, request.remote or request.name):
                place = f"{request.remote!r}" if request.remote else f"a folder {request.name!r}"
                expected = "expected DIR:REMOTE for one of them"
                faults.append(Fault(where, f"{other.text!r} and {text!r} both go to {place}", expected))
        requests.append(request)
    if faults:
        raise JobError(faults)
    return tuple(requests)


def _parse_sync(text: str, where: str) -> SyncRequest | Fault:
    folder, colon, remote = text.rpartition(":")
    if not colon or os.path.isdir(text):
        folder, colon, remote = text, "", ""
    if not os.path.isdir(folder):
        fault = "is not a folder" if os.path.exists(folder) else "is not there"
        return Fault(where, f"{folder!r} {fault}", _SYNC_FORM)
    name = os.path.basename(os.path.abspath(folder))
    if not name or os.path.realpath(folder) == "/":
        return Fault(where, "'/' can't be copied", "expected a folder in it")
    place = remote.removeprefix("~/")
    parts = [part for part in place.split("/") if part not in ("", ".")]
    if colon and (not parts or ".." in parts or parts[0].startswith("~") or "\0" in place):
        expected = "expected a folder below the home, or /a/path"
        return Fault(where, f"{remote!r} can't be a place on the hosts", expected)
    one_spelling = "/" * place.startswith("/") + "/".join(parts)
    return SyncRequest(
        text, folder=os.path.realpath(folder), name=name, remote=one_spelling if colon else None
    )


class Item(Record):
    """A path or pattern to copy from the host of one task."""

    #: The name of the task, for messages.
    task: str
    host: str
    #: The folder on the host that ``path`` is relative to; empty: the home.
    base: str
    #: A path or a pattern there.
    path: str
    #: The folder here for the copy; made when a file arrives.
    into: str
    #: The role of the task, if the path is wanted from tasks of all roles: not each role may make it.
    role: str = ""


class CollectRequest(Record):
    """``--collect PATH[:DIR]`` (from all tasks) or ``--collect ROLE[/INDEX]=PATH[:DIR]`` (from those)."""

    #: Of which role; empty: all tasks.
    role: str
    #: Which task of the role; ``None``: all of them.
    number: int | None
    path: str
    #: The folder here; ``None``: ``collected/`` in the run's folder.
    into: str | None

    def concerns(self, task: TaskId) -> bool:
        """Return whether the request names this task."""
        return self.role in ("", task.role) and self.number in (None, task.index)

    def item(self, task: TaskId, host: str, base: str, run_dir: str) -> Item:
        """Return the item of one task. The folder here is the task's own, unless the request names one task.

        Args:
            task: One of the job.
            host: That it ran on.
            base: The folder that it ran in there; empty: the home.
            run_dir: The run's folder.
        """
        path = self.path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))
        into = os.path.join(run_dir, "collected") if self.into is None else self.into
        if self.into is None or self.number is None:
            into = os.path.join(into, task.file_stem)
        return Item(
            task,
            host=host,
            base=base,
            path=path,
            into=os.path.abspath(into),
            role="" if self.role else task.role,
        )


def parse_collects(
    texts: Iterable[str], roles: Mapping[str, int], where: str = "--collect"
) -> tuple[CollectRequest, ...]:
    """Read all ``--collect`` of a launch.

    Args:
        texts: As written.
        roles: How many tasks of each the job has.
        where: They were written; for messages.

    Raises:
        JobError: All faults.
    """
    requests: list[CollectRequest] = []
    faults: list[Fault] = []
    for text in texts:
        named = _TASKS_PATTERN.fullmatch(text)
        role, number, rest = named.groups() if named else ("", None, text)
        path, colon, into = rest.rpartition(":")
        path, into = (path, into) if colon else (rest, None)
        index, count = None if number is None else int(number), roles.get(role, 0)
        if not path or into == "" or "\0" in rest:
            faults.append(Fault(where, f"{text!r} is not a path", _COLLECT_FORM))
        elif into is not None and os.path.exists(into) and not os.path.isdir(into):
            faults.append(Fault(where, f"{into!r} is a file", _COLLECT_FORM))
        elif role and not count:
            known = ", ".join(sorted(name for name in roles if roles[name]))
            expected = f"expected one of {known}, or ./{text} for a path with '=' in it"
            faults.append(Fault(where, f"{text!r}: no task of this job is a {role!r}", expected))
        elif index is not None and index >= count:
            expected = f"expected {task_range(role, count)}"
            faults.append(Fault(where, f"{text!r}: this job has no {role}/{index}", expected))
        requests.append(CollectRequest(role, number=index, path=path, into=into))
    if faults:
        raise JobError(faults)
    return tuple(requests)
