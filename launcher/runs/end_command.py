"""Runs the command of ``--on-end`` once, when the job is over.

The launcher stores the command in the folder of the run, and runs it at the end. If the launcher was killed,
a later command of launch does. Whoever runs the command first removes its file, and only one process can do
that, so the command never runs twice. Its words may contain secrets: only its output, which goes to the user
or to ``launcher.log``, may show them.
"""

from __future__ import annotations

import enum
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from launcher.agent.processes import all_pids, read_process
from launcher.common.errors import LaunchError
from launcher.common.record import Record, as_dict
from launcher.common.report import Reason, Report
from launcher.common.text import escape_controls, signal_name
from launcher.common.trusted_io import open_regular, read_at_most
from launcher.job import RunPaths
from launcher.messages import message_prefix, say
from launcher.output.lines import strip_controls
from launcher.output.renderers import record_as_dict
from launcher.output.run_files import write_json
from launcher.output.writer import Writer
from launcher.runs.run import Run, exit_code_of, load

#: How long the command may run.
LIMIT_SECONDS = 30.0
#: How long the kernel may take to end a killed command.
_KILL_SECONDS = 1.0
#: The pause between two looks at the command.
_POLL_SECONDS = 0.05
#: The largest size of the file with the command.
_MAX_FILE_BYTES = 128 * 1024
#: How many bytes at the end of its output are shown.
_MAX_OUTPUT_BYTES = 4 * 1024
_READ_BYTES = 64 * 1024
_STDERR = 2


