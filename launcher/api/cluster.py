"""``TFCluster``: a cluster whose nodes run a function of the program, and can be fed rows by it.

User programs call this module. It checks the arguments of their calls and puts together a launch, whose tasks
`launcher.api.tasks` starts and whose rows `launcher.feed` sends. Names and defaults are those of
TensorFlowOnSpark, so its programs run with few changes. A cluster must never outlive the program that started
it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from launcher.api.remote.node import InputMode
from launcher.api.run import AnyPath, RunOptions, context_fault, function_fault, read_options
from launcher.api.tasks import FunctionJob, TaskHandle, dumps
from launcher.common import arguments
from launcher.common.arguments import Arguments, named_arguments
from launcher.common.cluster import TRAINING_ROLES
from launcher.common.errors import Fault, InputError, JobFailed
from launcher.feed.feeder import Feeder
from launcher.feed.listener import FeedPeer
from launcher.feed.outputs import output_folder
from launcher.feed.sources import FILLS
from launcher.job import MAX_TASKS, RunPaths
from launcher.messages import say
from launcher.runs.run import json_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CALLER = "TFCluster.run"
#: How long `TFCluster.shutdown` waits by default, as in TensorFlowOnSpark.
_THREE_DAYS_SECONDS = 259200.0
#: Names in ``queues`` that mean something to TensorFlowOnSpark, and are no feeds of rows here.
_FOREIGN_QUEUES = ("output", "error", "control")
#: How long an evaluator may work on its last evaluation, and workers may run on, when the job is done.
_DRAIN = "10m"
#: The same for workers beside parameter servers. They get less time, because their functions may run servers,
#: too, and never return.
_WORKER_DRAIN_WITH_PS = "5s"

#: The clusters that this process has started and not shut down yet. A fork of this process inherits copies of
#: its clusters, but must not stop them. So this set is emptied in each fork.
_open_clusters: set[TFCluster] = set()
os.register_at_fork(after_in_child=_open_clusters.clear)


class _ClusterTasks(FunctionJob):
    """The tasks of a cluster, and the feeds of those that train.

    It tells the `Feeder` what happens to the tasks, so that another task receives the rows of a lost one.

    Args:
        roles: The roles of the job, see `FunctionJob`.
        options: Where and how the tasks run.
        job: The path of a job file, or None.
        work: What each task is to run, see `FunctionJob`.
        feeds: The names of the feeds. There are none if the program feeds no rows.
        exactly_once: Whether the loss of a task is an error, so no row is fed twice.
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
        """Prepare the tasks and the feeder of those that train. Nothing is started before `start`."""
        # Only `TFParallel` has slots, tasks that run one function after another. A "fed" task can open feeds.
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
        """Let calls that feed rows raise the error of the job, if it has failed."""
        if self.error is not None:
            self.feeder.fail(self.error)

    def feed(self, peer: FeedPeer) -> None:
        """Let the feeder send rows on a connection that a task has opened for them."""
        self.feeder.add(peer)

    def task_ended(self, task: TaskHandle, ending: str) -> None:
        """Let the feeder send no more rows to a task that has ended, if it was one that trains."""
        if task.name.partition("/")[0] in TRAINING_ROLES:
            self.feeder.on_lost(task.name, task.attempt, ending)

    def tasks_restart(self, attempts: Mapping[str, int]) -> None:
        """Tell the feeder which attempts of tasks have ended, because these tasks start again."""
        self.feeder.on_restarting(attempts)

    def task_started(self, task: TaskHandle) -> None:
        """Tell the feeder that a task has started, which may soon open a connection for rows."""
        self.feeder.on_started(task.name, task.attempt)


