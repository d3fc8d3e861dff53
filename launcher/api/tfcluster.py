"""``TFCluster``: a cluster whose nodes run a function of the program, fed by the program if it likes."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from launcher.api.arguments import check, names_faults, place_faults, seconds_faults
from launcher.api.feeding import Feeding
from launcher.api.finishing import WITH_PS, WITHOUT_PS, until_returned
from launcher.api.inputmode import InputMode, mode_faults
from launcher.api.members import Member
from launcher.api.payload import dumps
from launcher.api.remarks import remark
from launcher.api.roles import Roles, count_roles, role_faults, tensorboard_url
from launcher.api.session import Handlers, Session
from launcher.api.talk import Said, Word
from launcher.api.wanted import Path_, Place
from launcher.errors import Fault, InputError, JobFailed

#: Seconds after which `shutdown` gives up, as TensorFlowOnSpark has it: three days.
_THREE_DAYS = 259200.0
#: Who speaks of wrong arguments.
_RUN = "TFCluster.run"
#: Those that were not shut down yet.
_RUNNING: weakref.WeakSet[TFCluster] = weakref.WeakSet()


class TFCluster:
    """A running cluster; made by `TFCluster.run`. As a context manager it is shut down at the end."""

    InputMode = InputMode

    def __init__(
        self, roles: Roles, place: Place, work: Said, queues: Sequence[str], exactly_once: bool
    ) -> None:
        self._roles = roles
        self._closed = False
        self._patience = WITH_PS if "ps" in roles.described else WITHOUT_PS
        self._feeding = Feeding(roles.fed, queues, exactly_once, self._last_lines, self._say)
        handlers = Handlers(self._feeding.come, self._said, self._feeding.ended, self._feeding.failed)
        self._session = Session(roles.described, place, work, handlers, roles.alien)
        self._process = os.getpid()
        _RUNNING.add(self)

    # ------------------------------------------------------------------ its start

    @staticmethod
    def run(
        map_fun: Callable[[Any, Any], Any],
        tf_args: Any,
        num_executors: int,
        num_ps: int = 0,
        tensorboard: bool = False,
        input_mode: int = InputMode.TENSORFLOW,
        log_dir: str | None = None,
        driver_ps_nodes: bool = False,
        master_node: str | None = None,
        reservation_timeout: float = 600,
        queues: Sequence[str] = ("input", "output", "error"),
        eval_node: bool = False,
        release_port: bool = True,
        *,
        hosts: Path_ | None = None,
        docker: str | None = None,
        job: Path_ | None = None,
        env: Mapping[str, str] | None = None,
        workdir: Path_ | None = None,
        python: Path_ | None = None,
        on_failure: str | None = None,
        grace: float | None = None,
        timeout: float | None = None,
        run_dir: Path_ | None = None,
        quiet: bool = False,
        exactly_once: bool = False,
        options: Sequence[str] = (),
    ) -> TFCluster:
        """Start a cluster, and return when all its nodes have the function.

        Args:
            map_fun: ``map_fun(args, ctx)``, run in every node; a closure, or from a notebook, if you like.
            tf_args: its first argument; a list becomes ``sys.argv`` there, too.
            num_executors: how many nodes in all: ps, chief and evaluator included.
            num_ps: how many of them are parameter servers.
            tensorboard: run TensorBoard beside the chief, on ``log_dir``.
            input_mode: who brings the rows.
            log_dir: for TensorBoard.
            driver_ps_nodes: only ``False``: where parameter servers run is said by ``hosts``.
            master_node: ``"chief"``, for a node of its own that is the chief.
            reservation_timeout: seconds for all nodes to come up.
            queues: names of the feeds; with those of results and errors among them, as they used to be.
            eval_node: one of the nodes is an evaluator. It may finish its last evaluation when the others are
                done.
            release_port: kept for programs that have it: a server can have the node's port at any time.
            hosts: a hostfile, or ``host:slots,...``; default: this machine.
            docker: an image: each node runs in a container of its own.
            job: a job file (docs/jobfile.md) that says where and how; how many nodes there are is said here.
            env: for the nodes.
            workdir, python: where they run, and with which Python; of the program's own minor version.
            on_failure: ``"stop"`` (default): all ends when one node fails; ``"continue"``: the others go on.
            grace, timeout: seconds from SIGTERM to harder signals; and for the whole job.
            run_dir: the folder for logs and report; default: among the runs of ``launch ps``.
            quiet: show nothing: a failure is an exception that says all. What goes wrong and raises nothing
                is a line on stderr.
            exactly_once: rows of a node that is lost are not fed again to another: feeding fails instead.
            options: more options of ``launch``, as its command line has them.

        Raises:
            InputError: what is asked for can't be.
            TaskFailed: a node has failed before all were there.
            JobFailed: they do not come up, or not in time.
        """
        place = Place(
            hosts, docker, job, env or {}, workdir, python, on_failure, grace, timeout, run_dir, quiet,
            options
        )  # fmt: skip
        others = [
            *mode_faults(_RUN, driver_ps_nodes, input_mode),
            *role_faults(_RUN, num_executors, num_ps, master_node, eval_node),
            *names_faults(_RUN, "queues", queues),
            *seconds_faults(_RUN, "reservation_timeout", reservation_timeout),
            *place_faults(_RUN, place._asdict()),
        ]
        check(_RUN, map_fun, tf_args, others)
        roles = count_roles(num_executors, num_ps, master_node, eval_node)
        if tensorboard:
            roles = roles.with_board(log_dir or ".", place.is_here)
        pickles = [dumps(map_fun, "the function"), dumps(tf_args, "its arguments")]
        path = sys.path if place.is_here else []
        facts = {"slot": False, "results": False, "path": list(path), "numbers": roles.numbers}
        cluster = TFCluster(roles, place, Said(Word.WORK, facts, pickles), queues, exactly_once)
        try:
            cluster._session.until_here(reservation_timeout)
            if tensorboard:
                cluster._session.say(f"TensorBoard: {cluster.tensorboard_url()}")
        except BaseException:
            cluster._close()
            raise
        return cluster

    # ------------------------------------------------------------------ feeding it

    def train(
        self,
        data: Any,
        num_epochs: int = 1,
        feed_timeout: float = 600,
        qname: str = "input",
        *,
        equal: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Feed rows to the nodes that train; returns when all are consumed.

        Args:
            data: partitions of rows (docs/python-api.md): lists, arrays, files, generators...
            num_epochs: how often.
            feed_timeout: seconds for which a node with rows before it may take none.
            qname: the feed.
            equal: ``drop``, ``pad`` or ``repeat``: every node gets the same number of batches of
                ``batch_size``.

        Raises:
            TaskFailed: a node has failed.
            FeedTimeout: a node takes no rows.
            FeedError: rows can't be brought to the nodes.
            InputError: the data are none, or no number of epochs is given.
        """
        self._usable()
        if num_epochs < 1:
            what = f"num_epochs={num_epochs}"
            raise InputError(
                [Fault("TFCluster.train", what, "expected 1 or more (TensorFlowOnSpark made 10 of 0)")]
            )
        self._feeding.feeder.train(
            data,
            epochs=num_epochs,
            feed_timeout=feed_timeout,
            qname=qname,
            equal=equal,
            batch_size=batch_size,
        )
        self._session.check()

    def inference(self, data: Any, feed_timeout: float = 600, qname: str = "input") -> Iterator[Any]:
        """Feed rows, and get a result for each, in their order; lazily: take them as they come.

        Raises:
            TaskFailed, FeedTimeout, FeedError: as `train`; raised while the results are taken.
        """
        self._usable()
        return iter(self._feeding.feeder.inference(data, feed_timeout=feed_timeout, qname=qname))

    # ------------------------------------------------------------------ what is known of it

    @property
    def run_dir(self) -> str:
        """The folder of the run: logs, report, what was collected."""
        return self._session.run_dir

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """The nodes: ``executor_id``, ``host``, ``job_name``, ``task_index``, ``port``."""
        return self._roles.info(self._session.run_dir)

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard is; ``None``: there is none."""
        return tensorboard_url(self._session.run_dir)

    # ------------------------------------------------------------------ its end

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = _THREE_DAYS) -> None:
        """End the feeds, and wait until the function has returned in all nodes.

        Args:
            ssc, grace_secs: kept for programs that have them: no stream is to be stopped, and what a function
                does after its last row is waited for.
            timeout: seconds; -1: no limit. When they are over, the nodes are ended.

        Raises:
            TaskFailed: a node has failed; the first to do so.
            JobFailed: the job has failed in another way, or took too long.
        """
        if self._closed:
            return
        self._patience = max(self._patience, grace_secs)
        try:
            self._feeding.finish()
            if not self._session.wait(None if timeout < 0 else timeout):
                self._session.end()
                raise JobFailed(
                    f"the nodes have not ended within {timeout:g} s, and were ended", self.run_dir
                )
        finally:
            self._close()
        self._session.check()

    def __enter__(self) -> TFCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if error is None:
            self.shutdown()
        else:
            self._close()

    def _close(self, at_once: bool = False) -> None:
        """Nothing is left of it."""
        if self._closed:
            return
        self._closed = True
        _RUNNING.discard(self)
        try:
            self._session.close(at_once)
        finally:
            self._feeding.close()

    def _usable(self) -> None:
        self._session.check()
        if self._closed:
            raise JobFailed("the cluster has been shut down", self.run_dir)

    # ------------------------------------------------------------------ called by a thread of the session

    def _say(self, text: str) -> None:
        self._session.say(text)

    def _last_lines(self, task: str) -> Sequence[str]:
        return self._session.last_lines(task)

    def _said(self, member: Member, said: Said) -> None:
        """When the chief ends the job is done; so it is kept until the workers have returned, too."""
        if said.word is not Word.DONE or member.name not in ("chief/0", "master/0"):
            return
        workers = [self._session.members[task] for task in self._roles.fed if task != member.name]
        until_returned(member.name, workers, lambda: self._patience, self._is_over, self._session.say)

    def _is_over(self) -> bool:
        return self._session.over or self._session.error is not None


@atexit.register
def _end_forgotten() -> None:
    """The program ends without having shut its clusters down."""
    for cluster in [one for one in _RUNNING if one._process == os.getpid()]:  # not in forked children
        remark("the program ends without TFCluster.shutdown(): its nodes are ended")
        cluster._close(at_once=True)