class EndStatus(enum.Enum):
    """How the job has ended, for the command."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: A user or a signal has stopped it.
    STOPPED = "stopped"
    #: Its launcher was killed, and has left no report.
    LOST = "lost"


class EndCommand(Record):
    """The command of ``--on-end`` of one run."""

    words: tuple[str, ...]
    #: The path of its program.
    program: str
    #: The folder in which it runs: that of the ``launch``.
    folder: str

    @property
    def name(self) -> str:
        """The name of its program, for messages. The other words may be secret."""
        return os.path.basename(self.program)

    def store(self, paths: RunPaths) -> None:
        """Write the command to the folder of its run, so that it runs even if the launcher is killed.

        Raises:
            LaunchError: The file cannot be written.
        """
        try:
            write_json(paths.on_end, {"schema": 1, **as_dict(self)})
        except OSError as error:
            raise LaunchError(f"cannot write {paths.on_end!r}: {error.strerror}") from error

    def run_at_end(
        self, report: Report, paths: RunPaths | None, is_interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        """Run the command for a launcher, and show its output and its failure on stderr.

        It does not run if another process has done it.

        Args:
            report: The report of the job.
            paths: The files of the run. None if it has no folder.
            is_interrupted: Returns whether the user no longer wants to wait.
        """
        run = None if paths is None else load(paths.root)
        if paths is not None and claim(paths) is None:
            say(f"the command of --on-end does not run, because {paths.on_end!r} is no longer there")
            return
        status = status_of(record_as_dict(report), EndStatus.FAILED)
        failure, lines = execute(self, end_variables(report.job, status, run), is_interrupted)
        prefix = f"{message_prefix()}--on-end {self.name}: "
        text = "".join(f"{prefix}{escape_controls(line)}\n" for line in (*lines, failure) if line)
        # `say` would wait for a slow reader, and fail if stderr cannot be written.
        writer = Writer()
        writer.write(_STDERR, text.encode("utf-8", "backslashreplace"), is_urgent=True)
        writer.close()


def claim(paths: RunPaths) -> EndCommand | None:
    """Take the command of a run out of its folder. The caller runs it.

    Only a file that this user has written, and that only this user can read, is believed: others may write to
    the folder of a ``--run-dir``.

    Returns:
        The command. None if there is none, or if another process has claimed it.
    """
    try:
        with open_regular(paths.on_end, links=False) as file:
            status = os.fstat(file.fileno())
            # A file with a second link may be one of this user that is no command.
            if status.st_uid != os.geteuid() or status.st_mode & 0o077 or status.st_nlink != 1:
                return None
            fields = json.loads(read_at_most(file, _MAX_FILE_BYTES))
        command = EndCommand(tuple(map(str, fields["words"])), str(fields["program"]), str(fields["folder"]))
        os.unlink(paths.on_end)  # For all but one process this fails.
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return command


def status_of(report: Mapping[str, Any], without_report: EndStatus) -> EndStatus:
    """Return how a job has ended.

    Args:
        report: The content of its report. Empty if there is none.
        without_report: The answer if there is none.
    """
    code, failure = exit_code_of(report), report.get("failure")
    if not code:
        return without_report if code is None else EndStatus.SUCCEEDED
    is_stopped = isinstance(failure, dict) and failure.get("reason") == Reason.INTERRUPTED.value
    return EndStatus.STOPPED if is_stopped else EndStatus.FAILED


def end_variables(run_name: str, status: EndStatus, run: Run | None) -> Mapping[str, str]:
    """Return the environment variables that tell the command about the end of a job.

    Args:
        run_name: The id of its run.
        status: How it has ended.
        run: The run. None if it has no folder.
    """
    return {
        "LAUNCH_STATUS": status.value,
        "LAUNCH_RUN": run_name,
        "LAUNCH_NAME": run.origin.name if run else "",
        "LAUNCH_REPORT": run.paths.report if run else "",
    }


def run_left_commands(runs: Iterable[Run], without_report: EndStatus = EndStatus.LOST) -> None:
    """Run the commands of runs whose launchers will not do it. The user is told so.

    The output of each goes to ``launcher.log`` in the folder of its run. What is left after the time for one
    command stays for the next ``launch``.

    Args:
        runs: The runs. Those without a command are ignored.
        without_report: How a run without a report has ended.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    for run in runs:
        command = claim(run.paths) if time.monotonic() < deadline else None
        if command is None:
            continue
        status = status_of(run.report(), without_report)
        say(f"job {run.name}: {status.value}; its command of --on-end runs now: {command.name}")
        failure, lines = execute(command, end_variables(run.name, status, run))
        if failure:
            say(f"job {run.name}: --on-end {command.name}: {failure}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError), open(os.open(run.paths.messages, flags, 0o600), "a") as file:
            file.writelines(f"{line}\n" for line in lines)


def execute(
    command: EndCommand, variables: Mapping[str, str], is_interrupted: Callable[[], bool] = lambda: False
) -> tuple[str, list[str]]:
    """Run the command, in a process group of its own, and wait until all of that group has ended.

    When its time is over, or the user interrupts it, the group is killed.

    Args:
        command: The command.
        variables: What it gets in its environment, in addition to the variables of this process.
        is_interrupted: Returns whether the user no longer wants to wait.

    Returns:
        Why it failed, as in ``exit code 1``, or an empty text; and the last lines that it printed.
    """
    try:
        # It gets no terminal, so that it cannot wait for an answer there.
        process = subprocess.Popen(
            command.words,
            executable=command.program,
            cwd=command.folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        return f"it cannot be started: {error}", []
    running = _RunningCommand(process)
    return running.wait(is_interrupted), list(running.last_lines())


class _RunningCommand:
    """A command that runs.

    Args:
        process: Its process, which leads a process group.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process, self._stdout, self._pipe = process, process.stdout, process.stdout.fileno()
        #: The last bytes that it has printed, and how many bytes it has printed in all.
        self._output, self._size = b"", 0
        #: Whether it has closed its output.
        self._is_closed = False

    def wait(self, is_interrupted: Callable[[], bool]) -> str:
        """Wait for the end of the command, and return why it failed. Empty if it did not."""
        deadline, failure = time.monotonic() + LIMIT_SECONDS, ""
        try:
            while not failure and not self._has_ended():
                self._read(_POLL_SECONDS)
                if is_interrupted():
                    failure = "killed after Ctrl-C"
                elif time.monotonic() >= deadline:
                    what = "what it started" if self._has_exited() else "it"
                    failure = f"{what} did not end within {LIMIT_SECONDS:g}s, and was killed"
        finally:
            self._kill()
        self._read(0.0)  # What it printed at last is in the pipe.
        self._stdout.close()
        code = self._process.returncode
        if failure or not code:
            return failure
        return f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"

    def last_lines(self) -> Iterator[str]:
        """Yield the last lines that the command has printed, after a line that says if there were more."""
        if dropped := self._size - len(self._output):
            yield f"({dropped:,} bytes are left out)"
        yield from strip_controls(self._output.decode("utf-8", "replace")).splitlines()

    def _read(self, seconds: float) -> None:
        """Read what the command has printed. If it prints nothing, this waits.

        Args:
            seconds: How long to wait at most.
        """
        if self._is_closed:
            time.sleep(seconds)
        elif select.select([self._pipe], [], [], seconds)[0]:
            data = os.read(self._pipe, _READ_BYTES)
            self._is_closed = not data
            self._size += len(data)
            self._output = (self._output + data)[-_MAX_OUTPUT_BYTES:]

    def _has_ended(self) -> bool:
        """Return whether the command, and all that it has started in its group, have ended."""
        if not self._has_exited():
            return False
        processes = map(read_process, all_pids())
        return not any(each and each.group == self._process.pid and not each.has_ended for each in processes)

    def _has_exited(self) -> bool:
        """Return whether the command itself has ended.

        It is not reaped yet, so that no other process and no other group can get its number.
        """
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> None:
        """Kill what is left of the group, and reap the command. What belongs to another user may stay."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
