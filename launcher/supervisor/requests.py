"""Handles requests to stop the job or some of its tasks: by a signal, ``launch stop``, or a time limit.

The machine calls it with `events.StopAsked`, `events.TaskStopAsked`, and the timer of ``--timeout``. The
first request lets the tasks exit; a second one of the same kind kills what is left.
"""

from __future__ import annotations

from launcher.common import events
from launcher.common.report import Failure, Reason
from launcher.common.text import join_names, plural
from launcher.stop_requests import LIMIT_NOTICES, TIMED_OUT_EXIT_CODE, StopRequest
from launcher.supervisor import describe, describe_stalls, restarting
from launcher.supervisor.commands import CloseLink, Timer, TimerKind
from launcher.supervisor.ending import continue_or_stop, finish_if_closed, send_stops, stop, stop_tasks
from launcher.supervisor.records import ACTIVE_STATES, HostState
from launcher.supervisor.silence import has_ended
from launcher.supervisor.state import IMMEDIATE_STOP_SEQUENCE, JobState, Phase, longest_stop

#: How long an agent may take to answer that it kills its tasks.
_KILL_ANSWER_SECONDS = 1.0
#: How much longer than the time of tasks after SIGTERM an agent may take to answer that it stops its tasks.
_STOP_ANSWER_MARGIN_SECONDS = 3.0


def handle_stop_asked(state: JobState, event: events.StopAsked) -> None:
    """Stop the job, because the user or what runs this launch asks for it.

    - The first request stops the tasks by SIGTERM, and later by SIGKILL, whoever sends it. The job then fails
      by this request, unless it was done and only waited for tasks that may finish (DRAINING).
    - ``launch stop --now`` (`at_once`) also kills the tasks.
    - A further request is handled in another way: when a person sends the same signal again, the tasks are
      killed, see `StopRequests`.
    """
    request = state.stop_requests.add(event.signal, event.at)
    # A system may send the same signal more than once for one request, as `timeout` and Slurm do.
    if request is StopRequest.SAME and not event.at_once:
        return
    if state.phase in (Phase.STOPPING, Phase.CLOSING):
        _handle_further_request(state, event, is_repeated=request is StopRequest.AGAIN)
        return
    text = describe.orderly_stop(state, event)  # It describes the phase and the tasks before the stop.
    if state.phase is not Phase.DRAINING:  # A job that drains is done, so it succeeds all the same.
        _fail_by_request(state, event)
    state.tell(text)
    _stop_and_expect_answers(state)
    if event.at_once and state.tasks.not_gone:
        _kill(state, event.who)


def _fail_by_request(state: JobState, event: events.StopAsked) -> None:
    """Let a request to stop be the failure of the job.

    A signal with which a queue announces its time limit counts as that limit.
    """
    reason, exit_code = Reason.INTERRUPTED, 128 + event.signal
    if event.signal in LIMIT_NOTICES:
        reason, exit_code = Reason.TIMEOUT, TIMED_OUT_EXIT_CODE
    text = f"stopped by {event.who}"
    state.fail(Failure(reason=reason, task=None, host=None, at=event.at, text=text), exit_code)


def _handle_further_request(state: JobState, event: events.StopAsked, *, is_repeated: bool) -> None:
    """Handle one more request to stop a job that stops already.

    - The notice of a time limit, which a queue sends by itself, changes nothing.
    - ``launch stop --now``, or the same signal of a person again, kills the tasks that are left. If none is
      left, it abandons the agents that still close.
    - Any other request is answered with what the job waits for.

    Args:
        state: The state of the job.
        event: The request.
        is_repeated: Whether a person has sent the same signal again, and wants the job to end at once.
    """
    if event.signal in LIMIT_NOTICES:  # Nobody waits for an answer to the notice of a time limit.
        return
    if event.at_once or is_repeated:
        who = f"{event.who} again" if is_repeated else event.who
        if state.phase is Phase.STOPPING:
            _kill(state, who)
        else:  # No task is left, only agents that close.
            _abandon_agents(state, event, who)
        return
    # The job stops for another reason, such as a failure, so its agents had no limit until now.
    if state.phase is Phase.STOPPING and not state.answer_seconds:
        _expect_answers_to_stop(state)
    # Only a person, who may send the same signal again to kill the tasks, is told what the job waits for.
    if state.stop_requests.can_repeat(event.signal) and not state.is_immediate:
        state.tell(describe.stop_continues(state, event))


