"""The Python that runs ``.py`` programs here, and the packages it would import.

It is asked for versions without importing anything: ``import tensorflow`` costs four seconds of CPU.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

from launcher.agent.environments import entered

if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from launcher.agent.probe_work import Commands

    Json = Dict[str, Any]

#: Distributions that hold the package ``tensorflow``.
_TENSORFLOWS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tensorflow-macos",
    "tensorflow-aarch64", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu",
)  # fmt: skip
_OTHERS = ("tf-keras", "keras", "numpy", "grpcio", "protobuf")
_MARK = "launch-check "

#: Runs in any Python, also one that is too old to know what it has installed. The folder it runs in is
#: taken from its path: nothing there may stand in for a module of the standard library.
_QUESTION = """
import sys
sys.path[:] = [path for path in sys.path if path]
import json
try:
    from importlib import metadata
except ImportError:
    metadata = None
def version(name):
    try:
        return metadata.version(name)
    except Exception:
        return None
def is_there(name):
    from importlib.util import find_spec
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
names = %(tensorflows)r
tensorflows = [(name, version(name)) for name in names] if metadata else []
found = {
    "version": ".".join(map(str, sys.version_info[:3])),
    "executable": sys.executable,
    "virtual": sys.prefix != getattr(sys, "base_prefix", sys.prefix),
    "tensorflow": next((v for _, v in tensorflows if v), "unknown" if is_there("tensorflow") else None),
    "distribution": next((name for name, v in tensorflows if v), None),
}
found.update((name.replace("-", "_"), version(name) if metadata else None) for name in %(others)r)
print("\\n%(mark)s" + json.dumps(found))
"""


def task_python(request: Mapping[str, Any], commands: Commands, env: Mapping[str, str]) -> Json:
    """What the Python of the tasks says of itself.

    Args:
        request: see `launcher.agent.probe_facts.facts`.
        commands: runs it.
        env: the environment of the tasks.

    Returns:
        ``asked`` and ``path``; ``state`` (``ok``, ``missing``, ``failed``, ``slow``) and what it ``said``;
        if ``ok`` also ``version``, ``virtual`` and a version or ``null`` of ``tensorflow``, ``keras``,
        ``tf_keras``, ``numpy``, ``grpcio`` and ``protobuf``; ``distribution``: the one TensorFlow came in.
    """
    asked = request["python"] or "python3"
    try:
        env = env if request["venv"] is None else {**env, **entered(env, request["venv"])}
    except OSError:
        return _answer(asked, "", "missing", f"there is no environment {request['venv']!r}")
    path = _path_of(asked, request["workdir"], env)
    if path is None:
        return _answer(asked, "", "missing", "it is not in PATH")
    question = _QUESTION % {"tensorflows": _TENSORFLOWS, "others": _OTHERS, "mark": _MARK}
    said = commands.run([path, "-B", "-c", question], request["seconds"], env)
    answer = _answer(asked, path, said.state, "" if said.state == "ok" else said.text[-500:])
    return {**answer, **_understood(said.text)} if said.state == "ok" else answer


def _answer(asked: str, path: str, state: str, said: str) -> Json:
    return {"asked": asked, "path": path, "state": state, "said": said}


def _path_of(python: str, workdir: Optional[str], env: Mapping[str, str]) -> Optional[str]:
    """A path as tasks would find it: relative to where they run, a bare name along their PATH."""
    if "/" not in python:
        return shutil.which(python, path=env.get("PATH", os.defpath))
    where = os.path.expanduser(workdir or ".")
    return os.path.abspath(os.path.join(where, os.path.expanduser(python)))


def _understood(text: str) -> Json:
    """The line that is ours: a ``sitecustomize`` may print before it."""
    for line in text.splitlines():
        if line.startswith(_MARK):
            found: Json = json.loads(line[len(_MARK) :])
            return found
    return {"state": "failed", "said": text[-500:]}
