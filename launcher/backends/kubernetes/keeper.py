"""The main process of a launcher's pod: it runs the launcher, and keeps its files until they are fetched.

`launcher.backends.kubernetes.launcher_pod` sends it to the pod. There it runs in Python 3.8 or later, so it
must use the standard library only.
"""

from __future__ import annotations

import base64
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

# The output of this process contains the messages of the launcher, and these two lines.
#: The line which says that the tasks of the job start.
TASKS_START_LINE = b"launch: the tasks start"
#: The beginning of the line which says that the launcher has ended.
LAUNCHER_ENDED_LINE = b"launch: the launcher has ended with exit code "
_LAST_LINE_FORMAT = (
    LAUNCHER_ENDED_LINE + b"%d; its files wait here for %d h, until launch ps, logs or attach fetches them"
)
#: How often this process checks whether the tasks start.
_POLL_SECONDS = 0.1
#: The descriptor of the socket to the process that has passed its stdin and stdout to this one.
_PASSER_FD = 3
_READ_BYTES = 64 * 1024
#: The limit for looking after what a killed launcher has left.
_STOP_SECONDS = 60.0


def keep(arguments: dict[str, Any]) -> int:
    """Run a launcher in this pod, and keep its files for some time after it has ended.

    This is the main process of the pod. Its stdin and stdout belong to a ``kubectl exec``, which has passed
    them to it.

    Args:
        arguments: ``launcher``: the command line of the launcher. ``environ``: variables for it. ``path``: a
            folder for its ``PATH``. ``run``: the folder of the run. ``script``: the text of the program that
            is the first word of the command line. ``file`` and ``content``: the path and the content of
            another file. ``ended``: the path of a file that is made when the launcher has ended. ``hours``:
            how long to keep the files then.

    Returns:
        The exit code of the launcher.
    """
    os.umask(0o077)
    # Without a handler the first process of a container ignores SIGTERM, which comes when the pod is deleted.
    # One that comes before there is a launcher is noted here, and passed on when the launcher has started.
    early_sigterms: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: early_sigterms.append(number))
    _free_stdin()
    environ = _write_files(arguments)
    argv, run_folder = arguments["launcher"], arguments["run"]
    # The launcher runs beside this process, which keeps the files in the pod after the end of the launcher.
    launcher = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )
    sigterms = []

    def pass_on(*_: object) -> None:
        """Pass SIGTERM on to the launcher, and remember it."""
        sigterms.append(1)
        launcher.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    if early_sigterms:
        pass_on()
    code = _await_end(launcher, [argv[0], "stop", run_folder], run_folder, environ)
    with open(arguments["ended"], "w", encoding="ascii") as mark:
        mark.write(str(code))
    _say(_LAST_LINE_FORMAT % (code, arguments["hours"]) + b"\n")
    # The files are kept until their time is over. Whoever has fetched them deletes the pod, which sends
    # SIGTERM, and then nobody needs them here. A SIGTERM from before the end of the launcher counts as well.
    kept_until = time.monotonic() + arguments["hours"] * 3600
    while not sigterms and time.monotonic() < kept_until:
        time.sleep(1.0)  # A signal does not end this sleep.
    return code


def _free_stdin() -> None:
    """Move the socket to the process that has passed us its stdin and stdout, and put /dev/null in its place.

    ::

        descriptor       before                      after
        0                the socket                  /dev/null
        1                the stdout passed to us     the stdout passed to us
        3 (_PASSER_FD)   the stdin passed to us      the socket

    The passed stdin is not needed. The socket must stay open until the tasks start, because closing it lets
    the other process exit.
    """
    # The order matters: descriptor 0 must be copied before it is replaced.
    os.dup2(0, _PASSER_FD, False)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)


def _write_files(arguments: dict[str, Any]) -> dict[str, str]:
    """Write the program of the launcher and the other file, make the folder of the run, and link our Python.

    Args:
        arguments: Those of `keep`.

    Returns:
        The environment of the launcher.
    """
    argv = arguments["launcher"]
    for path, content, mode in (
        (argv[0], ("#!" + sys.executable + "\n" + arguments["script"]).encode(), 0o700),
        (arguments["file"], base64.b64decode(arguments["content"]), 0o600),
    ):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    # Later commands in the pod find by this link the Python that runs here.
    os.symlink(sys.executable, os.path.join(os.path.dirname(argv[0]), "python"))
    os.makedirs(arguments["run"])
    path = os.environ.get("PATH", os.defpath) + ":" + arguments["path"]
    return {**os.environ, "PATH": path, **arguments["environ"]}


def _await_end(launcher: Any, stop_argv: list[str], run_folder: str, environ: dict[str, str]) -> int:
    """Copy the output of the launcher until it ends, and return its exit code as a shell reports it.

    Args:
        launcher: The process of the launcher.
        stop_argv: The command that does what a launcher which was killed has left to do.
        run_folder: The folder of the run, which gets the log.
        environ: The environment of that command.
    """
    # The launcher writes its plan, plan.json, when the tasks start. This ends when the launcher does.
    with open(os.path.join(run_folder, "launcher.log"), "wb", buffering=0) as log:
        _copy_output(launcher, log, os.path.join(run_folder, "plan.json"))
        code: int = launcher.wait()
        if code < 0:  # It was killed. This runs the command of --on-end that it has left.
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(stop_argv, stdout=log, stderr=log, env=environ, timeout=_STOP_SECONDS)
    return code if code >= 0 else 128 - code


def _copy_output(launcher: Any, log: Any, plan_path: str) -> None:
    """Copy the output of a launcher to its log and to our output until it ends.

    The command that submitted the launcher reads our stdout until the launcher has written its plan, because
    then the tasks start. This says so, and closes stdout.

    Args:
        launcher: The process of the launcher.
        log: The open file of its log.
        plan_path: The path of the plan.
    """
    fd, tasks_started = launcher.stdout.fileno(), False
    while True:
        readable = select.select([fd], [], [], _POLL_SECONDS)[0]
        if readable:
            data = os.read(fd, _READ_BYTES)
            if not data:
                return
            log.write(data)
            _say(data)
        elif launcher.poll() is not None:  # Another process still holds the output of the launcher.
            return
        elif not tasks_started and os.path.exists(plan_path):
            tasks_started = True
            _say(TASKS_START_LINE + b"\n")
            # /dev/null, which is our descriptor 0, replaces stdout. Closing the socket lets the kubectl exec
            # exit.
            os.dup2(0, 1)
            os.close(_PASSER_FD)


def _say(data: bytes) -> None:
    """Write all the data to stderr, which is the log of the pod, and to stdout, whose reader may be gone."""
    for fd in (2, 1):
        unwritten = data
        with suppress(OSError):
            while unwritten:
                unwritten = unwritten[os.write(fd, unwritten) :]
