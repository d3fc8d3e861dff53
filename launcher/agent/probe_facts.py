"""What a host is and has, for ``launch check``: what `launcher.agent.hostfacts` tells, and what takes longer.

===============  ===========================================================================================
``user_name``    who we are; ``user`` is the number
``boot``         identity of the running kernel: two names of one machine show by it
``available``    bytes of memory that a program can get; ``load``: the three averages
``folders``      ``home``, ``tmp`` and, if there is one, ``workdir``: see `launcher.agent.probe_folders`
``shm``          bytes that ``/dev/shm`` can hold; ``null``: there is none
``limits``       ``files`` and ``processes`` that we may have; ``null``: no limit
``environment``  the variables that matter here, those of proxies without user and password
``gpus``         ``state`` (``none``, ``ok``, ``failed``, ``slow``), ``said``, ``list``
``task_python``  the Python of ``.py`` programs: see `launcher.agent.probe_python`
``leftovers``    of earlier runs: see `launcher.agent.probe_leftovers`
===============  ===========================================================================================
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from launcher.agent.hostfacts import host_facts
from launcher.agent.probe_folders import look_at_folders, room_of
from launcher.agent.probe_leftovers import leftovers
from launcher.agent.probe_python import task_python
from launcher.agent.probe_work import together

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from launcher.agent.probe_work import Commands

    Json = Dict[str, Any]

#: What gRPC, and others, ask for a proxy; and what else changes how a task runs.
PROXIES = (
    "grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "all_proxy",
)  # fmt: skip
_OTHERS = (
    "no_grpc_proxy", "no_proxy", "NO_PROXY", "TF_USE_LEGACY_KERAS", "TF_CONFIG", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader")
_GPU_FIELDS = ("index", "uuid", "name", "memory")


def facts(request: Mapping[str, Any], commands: Commands) -> Json:
    """The table above, as a dict.

    Args:
        request: the host's ``python``, ``workdir`` and ``venv`` or ``null``, ``env`` that its tasks get, and
            the ``seconds`` that each command may take.
        commands: runs them.
    """
    env = {**os.environ, **request["env"]}
    seconds = request["seconds"]
    gpus, python, folders, left = together(
        [
            lambda: _gpus(commands, seconds, env),
            lambda: task_python(request, commands, env),
            lambda: look_at_folders(request["workdir"], seconds),
            leftovers,
        ],
        seconds + 1.0,
    )
    return {
        **host_facts(),
        "user_name": _user_name(),
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "available": _available(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "folders": folders or {},
        "shm": room_of("/dev/shm"),
        "limits": {
            "files": _limit(resource.RLIMIT_NOFILE),
            "processes": _limit(resource.RLIMIT_NPROC),
        },
        "environment": _environment(env),
        "gpus": gpus or {"state": "slow", "said": "", "list": []},
        "task_python": python or {"state": "slow", "said": "", "asked": request["python"], "path": ""},
        "leftovers": left or {"processes": [], "count": 0, "busy": 0, "folders": []},
    }


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _user_name() -> str:
    """A login name; the number where nobody knows it."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _available() -> Optional[int]:
    """``MemAvailable`` in bytes; ``None`` where the kernel does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _limit(which: int) -> Optional[int]:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _environment(env: Mapping[str, str]) -> Dict[str, str]:
    """Of all variables only these: the rest is nobody's business, and may be secret."""
    shown = {name: without_secret(env[name]) for name in PROXIES if env.get(name)}
    shown.update((name, env[name][:4096]) for name in _OTHERS if name in env)
    if "TF_CONFIG" in shown:
        shown["TF_CONFIG"] = "set"
    return shown


def without_secret(url: str) -> str:
    """A proxy's address without the user and password that may be in it."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, rest = "", url
    host = rest.rpartition("@")[2]
    return f"{scheme}{slashes}{host}"


def _gpus(commands: Commands, seconds: float, env: Mapping[str, str]) -> Json:
    """What ``nvidia-smi`` says, or why it says nothing."""
    said = commands.run(_NVIDIA_SMI, seconds, {**env, "LC_ALL": "C"})
    if said.state == "missing":
        return {"state": "none", "said": "", "list": []}
    found: List[Dict[str, str]] = []
    for line in said.text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if said.state == "ok" and len(cells) == len(_GPU_FIELDS) and cells[0].isdigit():
            found.append(dict(zip(_GPU_FIELDS, cells)))
    return {"state": said.state, "said": "" if found else said.text[:500], "list": found}
