"""The command of ``--on-end``, which runs once, when the job is over.

`launcher.launch.event_command` runs that of ``--on-event`` in the same way, while the job runs.

The launcher finds its program before anything is started, stores the command in the folder of the run, and
runs it at the end. If the launcher was killed, a later command of launch runs it. Whoever runs the command
first removes its file, and only one process can do that, so the command never runs twice. Its arguments may
be secret: no message shows them, but its own output, which the user sees, may do so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

from launcher.agent.lookup import find_executable
from launcher.agent.processes import all_pids, read_process
from launcher.common.errors import Fault, JobError, LaunchError, NotRunnableError, ProgramError
from launcher.common.record import Record, as_dict
from launcher.common.report import Reason
from launcher.common.text import escape_controls, signal_name
from launcher.common.trusted_io import open_regular, read_at_most
from launcher.config.settings import Setting, Settings
from launcher.config.table import ON_END
from launcher.job import RunPaths
from launcher.messages import message_prefix, say
from launcher.output.lines import clean_lines
from launcher.output.run_files import write_json
from launcher.output.writer import Writer
from launcher.runs.run import Run, exit_code_of, load

#: How long the command may run.
LIMIT_SECONDS = 30.0
#: How long the kernel may take to end a killed command.
_KILL_SECONDS = 1.0
#: The pause between two looks at the command.
_POLL_SECONDS = 0.02
#: The largest size of the file with the command. A job file, which may contain the command, must be smaller.
_MAX_FILE_BYTES = 8 << 20
#: How many bytes at the end of its output are shown.
_MAX_OUTPUT_BYTES = 4 * 1024
_READ_BYTES = 64 * 1024
_STDERR = 2

#: How the job has ended, for the command: ``stopped`` if a user or a signal has stopped it, ``lost`` if its
#: launcher was killed and has left no report.
EndStatus = Literal["succeeded", "failed", "stopped", "lost"]


class UserCommand(Record):
    """The command of ``--on-end`` or of ``--on-event`` of one run."""

    #: The path of its program, and the arguments.
    words: tuple[str, ...]
    #: The folder in which it runs: the current folder of ``launch``.
    folder: str

    @property
    def name(self) -> str:
        """The name of its program, for messages. The arguments may be secret."""
        return os.path.basename(self.words[0])

    def store(self, paths: RunPaths) -> None:
        """Write the command to the folder of its run, so that it runs even if the launcher is killed.

        Raises:
            LaunchError: The file cannot be written.
        """
        try:
            write_json(paths.on_end, {"schema": 1, **as_dict(self)})
        except OSError as error:
            raise LaunchError(f"cannot write {paths.on_end!r}: {error.strerror}") from error


def find_user_command(settings: Settings, row: Setting[tuple[str, ...]]) -> UserCommand | None:
    """Return the command of ``--on-end`` or of ``--on-event``, or None without that option.

    Args:
        settings: The settings.
        row: The option.

    Raises:
        JobError: Its program does not exist, or cannot be run.
    """
    words, folder = settings[row], os.getcwd()
    if not words:
        return None
    try:
        program = find_executable(words[0], folder, os.environ.get("PATH", os.defpath))
    except (ProgramError, NotRunnableError) as error:
        # An address, or a whole command in quotes, may contain a secret, which no message shows.
        is_hidden = re.search(r"\s|://", words[0])
        problem = "program not found: its name contains blanks or ://" if is_hidden else str(error)
        expected = "expected the program and its arguments as words of their own" if is_hidden else ""
        raise JobError([Fault(settings.source(row), problem, expected)]) from error
    return UserCommand((program, *words[1:]), folder)


def claim(paths: RunPaths) -> UserCommand | None:
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
        program, *arguments = map(str, fields["words"])
        command = UserCommand((program, *arguments), str(fields["folder"]))
        os.unlink(paths.on_end)  # For all but one process this fails.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return command


def run_at_end(command: UserCommand, paths: RunPaths, is_interrupted: Callable[[], bool]) -> None:
    """Run the command of a run for its launcher, unless another process has done it.

    Unlike for `claim`, the owner and the permissions of its file do not matter: the launcher knows the
    command, and some file systems show another owner or other permissions.

    Args:
        command: The command.
        paths: The files of the run, which has ended.
        is_interrupted: Returns whether the user no longer wants to wait.
    """
    run = run_of(paths)
    try:
        os.unlink(paths.on_end)  # For all but one process this fails.
    except OSError as error:
        # Another process may have run the command already, but only if a cluster's queue has told it that the
        # job is over: this launcher still lives. In any other job a missing file means that a task has
        # removed it, or that the disk was too full to write it. Then the command runs all the same.
        if run.batch or not isinstance(error, FileNotFoundError):
            say(f"the command of --on-end does not run: cannot remove {paths.on_end!r}: {error.strerror}")
            return
    # Without a report, for example because the disk is full, the job counts as failed.
    print_late(run_command(ON_END.flag, command, run, status_of(run.report(), "failed"), is_interrupted))


def run_of(paths: RunPaths) -> Run:
    """Return the run of a folder, for its launcher: also if a task has damaged the folder."""
    return load(paths.root) or Run(os.path.basename(paths.root), paths, owner=None, started_at=0.0)


def print_late(lines: Iterable[str]) -> None:
    """Print messages after the end of the job. Unlike `say`, do not wait for a reader that has stopped."""
    text = "".join(f"{message_prefix()}{escape_controls(line)}\n" for line in lines)
    writer = Writer()
    writer.write(_STDERR, text.encode("utf-8", "backslashreplace"), is_urgent=True)
    writer.close()


def run_left_commands(runs: Iterable[Run], without_report: EndStatus = "lost") -> None:
    """Run the commands of ``--on-end`` that launchers have left because they died, and tell the user.

    If this takes longer than one command may take, the other commands stay for the next ``launch``.

    Args:
        runs: The runs. Those without a command are ignored.
        without_report: How a run without a report has ended.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    for run in runs:
        if time.monotonic() < deadline and (command := claim(run.paths)):
            status = status_of(run.report(), without_report)
            say(f"job {run.title}: {status}; its command of --on-end runs now: {command.name}")
            for line in run_command(ON_END.flag, command, run, status):
                say(line)


