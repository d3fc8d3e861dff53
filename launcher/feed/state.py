"""``FeedState``: decides what is sent to which task, what is fed again, and what a call raises.

It is pure: it uses no thread, socket or clock. `launcher.feed.feeder` tells it by the ``on_`` methods what
has happened, and then does what `FeedState.commands` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.common.errors import FeedError, FeedTimeout
from launcher.common.record import Record
from launcher.common.text import join_names
from launcher.feed.call import Call, Chunk, Partition
from launcher.feed.link import WINDOW_BYTES, FedTask, FeedEnd, FeedLink
from launcher.feed.remote.frames import RETURNED, FeedRefusedError, Kind, unpack_numbers
from launcher.feed.sources import pieces_of

IN_STEP_MESSAGE = "equal batches are for all tasks or for none"
#: While some tasks have not opened their feeds, the others receive one partition each. This is the limit for
#: that.
GATHERING_SECONDS = 10.0
#: When tasks ask for more rows and return no results for this time, the user is told.
SILENT_SECONDS = 10.0
#: How long a call waits when no task is left. The job should fail in this time, for a more precise reason.
LONELY_SECONDS = 1.0
#: How long after a break of a connection its partitions are fed again. A lost task is reported by then.
BROKEN_SECONDS = 1.0


class Read(Record):
    """Read the next item of the source of a call, then tell `FeedState.on_read`."""

    link: FeedLink
    call: Call


class Make(Record):
    """Make the next chunk of a partition, and tell `FeedState.on_made`.

    If that returns true, send the chunk, and repeat this while `FeedState.may_make` returns true. Then tell
    `FeedState.on_sent`.
    """

    link: FeedLink
    partition: Partition


class Flush(Record):
    """Send a FLUSH frame, which ends the present batch in the task, then tell `FeedState.on_sent`."""

    link: FeedLink


class Leave(Record):
    """Send the reason of the link, receive until the connection ends, then tell `FeedState.on_left`."""

    link: FeedLink


class CloseFeed(Record):
    """Close a connection at once, because its task has ended.

    Frames that the task has sent are still received.
    """

    link: FeedLink


Command = Read | Make | Flush | Leave | CloseFeed
#: Returns the last lines that a task has printed.
LastLines = Callable[[str], Sequence[str]]


class FeedState:
    """One feed: its tasks, their connections, and the call of `train` or `inference` that is served.

    Args:
        name: The name of the feed.
        tasks: The names of all tasks that are fed, in their order.
        exactly_once: Whether the loss of a task is an error, so no row is fed twice.
        last_lines: Returns the last lines of a task, for messages.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[str],
        *,
        exactly_once: bool = False,
        last_lines: LastLines = lambda task: (),
    ) -> None:
        """Make a feed whose tasks have not opened it and that serves no call."""
        self.name = name
        self.tasks = {task: FedTask(task) for task in tasks}
        #: All connections that have threads.
        self.links: list[FeedLink] = []
        #: The present call, or the last one. At first this is an empty call that is over.
        self.call = Call(pieces_of([], 1), (), 0.0)
        self.call.end()
        #: Whether nothing more will be fed.
        self.is_finished = False
        self._exactly_once = exactly_once
        self._last_lines = last_lines
        #: The connections that `commands` is to close at once, because their tasks have ended or have made
        #: another one.
        self._links_to_close: list[FeedLink] = []

    # Events of tasks.

    def on_connected(self, task: str, attempt: int, now: float, refusal: str = "") -> FeedLink | None:
        """Note that a task opens the feed.

        - The task may not open it, is not fed at all, or this start of it is not its last one: it gets a link
          (the record of one connection) that is closed at once, with the reason for the task.
        - The start before this one still has a connection: None.
        - Otherwise the link becomes the one of the task, in place of an earlier one of the same start.

        Args:
            task: The name of the task.
            attempt: Which start of the task this is, from 1.
            now: The time.
            refusal: Why the task may not open the feed, or an empty text.

        Returns:
            The connection, which is told the refusal if there is one. None if the task has to connect again
            when the end of its last attempt is known.
        """
        # A task that is not fed gets a link, too, by which it is told so.
        fed_task = self.tasks.get(task) or FedTask(task)
        link = FeedLink(fed_task, attempt, now)
        if refusal or task not in self.tasks:
            link.reason = refusal or f"{task} is not fed; fed are {', '.join(self.tasks)}"
        elif fed_task.ended is not None and attempt <= fed_task.ended.attempt:
            link.reason = f"{task} has ended"
        elif attempt < fed_task.attempt:
            link.reason = f"{task} has started again"
        else:
            # The connection may come before the event that the task has started again. It proves that.
            if fed_task.ended is not None:
                self.on_started(task, attempt)
            # The last attempt still has its connection, so its end is not known yet, and what it has consumed
            # may still arrive.
            if fed_task.link is not None and fed_task.link.attempt != attempt:
                return None
            # The same process has connected again, because its connection broke.
            self._end_link(fed_task, "the feed was opened again")
            fed_task.link = link
        self.links.append(link)
        return link

    def on_lost(self, task: str, attempt: int, reason: str, now: float) -> None:
        """Note that a task has ended. Other tasks receive the rows that it did not consume.

        Args:
            task: The name of the task.
            attempt: Which start of the task has ended.
            reason: How it has ended. This completes the sentence "worker/0 ...".
            now: The time.
        """
        fed_task = self.tasks[task]
        fed_task.ended = FeedEnd(attempt, reason, now)
        self._end_link(fed_task, reason)

    def on_restarting(self, attempts: Mapping[str, int], now: float) -> None:
        """Note that tasks are to start again. They accept rows until they end.

        With equal batches the call fails unless all tasks start again and rows may be fed twice.

        Args:
            attempts: The numbers of the starts that end, by the names of the tasks.
            now: The time.
        """
        restarting = [task for task in self.tasks.values() if task.name in attempts]
        for task in restarting:
            task.ended = FeedEnd(attempts[task.name], "is to start again", now, is_restart=True)
        # Without equal batches, the rows that a restarted task has not consumed go to any task.
        if restarting and self.call.is_in_step and not self.call.is_over:
            self.call.should_feed_again = self._may_feed_rounds_again()
            if not self.call.should_feed_again:
                rule = "exactly_once=True: no rows are fed again" if self._exactly_once else IN_STEP_MESSAGE
                names = join_names([task.name for task in restarting])
                self.call.fail(FeedError(f"a restart of {names}; {rule}"))

    def on_started(self, task: str, attempt: int) -> None:
        """Note that a task has started, for the first time or again.

        With equal batches (``equal=``) all tasks receive the same number of batches, and a round is one batch
        for each task. If all tasks are to start again together, `on_restarting` or `begin` has set
        `should_feed_again`, and all unfinished rounds are fed once more. That is done here, when the first of
        the tasks starts. It proves that no old process is left, because a task starts only after all of them
        have ended.

        Args:
            task: The name of the task.
            attempt: Which start of the task this is, from 1.
        """
        fed_task = self.tasks[task]
        # This start has ended meanwhile.
        if fed_task.ended is not None and attempt <= fed_task.ended.attempt:
            return
        if fed_task.link is not None and fed_task.link.attempt < attempt:
            self._end_link(fed_task, "it has started again")
        # The tasks whose old processes are gone. These are all tasks if the rounds are to be fed again, and
        # otherwise this one. There are none if no end of this task is known: this is its first start, or a
        # start that was noted before.
        restarted = [fed_task] if fed_task.ended is not None else []
        if self.call.should_feed_again:
            restarted = list(self.tasks.values())
        fed_task.ended, fed_task.attempt = None, attempt
        # What the old processes have said about rows does not hold for the new ones.
        for each in restarted:
            each.has_refused = each.has_returned = False
        # No new process is connected yet: `on_connected` would have called this method first, and so cleared
        # `should_feed_again` (by `feed_rounds_again`). So all connections that are left belong to old
        # processes. Without the flag, the starts of the other tasks do not repeat this.
        if self.call.should_feed_again:
            for each in restarted:
                self._end_link(each, "all tasks start again")
            self.call.feed_rounds_again()

    def _end_link(self, task: FedTask, reason: str) -> None:
        """Forget the connection of a task, if it has one, and let `commands` close it at once.

        Args:
            task: The task.
            reason: Why the connection is closed, for the task and for messages.
        """
        if task.link is not None:
            self.close(task.link, reason)
            self._links_to_close.append(task.link)
            task.link = None

    def _may_feed_rounds_again(self) -> bool:
        """Return whether the rounds can be fed again: all tasks start again, and rows may be fed twice.

        A round is one batch for each task, of a call with equal batches.
        """
        return not self._exactly_once and all(task.is_restarting for task in self.tasks.values())

    # Events of connections.

    def on_frame(self, link: FeedLink, kind: int, content: Any, size: int, now: float) -> None:
        """Handle a frame that has come from a task: results, or how far its function has read.

        Args:
            link: The connection.
            kind: The kind of the frame.
            content: The buffers of the frame, or the unpickled results if its kind is RESULTS.
            size: The number of bytes of the frame.
            now: The time.

        Raises:
            FeedRefusedError: The kind is unknown.
            struct.error: The frame is not of the form of its kind.
        """
        # Its first frame shows whether the task accepts rows, so from now on it may be sent some.
        link.has_opened = True
        # `Kind` in `launcher.feed.remote.frames` says what each frame means.
        if kind == Kind.RESULTS:
            for partition, weight in link.answer(content, size):
                # Results of rows of an earlier call, which has ended, do not wait for the user's program.
                if self.call.has_partition(partition):
                    self.call.result_bytes += weight
        elif kind in (Kind.PROGRESS, Kind.HUNGRY):
            link.progress(*unpack_numbers(content), is_hungry=kind == Kind.HUNGRY)
        elif kind == Kind.COUNTED:
            link.set_row_count(*unpack_numbers(content))
        elif kind == Kind.TERMINATE:
            # A connection of an earlier start says nothing about the present one.
            if link.task.link is link:
                link.task.has_refused = True
                link.task.has_returned |= b"".join(content) == RETURNED
                # Only equal batches wait for a certain task. `commands` gives back what the task has unread.
                self.call.drop_rows_of(link.task.name)
        else:
            raise FeedRefusedError(f"kind {kind}")
        # Results or progress may complete partitions. Any frame is progress, so the time limit starts anew.
        self._finish(link)
        self.call.progress_at = now

    def on_broken(self, link: FeedLink, error: FeedError | None, now: float) -> None:
        """Note that a connection has ended, so no more frames come.

        Args:
            link: The connection.
            error: The error about an invalid frame, which the call raises. None if the connection has simply
                ended.
            now: The time.
        """
        # If the task does not connect again in time, `commands` gives its rows to others.
        link.ended = now
        if error is not None:
            self.close(link, str(error))
            self.call.fail(error)

    def on_read(self, link: FeedLink, call: Call, item: Any, error: Exception | None, now: float) -> None:
        """Note that a thread has read an item of the source.

        Args:
            link: The connection of the thread.
            call: The call whose source was read. It may be over by now.
            item: The item. None at the end of the source, and after an error.
            error: The exception that reading has raised, or None.
            now: The time.
        """
        # The time that the user's source has taken does not count for the time limit of the call.
        link.is_busy = call.is_reading = False
        call.progress_at, call.is_exhausted = now, item is None
        if error is not None:
            call.fail(error)
        # With equal batches, the rows of a task that accepts no more are dropped and not given to others.
        if item is not None and not call.is_over:
            call.add(item, [task.name for task in self.tasks.values() if task.has_refused])

    def on_made(
        self, link: FeedLink, partition: Partition, chunk: Chunk | None, error: Exception | None
    ) -> bool:
        """Note that a thread has made a chunk. The connection stays busy until `on_sent`.

        Args:
            link: The connection of the thread.
            partition: The partition of the chunk.
            chunk: The chunk. None at the end of the partition, and after an error.
            error: The exception that making the chunk has raised, or None.

        Returns:
            Whether the chunk is to be sent.
        """
        # The call may be over, or another task may have received the partition meanwhile. Then the error
        # concerns nobody.
        if error is not None and self.call.has_partition(partition):
            self.call.fail(error)
        # No more of the partition is wanted, for example because the call has failed just now.
        if not self._is_sending(link):
            return False
        if chunk is None:
            link.sending, partition.is_complete = None, True
            # The task may have consumed all chunks already.
            self._finish(link)
            return False
        link.count_sent(chunk)
        self.call.limit_kept(partition)
        return True

    def on_sent(self, link: FeedLink) -> None:
        """Note that a thread has done its `Make` or `Flush`, whether or not the frames could be sent."""
        link.is_busy = False

    def on_left(self, link: FeedLink) -> None:
        """Note that the threads of a connection have ended. Its unfinished partitions are fed again."""
        self._give_back(link)
        self.links.remove(link)

    def close(self, link: FeedLink, reason: str) -> None:
        """Send no more rows on a connection. The first reason becomes the error for the task.

        An empty reason stands for the end of the feed, which is no error.
        """
        if link.reason is None:
            link.reason = reason

    def _finish(self, link: FeedLink) -> None:
        """Tell the call which partitions of a connection are finished."""
        for partition in link.pop_finished():
            self.call.finish_partition(partition)

    # Events of the program.

    def begin(self, call: Call, now: float) -> None:
        """Start to serve a call of `train` or `inference`.

        Args:
            call: The call.
            now: The time.
        """
        self.call, call.progress_at = call, now
        # With equal batches this is true if all tasks are restarting at this moment. Rounds that the old
        # processes still take are then fed again.
        call.should_feed_again = call.is_in_step and self._may_feed_rounds_again()
        for task in self.tasks.values():
            # The process that accepted no more rows has ended. The next one of the task may accept some.
            if task.ended is not None:
                task.has_refused = task.has_returned = False

    def end(self) -> None:
        """Stop sending rows of the present call."""
        self.call.end()
        for link in self.links:
            link.end_call()

    def stop(self, reason: str) -> None:
        """Close all connections. If the feed has not ended, its tasks receive the reason as an error."""
        # An empty reason tells a task that the feed has ended as it should.
        reason = "" if self.is_finished and self.call.is_over else reason
        # A call that still runs raises this error.
        self.call.fail(FeedError("the feeder was closed"))
        for link in self.links:
            self.close(link, reason)

    # What is to be done.

    def commands(self, now: float) -> list[Command]:
        """Return what is to be done now, at most one command for the thread of each connection.

        The task with the fewest unread rows receives the next partition.

        Args:
            now: The time.
        """
        # The connection of a link that is not in `links` is closed already.
        commands: list[Command] = [CloseFeed(link) for link in self._links_to_close if link in self.links]
        self._links_to_close.clear()
        # This comes before the commands, so that a partition which is given back goes to another task now.
        for link in self.links:
            # The task has not connected again in time.
            if link.ended is not None and now - link.ended > BROKEN_SECONDS:
                self.close(link, "its connection broke")
            # While a connection with a reason has not ended, frames about consumed rows may still come.
            has_broken_for_good = link.ended is not None and link.reason is not None
            if link.task.has_refused or has_broken_for_good:
                self._give_back(link)
        free = [link for link in self.links if not link.is_busy]
        # `window` is the number of bytes that the task has not begun to read.
        for link in sorted(free, key=lambda link: link.window):
            if (command := self._next_command(link, now)) is not None:
                link.is_busy = True
                commands.append(command)
        return commands

    def _give_back(self, link: FeedLink) -> None:
        """Return the partitions that a task will not finish to the call, which feeds them to others.

        Args:
            link: The connection of the task, which is lost or accepts no more rows.
        """
        # A task that has refused its rows is not lost, so the rows that it has may count as consumed.
        loss = "" if link.task.has_refused else f"{link.task.name} is lost ({link.reason})"
        for partition in link.pop_unfinished():
            self.call.give_back(partition, loss, exactly_once=self._exactly_once)

    def _next_command(self, link: FeedLink, now: float) -> Command | None:
        """Return what the thread of a connection is to do next, or None if it waits.

        The first of these that applies is returned:

        - `Leave` if the connection is being closed.
        - `Make` for the next chunk of the partition (the rows for one task) that is being sent, or None while
          the task has too much unread.
        - None if no call is served, or it is not known that the task accepts rows.
        - `Flush` if a batch of the task must end here, because no row follows for the moment.
        - None if the task may not begin with another partition.
        - `Make` for the partition that waits for the task, or `Read` to read one from the user's source.

        Args:
            link: The connection, whose thread has nothing to do.
            now: The time.
        """
        call = self.call
        # The call may have ended, or the partition may be another task's by now, so no more of it is sent.
        if not self._is_sending(link):
            link.sending = None
        # The user has called `finish`. An empty reason tells the task that the feed has ended.
        if call.is_over and self.is_finished:
            self.close(link, "")
        if link.reason is not None:
            return Leave(link)
        # The rest of its partition comes before anything else.
        if link.sending is not None:
            return Make(link, link.sending) if self.may_make(link) else None
        # Before its first frame it is unknown whether the task accepts rows.
        if call.is_over or link.is_over or link.task.has_refused or not link.has_opened:
            return None
        # In inference a batch ends with its partition. In training it ends when no more rows are left. The
        # function would otherwise wait for the rest of a batch that does not come.
        if not link.was_flushed and (call.is_inference or call.is_all_given(link.task.name)):
            link.was_flushed = True
            return Flush(link)
        if not self._may_begin(link, now):
            return None
        # No partition waits for this task, so its thread reads one from the source.
        if (partition := call.next_partition(link.task.name)) is None:
            # Other threads must not read at the same time, because the source is a generator.
            call.is_reading = True
            return Read(link, call)
        # A task that was served waits for the others to open the feed before it receives more.
        call.served.add(link.task.name)
        link.begin(partition)
        return Make(link, partition)

    def may_make(self, link: FeedLink) -> bool:
        """Return whether the next chunk of the partition that is being sent may be made now.

        It may not if no more rows of this partition are wanted, if the task has too much unread (its window
        is full), or if too many results wait for the user's program.
        """
        partition = link.sending
        if partition is None or not self._is_sending(link):
            return False
        return link.window < WINDOW_BYTES and self.call.permits(partition.number)

    def _is_sending(self, link: FeedLink) -> bool:
        """Return whether a partition is being sent on a connection, and more of its chunks are wanted."""
        # The connection is over, the task accepts no more rows, or the call raises an error.
        is_stopped = link.is_over or link.task.has_refused or self.call.error is not None
        return not is_stopped and self.call.has_partition(link.sending)

    def _may_begin(self, link: FeedLink, now: float) -> bool:
        """Return whether a task may receive another partition now.

        A task that has received a partition waits until the others have opened the feed, so that it does not
        take all rows. With equal batches it cannot take more than its share.

        Args:
            link: The connection of the task.
            now: The time.
        """
        call, name = self.call, link.task.name
        # A task with a full window has enough to read for the moment.
        if call.error is not None or link.window >= WINDOW_BYTES or not call.has_rows(name):
            return False
        return call.is_in_step or name not in call.served or self._has_gathered(now)

    def _has_gathered(self, now: float) -> bool:
        """Return whether all tasks have opened the feed, or had the time to do so."""
        links = [task.link for task in self.tasks.values() if task.link is not None]
        # Tasks that have ended, or are to start again, are not waited for.
        if len(links) >= sum(task.ended is None for task in self.tasks.values()):
            return True
        # The time starts when the first task opens the feed.
        first_opened = min([link.since for link in links], default=now)
        return now - first_opened > GATHERING_SECONDS

    # What the thread of the user asks, while it waits for the end of the call or for results.

    @property
    def takers(self) -> list[FedTask]:
        """The tasks that may accept more rows."""
        return [task for task in self.tasks.values() if task.takes_rows]

    def is_ready(self) -> bool:
        """Return whether the user's thread can continue: the call has failed, is finished, or has results."""
        call = self.call
        if call.is_over or call.error is not None:
            return True
        if call.is_inference:
            return call.advance_to_results()
        tasks = self.tasks.values()
        # No task accepts more rows (a taker is one that may), so `train` returns before all are read. If the
        # tasks have ended and rows were on the way to them, `check` raises an error instead.
        if any(task.has_refused for task in tasks) and not self.takers:
            return any(task.is_alive for task in tasks) or call.is_none_given
        return call.is_finished

    def unread_warning(self) -> str:
        """Return the warning that a function has returned before all rows of `train` were read.

        Returns:
            The warning, or an empty text if there is no reason for it.
        """
        returned = [task.name for task in self.tasks.values() if task.has_returned]
        if not returned or (self.call.is_finished and not self.call.has_dropped_rows):
            return ""
        return (
            f"{join_names(returned)} returned before reading all rows; call feed.terminate() if that is "
            "intended"
        )

    def awaited_tasks(self, now: float) -> list[str]:
        """Return the tasks without a connection for which the call waits, so that the user can be told.

        Returns:
            Their names. Empty if the call does not wait for them: some task is connected, and the time for
            opening feeds is over, so that the connected tasks receive all rows. Equal batches always wait.
        """
        awaited = [task.name for task in self.takers if not task.is_connected]
        # A task that is alive and not awaited is connected, or has refused more rows, for which it connected.
        is_none_connected = len(awaited) == sum(task.is_alive for task in self.tasks.values())
        return awaited if self.call.is_in_step or is_none_connected or not self._has_gathered(now) else []

    def check(self, now: float) -> None:
        """Raise an error if the call cannot continue, or has waited for too long.

        - No task is left that runs or is to start again: this is an error.
        - In inference, all tasks have called ``terminate()``, so rows stay without a result: an error.
        - No task is late: the call waits for the user's source of rows or for a restart, which may last as
          long as they like. A task is late if it has unread rows, owes results of inference, or has not
          opened the feed although the call needs it.
        - Some task is late, and no task has made progress within the time limit of the call: an error.

        Args:
            now: The time.

        Raises:
            FeedTimeout: No task has taken a row within the time limit.
            FeedError: No task is left, one has missed equal batches, or results are missing.
        """
        call, tasks, feed = self.call, self.tasks.values(), f"feed {self.name!r}"
        ends = [(task, task.ended) for task in tasks if task.ended is not None]
        is_any_alive = any(task.is_alive for task in tasks)
        # With equal batches the loss of a single task is an error, which names it, so this comes first.
        if call.is_in_step:
            self._check_rounds(call, now)
        # Tasks that fail may fail the whole job, whose error is more precise. It comes within this time.
        last_end = max([end.at for _, end in ends], default=0.0)
        if not is_any_alive and now - last_end > LONELY_SECONDS:
            endings = join_names([f"{task.name} {end.reason}" for task, end in ends])
            raise FeedError(f"{feed}: no task is left to take its rows: {endings}")
        if call.is_inference and is_any_alive and not self.takers:
            raise FeedError(f"{feed}: all tasks have called terminate(): no results will come")
        late = self._late_tasks()
        # The call may wait for tasks to open the feed: with equal batches for each of them, otherwise only if
        # no other one takes rows.
        if not late and (call.is_in_step or not any(task.is_connected for task in self.takers)):
            late = [task for task in self.takers if task.ended is None and not task.is_connected]
        if not late:  # nothing but the user's source of rows, or a restart, is awaited
            call.progress_at = now
        elif now - call.progress_at > call.timeout:
            # A task that is late and hungry has read all rows, and only owes results. The others are stuck:
            # their functions do not read what was sent, or never opened the feed.
            names = [task.name for task in late]
            stuck = [task.name for task in late if not (task.is_late and task.link and task.link.is_hungry)]
            # Only in inference can missing results be the fault.
            if stuck or not call.is_inference:
                lines = [line for task in stuck for line in self._last_lines(task)]
                raise FeedTimeout(", ".join(stuck or names), call.timeout, lines)
            raise FeedError(self._missing_results_text(late, call.timeout))

    def _late_tasks(self) -> list[FedTask]:
        """Return the tasks that have unread rows, or owe results."""
        return [task for task in self.tasks.values() if task.is_late]

    def _missing_results_text(self, late: Sequence[FedTask], seconds: float) -> str:
        """Return the text that these tasks have returned too few results for some seconds."""
        return (
            f"feed {self.name!r}: {', '.join([task.name for task in late])} asked for more rows, and for "
            f"{seconds:g}s results are missing: batch_results() must be given one result for each row"
        )

    def silence_warning(self, now: float) -> str:
        """Return the warning that tasks return no results, long before `check` raises for it.

        Returns:
            The warning, or an empty text if none is due. A call is warned about only once.
        """
        # A late task has unread rows, or owes results.
        call, late = self.call, self._late_tasks()
        is_silent = call.is_inference and now - call.progress_at >= SILENT_SECONDS
        # Tasks that ask for more rows, although they owe results, have probably returned too few.
        are_hungry = all(task.link is not None and task.link.is_hungry for task in late)
        if call.was_told_missing or not (is_silent and late and are_hungry):
            return ""
        call.was_told_missing = True
        return self._missing_results_text(late, SILENT_SECONDS)

    def _check_rounds(self, call: Call, now: float) -> None:
        """Raise an error if a task has missed equal batches, and not all tasks start again together.

        Args:
            call: The present call, which feeds equal batches.
            now: The time.

        Raises:
            FeedError: A task is lost, or has left a batch unfinished.
        """
        for task in self.tasks.values():
            # In this time the job should fail, for a more precise reason.
            if task.ended is not None and not task.ended.is_restart and now - task.ended.at > LONELY_SECONDS:
                raise FeedError(f"{task.name} is lost ({task.ended.reason}); {IN_STEP_MESSAGE}")
            # A task that is connected again, and not because of a restart of all, has only lost its
            # connection. The batch that it had read half is gone with it.
            if task.is_connected and not call.should_feed_again and (loss := call.broken.get(task.name)):
                raise FeedError(f"{loss}; {IN_STEP_MESSAGE}")
