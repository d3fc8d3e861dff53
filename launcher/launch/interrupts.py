"""The signals that stop a launch: Ctrl-C, SIGTERM, SIGHUP of a closed terminal, SIGUSR1 of a time limit.

A session handles them by `Interrupts`. All other signals keep their usual effect: SIGSEGV and SIGABRT, for
example, are about the launcher itself.
"""

from __future__ import annotations

import enum
import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NoReturn

from launcher.stop_requests import LIMIT_NOTICES, TIMED_OUT_EXIT_CODE, StopRequest, StopRequests

#: The signals that stop a launch, and their names in messages.
STOP_SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "a hang-up of the terminal",
    signal.SIGQUIT: "SIGQUIT",
    signal.SIGPWR: "the notice of a power failure (SIGPWR)",
    signal.SIGUSR1: "the notice of a time limit (SIGUSR1)",
    signal.SIGUSR2: "the notice of a time limit (SIGUSR2)",
    signal.SIGXCPU: "the limit of CPU time (SIGXCPU)",
}
#: Variables that are set in processes that Slurm or Kubernetes may signal.
_MANAGER_VARIABLES = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")
#: How long the work after a job (collecting its files) may go on after a signal.
SECONDS_AFTER_SIGNAL = 30.0
#: How long it may go on after the same signal came again.
HURRIED_SECONDS = 1.0


class _Mode(enum.Enum):
    """The present effect of a signal."""

    RAISE = enum.auto()  #: It raises an exception, so that each open context is closed.
    QUEUE = enum.auto()  #: It waits in the pipe until `Interrupts.read` is called.
    LIMIT = enum.auto()  #: The first one sets a time limit, and the same one again raises an exception.
    IGNORE = enum.auto()  #: It does nothing.


