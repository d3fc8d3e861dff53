"""The entry points of an agent: how it starts, and how a launcher connects to one that runs.

==============  ======================================================================================
`run`           on the launcher's own machine: the agent communicates through a pipe, its stdin and
                stdout
`start`         on another machine: starts the agent as a daemon, then does what `connect` does
`serve`         in a container: the agent is the main process. Its stdin and stdout are its first
                connection, and it listens for more like a daemon
`serve_passed`  in a pod: the same, but another program has passed us its stdin and stdout
`connect`       passes our stdin and stdout to an agent that listens, and waits until it closes them
==============  ======================================================================================

A launcher of the same version sends these modules to the host, and names one of these functions. It passes a
mapping of arguments with these keys:

==========  ==========================================================================================
``host``    the name of the host in the plan
``agent``   the number of the agent, for process tags
``token``   what a launcher must know to connect to the agent (all but `run`)
``lease``   how many seconds the tasks outlive a silent launcher (all but `run`)
``job``     the name of the run, if files were copied to the host. They are removed if the launcher
            does not come back
``grace``   how many seconds the tasks get if the agent is sent SIGTERM (in a pod)
``outage``  see `launcher.agent.connection.Patience` (in a pod)
==========  ==========================================================================================
"""

from __future__ import annotations

import errno
import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, Mapping, NoReturn, Optional

from launcher.agent import processes, sweep
from launcher.agent.connection import MIN_OUTAGE_SECONDS, LauncherConnection, Patience
from launcher.agent.passed_streams import PassedStreams, connect_to, listen, pass_streams
from launcher.agent.processes import PASSED_STDIN, write_all
from launcher.agent.watchdog import Deadline, watch
from launcher.common.errors import LaunchError
from launcher.common.protocol import Refused, encode, swap

# How long to kill processes that earlier runs have left behind on this machine.
_SWEEP_TIMEOUT_SECONDS = 2.0
# How long to kill the processes of an agent that was killed together with its watchdog.
_KILL_TIMEOUT_SECONDS = 5.0
# The agent accepts at once, unless this machine is very busy.
_ACCEPT_TIMEOUT_SECONDS = 10.0
# Each pause is twice as long as the one before.
_FIRST_POLL_SECONDS = 0.002


def run(
    arguments: Mapping[str, Any],
    listener: Optional[socket.socket] = None,
    peer: Optional[socket.socket] = None,
) -> NoReturn:
    """Become the watchdog, which kills what an agent leaves behind, and run the agent in a child.

    Args:
        arguments: The arguments of the launcher, see the top of this module.
        listener: The socket on which programs reach the agent. Without one, our stdin and stdout are its only
            connection to the launcher.
        peer: A socket to the program that has passed us its stdin and stdout for the first connection, or
            None if there is no such program.
    """
    processes.carry_tag(int(arguments["agent"]))
    processes.show_as(f"tf-agent {arguments['host']}")
    # With a lease (a time for which tasks outlive a silent launcher) the agent renews a deadline. Without one
    # the watchdog watches stdin, whose end means that the launcher is gone.
    deadline = None if _patience(arguments).has_no_lease else Deadline()
    watch(partial(_run_agent, arguments, listener, peer, deadline), deadline, peer)


def _patience(arguments: Mapping[str, Any]) -> Patience:
    """Return how long the agent waits for its launcher, according to the arguments of the launcher."""
    outage = float(arguments.get("outage", MIN_OUTAGE_SECONDS))
    return Patience(lease=float(arguments.get("lease", "inf")), outage=outage)


