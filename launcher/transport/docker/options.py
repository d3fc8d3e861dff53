"""Further settings of a container that a job file may have, in the words of the SDK and of ``docker run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

#: Name -> values, as a job file has them after it was checked (`launcher.jobfile.containers`).
Options = tuple[tuple[str, tuple[str, ...]], ...]


class Option(NamedTuple):
    """One of them: its option of ``docker run``, and its argument of the SDK's ``create_host_config``."""

    word: str
    argument: str
    value: Callable[[tuple[str, ...]], Any]


def _ulimit(text: str) -> Any:
    from docker.types import Ulimit

    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    return Ulimit(name=name, soft=int(soft), hard=int(hard or soft))


def _folder(text: str) -> tuple[str, str]:
    path, _, settings = text.partition(":")
    return path, settings


#: All there are.
OPTIONS = {
    "shm_size": Option("--shm-size", "shm_size", lambda values: int(values[0])),
    "ulimits": Option("--ulimit", "ulimits", lambda values: [_ulimit(text) for text in values]),
    "cap_add": Option("--cap-add", "cap_add", list),
    "cap_drop": Option("--cap-drop", "cap_drop", list),
    "devices": Option("--device", "devices", list),
    "tmpfs": Option("--tmpfs", "tmpfs", lambda values: dict(map(_folder, values))),
    "extra_hosts": Option("--add-host", "extra_hosts", list),
    "ipc": Option("--ipc", "ipc_mode", lambda values: values[0]),
    "security_opt": Option("--security-opt", "security_opt", list),
    "pids_limit": Option("--pids-limit", "pids_limit", lambda values: int(values[0])),
}


def as_words(options: Options) -> list[str]:
    """For ``docker run``."""
    found = ((OPTIONS[name].word, value) for name, values in options for value in values)
    return [word for pair in found for word in pair]


def as_settings(options: Options) -> dict[str, Any]:
    """For the SDK."""
    return {OPTIONS[name].argument: OPTIONS[name].value(values) for name, values in options}
