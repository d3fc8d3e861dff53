"""``TFCluster``: a cluster whose nodes run a function of the program, and may be fed by it."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from launcher.api.remote.node import TRAINING_ROLES, InputMode
from launcher.api.run import AnyPath, RunOptions, context_fault, function_fault, read_options
from launcher.api.tasks import FunctionJob, TaskHandle, dumps
from launcher.common import arguments
from launcher.common.arguments import Arguments, named_arguments
from launcher.common.errors import Fault, InputError, JobFailed
from launcher.feed.feeder import Feeder
from launcher.feed.listener import FeedPeer
from launcher.feed.sources import FILLS
from launcher.job import MAX_TASKS, RunPaths
from launcher.messages import say
from launcher.runs.run import json_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CALLER = "TFCluster.run"
#: The default of `shutdown`, that of TensorFlowOnSpark: three days.
_THREE_DAYS_SECONDS = 259200.0
#: Queues of TensorFlowOnSpark that rows do not come by.
_FOREIGN_QUEUES = ("output", "error", "control")
#: How long tasks may go on when the job is done: an evaluator with its last evaluation; workers after the
#: chief, which with parameter servers may be servers themselves and never return.
_DRAIN = "10m"
_WORKER_DRAIN_WITH_PS = "5s"

#: The clusters of this process that were not shut down yet; a fork of it has none.
_open: set[TFCluster] = set()
os.register_at_fork(after_in_child=_open.clear)


class _ClusterTasks(FunctionJob):
    """The tasks of a cluster, with the feeds of those that train.

    Args:
        roles, options, job, work: see `FunctionJob`.
        feeds: the names of the feeds; empty: the cluster is not fed.
        exactly_once: see `TFCluster.run`.
    """

    def __init__(
        self,
        roles: Mapping[str, Mapping[str, Any]],
        options: RunOptions,
        job: str | None,
        work: Mapping[str, Any],
        feeds: Sequence[str],
        exactly_once: bool,
    ) -> None:
        super().__init__(roles, options, job, {**work, "slot": False, "fed": bool(feeds)})
        self.feeds = feeds
        self.feeder = Feeder(
            [task for task in self.handles if task.partition("/")[0] in TRAINING_ROLES],
            feeds,
            exactly_once=exactly_once,
            last_lines=self.last_lines,
            quiet=self.is_quiet,
        )

    def job_ended(self) -> None:
        if self.error is not None:
            self.feeder.fail(self.error)

    def feed(self, peer: FeedPeer) -> None:
        self.feeder.add(peer)

    def task_ended(self, task: TaskHandle, ending: str) -> None:
        if task.name.partition("/")[0] in TRAINING_ROLES:
            self.feeder.on_lost(task.name, task.attempt, ending)

    def tasks_restart(self, attempts: Mapping[str, int]) -> None:
        self.feeder.on_restarting(attempts)

    def task_started(self, task: TaskHandle) -> None:
        self.feeder.on_started(task.name, task.attempt)


class TFCluster:
    """A running cluster; made by `TFCluster.run`.

    As a context manager it is shut down at the end of the block, or ended if the block raises. It belongs to
    the process that made it: in a fork of that process it does nothing.

    Args:
        nodes: made by `TFCluster.run`.
    """

    InputMode = InputMode

    def __init__(self, nodes: _ClusterTasks) -> None:
        self._nodes = nodes
        _open.add(self)

    def __repr__(self) -> str:
        ended = self not in _open or self._nodes.driver.over.is_set()
        state = "failed" if self._nodes.error is not None else "ended" if ended else "running"
        url = self.tensorboard_url()
        more = f"; TensorBoard: {url}" if url else ""
        return f"<TFCluster {self._nodes.driver.job} {state}: {', '.join(self._nodes.handles)}{more}>"

    @staticmethod
    @named_arguments(_CALLER, RunOptions.__annotations__, context_fault)
    def run(  # noqa: PLR0913 - the parameters of TensorFlowOnSpark
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
        job: AnyPath | None = None,
        exactly_once: bool = False,
        **options: Unpack[RunOptions],
    ) -> TFCluster:
        """Start a cluster, and return when all its nodes have the function.

        Args:
            map_fun: ``map_fun(args, ctx)``, run in every node; may be a closure, or come from a notebook.
                ``ctx`` is a `TFNodeContext`.
            tf_args: its first argument; a list becomes ``sys.argv`` there, too.
            num_executors: number of all nodes: ps, chief and evaluator included.
            num_ps: number of parameter servers among them.
            tensorboard: run TensorBoard beside the nodes, on ``log_dir``.
            input_mode: ``InputMode.FEED`` (or ``SPARK``): the program feeds the nodes;
                ``InputMode.TENSORFLOW``: the function reads its data itself.
            log_dir: for TensorBoard.
            driver_ps_nodes: only ``False``: ``hosts`` says where parameter servers run.
            master_node: ``"chief"``: one of the nodes is a chief.
            reservation_timeout: seconds for all nodes to connect.
            queues: names of the feeds. (TensorFlowOnSpark's ``output`` and ``error`` are ignored.)
            eval_node: one of the nodes is an evaluator. When the others are done it has ten minutes for its
                last evaluation.
            release_port: ignored: a server can use the node's port at any time.
            job: a job file (docs/jobfile.md) for all other settings; the numbers of nodes are those given
                here. Arguments given here replace its settings.
            exactly_once: rows of a node that is lost are not fed again: feeding fails instead.
            options: ``hosts``, ``docker``, ``env``, ``gpus``, ``workdir``, ``python`` or ``venv`` (of
                this minor version), ``on_failure``, ``grace``, ``timeout``, ``stall``, ``restarts``,
                ``restart``, ``preload``, ``sync``, ``collect``, ``run_dir``, ``quiet``, ``options``: as those
                of `launcher.run`. Defaults of the project (``launch.toml``) are not read.

        Returns:
            The running cluster.

        Raises:
            InputError: an argument is wrong, or can't be sent to the nodes; nothing was started.
            TaskFailed: a node failed before all were there.
            JobFailed: the nodes do not start, or not in time.
        """
        found = Arguments(_CALLER)
        read_function(found, map_fun, tf_args)
        read_flag = partial(found.optional, reader=arguments.flag, default=False)
        tensorboard = read_flag("tensorboard", tensorboard)
        eval_node = read_flag("eval_node", eval_node)
        exactly_once = read_flag("exactly_once", exactly_once)
        if read_flag("driver_ps_nodes", driver_ps_nodes):
            text = "driver_ps_nodes=True: parameter servers run where hosts= has slots for them"
            found.add(text, "expected False; roles: [ps] in a hostfile reserves hosts for them")
        input_mode = found.read("input_mode", input_mode, _input_mode)
        reservation_timeout = found.read("reservation_timeout", reservation_timeout, arguments.number(0))
        log_dir = found.optional("log_dir", log_dir, arguments.path, "")
        queues = found.read("queues", queues, arguments.several(arguments.text))
        job_file: str | None = found.optional("job", job, arguments.path)
        roles = _roles(num_executors, num_ps, master_node, eval_node, job is None, found)
        read = read_options(found, options)
        found.check()
        if tensorboard:
            read["options"] = [*read.get("options", ()), f"--tensorboard={log_dir}"]
        function, pickled = dumps(_CALLER, {"map_fun": map_fun, "tf_args": tf_args})
        work = {"function": function, "arguments": pickled}
        feeds: list[str] = []
        if input_mode == InputMode.FEED:
            feeds = [name for name in queues if name not in _FOREIGN_QUEUES] or ["input"]
        nodes = _ClusterTasks(roles, read, job_file, work, feeds, exactly_once)
        nodes.start()
        cluster = TFCluster(nodes)
        try:
            nodes.wait_for_all(reservation_timeout)
        except BaseException:
            cluster._close()
            raise
        return cluster

    # ------------------------------------------------------------------ feeding

    @named_arguments("TFCluster.train")
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
            num_epochs: how often all rows are fed, 1 or more.
            feed_timeout: seconds in which a node with rows before it must take some.
            qname: the feed, one of ``queues``.
            equal: ``drop``, ``pad`` or ``repeat``: every node gets the same number of batches of
                ``batch_size`` rows.
            batch_size: rows in each batch; only with ``equal``.

        Raises:
            TaskFailed: a node has failed.
            FeedTimeout: a node takes no rows.
            FeedError: rows can't be sent to the nodes.
            InputError: the data can't be fed, the number of epochs is wrong, or the cluster was not started
                with ``input_mode=InputMode.FEED``.
            JobFailed: the job has failed, or the cluster has been shut down.
        """
        found = Arguments("TFCluster.train")
        epochs = found.read("num_epochs", num_epochs, arguments.whole())
        if epochs == 0:
            found.add("num_epochs=0", "expected 1 or more (TensorFlowOnSpark made 10 of 0)")
        feed_timeout, qname = _read_feed(found, feed_timeout, qname)
        if equal is not None and batch_size is None:
            found.add(f"equal={equal!r} without batch_size", "expected the number of rows in each batch")
        equal = found.optional("equal", equal, arguments.choice(*FILLS))
        batch_size = found.optional("batch_size", batch_size, arguments.whole(1))
        found.check()
        self._usable_feeder("TFCluster.train").train(
            data,
            epochs=epochs,
            feed_timeout=feed_timeout,
            qname=qname,
            equal=equal,
            batch_size=batch_size,
        )
        self._nodes.check()

    @named_arguments("TFCluster.inference")
    def inference(self, data: Any, feed_timeout: float = 600, qname: str = "input") -> Iterator[Any]:
        """Feed rows, and get a result for each, in their order.

        Args:
            data: partitions of rows, as for `train`.
            feed_timeout: seconds in which a node with rows before it must take some.
            qname: the feed, one of ``queues``.

        Returns:
            The results, one for each row, as they come. To stop early close the iterator: the remaining ones
            are discarded.

        Raises:
            TaskFailed: a node has failed. This and the following are raised while results are taken, too.
            FeedTimeout: a node takes no rows.
            FeedError: rows can't be sent to the nodes, or results from them.
            InputError: the data can't be fed, or the cluster was not started with
                ``input_mode=InputMode.FEED``.
            JobFailed: the job has failed, or the cluster has been shut down.
        """
        found = Arguments("TFCluster.inference")
        feed_timeout, qname = _read_feed(found, feed_timeout, qname)
        found.check()
        feeder = self._usable_feeder("TFCluster.inference")
        return iter(feeder.inference(data, feed_timeout=feed_timeout, qname=qname))

    # ------------------------------------------------------------------ state

    @property
    def run_dir(self) -> str:
        """The folder of the run: ``logs/``, ``report.json``, ``output/`` with collected files."""
        return self._nodes.run_dir

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """A dict for each node, as TensorFlowOnSpark has it, in the order of their numbers.

        The keys: ``executor_id`` (from 0), ``host``, ``job_name``, ``task_index``, ``port``, ``addr``
        (``host:port``).
        """
        planned = {task["task"]: task for task in self._plan().get("tasks", ())}
        return [
            {
                "executor_id": number,
                "host": planned[task]["host"],
                "job_name": task.partition("/")[0],
                "task_index": int(task.partition("/")[2]),
                "port": planned[task]["port"],
                "addr": planned[task]["address"],
            }
            for number, task in enumerate(self._nodes.handles)
            if task in planned
        ]

    def tensorboard_url(self) -> str | None:
        """The URL of TensorBoard on this machine.

        Returns:
            ``http://localhost:6006/``; ``None``: the cluster was started without ``tensorboard=True``.
        """
        return self._plan().get("tensorboard")

    def _plan(self) -> Mapping[str, Any]:
        return (json_of(RunPaths(self.run_dir).plan) if self.run_dir else None) or {}

    # ------------------------------------------------------------------ its end

    @named_arguments("TFCluster.shutdown")
    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = _THREE_DAYS_SECONDS) -> None:
        """End the feeds, and wait until the function has returned in all nodes.

        Args:
            ssc: ignored: there is no stream.
            grace_secs: ignored: what a function does after its last row is waited for anyway.
            timeout: seconds, after which the nodes are ended; -1: no limit.

        Raises:
            InputError: ``timeout`` is not a number; the cluster goes on.
            TaskFailed: a node has failed; the first one.
            JobFailed: the job has failed in another way, or took too long.
        """
        found = Arguments("TFCluster.shutdown")
        timeout = found.optional("timeout", timeout, arguments.number(), _THREE_DAYS_SECONDS)
        found.check()
        if self not in _open:
            return
        limit, began = timeout if 0 <= timeout < threading.TIMEOUT_MAX else None, time.monotonic()
        try:
            self._nodes.feeder.finish(limit)
            if not self._nodes.driver.wait(limit and max(0.0, began + limit - time.monotonic())):
                self._nodes.driver.end()
                text = f"the nodes did not exit within {timeout:g}s, and were stopped"
                raise JobFailed(text, self.run_dir)
        finally:
            self._close()
        self._nodes.check()

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
        if self not in _open:
            return
        _open.remove(self)
        try:
            self._nodes.close(at_once)
        finally:
            self._nodes.feeder.close()

    def _usable_feeder(self, caller: str) -> Feeder:
        self._nodes.check()
        if self not in _open:
            text = "the cluster has been shut down, or belongs to the process that has forked this one"
            raise JobFailed(text, self.run_dir)
        if not self._nodes.feeds:
            expected = "expected input_mode=InputMode.FEED in TFCluster.run"
            raise InputError([Fault(caller, "the cluster was started with InputMode.TENSORFLOW", expected)])
        return self._nodes.feeder