def _run_agent(
    arguments: Mapping[str, Any],
    listener: Optional[socket.socket],
    peer: Optional[socket.socket],
    deadline: Optional[Deadline],
    watchdog_fd: int,
) -> int:
    """Be the agent, in the child of the watchdog.

    Args:
        arguments: The arguments of the launcher, see the top of this module.
        listener: The socket on which programs reach the agent, or None if it has only a pipe.
        peer: A socket to the program that has passed us its stdin and stdout, or None.
        deadline: The deadline that the agent renews, or None if the watchdog watches our stdin instead.
        watchdog_fd: A descriptor that reaches end-of-file when the watchdog exits.

    Returns:
        The exit code.
    """
    from launcher.agent.agent import Agent  # noqa: PLC0415 - the watchdog does not need it

    # The garbage collector need not visit the modules, whose memory is shared with the watchdog.
    gc.freeze()
    selector = selectors.DefaultSelector()
    token, patience = str(arguments.get("token", "")), _patience(arguments)
    connection = LauncherConnection(selector, str(arguments["host"]), listener, token, patience)
    # The streams that a program has passed to us are the first connection, and others may follow.
    # This is so only in a pod.
    if peer is not None:
        connection.use(PassedStreams(peer, os.dup(0), os.dup(1), is_swapped=False))
    # The connection has descriptors of its own by now.
    processes.nothing_on(0, 1)
    agent_id, grace_seconds = int(arguments["agent"]), arguments.get("grace")
    try:
        code = Agent(agent_id, connection, selector, watchdog_fd, deadline, grace_seconds).run()
    except Exception as error:
        # The launcher is told the reason. The watchdog kills the tasks when this process has ended.
        connection.refuse(f"the agent failed: {type(error).__name__}: {error}")
        raise
    # An agent with a pipe runs on the launcher's own machine, where no files were copied.
    if listener is not None:
        # A launcher that is there removes the files itself, after it has fetched results.
        if connection.has_given_up:
            _remove_files(arguments)
        # Processes of earlier launches, whose agents and watchdogs are dead, are ended, too.
        # On its own machine the launcher does this itself.
        sweep.kill_all(sweep.lost, _SWEEP_TIMEOUT_SECONDS)
    return code


def start(arguments: Mapping[str, Any]) -> int:
    """Start the agent as a daemon, and connect to it.

    If the launcher has asked before and the answer got lost, the agent runs already. Then this only connects.

    Args:
        arguments: The arguments of the launcher, see the top of this module.

    Returns:
        The exit status, see `connect`.
    """
    try:
        listener = listen(str(arguments["token"]))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # The agent of this token listens already.
        return connect(arguments)
    # If SIGCHLD was inherited as ignored, children would leave no exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watchdog = processes.fork()
    if watchdog:
        # This is the parent.
        listener.close()
        return connect(arguments, watchdog)
    # This is the child, which becomes the watchdog and never returns.
    try:
        # The daemon must outlive the connection, and so must not hold its streams.
        os.setsid()
        processes.nothing_on(0, 1, 2)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        run(arguments, listener)
    finally:
        # If anything above fails, no code of the parent may run in this child.
        os._exit(0)


def serve(arguments: Mapping[str, Any]) -> NoReturn:
    """Be an agent that listens, under its watchdog, with our stdin and stdout as its first connection.

    Without a lease (a time for which tasks outlive a silent launcher) they are its only connection, and the
    launcher is gone when they are closed. If stdin is closed before the first message, the launcher is gone
    already, and nothing starts.

    Args:
        arguments: The arguments of the launcher, see the top of this module.
    """
    processes.close_inherited()
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    # Only stdin is watched, so its event is the only one.
    _, event = waiting.poll()[0]
    # Without POLLIN, only the end of stdin was reported.
    if not event & select.POLLIN:
        sys.exit(1)
    listener = listen(str(arguments["token"]))
    # A child passes the streams to the agent like any program that connects later.
    if processes.fork() == 0:
        # This child is not the one that listens. It ignores all signals that only the launcher reacts to.
        listener.close()
        processes.leave_to_launcher()
        # Slurm sends SIGTERM to all processes of a step. This one must stay until the agent has reported it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os._exit(connect(arguments))
    run(arguments, listener)


def serve_passed(arguments: Mapping[str, Any]) -> NoReturn:
    """Be an agent that listens, under its watchdog, with the passed stdin and stdout as its first connection.

    Our own stdin is a socket to the program that has passed them, see
    `launcher.backends.bootstrap.waiting_command`.

    Args:
        arguments: The arguments of the launcher, see the top of this module.
    """
    # Before: 0 is the socket to that program, 1 and PASSED_STDIN are the stdout and stdin that it has passed.
    # After: 0 is the stdin that it has passed, `passer` the socket, and 1 is unchanged.
    listener, passer = listen(str(arguments["token"])), socket.socket(fileno=os.dup(0))
    os.dup2(PASSED_STDIN, 0)
    processes.close_inherited(listener.fileno(), passer.fileno())
    run(arguments, listener, passer)


def _remove_files(arguments: Mapping[str, Any]) -> None:
    """Remove the files that were copied to this host, because the launcher is gone and will not do it."""
    # The run is named only if files were copied.
    if "job" not in arguments:
        return
    from launcher.agent.files import discard  # noqa: PLC0415 - only if the launcher is lost

    # What cannot be removed now is removed by a later sync.
    with suppress(OSError, LaunchError):
        discard(str(arguments["job"]))