def handle_task_stop_asked(state: JobState, event: events.TaskStopAsked) -> None:
    """Stop tasks for good, because the user asks for it (``launch stop RUN TASK``).

    They have the usual time to end, which is no failure, however they end. The others go on, and neither the
    end of the job nor a restart includes these tasks. Tasks that have ended, or that the user has stopped
    before, stay as they are.
    """
    if state.phase not in (Phase.RUNNING, Phase.DRAINING):
        state.tell("cannot stop single tasks: the job is not running")
        return
    known = state.tasks.in_order(set(event.tasks) & state.tasks.keys())
    records = [record for record in known if not (record.is_dismissed or has_ended(state, record.task))]
    if not records:
        return
    for record in records:
        record.is_dismissed = True
    restarting.leave_out(state, records, event.at)
    state.tell(describe.task_stop(state, records))
    stop_tasks(state, records, cause="the user stops it")
    continue_or_stop(state)


def handle_job_timer(state: JobState, timer: Timer, at: float) -> None:
    """Stop the job, because its time limit (``--timeout``) is over."""
    if state.phase not in (Phase.STARTUP, Phase.RUNNING, Phase.DRAINING):  # The job stops already.
        return
    state.tell(f"the time limit of {describe.job_time_limit(state)} is over: {describe.stop(state)}")
    if state.phase is not Phase.DRAINING:  # A job that drains is done, so it succeeds all the same.
        hint = describe_stalls.hint_at_timeout(state)
        state.fail(describe.timeout(state, at, hint), TIMED_OUT_EXIT_CODE)
    _stop_and_expect_answers(state)


def _stop_and_expect_answers(state: JobState) -> None:
    """Stop the job. If tasks are left, limit how long their agents may take to answer that they stop them."""
    stop(state)
    if state.phase is Phase.STOPPING:
        _expect_answers_to_stop(state)


def _expect_answers_to_stop(state: JobState) -> None:
    """Limit how long agents may take to answer that they stop their tasks: a little more than ``--grace``."""
    _expect_answers(state, max(0.0, state.policy.grace) + _STOP_ANSWER_MARGIN_SECONDS)


def _expect_answers(state: JobState, seconds: float) -> None:
    """Limit how long each host with tasks may take to answer. A host that takes longer is lost.

    Without the limit the job would wait until the lease of a silent host is over, the longer time without a
    message after which every host counts as lost.
    """
    for task in state.tasks.not_gone:
        state.hosts[state.tasks[task].host].owes_answer = True
    state.answer_seconds = seconds  # The message about a host that is late contains it.
    state.set_timer(TimerKind.ANSWER, seconds)


def _kill(state: JobState, who: str) -> None:
    """Kill the tasks that are left. If they are being killed already, only say what the job waits for.

    Args:
        state: The state of the job.
        who: Who asks for it, for the message.
    """
    if state.is_immediate:  # The tasks were killed at an earlier request.
        state.tell(f"{who}: the tasks were killed; {describe.wait(state)}")
        return
    state.is_immediate = True
    tasks = plural(len(state.tasks.not_gone), "task")
    state.tell(f"{who}: killing what is left of {tasks} at once")
    state.set_timer(TimerKind.END, longest_stop(IMMEDIATE_STOP_SEQUENCE))
    _expect_answers(state, _KILL_ANSWER_SECONDS)
    send_stops(state, state.tasks.in_order(state.tasks.not_gone), IMMEDIATE_STOP_SEQUENCE)


def _abandon_agents(state: JobState, event: events.StopAsked, who: str) -> None:
    """End the job without the agents that have not closed yet. No task is left on their hosts."""
    state.is_immediate = True
    agents = state.hosts.names(*ACTIVE_STATES)
    state.tell(f"{who}: not waiting for the agent on {join_names(agents)} to close")
    for host in agents:
        state.hosts[host].transition_to(HostState.LOST, event)
        state.emit(CloseLink(host))
    finish_if_closed(state)