def read_function(found: Arguments, map_fun: Any, tf_args: Any) -> None:
    """Add the fault that the first argument of a call is no function.

    Raises:
        InputError: the second one is: each argument is one place off, so faults of the others would mislead.
    """
    if not callable(map_fun):
        found.add(*function_fault(map_fun))
        if callable(tf_args):
            found.check()


def _input_mode(value: Any) -> InputMode:
    with suppress(ValueError):
        return InputMode(arguments.whole()(value))
    raise ValueError("expected InputMode.TENSORFLOW or InputMode.SPARK")


def _read_feed(found: Arguments, feed_timeout: Any, qname: Any) -> tuple[float, str]:
    """Read what calls that feed rows have in common."""
    limit = found.read("feed_timeout", feed_timeout, arguments.number(0))
    return limit, found.read("qname", qname, arguments.text)


def _roles(
    num_executors: Any, num_ps: Any, master_node: Any, eval_node: bool, drains: bool, found: Arguments
) -> dict[str, dict[str, Any]]:
    """By name, what a job file would say of each role, in the order of the numbers of their nodes.

    Args:
        drains: workers have time to finish after the chief; else the job file says how much.
        found: gets the faults.
    """
    num_executors = found.read("num_executors", num_executors, arguments.whole(1, MAX_TASKS))
    num_ps = found.optional("num_ps", num_ps, arguments.whole(0, MAX_TASKS), 0)
    master_node = found.optional("master_node", master_node, arguments.choice("", "chief", "master"), "")
    if None in (num_executors, num_ps, master_node):
        return {}
    counts = {"ps": num_ps, master_node or "chief": int(bool(master_node))}
    counts["evaluator"] = int(bool(eval_node))
    others = sum(counts.values())
    counts["worker"] = num_executors - others
    least = others + (0 if master_node else 1)
    if num_executors < least:
        names = ", ".join(f"{count} {name}" for name, count in counts.items() if count > 0)
        text = f"num_executors={num_executors} leaves no worker beside {names}"
        found.add(text, f"expected {least} or more: it counts all nodes")
    roles: dict[str, dict[str, Any]] = {name: {"count": count} for name, count in counts.items()}
    roles["evaluator"]["drain"] = _DRAIN
    if master_node == "chief" and drains:
        roles["worker"]["drain"] = _WORKER_DRAIN_WITH_PS if num_ps else _DRAIN
    return {name: role for name, role in roles.items() if role["count"]}


@atexit.register
def _end_forgotten() -> None:
    """End the clusters of a program that ends without having shut them down."""
    for cluster in list(_open):
        say("the program exits without TFCluster.shutdown(): its nodes are stopped")
        cluster._close(at_once=True)
