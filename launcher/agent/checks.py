"""The program of ``launch check`` on a host: it reports about the host, and connects to the other hosts.

The launcher runs `main` as a remote command, and sends requests to its stdin. Each is a JSON object on one
line, with the kind of the request as ``do``. `main` answers each with a JSON object on one line of stdout. It
must leave nothing behind on the host.

===========  ================================================================================================
``do``       answer
===========  ================================================================================================
``clock``    ``at``, the clock of this host in seconds since the epoch
``look``     ``facts``, see `_facts`, and ``port`` and ``why``, see `_listen`
``connect``  ``pairs``, which contains the result of `_reach` for each of the request's ``peers``
``urls``     ``urls``, see `_reach_urls`
===========  ================================================================================================
"""

from __future__ import annotations

import errno
import json
import math
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
from launcher.common.text import last_line

Json = Dict[str, Any]

#: The distributions that contain the package ``tensorflow``.
_TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tensorflow-macos",
    "tensorflow-aarch64", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu",
)  # fmt: skip
# The line with the answer of a program in the Python of tasks begins with this.
_MARK = "launch-check "
#: A program for any Python 3. It must not import anything slow: ``import tensorflow`` would take four
#: seconds.
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
_MAX_CONNECTIONS = 16
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.05
_MAX_TOKEN_BYTES = 256
# A file of this size is written to find out whether a disk is full.
_DISK_TEST_BYTES = 64 * 1024
#: The results of failed connections, each with its exceptions. The first one that matches counts.
_ERRORS_BY_RESULT: Dict[str, Tuple[Type[Exception], ...]] = {
    "unknown name": (socket.gaierror, UnicodeError),
    "timed out": (socket.timeout, TimeoutError),
    "refused": (ConnectionRefusedError,),
    "cut off": (ConnectionError,),
}
#: The errors that mean that no route leads to an address. A blackhole route causes EINVAL.
_NO_ROUTE_ERRORS = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EADDRNOTAVAIL)


def main(_: object) -> None:
    """Answer requests until stdin is closed, then kill this process and the commands that it runs.

    Each request is answered in its own thread. This is a remote command, which ignores its arguments.
    """
    # The commands that this process runs belong to its process group, which is killed at the end.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            # An answer may take long, and the end of stdin must be noticed meanwhile.
            try:
                threading.Thread(target=_answer, args=(request,), daemon=True).start()
            except RuntimeError:
                # The system allows no further thread.
                _answer(request)
    # Stdin is closed: the launcher needs no more answers. 0 means our own process group.
    os.killpg(0, signal.SIGKILL)


def _answer(request: Json) -> None:
    """Print the answer to a request of the launcher as one line of JSON.

    Args:
        request: The request. Its ``do`` says which kind it is, see the top of this module.
    """
    if request["do"] == "clock":
        answer: Json = {"at": time.time()}
    elif request["do"] == "look":
        answer = {"facts": _facts(request), **_listen(request)}
    elif request["do"] == "urls":
        answer = _reach_urls(request)
    else:
        answer = _connect(request)
    print(json.dumps(answer), flush=True)


# ---------------------------------------------------------------------- facts


def _facts(request: Mapping[str, Any]) -> Json:
    """Return what ``launch check`` wants to know about this host.

    Args:
        request: The request, with these keys:
            python: The Python that runs ``.py`` programs.
            workdir: The working folder of tasks, or None.
            venv: The Python environment of tasks, or None.
            env: The variables of tasks.
            seconds: The time limit of each command.

    Returns:
        A mapping with these keys:
            agent: The `launcher.common.events.HostFacts`.
            available: How many bytes of memory are available, or None.
            folders: The result of `_folder` for ``workdir`` and for ``tmp``.
            environment: Those variables of tasks that matter for TensorFlow.
            gpus: The result of `_gpus`.
            task_python: The result of `_task_python`.
    """
    env, workdir = _environment(request)
    # `tempfile.gettempdir` makes a file, which would stay if this process were killed, and does not report a
    # folder that cannot be used.
    paths = {"workdir": workdir, "tmp": os.path.join(workdir, env.get("TMPDIR") or "/tmp")}
    # What counts as the result for a folder that has not answered within the time limit.
    if_late = [{"path": path, "free": None, "why": "its file system hangs"} for path in paths.values()]
    calls = [partial(_folder, path) for path in paths.values()]
    folders = call_side_by_side(calls, if_late, len(calls), request["seconds"])
    return {
        "agent": as_dict(host_facts()),
        "available": _available_memory(),
        "folders": dict(zip(paths, folders)),
        "environment": {name: env[name] for name in ("TF_USE_LEGACY_KERAS",) if name in env},
        "gpus": _gpus(request["seconds"], env),
        "task_python": _task_python(request, env, workdir),
    }


def _environment(request: Mapping[str, Any]) -> Tuple[Dict[str, str], str]:
    """Return the variables of tasks and their working folder."""
    folder = os.path.abspath(os.path.expanduser(request["workdir"] or "."))
    return {**os.environ, **request["env"]}, folder


