"""Orders: what is to be done, in the imperative. Supervision gives them, hands carry them out."""

from __future__ import annotations

from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Mapping, Optional, Tuple, Union

if TYPE_CHECKING:
    #: A stop ladder: ``(signal, seconds)`` rungs. Each signal goes to every process of the task; what
    #: is alive after so many seconds gets the next. After the last rung it is reported as unkillable.
    Ladder = Tuple[Tuple[int, float], ...]
else:
    Ladder = tuple


class HoldPorts(NamedTuple):
    """To an agent: hold one port for each task until the task is gone."""

    host: str
    tasks: Tuple[TaskId, ...]


class TryPeers(NamedTuple):
    """To an agent: see whether these addresses (``host:port``, held by other agents) can be reached."""

    host: str
    addresses: Tuple[str, ...]


class StartTask(NamedTuple):
    """To an agent: start this process."""

    host: str
    task: TaskId
    attempt: int
    argv: Tuple[str, ...]
    #: Added to the agent's own environment.
    env: Mapping[str, str]
    workdir: Optional[str]
    #: How processes that the task leaves behind when it ends are ended.
    ladder: Ladder
    #: The virtual or conda environment it runs in.
    venv: Optional[str] = None
    #: The file that its Python runs: looked for first, so that a missing one is told as such.
    script: Optional[str] = None


class StopTasks(NamedTuple):
    """To an agent: end these tasks, all together. A second order replaces the first's ladder."""

    host: str
    tasks: Tuple[TaskId, ...]
    ladder: Ladder


class HoldOutput(NamedTuple):
    """To an agent: keep what tasks print, for its reader is slow, until told otherwise; not the facts."""

    host: str
    on: bool


class CloseAgent(NamedTuple):
    """To an agent: nothing more will come; leave nothing and end."""

    host: str


class HangUp(NamedTuple):
    """To the launcher: close the link to this host's agent, which ends everything there, if it lives."""

    host: str


class MakePlan(NamedTuple):
    """To the launcher: every port is held, so make the plan; ``ports`` says which is whose."""

    ports: Mapping[TaskId, int]


class SetTimer(NamedTuple):
    """To the launcher: report ``TimeUp(timer)`` in so many seconds; setting it again moves it."""

    timer: str
    seconds: float


class CancelTimer(NamedTuple):
    """To the launcher: forget this timer."""

    timer: str


class Tell(NamedTuple):
    """To the launcher: tell the user, one line. ``urgent`` is shown even with ``--quiet``."""

    text: str
    urgent: bool = False


class Finish(NamedTuple):
    """To the launcher: the job is over, nothing is running any more."""

    exit_code: int


if TYPE_CHECKING:
    Order = Union[
        HoldPorts,
        TryPeers,
        StartTask,
        StopTasks,
        HoldOutput,
        CloseAgent,
        HangUp,
        MakePlan,
        SetTimer,
        CancelTimer,
        Tell,
        Finish,
    ]
else:
    Order = object  # only annotations say it
