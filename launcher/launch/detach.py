"""Detached launches (``--detach``): the launcher goes on without a terminal.

The command line calls `run_detached`, which returns when all tasks run. It forks before anything is started:
the child is the launcher, in a session of its own. It prints on the command's streams until the run has a
folder, then into the file `RunPaths.messages`, which the command shows. A pipe from the launcher carries that
folder and the run's name, each with a zero byte, and one more zero byte when all tasks run. The end of the
pipe means that the launcher has exited.

`launcher.launch.submit` starts the launcher in the queue of a cluster instead, if there is one.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys

from launcher.agent.processes import nothing_on
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.text import signal_name, why_not_started
from launcher.job import RUN_FOLDER_VARIABLE, RunPaths
from launcher.launch.interrupts import STOP_SIGNALS
from launcher.launch.options import LaunchOptions
from launcher.launch.session import Session
from launcher.launch.submit import submit
from launcher.messages import begin_with_times
from launcher.output.background import Background
from launcher.output.logs import GrowingLog
from launcher.runs.run import load

#: Matches the time before a message.
_TIME_PATTERN = rb"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=launch: )"
#: The pause between two looks at the launcher's messages.
_POLL_SECONDS = 0.05


class _SignalForwarder:
    """A signal handler that passes signals on to the launcher.

    The launcher ignores SIGHUP, because its terminal may close. So it gets SIGTERM instead.

    Args:
        launcher: The pid of the launcher.
    """

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        #: SIGHUP or SIGTERM, whichever came first. They are different requests (`launcher.stop_requests`),
        #: but the launcher gets SIGTERM for both. So only this one is passed on.
        self._sigterm_is_for: int | None = None

    def __call__(self, number: int, _: object) -> None:
        """Pass a signal on. Python calls it as the handler of that signal."""
        # Both become SIGTERM. Of these two, only the one that came first is passed on.
        if number in (signal.SIGHUP, signal.SIGTERM):
            self._sigterm_is_for = self._sigterm_is_for or number
            if self._sigterm_is_for != number:
                return
        os.kill(self._launcher, signal.SIGTERM if number == signal.SIGHUP else number)


def run_detached(options: LaunchOptions) -> int:
    """Run a job whose launcher goes on: in a cluster's queue if there is one, else in a child process.

    Returns:
        In this process 0, or the exit code of a job that ended before all tasks ran. In the launcher, the
        exit code of the job.

    Raises:
        LaunchError: The launcher was killed, the queue refuses the job, or `Session.run` raises it in the
            launcher.
    """
    queue = options.backend.batch_queue()
    # Only a launcher that the queue has started has this variable. Its tasks must not inherit it.
    folder = os.environ.pop(RUN_FOLDER_VARIABLE, "")
    if queue is not None and folder and (submitted := load(folder)):
        begin_with_times()  # Its output is kept in the file of messages, too.
        return Session(replace(options, submitted=submitted)).run()
    if queue is not None and queue.can_submit():
        return submit(options, queue)
    return _run_in_background(options)


def _run_in_background(options: LaunchOptions) -> int:
    """Run a job in a child process that goes on, and return when all tasks run.

    Signals that stop a launch are passed on to the child until then. They are blocked, so that they wait,
    while no handler could pass them on: around the fork, and once this process is about to exit.

    Args:
        options: The options of the launch.

    Returns:
        In this process 0, or the exit code of a job that ended before all tasks ran. In the child, the exit
        code of the job.
    """
    reading, writing = os.pipe()
    # Until each process has its handlers, a signal waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"the job cannot be started: {why_not_started(error)}") from error
    if pid == 0:
        os.close(reading)
        os.setsid()  # It belongs to no terminal from now on.
        nothing_on(0)  # Its stdin is /dev/null.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return Session(options, background=Background(writing)).run()
    os.close(writing)
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _SignalForwarder(pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    run_name, all_run = _wait_until_all_run(reading)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # It is too late to pass them on.
    code = 0 if all_run else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:  # It is the number of the signal that has killed the launcher.
        raise LaunchError(f"the launcher was killed by {signal_name(-code)} before all tasks ran")
    if code == 0:
        print(run_name)
    return code


def _wait_until_all_run(pipe: int) -> tuple[str, bool]:
    """Show the messages of the launcher until all tasks run, or the launcher has exited.

    Args:
        pipe: The pipe from the launcher.

    Returns:
        The name of the run, empty if the launcher exited before it had one. Whether all tasks run.
    """
    received, log, new_messages, has_exited = b"", None, io.BytesIO(), False
    # A zero byte ends the folder of the run, another one its name, and the third says that all tasks run.
    while received.count(b"\0") < 3 and not has_exited:
        if select.select([pipe], [], [], _POLL_SECONDS)[0]:
            data = os.read(pipe, 65536)
            received, has_exited = received + data, not data
        if log is None and received:
            log = GrowingLog(RunPaths(os.fsdecode(received.partition(b"\0")[0])).messages)
        while log is not None and log.write(new_messages):
            # Whoever reads them now needs no times.
            sys.stderr.buffer.write(re.sub(_TIME_PATTERN, b"", new_messages.getvalue()))
            sys.stderr.buffer.flush()
            new_messages = io.BytesIO()
    return os.fsdecode(received.split(b"\0")[1] if received else b""), not has_exited
