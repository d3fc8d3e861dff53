"""The program of `launch check` on a host: it reports what the host has, and connects to the other hosts.

`main` answers requests on stdin, a JSON object a line, with one line each on stdout:

===========  ================================================================================================
``do``       answer
===========  ================================================================================================
``clock``    ``at``: the clock of this host, seconds since the epoch
``look``     ``facts`` (see `_facts`), ``port``: held and served as the port of a task is, 0 if there is
             none, and ``why``
``connect``  ``pairs``: for each of the request's ``peers``, see `_reach`
===========  ================================================================================================
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type

from launcher.agent.host import NVIDIA_SMI, host_facts
from launcher.agent.lookup import environment_variables
from launcher.agent.ports import PortReservations, call_side_by_side, dual_stack_socket
from launcher.agent.processes import lines_of
from launcher.common.cluster import TaskId
from launcher.common.errors import ProgramError
from launcher.common.record import as_dict

Json = Dict[str, Any]

#: Distributions that hold the package ``tensorflow``.
_TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tensorflow-macos",
    "tensorflow-aarch64", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu",
)  # fmt: skip
_MARK = "launch-check "
#: Runs in any Python 3. It imports nothing that takes long: ``import tensorflow`` costs four seconds.
_PYTHON_QUESTION = f"""
import sys
sys.path[:] = [path for path in sys.path if path]
import json
def version(*names):
    for name in names:
        try:
            from importlib import metadata
            return metadata.version(name)
        except Exception:
            pass
found = {{"version": ".".join(map(str, sys.version_info[:3])), "path": sys.executable}}
tensorflow = version(*{_TENSORFLOW_DISTRIBUTIONS!r})
found.update(tensorflow=tensorflow, keras=version("keras"), tf_keras=version("tf-keras"))
print("\\n{_MARK}" + json.dumps(found))
"""
#: Connections at a time.
_MAX_CONNECTIONS = 16
#: Seconds to wait when no descriptor is left for a connection.
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.05
#: Most bytes of a token.
_MAX_TOKEN_BYTES = 256
#: Bytes of the file that is written to see whether a disk is full.
_DISK_TEST_BYTES = 64 * 1024
#: Results of connections that fail, and their exceptions; the first match counts.
_ERRORS_BY_RESULT: Dict[str, Tuple[Type[Exception], ...]] = {
    "unknown name": (socket.gaierror, UnicodeError),
    "timed out": (socket.timeout, TimeoutError),
    "refused": (ConnectionRefusedError,),
    "cut off": (ConnectionError,),
}
#: Errors of routing tables; a blackhole route gives EINVAL.
_NO_ROUTE_ERRORS = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EADDRNOTAVAIL)


def main(_: object) -> None:
    """Answer requests until stdin ends; that kills this process and the commands it runs."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            try:
                threading.Thread(target=_answer, args=(request,), daemon=True).start()
            except RuntimeError:  # no thread is left
                _answer(request)
    os.killpg(0, signal.SIGKILL)


def _answer(request: Json) -> None:
    if request["do"] == "clock":
        answer: Json = {"at": time.time()}
    elif request["do"] == "look":
        answer = {"facts": _facts(request), **_listen(request)}
    else:
        answer = _connect(request)
    print(json.dumps(answer), flush=True)


# ---------------------------------------------------------------------- facts


def _facts(request: Mapping[str, Any]) -> Json:
    """Return the facts of the host.

    Args:
        request: ``python`` of its programs, ``workdir`` and ``venv`` of the host or ``None``, ``env`` of its
            tasks, and the ``seconds`` that each command may take.

    Returns:
        ``agent`` (`launcher.common.events.HostFacts`), ``available`` (bytes of memory), ``folders``
        (``workdir`` and ``tmp``: ``path``, bytes ``free``, ``why`` it cannot be written), ``environment``
        (variables that matter), ``gpus`` (``state``, ``output``, ``list``), ``task_python`` (see
        `_task_python`).
    """
    env = {**os.environ, **request["env"]}
    workdir = os.path.abspath(os.path.expanduser(request["workdir"] or "."))
    # `tempfile.gettempdir` makes a file, which a kill would leave, and hides a folder that can't be used.
    paths = {"workdir": workdir, "tmp": os.path.join(workdir, env.get("TMPDIR") or "/tmp")}
    late = [{"path": path, "free": None, "why": "its file system hangs"} for path in paths.values()]
    looks = [partial(_folder, path) for path in paths.values()]
    folders = call_side_by_side(looks, late, len(looks), request["seconds"])
    return {
        "agent": as_dict(host_facts()),
        "available": _available_memory(),
        "folders": dict(zip(paths, folders)),
        "environment": {name: env[name] for name in ("TF_USE_LEGACY_KERAS",) if name in env},
        "gpus": _gpus(request["seconds"], env),
        "task_python": _task_python(request, env, workdir),
    }


