"""A job: what the user asked for, before anything is placed anywhere."""

from __future__ import annotations

import enum

from launcher.model.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Optional, Sequence, Tuple

#: The task types TensorFlow 2 knows; any other role is the user's own
#: (``tensorflow/python/distribute/multi_worker_util.py``).
TENSORFLOW_ROLES = ("chief", "worker", "ps", "evaluator")

#: Roles that never end by themselves: we stop them when the job is done.
SERVICE_ROLES = ("ps", "evaluator")

#: Roles of which TensorFlow accepts one task at most.
SINGLE_ROLES = ("chief", "evaluator")

#: Tasks that one role may have.
MOST_TASKS = 10_000


class ProgramKind(enum.Enum):
    """How a program is started."""

    SCRIPT = "script"  #: a ``.py`` file, run with the task's Python
    MODULE = "module"  #: ``python -m NAME``
    CODE = "code"  #: ``python -c NAME``: the name is the code itself
    EXECUTABLE = "executable"  #: anything else, found along ``PATH``


#: Programs that a Python's own options start, and what follows those.
_OF_PYTHON = {
    "-m": (ProgramKind.MODULE, "the name of a module"),
    "-c": (ProgramKind.CODE, "Python code"),
}


class Program(NamedTuple):
    """What a task runs: ``name`` is a script, module, executable or code; ``args`` may hold ``{words}``."""

    kind: ProgramKind
    name: str
    args: Tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """The program that these words of a command line mean.

        Args:
            words: ``["train.py", ...]``, ``["-m", "MODULE", ...]``, ``["-c", "CODE", ...]`` or
                ``["EXECUTABLE", ...]``.

        Raises:
            ValueError: no program is named; the message says what was expected.
        """
        if not words or not words[0]:
            raise ValueError("expected a program: FILE.py, -m MODULE, -c CODE or an executable")
        if words[0] not in _OF_PYTHON:
            kind = ProgramKind.SCRIPT if words[0].endswith(".py") else ProgramKind.EXECUTABLE
            return cls(kind, words[0], tuple(words[1:]))
        kind, expected = _OF_PYTHON[words[0]]
        if len(words) < 2 or not words[1].strip():
            raise ValueError(f"{words[0]}: expected {expected}")
        return cls(kind, words[1], tuple(words[2:]))


class Role(NamedTuple):
    """A group of equal tasks: ``ps``, ``worker``, ``chief``, ``evaluator`` or a name of the user's."""

    name: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    program: Program
    #: ``(name, value)`` pairs added to the environment of its tasks.
    env: Tuple[Tuple[str, str], ...] = ()
    #: GPUs a task needs for itself; ``None``: an even share of what its host has.
    gpus: Optional[int] = None
    #: It may run only on these hosts (names) and on hosts with all these labels.
    hosts: Tuple[str, ...] = ()
    labels: Tuple[str, ...] = ()
    #: It never ends by itself: stopped, and counted as a success, when the job is done.
    service: bool = False
    #: Seconds it may take to end by itself when the job is done, before it is stopped; ``None``: not said.
    drain: Optional[float] = None
    #: It serves the job (TensorBoard): a service whose own end, however it comes, is none of the job's.
    sidecar: bool = False
    #: Where its tasks run; ``None``: the host's or the job's.
    workdir: Optional[str] = None
    #: ``file:line`` where it was written, for messages; and where its program was.
    source: str = ""
    program_source: str = ""


class OnFailure(enum.Enum):
    """What one failed task means for the others."""

    STOP = "stop"  #: all others are stopped at once
    CONTINUE = "continue"  #: they go on; the job still counts as failed


class Policy(NamedTuple):
    """How the job ends."""

    on_failure: OnFailure = OnFailure.STOP
    #: Seconds between SIGTERM and the harder signals.
    grace: float = 10.0
    #: Seconds the whole job may take; ``None``: no limit.
    timeout: Optional[float] = None
    #: The same as the user wrote it, ``2h``; empty: nobody did.
    timeout_said: str = ""


class JobSpec(NamedTuple):
    """Everything asked of a launch except the hosts."""

    roles: Tuple[Role, ...]
    #: Append the classic ``--ps_hosts= --worker_hosts= --job_name= --task_index=``.
    flags: bool = False
    #: ``(name, value)`` pairs for every task.
    env: Tuple[Tuple[str, str], ...] = ()
    #: The same from the command line: stronger than what files say of hosts and roles.
    said_env: Tuple[Tuple[str, str], ...] = ()
    #: Where tasks run unless role or host say otherwise; ``None``: the agent's own folder.
    workdir: Optional[str] = None
    #: The Python of ``.py`` programs unless the host says otherwise; ``None``: the agent's choice.
    python: Optional[str] = None
    policy: Policy = Policy()
    #: Every task is given a folder for what it makes, and all of them are in the run's folder at the end.
    output_dirs: bool = False