def connect(arguments: Mapping[str, Any], watchdog: int = 0) -> int:
    """Pass our stdin and stdout to the agent, and wait until it exits or closes them.

    The launcher runs this program on the host (by ssh, for example) for each connection to the agent.

    - The agent does not answer in time, or runs without listening: the launcher may try again.
    - The agent was killed, or has exited: the launcher is told so, and what it left behind is killed.
    - The agent has exited as it should, or uses a newer connection: nothing is left to do.

    Args:
        arguments: ``token`` and ``agent``, and ``swapped`` if bytes to our stdout must pass
            `launcher.common.protocol.swap`.
        watchdog: The pid of the agent's watchdog, its parent, which kills what it leaves behind. 0 if the
            watchdog is not a child of this process.

    Returns:
        1 if the agent cannot be reached. Otherwise this does not return, and the process exits with 0.
    """
    agent_id, is_swapped = int(arguments["agent"]), bool(arguments.get("swapped"))
    try:
        agent_socket = connect_to(str(arguments["token"]), _ACCEPT_TIMEOUT_SECONDS)
    except TimeoutError as error:
        # The launcher will try again.
        sys.stderr.write(f"its agent cannot be reached: {error}\n")
        return 1
    except ConnectionRefusedError:
        # Nobody listens, so the agent is about to exit, or was killed.
        # None means that one of its two processes still runs.
        if _await_end(agent_id, watchdog) is None:
            sys.stderr.write("its agent runs, and does not listen\n")
            return 1
        sweep.kill_leftovers(agent_id, _KILL_TIMEOUT_SECONDS)
        _refuse("its agent exited while the connection was down", is_swapped=is_swapped)
        return 1
    # The socket is reset if the agent has exited, or has accepted a newer connection.
    with suppress(OSError):
        pass_streams(agent_socket, is_swapped=is_swapped)
        _await_close(agent_socket)
    # 1 means that the agent and its watchdog were killed, and 0 that they have ended as they should. None
    # means that the agent runs: it has closed the connection itself.
    if _await_end(agent_id, watchdog) == 1:
        sweep.kill_leftovers(agent_id, _KILL_TIMEOUT_SECONDS)
        # The launcher may be gone, too.
        with suppress(OSError):
            _refuse("the agent was killed", is_swapped=is_swapped)
    # The launcher may wait for this, and Python's own exit takes some milliseconds.
    os._exit(0)


def _await_close(agent_socket: socket.socket) -> None:
    """Wait until the agent has closed our stdin and stdout.

    After the end of stdin this waits at most `2 * _ACCEPT_TIMEOUT_SECONDS` longer.

    Args:
        agent_socket: A socket to the agent, which never writes to it.

    Raises:
        OSError: The agent has reset the socket, or has not closed it in time.
    """
    # The agent closes its socket, or the launcher closes the other end of our stdin.
    waiting = select.poll()
    waiting.register(agent_socket, select.POLLIN)
    waiting.register(0, select.POLLRDHUP)
    waiting.poll()
    # The agent notices the end of stdin, too, and then closes the socket.
    agent_socket.settimeout(2 * _ACCEPT_TIMEOUT_SECONDS)
    # The agent never writes, so this returns only at the end.
    agent_socket.recv(1)


def _await_end(agent_id: int, watchdog: int) -> Optional[int]:
    """Wait a while until the agent and its watchdog have ended.

    Args:
        agent_id: The number of the agent, which is in the tags of both.
        watchdog: The pid of the watchdog, the parent of the agent, if it is a child of this process.
            Otherwise 0.

    Returns:
        0 if the watchdog has reported that no process of the agent is left. 1 if both have ended without
        such a report. None if one of them still runs.
    """
    # The pause grows, because most agents end at once.
    until, pause = time.monotonic() + _ACCEPT_TIMEOUT_SECONDS, _FIRST_POLL_SECONDS
    while time.monotonic() < until:
        if watchdog:
            pid, status = os.waitpid(watchdog, os.WNOHANG)
            if pid and status == 0:
                return 0
            # If the watchdog was killed, the agent may still be stopping its tasks. Then tags tell its end.
            if pid:
                watchdog = 0
        # A process with the tag of the agent or its watchdog is one of the two.
        if not watchdog and not sweep.is_looked_after(sweep.tagged().get(agent_id, [])):
            return 1
        time.sleep(pause)
        pause *= 2
    return None


def _refuse(why: str, *, is_swapped: bool) -> None:
    """Tell the launcher, on our stdout, why there is no agent."""
    # The agent has set stdout to non-blocking.
    os.set_blocking(1, True)
    frame = b"".join(encode(Refused(why)))
    write_all(1, swap(frame) if is_swapped else frame)
