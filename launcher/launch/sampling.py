"""Takes samples of the tasks while a job runs: what they use, and how far they are.

`Sampling` belongs to the loop. At most once a second it hands what agents have measured to a
`launcher.launch.sample_writer`, which works in a thread. Only one thread works at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from launcher.common import events
from launcher.event_loop import EventLoop
from launcher.job import RunPaths
from launcher.messages import say
from launcher.supervisor import Machine

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.launch.sample_writer import SampleWriter

#: The shortest time between two samples of a host. More hosts are asked less often, so that all hosts
#: together send no more messages than this number a second.
_MIN_SECONDS = 2.0
_MAX_MESSAGES_PER_SECOND = 25
#: The shortest time between two lines of the file.
_PAUSE_SECONDS = 1.0

#: Receives what was found in samples, and with ``--progress`` which tasks have made steps.
OnFindings = Callable[[Sequence[events.Noticed | events.StepsRead]], None]


class Sampling:
    """Lets the agents measure what tasks use, and keeps that with the progress of the tasks.

    Args:
        loop: Calls this object.
        machine: Knows the tasks.
        paths: The files of the run.
        pattern: How lines with steps look (``--progress``). None to recognize them.
        on_findings: Is called in the loop with what was found in samples, such as slow tasks.
    """

    def __init__(
        self,
        loop: EventLoop,
        machine: Machine,
        paths: RunPaths,
        pattern: str | None,
        on_findings: OnFindings,
    ) -> None:
        self._loop, self._machine, self._on_findings = loop, machine, on_findings
        self._paths, self._pattern = paths, pattern
        #: Works in a thread. None until the first sample has come.
        self._writer: SampleWriter | None = None
        hosts = len(machine.state.hosts)
        #: Asks an agent to measure again and again. The more hosts there are, the more seldom each answers.
        self.command = events.Measure("", max(_MIN_SECONDS, hosts / _MAX_MESSAGES_PER_SECOND))
        #: The last measurement of each host that waits to be written.
        self._waiting: dict[str, events.Measured] = {}
        #: How many CPUs each host has.
        self._cpus: dict[str, int] = {}
        #: Whether a thread works, or a timer is set for it.
        self._is_under_way = False
        #: Whether the user was told that the file of the samples cannot be written.
        self._has_failed = False

    def agent_ready(self, event: events.AgentReady) -> None:
        """Note how many CPUs a host has."""
        self._cpus[event.host] = event.facts.cpus

    def measured(self, event: events.Measured) -> None:
        """Take what a host has measured. A thread writes it soon."""
        self._waiting[event.host] = event
        if not self._is_under_way:
            self._is_under_way = True
            self._loop.call_soon(self._hand_over)

    def finish(self) -> None:
        """Write what tasks have printed since their last samples: the last metrics are what counts."""
        if self._writer is not None:
            tasks = self._machine.state.tasks
            with suppress(OSError):  # The user was told, or can do without these samples.
                self._writer.write_last({task: tasks[task].attempt for task in tasks})
            self._on_findings([it for it in self._writer.findings if isinstance(it, events.Noticed)])

    def _hand_over(self) -> None:
        """Let a thread write what has been measured, if there is anything."""
        self._is_under_way = bool(self._waiting)
        if not self._waiting:
            return
        # It takes 5 ms with its patterns, which jobs that end before their first sample do not need.
        from launcher.launch.sample_writer import Measurement, SampleWriter  # noqa: PLC0415

        tasks = self._machine.state.tasks
        writer = self._writer or SampleWriter(self._paths, len(tasks), self._pattern, self.command.every)
        self._writer = writer
        measurements = [
            Measurement(event, {task: tasks[task].attempt for task in event.memory}, self._cpus[host])
            for host, event in self._waiting.items()
        ]
        self._waiting = {}
        # The writer searches the logs of all tasks for steps, for which the loop must not stand still.
        self._loop.run_in_thread(lambda: writer.write(measurements), partial(self._on_written, writer))

    def _on_written(self, writer: SampleWriter, written: Future[None]) -> None:
        """Pass on what was found, and go on after a pause. The user is told of the first error."""
        findings, writer.findings = writer.findings, []
        self._on_findings(findings)
        error = written.exception()
        if error is not None and not self._has_failed:
            self._has_failed = True
            why = error.strerror if isinstance(error, OSError) else repr(error)
            say(f"cannot write {self._paths.samples}: {why}")
        self._loop.call_at(time.monotonic() + _PAUSE_SECONDS, self._hand_over)
