"""Parses the texts of ``--sync`` and ``--collect`` into requests.

A launch calls this before it connects to any host, and so does one that starts its launcher on another
machine. It checks that folders exist, but must not read them, because they may be large.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, JobError
from launcher.common.record import Record
from launcher.common.text import task_range
from launcher.storage.urls import local_path, split_target

_SYNC_FORM = "expected a folder, or FOLDER:PLACE_ON_THE_HOSTS"
_COLLECT_FORM = "expected PATH, PATH:FOLDER, PATH:URL, or ROLE[/INDEX]=PATH[:FOLDER]"
#: Role, index and path in ``worker/0=PATH``. The user writes a path that contains ``=`` as ``./a=b``.
_TASKS_PATTERN = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(?:/(\d+))?=(.*)", re.DOTALL)


class SyncRequest(Record):
    """One ``--sync FOLDER`` or ``--sync FOLDER:PLACE``: a folder to copy to all hosts."""

    #: The text of the user.
    text: str
    #: The folder on this machine, an absolute path with links resolved.
    folder: str
    #: The name of the copy in the folder of the run.
    name: str
    #: The place of the copy on the hosts, absolute or relative to the home folder. If it is None, the copy is
    #: in the folder of the run.
    remote: str | None

    def relative_path(self, path: str) -> str | None:
        """Return the path of a file or folder relative to the folder of this request.

        Returns:
            An empty text for the folder itself, and None for a path that is not in the folder.
        """
        path = os.path.realpath(path)
        if path == self.folder:
            return ""
        return path[len(self.folder) + 1 :] if path.startswith(self.folder + "/") else None


def parse_syncs(texts: Iterable[str], where: str = "--sync") -> tuple[SyncRequest, ...]:
    """Parse all ``--sync`` options of a launch.

    Args:
        texts: The texts of the options.
        where: The place where the user has written them, for messages.

    Raises:
        JobError: Options are faulty, or two of them copy to the same place. The error contains all faults.
    """
    requests: list[SyncRequest] = []
    faults: list[Fault] = []
    #: The text of the first option that copies to each place.
    places: dict[str, str] = {}
    for text in texts:
        request = _parse_sync(text, where)
        if isinstance(request, Fault):
            faults.append(request)
            continue
        # A copy without a place on the hosts goes to the folder of the run, under its own name.
        place = f"{request.remote!r}" if request.remote else f"a folder {request.name!r}"
        if place in places:
            problem = f"{places[place]!r} and {text!r} both go to {place}"
            faults.append(Fault(where, problem, "expected DIR:REMOTE for one of them"))
        places.setdefault(place, text)
        requests.append(request)
    if faults:
        raise JobError(faults)
    return tuple(requests)


def _parse_sync(text: str, where: str) -> SyncRequest | Fault:
    """Parse one ``--sync`` option.

    Args:
        text: The text of the option: ``FOLDER`` or ``FOLDER:PLACE``. A folder may contain a colon.
        where: The place where the user has written it, for messages.

    Returns:
        The request, or what is wrong with the option.
    """
    folder, colon, place = text.rpartition(":")
    # Without a place the copy goes to the folder of the run. The colon may belong to the name of the folder.
    if not colon or os.path.isdir(text):
        folder, colon, place = text, "", ""
    if not os.path.isdir(folder):
        fault = "is not a folder" if os.path.exists(folder) else "is not there"
        return Fault(where, f"{folder!r} {fault}", _SYNC_FORM)
    name, real_folder = os.path.basename(os.path.abspath(folder)), os.path.realpath(folder)
    if not name or real_folder == "/":
        return Fault(where, "'/' cannot be copied", "expected a folder in it")
    if not colon:
        return SyncRequest(text, folder=real_folder, name=name, remote=None)
    # A place that is not absolute is below the home of the user on each host, with ``~/`` or without.
    below_home = place.removeprefix("~/")
    parts = [part for part in below_home.split("/") if part not in ("", ".")]
    # ~USER is the home of another user, and a folder above the place would lead out of it.
    if not parts or ".." in parts or parts[0].startswith("~") or "\0" in place:
        expected = "expected a folder below the home, or /a/path"
        return Fault(where, f"{place!r} cannot be a place on the hosts", expected)
    # All spellings of a place become the same one, so that two requests for it are noticed.
    remote = "/" * below_home.startswith("/") + "/".join(parts)
    return SyncRequest(text, folder=real_folder, name=name, remote=remote)


class Item(Record):
    """A path or pattern to copy from the host of one task, for ``--collect``."""

    #: The name of the task, for messages.
    task: str
    #: The name of the host.
    host: str
    #: The folder on the host that ``path`` is relative to. If it is empty, that is the home folder.
    base: str
    #: A path or a pattern on the host.
    path: str
    #: The folder on this machine for the copy. It is made when the first file arrives.
    into: str
    #: The role of the task if tasks of all roles are asked for the path, because some roles may not make it.
    #: Otherwise it is empty.
    role: str = ""


class CollectRequest(Record):
    """One ``--collect [ROLE[/INDEX]=]PATH[:FOLDER or :URL]``: a path to copy from the hosts of tasks."""

    #: The role whose tasks are asked. If it is empty, all tasks are asked.
    role: str
    #: The index of the only task of the role that is asked, or None if all are asked.
    number: int | None
    #: A path or a pattern on the hosts. It may contain ``{job_name}`` and ``{task_index}``.
    path: str
    #: The folder on this machine for the copies, or None for ``collected/`` in the folder of the run.
    into: str | None
    #: The folder at a URL to which they are copied from there. Empty if they stay on this machine.
    url: str = ""

    def concerns(self, task: TaskId) -> bool:
        """Return whether this task is asked for the path."""
        # An empty role stands for all roles, and None for all tasks of the role.
        return self.role in ("", task.role) and self.number in (None, task.index)

    def item(self, task: TaskId, host: str, base: str, run_dir: str) -> Item:
        """Return what to copy from the host of one task.

        Each task gets a folder of its own for the copy, unless the request names a single task and a folder.

        Args:
            task: The task.
            host: The host on which it ran.
            base: The folder on the host in which it ran. If it is empty, that is the home folder.
            run_dir: The folder of the run on this machine.
        """
        path = self.path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))
        into = os.path.join(run_dir, "collected") if self.into is None else self.into
        if self.into is None or self.number is None:
            into = os.path.join(into, task.file_stem)
        # Without a role in the request all roles are asked, and some may not make the path. The role of this
        # task then tells whether it should have been made here.
        role = "" if self.role else task.role
        return Item(task, host=host, base=base, path=path, into=os.path.abspath(into), role=role)


def parse_collects(
    texts: Iterable[str], roles: Mapping[str, int], where: str = "--collect"
) -> tuple[CollectRequest, ...]:
    """Parse all ``--collect`` options of a launch.

    Args:
        texts: The texts of the options.
        roles: The number of tasks in the job, by role.
        where: The place where the user has written them, for messages.

    Raises:
        JobError: Options are faulty. The error contains all faults.
    """
    requests: list[CollectRequest] = []
    faults: list[Fault] = []
    for text in texts:
        # The form is [ROLE[/INDEX]=]PATH[:FOLDER], or a URL in place of the folder. Without a role it is for
        # all tasks.
        match = _TASKS_PATTERN.fullmatch(text)
        role, digits, rest = match.groups() if match else ("", None, text)
        path, url = split_target(rest)
        # None stands for a folder in that of the run.
        into = local_path(url)
        if into is not None:
            url = ""
        elif not url and ":" in rest:
            path, _, into = rest.rpartition(":")
        index, count = None if digits is None else int(digits), roles.get(role, 0)
        if not path or into == "" or "\0" in rest:
            faults.append(Fault(where, f"{text!r} is not a path", _COLLECT_FORM))
        elif into is not None and os.path.exists(into) and not os.path.isdir(into):
            faults.append(Fault(where, f"{into!r} is a file", _COLLECT_FORM))
        # No such role, or one without tasks. The text before "=" may as well be a part of the path.
        elif role and not count:
            known = ", ".join(sorted(name for name in roles if roles[name]))
            expected = f"expected one of {known}, or ./{text} for a path with '=' in it"
            faults.append(Fault(where, f"{text!r}: no task of this job is a {role!r}", expected))
        elif index is not None and index >= count:
            expected = f"expected {task_range(role, count)}"
            faults.append(Fault(where, f"{text!r}: this job has no {role}/{index}", expected))
        # A faulty request does no harm here, because the faults are raised below.
        requests.append(CollectRequest(role, number=index, path=path, into=into, url=url))
    if faults:
        raise JobError(faults)
    return tuple(requests)
