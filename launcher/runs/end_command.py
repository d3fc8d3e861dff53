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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.processes import all_pids, read_process
from launcher.common.record import Record, as_dict
from launcher.common.report import Reason
from launcher.common.text import escape_controls, signal_name, why_not_started
from launcher.common.trusted_io import open_regular, read_at_most
from launcher.job import RunPaths
from launcher.messages import message_prefix, say
from launcher.output.lines import strip_controls
from launcher.output.run_files import write_json
from launcher.output.writer import Writer
from launcher.runs.run import Run, exit_code_of

if TYPE_CHECKING:
    import subprocess

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


class JobEnd(Record):
    """What the command is told about the end of the job."""

    status: EndStatus
    run_name: str
    #: The path of the report. Empty if the run has no folder.
    report_path: str = ""
    #: The name that the user calls the run. Empty if there is none.
    name: str = ""

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that tell the command about the end."""
        return {
            "LAUNCH_STATUS": self.status.value,
            "LAUNCH_RUN": self.run_name,
            "LAUNCH_NAME": self.name,
            "LAUNCH_REPORT": self.report_path,
        }


class Outcome(Record):
    """What has become of the command."""

    #: Why it failed, as in ``exit code 1``. Empty if it did not.
    failure: str
    #: The last lines that it printed, without control characters.
    lines: tuple[str, ...] = ()


def status_of(report: Mapping[str, Any], without_report: EndStatus) -> EndStatus:
    """Return how a job has ended.

    Args:
        report: The content of its report. Empty if there is none.
        without_report: The answer if there is none.
    """
    code, failure = exit_code_of(report), report.get("failure")
    if code is None:
        return without_report
    if code == 0:
        return EndStatus.SUCCEEDED
    is_stopped = isinstance(failure, dict) and failure.get("reason") == Reason.INTERRUPTED.value
    return EndStatus.STOPPED if is_stopped else EndStatus.FAILED


# ---------------------------------------------------------------------- the file


def store(paths: RunPaths, command: EndCommand) -> None:
    """Write the command of a run to its folder, so that it runs even if the launcher is killed.

    Raises:
        OSError: The file cannot be written.
    """
    write_json(paths.on_end, {"schema": 1, **as_dict(command)})


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


# ---------------------------------------------------------------------- a launcher that was killed


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
        if time.monotonic() >= deadline:
            return
        command = claim(run.paths)
        if command is None:
            continue
        end = JobEnd(status_of(run.report(), without_report), run.name, run.paths.report, run.origin.name)
        name = os.path.basename(command.program)
        say(f"job {run.name}: {end.status.value}; its command of --on-end runs now: {name}")
        outcome = execute(command, end)
        if outcome.failure:
            say(f"job {run.name}: --on-end {name}: {outcome.failure}")
        if outcome.lines:
            _add_to_messages(run.paths, outcome.lines)


def _add_to_messages(paths: RunPaths, lines: Iterable[str]) -> None:
    """Append lines to ``launcher.log`` of a run, which may not exist yet. Errors are ignored."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError), open(os.open(paths.messages, flags, 0o600), "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


# ---------------------------------------------------------------------- the process


def run_command(command: EndCommand, end: JobEnd, is_interrupted: Callable[[], bool]) -> None:
    """Run the command at the end of its launch, and show its output, and why it failed.

    The arguments are those of `execute`.
    """
    outcome = execute(command, end, is_interrupted)
    lines = [*outcome.lines, outcome.failure] if outcome.failure else outcome.lines
    if not lines:
        return
    prefix = f"{message_prefix()}--on-end {os.path.basename(command.program)}: "
    text = "".join(f"{prefix}{escape_controls(line)}\n" for line in lines)
    # `say` would wait for a slow reader, and fail if stderr cannot be written.
    writer = Writer()
    writer.write(_STDERR, text.encode("utf-8", "backslashreplace"), is_urgent=True)
    writer.close()


def execute(command: EndCommand, end: JobEnd, is_interrupted: Callable[[], bool] = lambda: False) -> Outcome:
    """Run the command, in a process group of its own, and wait until all of that group has ended.

    When its time is over, or the user interrupts it, the group is killed.

    Args:
        command: The command.
        end: The end of the job.
        is_interrupted: Returns whether the user wants no longer to wait.
    """
    import subprocess  # noqa: PLC0415 - few launches have such a command

    try:
        # It gets no terminal, so that it cannot wait for an answer there.
        process = subprocess.Popen(
            command.words,
            executable=command.program,
            cwd=command.folder,
            env={**os.environ, **end.variables()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(f"it cannot be started: {why_not_started(error)}")
    except ValueError as error:
        return Outcome(f"it cannot be started: {error}")
    return _Execution(process).outcome(is_interrupted)


class _Execution:
    """A command that runs.

    Args:
        process: Its process, which leads a process group.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process, self._stdout = process, process.stdout
        self._pipe = process.stdout.fileno()
        #: The last bytes that it has printed, and how many bytes it has printed in all.
        self._output, self._size = b"", 0
        #: Whether the command has closed its output.
        self._is_closed = False

    def outcome(self, is_interrupted: Callable[[], bool]) -> Outcome:
        """Wait for the end of the command, and return what has become of it."""
        deadline = time.monotonic() + LIMIT_SECONDS
        failure = ""
        try:
            while not self._has_ended():
                if time.monotonic() >= deadline:
                    what = "what it started" if self._has_exited() else "it"
                    failure = f"{what} did not end within {LIMIT_SECONDS:g}s, and was killed"
                    break
                if is_interrupted():
                    failure = "killed after Ctrl-C"
                    break
                self._read(_POLL_SECONDS)
        finally:
            code = self._kill()
        self._read(0.0)  # What it printed at last is in the pipe.
        self._stdout.close()
        if code and not failure:
            failure = f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"
        return Outcome(failure, tuple(self._lines()))

    def _lines(self) -> Iterator[str]:
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
            return
        if not select.select([self._pipe], [], [], seconds)[0]:
            return
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

    def _kill(self) -> int | None:
        """Kill what is left of the group, and return the exit code of the command.

        It is negative after a signal, and None if the command cannot be killed, as one of another user.
        """
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 10)
        return self._process.returncode