class TFCluster:
    """A running cluster, which `TFCluster.run` returns.

    Use it as a context manager, so that it is always stopped. It is shut down at the end of the block, and
    stopped if the block raises:

    ::

        with TFCluster.run(train, args, num_executors=4, input_mode=InputMode.FEED) as cluster:
            cluster.train(rows, num_epochs=3)

    A cluster belongs to the process that started it. In a fork of that process its methods do nothing or
    raise `JobFailed`.

    Args:
        nodes: The tasks of the cluster. Only `TFCluster.run` makes them.
    """

    InputMode = InputMode

    def __init__(self, nodes: _ClusterTasks) -> None:
        """Make the cluster of tasks that run already."""
        self._nodes = nodes
        # `_close` removes the cluster from this set. When the program exits, `_end_forgotten` kills the tasks
        # of all clusters that are still in it.
        _open_clusters.add(self)

    def __repr__(self) -> str:
        """Return ``<TFCluster RUN running: chief/0, worker/0; TensorBoard: URL>``."""
        has_ended = self not in _open_clusters or self._nodes.driver.over.is_set()
        state = "failed" if self._nodes.error is not None else "ended" if has_ended else "running"
        url = self.tensorboard_url()
        with_url = f"; TensorBoard: {url}" if url else ""
        return f"<TFCluster {self._nodes.driver.job} {state}: {', '.join(self._nodes.handles)}{with_url}>"

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
        """Start a cluster, and return when all its nodes have received the function.

        ::

            def train(args, ctx):
                print(ctx.job_name, ctx.task_index, args["rate"])

            cluster = TFCluster.run(train, {"rate": 0.1}, num_executors=3, num_ps=1)
            cluster.shutdown()

        Args:
            map_fun: The function that each node calls as ``map_fun(args, ctx)``, where ``ctx`` is a
                `TFNodeContext`. It may be a closure or come from a notebook.
            tf_args: The first argument of the function. A list also becomes ``sys.argv`` of the nodes.
            num_executors: The number of all nodes, with parameter servers, chief and evaluator.
            num_ps: The number of parameter servers among the nodes.
            tensorboard: Whether TensorBoard runs beside the nodes. It shows ``log_dir``.
            input_mode: Where rows come from. With ``InputMode.FEED`` (or ``SPARK``) the program feeds the
                nodes, with ``InputMode.TENSORFLOW`` the function reads its data itself.
            log_dir: The folder of event files that TensorBoard shows.
            driver_ps_nodes: Must be ``False``. The places of parameter servers follow from ``hosts``.
            master_node: ``"chief"`` makes one of the nodes the chief, ``"master"`` does so with that name. By
                default there is none.
            reservation_timeout: How many seconds all nodes may take to connect to the program.
            queues: The names of the feeds. The names ``output``, ``error`` and ``control`` of
                TensorFlowOnSpark are ignored.
            eval_node: Whether one of the nodes is an evaluator. When the other nodes are done, it may spend
                ten minutes on its last evaluation.
            release_port: Ignored, because a server can always use the port of its node.
            job: A job file (docs/jobfile.md) with all other settings. The numbers of nodes are always those
                of this call, and other arguments of this call replace settings of the file.
            exactly_once: Whether no row may be fed twice. Feeding then fails when a node is lost.
            options: Where and how the nodes run: ``hosts``, ``docker``, ``env``, ``gpus``, ``workdir``,
                ``python`` or ``venv`` (with the same minor version of Python as the program), ``on_failure``,
                ``grace``, ``timeout``, ``stall``, ``restarts``, ``restart``, ``preload``, ``sync``,
                ``collect``, ``run_dir``, ``quiet`` and ``options``, as in `launcher.run`. Defaults of the
                project (``launch.toml``) are not read.

        Returns:
            The running cluster.

        Raises:
            InputError: An argument is wrong, or cannot be sent to the nodes. Nothing was started.
            TaskFailed: A node failed before all nodes had connected.
            JobFailed: The nodes do not start, or did not connect in time.
        """
        call = Arguments(_CALLER)
        read_function(call, map_fun, tf_args)
        read_flag = partial(call.optional, reader=arguments.flag, default=False)
        tensorboard = read_flag("tensorboard", tensorboard)
        eval_node = read_flag("eval_node", eval_node)
        exactly_once = read_flag("exactly_once", exactly_once)
        if read_flag("driver_ps_nodes", driver_ps_nodes):
            text = "driver_ps_nodes=True: parameter servers run where hosts= has slots for them"
            call.add(text, "expected False; roles: [ps] in a hostfile reserves hosts for them")
        input_mode = call.read("input_mode", input_mode, _input_mode)
        reservation_timeout = call.read("reservation_timeout", reservation_timeout, arguments.number(0))
        log_dir = call.optional("log_dir", log_dir, arguments.path, default="")
        queues = call.read("queues", queues, arguments.several(arguments.text))
        job_file: str | None = call.optional("job", job, arguments.path)
        # A job file says itself how long workers may run on when the job is done.
        roles = _roles(num_executors, num_ps, master_node, eval_node, job is None, call)
        read = read_options(call, options)
        # This raises all faults together. From here on the values are right.
        call.check()
        if tensorboard:
            read["options"] = [*read.get("options", ()), f"--tensorboard={log_dir}"]
        # Pickling may fail, too, and nothing was started until then.
        function, pickled = dumps(_CALLER, {"map_fun": map_fun, "tf_args": tf_args})
        work = {"function": function, "arguments": pickled}
        feeds: list[str] = []
        if input_mode == InputMode.FEED:
            # TensorFlowOnSpark's own queues for results and errors are no feeds here.
            feeds = [name for name in queues if name not in _FOREIGN_QUEUES] or ["input"]
        nodes = _ClusterTasks(roles, read, job_file, work, feeds, exactly_once)
        nodes.start()
        cluster = TFCluster(nodes)
        try:
            nodes.wait_for_all(reservation_timeout)
        except BaseException:
            # Not even Ctrl-C may leave nodes behind that nobody can shut down.
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
        """Feed rows to the nodes that train, and return when all rows are consumed.

        ::

            cluster.train([(1.0, 2.0), (3.0, 6.0)], num_epochs=10)

        Args:
            data: The rows, or partitions of rows: lists, arrays, files, generators and others
                (docs/python-api.md). The first dimension of an array counts the rows.
            num_epochs: How many times all rows are fed, at least 1.
            feed_timeout: How many seconds a node that has rows to read may take none of them.
            qname: The name of the feed, one of ``queues`` in `TFCluster.run`.
            equal: Lets every node receive the same number of batches, each of ``batch_size`` rows. If the
                rows at the end do not suffice for all nodes, ``"drop"`` leaves them out, ``"pad"`` repeats
                the last row, and ``"repeat"`` feeds the first rows again. By default the nodes take rows as
                fast as they can.
            batch_size: The number of rows in each batch. It is required with ``equal``.

        Raises:
            TaskFailed: A node has failed.
            FeedTimeout: A node takes no rows.
            FeedError: Rows cannot be sent to the nodes.
            InputError: The data cannot be fed, another argument is wrong, or the cluster was not started with
                ``input_mode=InputMode.FEED``.
            JobFailed: The job has failed, or the cluster has been shut down.
        """
        call = Arguments("TFCluster.train")
        epochs = call.read("num_epochs", num_epochs, arguments.whole())
        if epochs == 0:
            call.add("num_epochs=0", "expected 1 or more (TensorFlowOnSpark made 10 of 0)")
        feed_timeout, qname = _read_feed(call, feed_timeout, qname)
        if equal is not None and batch_size is None:
            text = f"equal={arguments.shown(equal)} without batch_size"
            call.add(text, "expected the number of rows in each batch")
        equal = call.optional("equal", equal, arguments.choice(*FILLS))
        batch_size = call.optional("batch_size", batch_size, arguments.whole(1))
        call.check()
        self._usable_feeder("TFCluster.train").train(
            data, epochs=epochs, feed_timeout=feed_timeout, qname=qname, equal=equal, batch_size=batch_size
        )
        # The job may have failed although all rows were consumed. Then this raises its error.
        self._nodes.check()

    @named_arguments("TFCluster.inference")
    def inference(
        self, data: Any, feed_timeout: float = 600, qname: str = "input", *, output: AnyPath | None = None
    ) -> Any:
        """Feed rows, and return one result for each row, in the order of the rows.

        ::

            for result in cluster.inference([(1.0,), (2.0,)]):
                print(result)

        With ``output`` the nodes store the results, and the call returns when all files are there:

        ::

            names = cluster.inference(TextFiles("hdfs://nn/in/*"), output="hdfs://nn/out")

        Args:
            data: The rows, or partitions of rows, as for `train`.
            feed_timeout: How many seconds a node that has rows to read may take none of them, or return no
                result.
            qname: The name of the feed, one of ``queues`` in `TFCluster.run`.
            output: A folder that is empty or does not exist: a URL such as ``hdfs://nn/out``, or a path in a
                file system that all hosts share. Each partition becomes a file: ``part-00000.txt`` of texts
                and numbers, one in a line; ``.tfrecord`` of bytes; or ``.jsonl`` of dicts.

        Returns:
            An iterator over the results, which reads rows as results are taken. Close the iterator to stop
            early. The remaining results are then discarded. With ``output`` it is the list of the files'
            names, in the order of the rows. A partition without rows has no file.

        Raises:
            TaskFailed: A node has failed. This error and the following ones are also raised while results are
                taken.
            FeedTimeout: A node takes no rows.
            FeedError: Rows cannot be sent to the nodes, or results cannot be sent back.
            InputError: The data cannot be fed, the cluster was not started with
                ``input_mode=InputMode.FEED``, or the folder is not empty.
            LaunchError: The folder of ``output`` cannot be reached.
            JobFailed: The job has failed, or the cluster has been shut down.
        """
        caller = "TFCluster.inference"
        call = Arguments(caller)
        feed_timeout, qname = _read_feed(call, feed_timeout, qname)
        target: str | None = call.optional("output", output, arguments.path)
        call.check()
        infer = partial(self._usable_feeder(caller).inference, data, feed_timeout=feed_timeout, qname=qname)
        if target is None:
            return iter(infer())
        with output_folder(caller, target) as folder:
            names = [folder.name_of(url) for url in infer(output=folder)]
        self._nodes.check()
        return names

    # ------------------------------------------------------------------ state

    @property
    def run_dir(self) -> str:
        """The path of the run's folder, with ``logs/``, ``report.json`` and collected files in ``output``."""
        return self._nodes.run_dir

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """A dict for each node, in the order of their numbers, with the keys that TensorFlowOnSpark uses.

        The keys are ``executor_id`` (an int from 0), ``host``, ``job_name``, ``task_index`` (an int from 0),
        ``port`` (an int) and ``addr`` (``host:port``).
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
        """Return the URL of TensorBoard on this machine.

        Returns:
            The URL, such as ``http://localhost:6006/``, or None if the cluster was started without
            ``tensorboard=True``.
        """
        return self._plan().get("tensorboard")

    def _plan(self) -> Mapping[str, Any]:
        """Return the content of the run's ``plan.json``, or an empty mapping if it is not written yet."""
        return (json_of(RunPaths(self.run_dir).plan) if self.run_dir else None) or {}

    # ------------------------------------------------------------------ stopping

    @named_arguments("TFCluster.shutdown")
    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = _THREE_DAYS_SECONDS) -> None:
        """Close the feeds, and wait until the function has returned in all nodes.

        A second call returns at once.

        Args:
            ssc: Ignored, because there is no SparkContext.
            grace_secs: Ignored, because the call waits for what a function does after its last row in any
                case.
            timeout: The number of seconds after which the nodes are stopped. A negative number stands for no
                limit.

        Raises:
            InputError: ``timeout`` is not a number. The cluster continues to run.
            TaskFailed: A node has failed. This is the first failure.
            JobFailed: The job has failed in another way, or has taken too long.
        """
        call = Arguments("TFCluster.shutdown")
        timeout = call.optional("timeout", timeout, arguments.number(), _THREE_DAYS_SECONDS)
        call.check()
        if self not in _open_clusters:
            return
        # A number that is too large for the functions that wait stands for no limit, too.
        limit = timeout if 0 <= timeout < threading.TIMEOUT_MAX else None
        started = time.monotonic()
        try:
            # Functions in the nodes read no more rows then, and return. Both waits share the time limit.
            self._nodes.feeder.finish(limit)
            seconds_left = None if limit is None else max(0.0, started + limit - time.monotonic())
            if not self._nodes.driver.wait(seconds_left):
                # This kills the nodes at once, because they had the time limit to exit.
                self._nodes.driver.end()
                text = f"the nodes did not exit within {timeout:g}s, and were stopped"
                raise JobFailed(text, self.run_dir)
        finally:
            self._close()
        # If the job has failed, this raises its error.
        self._nodes.check()

    def __enter__(self) -> TFCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Shut the cluster down as `shutdown` does, or stop it at once if the block has raised."""
        if error is None:
            self.shutdown()
        else:
            self._close()

    def _close(self, at_once: bool = False) -> None:
        """Stop the cluster, unless it was shut down or belongs to the process that has forked this one.

        Args:
            at_once: Whether its tasks are killed at once. Otherwise they are sent SIGTERM, and have the
                seconds of ``grace`` to exit.
        """
        # The set contains the open clusters of this process only, because each fork empties it.
        if self not in _open_clusters:
            return
        _open_clusters.remove(self)
        # The nodes are stopped first. A node whose feed was closed before would fail.
        try:
            self._nodes.close(at_once)
        finally:
            self._nodes.feeder.close()

    def _usable_feeder(self, caller: str) -> Feeder:
        """Return the feeder of a cluster that runs and is fed.

        Raises:
            LaunchError: The job has failed, or the cluster was shut down.
            InputError: The cluster was started without feeds. The fault names the caller.
        """
        self._nodes.check()
        if self not in _open_clusters:
            text = "the cluster has been shut down, or belongs to the process that has forked this one"
            raise JobFailed(text, self.run_dir)
        if not self._nodes.feeds:
            expected = "expected input_mode=InputMode.FEED in TFCluster.run"
            raise InputError([Fault(caller, "the cluster was started with InputMode.TENSORFLOW", expected)])
        return self._nodes.feeder


def read_function(call: Arguments, map_fun: Any, tf_args: Any) -> None:
    """Add a fault if the first argument of `TFCluster.run` or `TFParallel.run` is not a function.

    Args:
        call: Collects the faults of the call.
        map_fun: The first argument, as the user has passed it.
        tf_args: The second argument.

    Raises:
        InputError: The second argument is the function. Each argument is then one place off, so faults
            of the others would mislead.
    """
    if not callable(map_fun):
        call.add(*function_fault(map_fun))
        if callable(tf_args):
            call.check()


def _input_mode(value: Any) -> InputMode:
    """Read the argument ``input_mode``, which may also be a number, as in TensorFlowOnSpark."""
    with suppress(ValueError):
        return InputMode(arguments.whole()(value))
    raise ValueError("expected InputMode.TENSORFLOW or InputMode.SPARK")


def _read_feed(call: Arguments, feed_timeout: Any, qname: Any) -> tuple[float, str]:
    """Read the arguments that `TFCluster.train` and `TFCluster.inference` share, and add their faults.

    Returns:
        The time limit in seconds, and the name of the feed.
    """
    limit = call.read("feed_timeout", feed_timeout, arguments.number(0))
    return limit, call.read("qname", qname, arguments.text)


def _roles(
    num_executors: Any, num_ps: Any, master_node: Any, eval_node: bool, drains: bool, call: Arguments
) -> dict[str, dict[str, Any]]:
    """Return the roles of a cluster as a job file would describe them.

    ``num_executors`` counts all nodes, as in TensorFlowOnSpark. What the other roles leave are the workers.

    Args:
        num_executors: The number of all nodes, as the user has passed it.
        num_ps: The number of parameter servers.
        master_node: The name of the role of the chief, if there is to be one.
        eval_node: Whether there is an evaluator.
        drains: Whether workers may run on for some time after the chief has exited. With a job file, the file
            says for how long.
        call: Collects the faults of these arguments.

    Returns:
        The keys of each role by its name, in the order in which nodes are numbered. It is empty if an
        argument has a fault.
    """
    num_executors = call.read("num_executors", num_executors, arguments.whole(1, MAX_TASKS))
    num_ps = call.optional("num_ps", num_ps, arguments.whole(0, MAX_TASKS), 0)
    master_node = call.optional("master_node", master_node, arguments.choice("", "chief", "master"), "")
    if None in (num_executors, num_ps, master_node):  # One of them has a fault, which was added.
        return {}
    has_chief = bool(master_node)
    counts = {"ps": num_ps, master_node or "chief": int(has_chief), "evaluator": int(bool(eval_node))}
    number_of_others = sum(counts.values())
    counts["worker"] = num_executors - number_of_others
    min_executors = number_of_others + (0 if has_chief else 1)  # A chief trains, even without workers.
    if num_executors < min_executors:
        names = ", ".join(f"{count} {name}" for name, count in counts.items() if count > 0)
        text = f"num_executors={num_executors} leaves no worker beside {names}"
        call.add(text, f"expected {min_executors} or more: it counts all nodes")
    roles: dict[str, dict[str, Any]] = {name: {"count": count} for name, count in counts.items()}
    # A drain is the time that a role may run on when the job is done.
    roles["evaluator"]["drain"] = _DRAIN
    # The job is done when the chief has exited. The other nodes may need some time then.
    if has_chief and drains:
        roles["worker"]["drain"] = _WORKER_DRAIN_WITH_PS if num_ps else _DRAIN
    # A role without tasks was needed for the sums only.
    return {name: role for name, role in roles.items() if role["count"]}


@atexit.register
def _end_forgotten() -> None:
    """Kill the nodes of clusters that were not shut down when the program exits."""
    for cluster in list(_open_clusters):
        say("the program exits without TFCluster.shutdown(): its nodes are stopped")
        cluster._close(at_once=True)