class Interrupts:
    """The handler of the stop signals, a context from before the first agent starts to the end of the launch.

    A signal raises `KeyboardInterrupt` (Ctrl-C) or `SystemExit` with the exit code 128 + its number, or 124
    for the notice of a time limit. Then contexts are closed, which only the same signal again interrupts, see
    `StopRequests`. While the job runs (`queued`) a signal raises nothing: Python writes its number to a pipe,
    so that no signal is lost and none interrupts the code. A signal that the caller ignores (``nohup``) stays
    ignored.

    Python drops an exception that is raised in a destructor: the user must then press Ctrl-C again.
    """

    def __init__(self) -> None:
        #: The names of the signals in messages.
        self.names = dict(STOP_SIGNALS)
        #: Whether Slurm or Kubernetes may signal this process.
        self.managed = any(os.environ.get(name) for name in _MANAGER_VARIABLES)
        #: What a signal does now.
        self._mode = _Mode.RAISE
        #: The work after the job that `limited` limits, as its message names it. Empty without a message.
        self._limited_work = ""
        #: The signals that were read, in the order in which they arrived.
        self._received: list[signal.Signals] = []
        #: Decides what each of them means: a new request, the same one, or one to end at once.
        self._requests = StopRequests(self.managed)
        #: How many of the signals repeat a request, which means that the user wants the end at once.
        self._repeat_count = 0
        #: Whether a signal has raised an exception. Only a repeated one or the end of a limit raises another.
        self._has_raised = False

    def __enter__(self) -> Interrupts:
        """Handle the stop signals from now on, unless the caller of launch ignores them."""
        #: The descriptor that is readable when a signal waits.
        self.fd, self._write_end = os.pipe()
        for fd in (self.fd, self._write_end):
            os.set_blocking(fd, False)
        # Python writes the number of each signal to the pipe, also while no handler can run.
        self._old_wakeup_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in numbers}
        # The timer of `limited` sends it.
        self._old_handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_signal)
        # `stty tostop` must not suspend a launcher in the background when it writes.
        self._old_handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the signal handlers that the caller had."""
        signal.setitimer(signal.ITIMER_REAL, 0)  # The handler of its SIGALRM is about to go.
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        os.close(self.fd)
        os.close(self._write_end)

    def name(self, limit: str, end: str) -> None:
        """Name what SIGUSR1 and SIGTERM mean for this launch.

        Batch systems send them for reasons of their own, which the messages then name.

        Args:
            limit: The name of SIGUSR1 in messages. Empty if it is the usual one.
            end: The name of SIGTERM in messages. Empty if it is the usual one.
        """
        new_names = {signal.SIGUSR1: limit, signal.SIGTERM: end}
        self.names.update({number: text for number, text in new_names.items() if text})

    @property
    def limit_is_near(self) -> bool:
        """Whether the launch stops because of the notice of a time limit."""
        return bool(self._received) and self._received[0] in LIMIT_NOTICES

    @property
    def first_name(self) -> str:
        """The name of the signal that stops the launch. Empty if none has arrived."""
        return self.names[self._received[0]] if self._received else ""

    def read(self) -> list[signal.Signals]:
        """Return the signals that wait, in the order in which they arrived, and remove them."""
        try:
            numbers = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        # Python writes other signals that it handles to the pipe, too, such as the SIGALRM of `limited`.
        found = [signal.Signals(number) for number in numbers if number in STOP_SIGNALS]
        for number in found:
            self._note_signal(number)
        return found

    def _note_signal(self, number: signal.Signals) -> None:
        """Note that a signal has arrived.

        It counts as repeated (AGAIN) if the user has sent the same signal some time before: a second Ctrl-C
        means that the user does not want to wait. `_on_signal` and `limited` react to the count.
        """
        self._received.append(number)
        if self._requests.add(number, time.monotonic()) is StopRequest.AGAIN:
            self._repeat_count += 1

    def queued(self) -> AbstractContextManager[None]:
        """Return a context in which signals wait for `read`. It is open while the job runs."""
        return self._with_mode(_Mode.QUEUE)

    @contextmanager
    def limited(self, work: str = "") -> Iterator[None]:
        """Limit work after the job: once a signal arrives, it has `SECONDS_AFTER_SIGNAL` left.

        The same signal again stops it. Signals that arrived before, during the job for example, count too.

        Args:
            work: Names the work for the message about the time, as in ``collecting the files of the job``.
                Empty if there is to be no message.
        """
        self._limited_work = work
        self.read()  # It notes signals that wait, so that they start the limit, too.
        with self._with_mode(_Mode.LIMIT):
            try:
                self._start_limit()  # It does nothing if no signal has arrived yet.
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # The work is over, so its limit no longer counts.

    def _start_limit(self) -> None:
        """Start the time limit of the work after the job, if a signal has arrived, and tell the user."""
        if not self._received:
            return
        first = self._received[0]
        # A user who wants the end at once needs no message about the time.
        if self._limited_work and not self._repeat_count:
            name, text = self.names[first], f"{SECONDS_AFTER_SIGNAL:g}s for {self._limited_work}"
            if self._requests.can_repeat(first):
                text += f"; {name} again stops it at once"
            with suppress(OSError):  # print() may not be called: the signal may have interrupted one.
                os.write(2, f"launch: {name}: {text}\n".encode())
        signal.setitimer(signal.ITIMER_REAL, HURRIED_SECONDS if self._repeat_count else SECONDS_AFTER_SIGNAL)

    def ignore(self) -> None:
        """Let no signal have an effect on the launch from now on.

        The caller begins work that must be completed: it gives hosts back, or writes the last report.
        """
        self._mode = _Mode.IGNORE

    @contextmanager
    def _with_mode(self, mode: _Mode) -> Iterator[None]:
        """Let signals have another effect within a context. `ignore` lasts beyond it."""
        before, self._mode = self._mode, mode
        try:
            yield
        finally:
            if self._mode is not _Mode.IGNORE:
                self._mode = before

    def _on_signal(self, number: int, _: object) -> None:
        """React to a signal as the mode says. Python calls it between two instructions of any code.

        - QUEUE and IGNORE: Python has written the signal to a pipe, which is read later or never.
        - LIMIT (work after the job, such as collecting files): the first signal only starts a time limit. A
          repeated one, or the end of that time (SIGALRM), raises an exception.
        - Otherwise the first signal raises an exception. Later ones do not, unless the user repeats one.
        """
        if self._mode in (_Mode.QUEUE, _Mode.IGNORE):
            return
        is_first, count_before = not self._received, self._repeat_count
        self.read()
        # Another thread may have received the signal, and not have written it to the pipe yet.
        if number in STOP_SIGNALS and number not in self._received:
            self._note_signal(signal.Signals(number))
        # SIGALRM means that the limit is over. By a repeated signal the user asks for the end at once.
        if number == signal.SIGALRM or self._repeat_count > count_before:
            self._raise()
        elif self._mode is _Mode.LIMIT:
            if is_first:
                self._start_limit()
        elif not self._has_raised:  # The first one has contexts closed, which later ones must not stop.
            self._raise()

    def _raise(self) -> NoReturn:
        """Raise the exception of the first signal, which leads to the exit code of the launch."""
        self._has_raised = True
        first = self._received[0] if self._received else signal.SIGALRM
        if first == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(TIMED_OUT_EXIT_CODE if first in LIMIT_NOTICES else 128 + first)


def stop_at_end_of_file(fd: int) -> None:
    """Let the kernel send this process SIGHUP when the program at the other end of a pipe has exited.

    That program may have sent SIGTERM before. SIGHUP is another request, so tasks keep their time to exit.

    Args:
        fd: The reading end of the pipe, to which nothing is written.
    """
    os.set_inheritable(fd, False)
    # With O_ASYNC the kernel signals the owner of a descriptor when it becomes readable (fcntl(2)).
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGHUP)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):  # The program had exited before.
        os.kill(os.getpid(), signal.SIGHUP)
