"""Tasks of one host share the folder they run in: what they write there under one name is one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from launcher.job import TaskId
from launcher.luggage.progress import counted
from launcher.luggage.requests import CollectRequest
from launcher.text import listed


def sharing_remark(
    requests: Iterable[CollectRequest],
    tasks: Iterable[tuple[TaskId, str, str]],
    filled: Callable[[str, TaskId], str],
) -> str:
    """What whoever wants a result of each task should know before the job; empty: there is nothing to say.

    Args:
        requests: what is to be fetched.
        tasks: each with its host and the folder it runs in there.
        filled: fills ``{job_name}`` and ``{task_index}`` in a path.
    """
    meant: dict[tuple[str, str, str], list[TaskId]] = {}
    tasks = list(tasks)
    for request in requests:
        for task, host, folder in tasks:
            if request.concerns(task):
                meant.setdefault((host, folder, filled(request.path, task)), []).append(task)
    shared = [(host, list(dict.fromkeys(who))) for (host, _, _), who in meant.items()]
    shared = [(host, who) for host, who in shared if len(who) > 1]
    return _worded(shared) if shared else ""


def _worded(shared: Sequence[tuple[str, Sequence[TaskId]]]) -> str:
    host, who = shared[0]
    others = len({host for host, _ in shared}) - 1
    more = f" (and so on, on {counted(others, 'more host')})" if others else ""
    words = "{task_index}" if len({task.role for task in who}) == 1 else "{job_name} and {task_index}"
    what = f"{listed([str(task) for task in who])} share the folder on {host}{more}"
    return f"--collect: {what}: results of the same name are the same file; use {words} in the path"
