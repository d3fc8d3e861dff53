"""How an agent starts, and how a launcher connects to one that runs.

==============  ======================================================================================
`run`           here: the agent with a pipe, our stdin and stdout; on the launcher's own machine
`start`         on another machine: the agent as a daemon, then `connect`
`serve`         in a container: the agent as the main process; our stdin and stdout are its first
                connection, and it listens like a daemon
`serve_passed`  in a pod: the same, but another program has passed us its stdin and stdout
`connect`       passes our stdin and stdout to the agent that listens, and waits until it closes them
==============  ======================================================================================

Each takes a mapping with ``host`` (its name in the plan) and ``agent`` (its number, for process tags). All
but `run` also take ``token``, ``lease`` in seconds, and ``job`` if files were copied to the host: these
files are removed if the launcher does not come back. In a pod there is also ``grace``: the seconds that tasks
get if the agent is sent SIGTERM; and ``outage``, see `launcher.agent.connection.Patience`. A launcher of the
same version sends these modules, and names these functions.
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

# Limits for killing processes that earlier runs left, and those of an agent that died with its watchdog.
_SWEEP_TIMEOUT_SECONDS = 2.0
_KILL_TIMEOUT_SECONDS = 5.0
# This machine may be busy.
_ACCEPT_TIMEOUT_SECONDS = 10.0
# Each pause is twice as long as the one before.
_FIRST_POLL_SECONDS = 0.002


def run(
    arguments: Mapping[str, Any],
    listener: Optional[socket.socket] = None,
    peer: Optional[socket.socket] = None,
) -> NoReturn:
    """Be the agent under its watchdog.

    Args:
        arguments: What the launcher says, see above.
        listener: The socket on which programs reach the agent. Without it the agent has a pipe.
        peer: A socket to the program that passed us its stdin and stdout, which are the first connection.
    """
    processes.carry_tag(int(arguments["agent"]))
    processes.show_as(f"tf-agent {arguments['host']}")
    deadline = None if _patience(arguments).has_no_lease else Deadline()
    watch(partial(_run_agent, arguments, listener, peer, deadline), deadline, peer)


def _patience(arguments: Mapping[str, Any]) -> Patience:
    outage = float(arguments.get("outage", MIN_OUTAGE_SECONDS))
    return Patience(lease=float(arguments.get("lease", "inf")), outage=outage)


def _run_agent(
    arguments: Mapping[str, Any],
    listener: Optional[socket.socket],
    peer: Optional[socket.socket],
    deadline: Optional[Deadline],
    watchdog: int,
) -> int:
    """Be the agent, in the child of the watchdog.

    Args:
        arguments, listener, peer: See `run`.
        deadline: What the agent renews for its watchdog; None if the watchdog watches our stdin.
        watchdog: A descriptor that reaches end-of-file when the watchdog exits.

    Returns:
        The exit code.
    """
    from launcher.agent.agent import Agent  # noqa: PLC0415 - the watchdog does not need it

    gc.freeze()
    selector = selectors.DefaultSelector()
    token, patience = str(arguments.get("token", "")), _patience(arguments)
    connection = LauncherConnection(selector, str(arguments["host"]), listener, token, patience)
    if peer is not None:
        connection.use(PassedStreams(peer, os.dup(0), os.dup(1), is_swapped=False))
    processes.nothing_on(0, 1)
    agent_id, grace = int(arguments["agent"]), arguments.get("grace")
    try:
        code = Agent(agent_id, connection, selector, watchdog, deadline, grace).run()
    except Exception as error:
        connection.refuse(f"the agent failed: {type(error).__name__}: {error}")
        raise
    if listener is not None:
        if connection.has_given_up:
            _remove_files(arguments)
        sweep.kill_all(sweep.lost, _SWEEP_TIMEOUT_SECONDS)
    return code


def start(arguments: Mapping[str, Any]) -> int:
    """Start the daemon, and connect to it.

    It lives already if the answer to an earlier request got lost.
    """
    try:
        listener = listen(str(arguments["token"]))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return connect(arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, children leave no exit status
    watchdog = processes.fork()
    if watchdog:
        listener.close()
        return connect(arguments, watchdog)
    try:
        os.setsid()
        processes.nothing_on(0, 1, 2)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        run(arguments, listener)
    finally:
        os._exit(0)


def serve(arguments: Mapping[str, Any]) -> NoReturn:
    """Be an agent that listens, under its watchdog. Our stdin and stdout are its first connection.

    Without a lease, they are its only one: their end is the end of the launcher.

    Without a first message on stdin the launcher is gone. Then nothing starts.
    """
    processes.close_inherited()
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    if not waiting.poll()[0][1] & select.POLLIN:
        sys.exit(1)
    listener = listen(str(arguments["token"]))
    if processes.fork() == 0:
        listener.close()
        processes.leave_to_launcher()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to a step: the agent reports that
        os._exit(connect(arguments))
    run(arguments, listener)


def serve_passed(arguments: Mapping[str, Any]) -> NoReturn:
    """Be an agent that listens, under its watchdog. Its first connection is the passed stdin and stdout.

    See `launcher.backends.bootstrap.waiting`.
    """
    listener, passer = listen(str(arguments["token"])), socket.socket(fileno=os.dup(0))
    os.dup2(PASSED_STDIN, 0)
    processes.close_inherited(listener.fileno(), passer.fileno())
    run(arguments, listener, passer)


def _remove_files(arguments: Mapping[str, Any]) -> None:
    """Remove the files that were copied here, because no launcher has seen the end of the job."""
    if "job" not in arguments:
        return
    from launcher.agent.files import discard  # noqa: PLC0415 - only if the launcher is lost

    with suppress(OSError, LaunchError):  # the next sync there tries again
        discard(str(arguments["job"]))


def connect(arguments: Mapping[str, Any], watchdog: int = 0) -> int:
    """Pass our stdin and stdout to the agent, and wait until it exits or closes them.

    If the agent was killed, report that, and kill the processes that it left.

    Args:
        arguments: ``token`` and ``agent``, and ``swapped`` if bytes to our stdout must pass
            `launcher.common.protocol.swap`.
        watchdog: The watchdog of the agent, if that is a child of this process, otherwise 0.

    Returns:
        1 if the agent cannot be reached. Otherwise it does not return: this process exits with 0.
    """
    agent_id, is_swapped = int(arguments["agent"]), bool(arguments.get("swapped"))
    try:
        agent = connect_to(str(arguments["token"]), _ACCEPT_TIMEOUT_SECONDS)
    except TimeoutError as error:  # the launcher tries again
        sys.stderr.write(f"its agent can't be reached: {error}\n")
        return 1
    except ConnectionRefusedError:
        if _await_end(agent_id, watchdog) is None:
            sys.stderr.write("its agent runs, and does not listen\n")
            return 1
        sweep.kill_leftovers(agent_id, _KILL_TIMEOUT_SECONDS)
        _refuse("its agent exited while the connection was down", is_swapped=is_swapped)
        return 1
    with suppress(OSError):  # a reset: it has exited, or has taken a newer connection
        pass_streams(agent, is_swapped=is_swapped)
        _await_close(agent)
    if _await_end(agent_id, watchdog):  # else nothing is left, or the agent runs on
        sweep.kill_leftovers(agent_id, _KILL_TIMEOUT_SECONDS)
        with suppress(OSError):  # the launcher is gone, too
            _refuse("the agent was killed", is_swapped=is_swapped)
    os._exit(0)  # the launcher may wait for this: Python's own exit takes some milliseconds


def _await_close(agent: socket.socket) -> None:
    """Wait until the agent has closed our stdin and stdout, but not for long after the end of stdin."""
    waiting = select.poll()
    waiting.register(agent, select.POLLIN)
    waiting.register(0, select.POLLRDHUP)
    waiting.poll()
    agent.settimeout(2 * _ACCEPT_TIMEOUT_SECONDS)
    agent.recv(1)


def _await_end(agent_id: int, watchdog: int) -> Optional[int]:
    """Wait for the end of the agent and its watchdog.

    Returns:
        0 if the watchdog has reported that no process of the agent is left; 1 if both have ended without
        that; None if one of them still runs.
    """
    until, pause = time.monotonic() + _ACCEPT_TIMEOUT_SECONDS, _FIRST_POLL_SECONDS
    while time.monotonic() < until:
        if watchdog:
            pid, status = os.waitpid(watchdog, os.WNOHANG)
            if pid and status == 0:
                return 0
            if pid:  # it was killed: the agent may be ending its tasks
                watchdog = 0
        if not watchdog and not sweep.is_looked_after(sweep.tagged().get(agent_id, [])):
            return 1
        time.sleep(pause)
        pause *= 2
    return None


def _refuse(why: str, *, is_swapped: bool) -> None:
    os.set_blocking(1, True)  # the agent has set it to non-blocking
    frame = b"".join(encode(Refused(why)))
    write_all(1, swap(frame) if is_swapped else frame)
