"""One launch from its first agent to its last: one loop, and no decision of its own.

Facts come from the links, the clock and the signals; the machine says what they mean; its orders are
carried out here, and everything that happens is shown to the renderers.
"""

from __future__ import annotations

import heapq
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from launcher import events, wire
from launcher.errors import TransportError, WireError
from launcher.job import TASK_MARK, Host, JobSpec, Placement, Plan
from launcher.output.base import Audience, Opening, Renderer, Shown
from launcher.output.flow import Flow
from launcher.report import Report
from launcher.scheduler.plan import make_plan
from launcher.signals import STOP_SIGNALS, Signals
from launcher.supervision import Machine, Phase
from launcher.transport import Link, Transport

if TYPE_CHECKING:
    from typing import Any

#: Seconds a lost or closed agent has to be over.
LAST_WAIT = 10.0
#: The same where somebody wants the end at once.
_HURRIED_WAIT, _HURRIED_KILL = 0.5, 3.0
#: Seconds in which it mostly becomes known why an agent ended without a goodbye; no longer is waited for it.
_REASON = 2.0
#: What is said of an agent on another machine that no order gets to.
_UNREACHED = "and it can't be reached: it ends everything there when its lease is over"
#: Seconds between two looks at a reader who holds us up; and until the first at why an agent ended.
_LOOK = 0.01
_READ = 1 << 18


class Source(Protocol):
    """Something else that can ask the job to end: a closed tmux session, a reader that has gone."""

    def stop_wanted(self) -> events.StopAsked | None:
        """Asked after every turn of the loop; a fact once, when there is a reason."""


class Voice(Protocol):
    """Remarks of other threads, such as those that mend connections."""

    #: Readable when there are some.
    fd: int

    def take(self) -> Sequence[str]:
        """Those that nobody has taken yet."""