def _run(
    argv: Sequence[str], seconds: float, env: Mapping[str, str], standard_input: bytes = b""
) -> Tuple[str, str]:
    """Run a command in the root folder.

    Args:
        argv: The command line.
        seconds: The time limit.
        env: The whole environment of the command.
        standard_input: What the command reads from its stdin.

    Returns:
        The state ``ok``, ``missing``, ``failed`` or ``slow``, and the output or the reason of the failure.
    """
    try:
        done = subprocess.run(
            argv, input=standard_input, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env=dict(env), timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "slow", ""
    except (OSError, ValueError) as error:
        # ValueError: an argument or a variable contains a NUL.
        state = "missing" if isinstance(error, FileNotFoundError) else "failed"
        return state, getattr(error, "strerror", None) or str(error)
    return "failed" if done.returncode else "ok", done.stdout.decode("utf-8", "replace").strip()


def _available_memory() -> Optional[int]:
    """Return how many bytes of memory are available, or None if the kernel does not say."""
    # A line such as "MemAvailable:  123456 kB".
    fields = [line.split() for line in lines_of("/proc/meminfo") if line.startswith("MemAvailable:")]
    return int(fields[0][1]) * 1024 if fields else None


def _folder(path: str) -> Json:
    """Find out how much space a folder has, and whether a file can be written there.

    The file that it writes for this is removed at once. If the file system hangs, this never returns.

    Returns:
        A mapping with these keys:
            path: The folder.
            free: How many bytes are free, or None.
            why: Why no file can be written, or an empty text.
    """
    free, why = None, ""
    try:
        status = os.statvfs(path)
        free = status.f_bavail * status.f_frsize
        with tempfile.TemporaryFile(dir=path, prefix=".launch-check-", buffering=0) as file:
            file.write(bytes(_DISK_TEST_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        why = error.strerror or str(error)
    return {"path": path, "free": free, "why": why}


def _gpus(seconds: float, env: Mapping[str, str]) -> Json:
    """Return the GPUs that ``nvidia-smi`` lists, or why it lists none.

    Args:
        seconds: The time limit.
        env: The environment of tasks.

    Returns:
        A mapping with these keys:
            state: The state of the command, see `_run`.
            output: What the program has printed if it has listed no GPU, otherwise an empty text.
            list: The ``index``, ``uuid`` and ``name`` of each GPU.
    """
    # The locale must not change what the program prints.
    state, output = _run((*NVIDIA_SMI, "--query-gpu=index,uuid,name"), seconds, {**env, "LC_ALL": "C"})
    gpus = []
    for line in output.splitlines() if state == "ok" else ():
        columns = [column.strip() for column in line.split(",")]
        # The program may print warnings, too.
        if len(columns) >= 3 and columns[0].isdigit():
            gpus.append(dict(zip(("index", "uuid", "name"), columns)))
    return {"state": state, "output": "" if gpus else output[:500], "list": gpus}


def _task_python(request: Mapping[str, Any], env: Mapping[str, str], workdir: str) -> Json:
    """Ask the Python that runs ``.py`` programs for the versions of its packages.

    Args:
        request: The request, see `_facts`.
        env: The environment of tasks.
        workdir: The working folder of tasks.

    Returns:
        A mapping with these keys:
            asked: The Python, as the request names it.
            path: The path of the Python.
            state: The state of the command, see `_run`.
            output: The end of its output, unless the state is ``ok``.
            version: The version of the Python, if the state is ``ok``.
            tensorflow, keras, tf_keras: The versions of these packages or None, if the state is ``ok``.
    """
    asked = request["python"]
    path, state, output = _run_python(request, env, workdir, _PYTHON_QUESTION)
    answer = {"asked": asked, "path": path, "state": state, "output": "" if state == "ok" else output[-500:]}
    if state == "ok":
        answer.update(_printed(output) or {"state": "failed", "output": output})
    return answer


def _run_python(
    request: Mapping[str, Any], env: Mapping[str, str], workdir: str, program: str
) -> Tuple[str, str, str]:
    """Let the Python of tasks run a program, which it reads from its stdin.

    Args:
        request: The request, see `_facts`.
        env: The environment of tasks.
        workdir: The working folder of tasks.
        program: The text of the program. It may contain secrets, which a command line must not.

    Returns:
        The path of the Python, and the results of `_run`.
    """
    asked, venv = request["python"], request["venv"]
    # A name without a slash is looked up along the PATH, by the command below.
    path = os.path.abspath(os.path.join(workdir, os.path.expanduser(asked))) if "/" in asked else asked
    try:
        # Within an environment, the name of the Python is looked up there first.
        env = env if venv is None else {**env, **environment_variables(env, venv)}
    except ProgramError:
        return path, "missing", f"the environment {venv!r} does not exist"
    # -B: it leaves no compiled files behind.
    return (path, *_run([path, "-B", "-"], request["seconds"], env, program.encode("ascii")))


def _printed(output: str) -> Any:
    """Return what a program of ours has printed in the Python of tasks, or an empty list.

    Other lines come from the startup of that Python (sitecustomize), or from packages.
    """
    lines = [line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)]
    return json.loads(lines[-1]) if lines else []


def _reach_urls(request: Mapping[str, Any]) -> Json:
    """Let the Python of tasks try to reach URLs.

    Args:
        request: The request, see `_facts`. It also contains the text of a ``program`` that tries to reach
            them, and the ``urls`` without secrets.

    Returns:
        A mapping whose ``urls`` contains, for each of them, the ``url`` and the ``error``, which is empty if
        the URL can be reached.
    """
    _, state, output = _run_python(request, *_environment(request), request["program"])
    why = "no answer in time" if state == "slow" else f"the Python there has failed: {last_line(output)}"
    failed = [{"url": url, "error": f"{url}: {why}"} for url in request["urls"]]
    return {"urls": _printed(output) or failed}


# ---------------------------------------------------------------------- connections


def _listen(request: Json) -> Json:
    """Hold a port as an agent does, and listen on it as TensorFlow does, until this process exits.

    Args:
        request: The request. Its ``token`` is sent to all that connect to the port.

    Returns:
        A mapping of ``port``, which is 0 if that is not possible, and ``why`` it is not possible.
    """
    ports = PortReservations()
    try:
        # No task has this name. It only stands for one, because an agent holds each port for a task.
        port = ports.hold(TaskId("check/0"))
        server = dual_stack_socket(port, can_share=True)
        server.listen(128)
        # Other hosts connect while this process answers further requests.
        serving = threading.Thread(
            target=_serve, args=(server, request["token"].encode("ascii")), daemon=True
        )
        serving.start()
    except (OSError, RuntimeError) as error:
        # Python raises RuntimeError when the system allows no further thread.
        # The port may be held already, although nothing can listen on it.
        ports.release_all()
        return {"port": 0, "why": getattr(error, "strerror", None) or str(error)}
    return {"port": port, "why": ""}


def _serve(server: socket.socket, token: bytes) -> None:
    """Send the token of this host to everyone who connects, until the process exits.

    Args:
        server: The listening socket.
        token: A text that the launcher has chosen for this host, by which the others recognize it.
    """
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            # No descriptor is left at the moment.
            time.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
            continue
        # The other end will report the error.
        with suppress(OSError), peer:
            peer.sendall(token + b"\n")


def _connect(request: Json) -> Json:
    """Connect to other hosts, several at once.

    Args:
        request: The request. Each of its ``peers`` contains ``address``, ``port`` and ``token`` of a host,
            and ``seconds`` is the time limit of each connection.

    Returns:
        A mapping of ``pairs``, the results of `_reach` for the peers.
    """
    calls = [partial(_reach, peer, request["seconds"]) for peer in request["peers"]]
    # The result for a peer whose call is not done when the time for all of them is up.
    if_late = [{"result": "timed out", "why": "", "address": ""}] * len(calls)
    # Each thread tries its connections one after another, and this is the largest number of them.
    rounds = math.ceil(len(calls) / _MAX_CONNECTIONS)
    # The time limit of a connection does not include the look-up of the name.
    seconds = request["seconds"] * rounds + 1.0
    return {"pairs": call_side_by_side(calls, if_late, _MAX_CONNECTIONS, seconds)}


def _reach(peer: Mapping[str, Any], seconds: float) -> Json:
    """Connect to a host, and read its token, which shows that no other program listens on the port.

    Args:
        peer: ``address``, ``port`` and ``token`` of the host.
        seconds: The time limit.

    Returns:
        A mapping with these keys:
            result: The outcome in a word or two, see `launcher.findings.ReachResult`.
            why: The error of the system, or an empty text.
            address: The first address to which the name of the host resolves here, or an empty text.
    """
    # An IPv6 address is written in brackets.
    where, address = (peer["address"].strip("[]"), peer["port"]), ""
    try:
        # Of the first result, the fifth part is the socket address, which begins with the IP address.
        address = str(socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_connection(where, seconds) as connection, connection.makefile("rb") as file:
            line = file.readline(_MAX_TOKEN_BYTES)
    except (OSError, UnicodeError) as error:
        is_no_route = getattr(error, "errno", None) in _NO_ROUTE_ERRORS
        # An error may match several results, because some classes of errors are parts of others.
        results = [name for name, kinds in _ERRORS_BY_RESULT.items() if isinstance(error, kinds)]
        result = results[0] if results else "no route" if is_no_route else "failed"
        return {"result": result, "why": getattr(error, "strerror", None) or str(error), "address": address}
    result = "ok" if line == peer["token"].encode("ascii") + b"\n" else "another program"
    return {"result": result, "why": "", "address": address}