def status_of(report: Mapping[str, Any], without_report: EndStatus) -> EndStatus:
    """Return how a job has ended.

    Args:
        report: The content of its report. Empty if there is none.
        without_report: The answer without a report.
    """
    code, failure = exit_code_of(report), report.get("failure")
    if not code:
        return without_report if code is None else "succeeded"
    is_stopped = isinstance(failure, dict) and failure.get("reason") == Reason.INTERRUPTED.value
    return "stopped" if is_stopped else "failed"


def run_command(
    option: str,
    command: UserCommand,
    run: Run,
    status: EndStatus | Literal["running"],
    is_interrupted: Callable[[], bool] = lambda: False,
    more: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a command in a process group of its own, and wait until all of that group has ended.

    When its time is over, or the user interrupts it, the group is killed.

    Args:
        option: The option that contains the command.
        command: The command.
        run: The run, of which variables tell the command.
        status: How the run has ended, or that it still runs.
        is_interrupted: Returns whether the user no longer wants to wait.
        more: More variables for the command.

    Returns:
        Messages for the user: the last lines that it printed, and why it failed if it did.
    """
    variables = {
        "LAUNCH_STATUS": status,
        "LAUNCH_RUN": run.name,
        "LAUNCH_NAME": run.origin.name,
        "LAUNCH_REPORT": run.paths.report,
    }
    try:
        # The command gets no terminal, so it cannot wait for an answer of the user.
        process = subprocess.Popen(
            command.words,
            cwd=command.folder,
            env={**os.environ, **variables, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a word contains a zero byte.
        said = [f"it cannot be started: {error}"]
    else:
        said = _wait(process, is_interrupted)
    return [f"{option} {command.name}: {line}" for line in said if line]


def _wait(process: subprocess.Popen[bytes], is_interrupted: Callable[[], bool]) -> list[str]:
    """Wait for a process and its group, and return what it printed at last and why it failed."""
    assert process.stdout is not None
    failure, output, deadline = "", deque[int](maxlen=_MAX_OUTPUT_BYTES), time.monotonic() + LIMIT_SECONDS
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        try:
            while not failure and not _has_ended(process.pid):
                time.sleep(_POLL_SECONDS)
                output.extend(pipe.read(_READ_BYTES) or b"")
                if is_interrupted():
                    failure = "killed after Ctrl-C"
                elif time.monotonic() >= deadline:
                    failure = f"it, or what it started, did not end within {LIMIT_SECONDS:g}s: killed"
        finally:
            # The process is not reaped yet, so no other group can have its number. Processes of another user
            # in the group may stay.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
        output.extend(pipe.read(_READ_BYTES) or b"")  # What it printed at last.
    if not failure and (code := process.returncode):
        failure = f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"
    return [*clean_lines(bytes(output), is_cut=len(output) == _MAX_OUTPUT_BYTES), failure]


def _has_ended(group: int) -> bool:
    """Return whether a process, and all that it has started in its group, have ended.

    The process is not reaped, so no other process and no other group can get its number.
    """
    if os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return False
    processes = map(read_process, all_pids())
    return not any(each and each.group == group and not each.has_ended for each in processes)