class _Loss:
    """An agent that ended without a goodbye, until it is known why."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        #: When that was: seconds since the epoch.
        self.at = time.time()
        #: When to look next, and when for the last time (monotonic).
        self.look = time.monotonic()
        self.until = self.look + _REASON
        self._pause = _LOOK

    def why(self) -> str | None:
        """What is known of it; ``None``: it may soon be more."""
        said = self.line.link.wait(0.0)
        now = time.monotonic()
        if said is None and now < self.until:
            self.look, self._pause = now + self._pause, 2 * self._pause
            return None
        noise = self.line.decoder.noise[-500:].decode("utf-8", "replace").strip()
        return said or noise or "its agent ended"


class _Line:
    """One link and what is on its way through it."""

    def __init__(self, host: str, link: Link) -> None:
        self.host = host
        #: Seconds that the clock there is behind ours, as far as its facts tell.
        self._behind = float("inf")
        self.link = link
        self.decoder = wire.Decoder(host, magic=True)
        self.unsent: deque[memoryview] = deque()
        self.closed = False

    def send(self, order: events.Command) -> None:
        """Queue an order, and send what is taken."""
        self.unsent.append(memoryview(wire.encode(order)))
        self.flush()

    def dated(self, fact: events.Event) -> events.Event:
        """A fact by our clock: the first failure by time is looked for over all hosts.

        Nothing is seen before it happened, so the quickest fact so far tells the difference of the clocks,
        but for the time it travelled.
        """
        if self.link.same_clock or isinstance(fact, events.TaskOutput):
            return fact
        self._behind = min(self._behind, time.time() - fact.at)
        return fact._replace(at=fact.at + self._behind)

    def flush(self) -> None:
        """Send what is taken now."""
        while self.unsent:
            taken = self.link.write(self.unsent[0])
            if taken < len(self.unsent[0]):
                self.unsent[0] = self.unsent[0][taken:]
                return
            self.unsent.popleft()


class Orchestrator:
    """Runs one job.

    Args:
        job, placement: what to run where.
        transport: gives the transport for a host.
        renderers: are shown everything, in this order.
        opening: what they are told first.
        remarks: told to the user first.
        on_plan: called with the plan when its tasks are on their way; what it returns is told to the user.
        sources: may ask for the end.
        voice: has remarks for the user while the job runs.
        check: see whether the hosts reach each other, before anything is started.
        audience: who reads what the renderers show, and may be slow.
    """

    def __init__(
        self,
        job: JobSpec,
        placement: Placement,
        transport: Callable[[Host], Transport],
        renderers: Sequence[Renderer],
        opening: Opening,
        remarks: Sequence[str] = (),
        on_plan: Callable[[Plan], str] = lambda _: "",
        sources: Sequence[Source] = (),
        voice: Voice | None = None,
        check: bool = False,
        audience: Audience | None = None,
    ) -> None:
        self._job = job
        self._placement = placement
        self._transport = transport
        self._renderers = renderers
        self._opening = opening
        self._remarks = remarks
        self._on_plan = on_plan
        self._sources = sources
        self._voice = voice
        self._machine = Machine(job, placement, opening.job, check)
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, _Line] = {}
        self._losses: list[_Loss] = []
        self._timers: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []
        self._finished = False
        self._audience = audience
        self._flow = Flow(audience)
        self._perform: dict[type, Callable[[Any], None]] = {
            events.HoldPorts: self._send,
            events.TryPeers: self._send,
            events.StartTask: self._start,
            events.StopTasks: self._send,
            events.CloseAgent: self._send,
            events.HangUp: self._hang_up,
            events.MakePlan: self._make_plan,
            events.SetTimer: self._set_timer,
            events.CancelTimer: self._cancel_timer,
            events.Tell: self._show,
            events.Finish: self._finish,
        }

    def run(self) -> Report:
        """Run the job to its end; nothing of it is left then.

        Returns:
            How it ended, after the renderers have shown it.
        """
        with Signals() as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ, lambda: self._on_signals(signals))
            if self._voice is not None:
                self._selector.register(self._voice.fd, selectors.EVENT_READ, self._on_remarks)
            try:
                for renderer in self._renderers:
                    renderer.begin(self._opening)
                self._obey([*map(events.Tell, self._remarks), *self._machine.begin()])
                for host in self._placement.hosts():
                    self._open(host)
                while not self._finished:
                    self._turn()
            finally:
                self._hang_up_all()
                self._selector.close()
            return self._close(signals)

    # ------------------------------------------------------------------ the loop

    def _turn(self) -> None:
        for key, ready in self._selector.select(self._seconds_to_wait()):
            key.data() if ready & selectors.EVENT_READ else key.data.flush()
        self._explain_losses()
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due, timer = heapq.heappop(self._due)
            if self._timers.get(timer) == due:
                del self._timers[timer]
                self._take(events.TimeUp(time.time(), timer))
        for source in self._sources:
            wish = source.stop_wanted()
            if wish is not None:
                self._take(wish)
        self._heed_audience()
        for line in self._lines.values():
            self._watch_writing(line)

    def _heed_audience(self) -> None:
        """Leave the output with the agents while its reader is slow: facts come all the same."""
        ending = self._machine.phase in (Phase.STOPPING, Phase.CLOSING)
        if self._flow.has_turned(ending, self._machine.failure is not None):
            for host in self._lines:
                self._send(events.HoldOutput(host, self._flow.held))

    def _seconds_to_wait(self) -> float | None:
        now = time.monotonic()
        waits = [self._due[0][0] - now] if self._due else []
        waits += [_LOOK] if self._flow.held else []
        waits += [loss.look - now for loss in self._losses]
        for renderer in self._renderers:
            wish = renderer.tick(now)
            if wish is not None:
                waits.append(wish)
        return max(0.0, min(waits)) if waits else None

    def _take(self, fact: events.Event) -> None:
        """A fact: show it, ask the machine, obey."""
        self._show(fact)
        self._obey(self._machine.handle(fact))

    def _obey(self, what: Sequence[events.Command]) -> None:
        for order in what:
            self._perform[type(order)](order)

    def _show(self, event: Shown) -> None:
        for renderer in self._renderers:
            renderer.on(event)

    def _on_signals(self, signals: Signals) -> None:
        for number in signals.read():
            self._take(events.StopAsked(time.time(), number, STOP_SIGNALS[number]))

    def _on_remarks(self) -> None:
        for text in self._voice.take() if self._voice is not None else ():
            self._show(events.Tell(text, urgent=True))

    # ------------------------------------------------------------------ links

    def _open(self, host: Host) -> None:
        try:
            link = self._transport(host).open(host)
        except TransportError as error:
            self._take(events.AgentLost(host.name, time.time(), str(error)))
            return
        line = _Line(host.name, link)
        self._lines[host.name] = line
        self._selector.register(link.reading, selectors.EVENT_READ, lambda: self._on_bytes(line))

    def _on_bytes(self, line: _Line) -> None:
        data = None if line.closed else line.link.read(_READ)  # shut by what came from another, a moment ago
        if data is None:
            return
        if not data:
            self._at_end(line)
            return
        try:
            messages = line.decoder.feed(data)
        except WireError as error:
            self._take(events.AgentLost(line.host, time.time(), str(error)))
            return
        for message in messages:
            self._take(line.dated(message))  # type: ignore[arg-type]  # agents send facts
            if isinstance(message, events.AgentClosed):
                self._shut(line)

    def _at_end(self, line: _Line) -> None:
        """The agent ended without a goodbye. Its guardian is ending what it left; we go on meanwhile."""
        self._shut(line)
        self._losses.append(_Loss(line))

    def _explain_losses(self) -> None:
        now = time.monotonic()
        for loss in [loss for loss in self._losses if loss.look <= now]:
            why = loss.why()
            if why is not None:
                self._losses.remove(loss)
                self._take(events.AgentLost(loss.line.host, loss.at, why))

    def _shut(self, line: _Line) -> None:
        if not line.closed:
            line.closed = True
            self._selector.unregister(line.link.reading)
            self._stop_writing(line)
            line.link.hang_up()

    def _watch_writing(self, line: _Line) -> None:
        """Ask to be woken when a link takes bytes again, while some wait."""
        if line.closed:
            return
        watched = line.link.writing in self._selector.get_map()
        if line.unsent and not watched:
            self._selector.register(line.link.writing, selectors.EVENT_WRITE, line)
        elif watched and not line.unsent:
            self._selector.unregister(line.link.writing)

    def _stop_writing(self, line: _Line) -> None:
        line.unsent.clear()
        if line.link.writing in self._selector.get_map():
            self._selector.unregister(line.link.writing)

    def _hang_up(self, order: events.HangUp) -> None:
        line = self._lines.get(order.host)
        if line is not None:
            self._shut(line)

    def _hang_up_all(self) -> None:
        """Every agent is over or ends now; wait for the last process of ours on this machine."""
        for line in self._lines.values():
            self._shut(line)
        until = time.monotonic() + (_HURRIED_WAIT if self._machine.hurried else LAST_WAIT)
        late = [line for line in self._lines.values() if line.link.wait(_left(until)) is None]
        until = time.monotonic() + (_HURRIED_KILL if self._machine.hurried else LAST_WAIT)
        for line in late:
            self._kill(line, until)
        for line in self._lines.values():
            line.link.close()

    def _kill(self, line: _Line, until: float) -> None:
        """An agent that does not even end: stopped, or stuck in the kernel."""
        gone = line.link.kill(_left(until)) is not None
        helpless = "and SIGKILL did not help" if line.link.same_clock else _UNREACHED
        what = "so it and all it had started were killed" if gone else helpless
        self._show(events.Tell(f"the agent of {line.host} did not end, {what}", urgent=True))

    # ------------------------------------------------------------------ orders

    def _send(self, order: Any) -> None:
        line = self._lines.get(order.host)
        if line is not None and not line.closed:
            line.send(order)

    def _start(self, order: events.StartTask) -> None:
        mark = {TASK_MARK: f"{self._opening.job}:{order.task}"}
        self._send(order._replace(env={**order.env, **mark}))

    def _make_plan(self, order: events.MakePlan) -> None:
        plan = make_plan(self._job, self._placement, order.ports)
        self._obey(self._machine.planned(plan))
        remark = self._on_plan(plan)
        if remark:
            self._show(events.Tell(remark, urgent=True))

    def _set_timer(self, order: events.SetTimer) -> None:
        due = time.monotonic() + order.seconds
        self._timers[order.timer] = due
        heapq.heappush(self._due, (due, order.timer))

    def _cancel_timer(self, order: events.CancelTimer) -> None:
        self._timers.pop(order.timer, None)

    def _finish(self, _: events.Finish) -> None:
        self._finished = True

    def _close(self, signals: Signals) -> Report:
        root = self._opening.paths.root if self._opening.paths else ""
        report = self._machine.report(self._opening.started_at, time.time(), root)
        for renderer in self._renderers:
            renderer.close(report)
        if self._audience is not None:
            self._audience.flush(lambda: bool(signals.read()))
        return report


def _left(until: float) -> float:
    """Seconds until then; something even when that was long ago, so that nobody is given up unasked."""
    return max(0.1, until - time.monotonic())
