"""``--tensorboard``: TensorBoard as a sidecar of the job, and its URL on this machine.

`launcher.launch.job_spec` adds the role, and the orchestrator makes TensorBoard reachable. A TensorBoard that
does not run never changes how the job ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

from launcher.backends.connections import Forwarding
from launcher.common.cluster import TaskId
from launcher.common.errors import TransportError
from launcher.common.events import AgentReady, Event, TaskOutput
from launcher.common.record import replace
from launcher.job import (
    OUTPUT_DIR_VARIABLE,
    PlacedTask,
    Placement,
    Plan,
    Program,
    ProgramKind,
    Role,
    TaskPlan,
)

ROLE = "tensorboard"
TASK = TaskId.of(ROLE, 0)
#: The ports that TensorBoard gets if one of them is free.
PREFERRED_PORTS = tuple(range(6006, 6016))

_LOOPBACK = "127.0.0.1"
#: Keeps TensorFlow from printing notices about the processor of the machine.
_QUIET_VARIABLES = (("TF_CPP_MIN_LOG_LEVEL", "2"),)
#: ``python -m tensorboard.main`` would import modules of the user from the working folder.
_RUN_CODE = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import runpy; "
    "runpy.run_module('tensorboard.main', None, '__main__', True)"
)
#: What Python prints if TensorBoard is not installed.
_MISSING_PATTERN = rb"(?m)No module named '?tensorboard(\.main)?'?\s*\)?\s*$"


def tensorboard_role(logdir: str, own_address: bool, source: str) -> Role:
    """Return the role that runs TensorBoard.

    Args:
        logdir: The folder of its event files. Empty for the working folder of the tasks.
        own_address: Whether it listens on the address of its host, a container, and not on the loopback
            address.
        source: The option or ``file:line`` that asks for it, for messages.
    """
    # Launch fills in the placeholders in braces when the task starts.
    address = "{task_host}" if own_address else _LOOPBACK
    args = ("--logdir", logdir or ".", "--host", address, "--port", "{task_port}", "--reload_multifile=true")
    program = Program(ProgramKind.CODE, _RUN_CODE, args)
    return Role(
        ROLE, 1, program, env=_QUIET_VARIABLES, service=True, sidecar=True, flags=False, source=source
    )


def with_output_folder(placement: Placement) -> Placement:
    """Return a placement in which TensorBoard reads the folder of the tasks' output folders.

    That is its default folder with ``--output-dirs``. Without that option the placement stays as it is.
    """
    return replace(placement, tasks=tuple(map(_task_with_output_folder, placement.tasks)))


def _task_with_output_folder(placed: PlacedTask) -> PlacedTask:
    """Return the task of TensorBoard with the output folders of all tasks as its ``--logdir``.

    Any other task is returned unchanged, and so is TensorBoard without ``--output-dirs``.
    """
    own_folder = dict(placed.env).get(OUTPUT_DIR_VARIABLE)
    if placed.task != TASK or own_folder is None:
        return placed
    program = placed.role.program
    # The output folders of all tasks are beside each other, in one folder. `tensorboard_role` has made the
    # arguments: the value of ``--logdir`` is the second.
    args = (program.args[0], os.path.dirname(own_folder), *program.args[2:])
    return replace(placed, role=replace(placed.role, program=replace(program, args=args)))


class TensorBoardSidecar:
    """The TensorBoard of a job, and its URL.

    Args:
        forwarding: Forwards ports of other machines to this one. None if nothing does.
        here: The names of the hosts that are this machine.
        own_address: Whether it listens on the address of its host, see `tensorboard_role`.
    """

    def __init__(self, forwarding: Forwarding | None, here: Collection[str], own_address: bool) -> None:
        self._forwarding, self._local_hosts, self._has_own_address = forwarding, here, own_address
        #: The URL for a browser on this machine. Empty if it is not known yet, or if there is none.
        self.url = ""
        #: The address by which a browser reaches each host that has reported.
        self._addresses: dict[str, str] = {}
        #: Whether the user was told that TensorBoard is not installed.
        self._has_advised = False

    def reach(self, plan: Plan) -> str:
        """Make TensorBoard reachable from this machine.

        Args:
            plan: The plan, with the host and the port of TensorBoard.

        Returns:
            A message with the URL, or why there is none. Empty if the URL is the same as before.
        """
        last_url = self.url
        task = next(task for task in plan.tasks if task.task == TASK)
        if self._has_own_address:  # A browser on this machine reaches the container directly.
            self.url = f"http://{self._addresses.get(task.host, task.host)}:{task.port}/"
        else:
            try:
                self.url = f"http://localhost:{self._local_port(task)}/"
            except (TransportError, OSError) as error:
                self.url = ""
                return f"TensorBoard listens on {_LOOPBACK}:{task.port} of {task.host}: {error}"
        return "" if self.url == last_url else f"TensorBoard: {self.url} (it takes some seconds to start)"

    def _local_port(self, task: TaskPlan) -> int:
        """Return the port of this machine by which TensorBoard is reached.

        Raises:
            TransportError: The backend forwards no port of its host.
        """
        if task.host in self._local_hosts:
            return task.port
        if self._forwarding is None:
            raise TransportError("its page can be opened only on that host")
        return self._forwarding.local_port(task.host, task.port, PREFERRED_PORTS)

    def observe(self, event: Event) -> str:
        """Note the addresses of hosts, and look for a sign that TensorBoard is not installed.

        Returns:
            Advice for the user if this event shows that. Otherwise empty.
        """
        if isinstance(event, AgentReady):
            self._addresses[event.host] = _first_address(event.facts.addresses) or event.host
        elif isinstance(event, TaskOutput) and event.task == TASK and not self._has_advised:
            self._has_advised = re.search(_MISSING_PATTERN, event.data) is not None
            if self._has_advised:
                return "TensorBoard is not installed for the Python of the tasks: pip install tensorboard"
        return ""


def _first_address(found: Sequence[str]) -> str:
    """Return the first address that a host reports, in the form for a URL. Empty if it reports none."""
    address = found[0] if found else ""
    # A host may report any text, and the URL is shown in the user's terminal.
    if not re.fullmatch(r"[0-9a-fA-F.:]+", address):
        return ""
    return f"[{address}]" if ":" in address else address