def _run(argv: Sequence[str], seconds: float, env: Mapping[str, str]) -> Tuple[str, str]:
    """Run a command in the root folder: ``ok``, ``missing``, ``failed`` or ``slow``, and its output."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env=dict(env), timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "slow", ""
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        return "missing" if missing else "failed", getattr(error, "strerror", None) or str(error)
    return "failed" if done.returncode else "ok", done.stdout.decode("utf-8", "replace").strip()


def _available_memory() -> Optional[int]:
    """``MemAvailable`` in bytes; ``None`` where the kernel does not say."""
    fields = [line.split() for line in lines_of("/proc/meminfo") if line.startswith("MemAvailable:")]
    return int(fields[0][1]) * 1024 if fields else None


def _folder(path: str) -> Json:
    """Return the free bytes of a folder, and whether a file can be written there."""
    free, why = None, ""
    try:
        found = os.statvfs(path)
        free = found.f_bavail * found.f_frsize
        with tempfile.TemporaryFile(dir=path, prefix=".launch-check-", buffering=0) as file:
            file.write(bytes(_DISK_TEST_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        why = error.strerror or str(error)
    return {"path": path, "free": free, "why": why}


def _gpus(seconds: float, env: Mapping[str, str]) -> Json:
    """Return the GPUs that ``nvidia-smi`` lists, or why it lists none."""
    state, output = _run((*NVIDIA_SMI, "--query-gpu=index,uuid,name"), seconds, {**env, "LC_ALL": "C"})
    lines = output.splitlines() if state == "ok" else ()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    found = [dict(zip(("index", "uuid", "name"), row)) for row in rows if len(row) >= 3 and row[0].isdigit()]
    return {"state": state, "output": "" if found else output[:500], "list": found}


def _task_python(request: Mapping[str, Any], env: Mapping[str, str], workdir: str) -> Json:
    """Ask the Python of ``.py`` programs for versions.

    Returns:
        ``asked``; its ``path``; ``state`` and ``output`` as of `_run`; if ``ok`` also ``version``, and the
        version or ``None`` of ``tensorflow``, ``keras``, ``tf_keras``.
    """
    asked, venv = request["python"], request["venv"]
    path = os.path.abspath(os.path.join(workdir, os.path.expanduser(asked))) if "/" in asked else asked
    try:
        env = env if venv is None else {**env, **environment_variables(env, venv)}
        state, output = _run([path, "-B", "-c", _PYTHON_QUESTION], request["seconds"], env)
    except ProgramError:
        state, output = "missing", f"the environment {venv!r} does not exist"
    answer = {"asked": asked, "path": path, "state": state, "output": "" if state == "ok" else output[-500:]}
    if state == "ok":
        lines = [line for line in output.splitlines() if line.startswith(_MARK)]
        answer.update(json.loads(lines[-1][len(_MARK) :]) if lines else {"state": "failed", "output": output})
    return answer


# ---------------------------------------------------------------------- connections


def _listen(request: Json) -> Json:
    """Hold a port as a task's, and serve it beside the holder as TensorFlow does, until the process ends."""
    keeper = PortReservations()
    try:
        port = keeper.hold(TaskId("check/0"))
        server = dual_stack_socket(port, can_share=True)
        server.listen(128)
        serving = threading.Thread(
            target=_serve, args=(server, request["token"].encode("ascii")), daemon=True
        )
        serving.start()
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread is left
        keeper.release_all()
        return {"port": 0, "why": getattr(error, "strerror", None) or str(error)}
    return {"port": port, "why": ""}


def _serve(server: socket.socket, token: bytes) -> None:
    """Send the token of this host to all that connect."""
    while True:
        try:
            peer, _ = server.accept()
        except OSError:  # no descriptor is left
            time.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
            continue
        with suppress(OSError), peer:  # the peer reports what became of it
            peer.sendall(token + b"\n")


def _connect(request: Json) -> Json:
    """Connect to each of the ``peers`` (``address``, ``port``, ``token``)."""
    calls = [partial(_reach, peer, request["seconds"]) for peer in request["peers"]]
    late = [{"result": "timed out", "why": "", "address": ""}] * len(calls)
    seconds = request["seconds"] * -(-len(calls) // _MAX_CONNECTIONS) + 1.0
    return {"pairs": call_side_by_side(calls, late, _MAX_CONNECTIONS, seconds)}


def _reach(peer: Mapping[str, Any], seconds: float) -> Json:
    """Connect to a peer, and read its token.

    Returns:
        The ``result`` (see `launcher.findings.ReachResult`), the error of the system as ``why``, and the
        first ``address`` that the name of the peer has here.
    """
    where, address = (peer["address"].strip("[]"), peer["port"]), ""
    try:
        address = str(socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_connection(where, seconds) as connection, connection.makefile("rb") as file:
            line = file.readline(_MAX_TOKEN_BYTES)
    except (OSError, UnicodeError) as error:
        result = next(
            (name for name, kinds in _ERRORS_BY_RESULT.items() if isinstance(error, kinds)), "failed"
        )
        if result == "failed" and getattr(error, "errno", None) in _NO_ROUTE_ERRORS:
            result = "no route"
        return {"result": result, "why": getattr(error, "strerror", None) or str(error), "address": address}
    result = "ok" if line == peer["token"].encode("ascii") + b"\n" else "another program"
    return {"result": result, "why": "", "address": address}
