"""What a failure is called, in words and as an exception of ours."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from launcher.api.ends import End
from launcher.api.members import raised
from launcher.api.talk import Said, Word
from launcher.errors import Fault, InputError, JobFailed, LaunchError, TaskFailed

#: Lines of a failed task, or of the launcher, that an exception has.
LINES = 20
#: A line that a task has printed, as ``launch`` shows it.
_OUTPUT = re.compile(r"\S+/\d+ +\| ")


def task_failed(
    end: End, outcome: Said | None, lines: Sequence[str], run_dir: str, whose: str = ""
) -> TaskFailed:
    """The exception for the end of a task.

    Args:
        end: of its process.
        outcome: what it has said itself; ``None``: nothing.
        lines: the last ones that it has printed.
        run_dir: the folder of the run.
        whose: what failed, if that is not the task as a whole.
    """
    where = f" on {end.host}" if end.host not in ("", "localhost") else ""
    who = f"{whose or end.task}{where}"
    said = outcome if outcome is not None and outcome.word is Word.RAISED else None
    if said is None:
        return TaskFailed(f"{who} {end.text}", end.task, end.host, end.code, end.signal, "", lines, run_dir)
    what, shown = str(said.facts["what"]), str(said.facts["traceback"])
    code = said.facts["code"] if end.code is None and end.signal is None else end.code
    if shown.strip() == what:  # no function of the user's is in it: once is enough
        shown, lines = "", [line for line in lines if line.strip() not in what]
    exits = what.startswith("SystemExit")
    text = f"{who} exited with code {code}" if exits else f"{who} raised {what}"
    error = TaskFailed(text, end.task, end.host, code, end.signal, shown, lines, run_dir)
    error.__cause__ = raised(said)
    return error


def explained(end: End, outcome: Said | None) -> End:
    """The end of a task, in the words of what its function has raised, if it has."""
    if outcome is None or outcome.word is not Word.RAISED or not end.failed:
        return end
    what = str(outcome.facts["what"]).partition("\n")[0]
    return end if what.startswith("SystemExit") else end._replace(why=f"raised {what}")


def launch_failed(code: int, said: str, run_dir: str, remarks: Container[str] = ()) -> LaunchError:
    """The exception for a launcher that ended without any failure of a task.

    Args:
        code: its exit code.
        said: what it has printed on stderr.
        run_dir: the folder of the run; may be empty.
        remarks: lines of it that are no failures.
    """
    shown = (line.removeprefix("launch: ") for line in said.splitlines() if line.strip())
    lines = [line for line in shown if line not in remarks and not _OUTPUT.match(line)]
    text = "\n".join(lines[-LINES:]) or f"launch ended with {code}"
    return InputError([Fault("", text)]) if code == InputError.exit_code else JobFailed(text, run_dir, code)
