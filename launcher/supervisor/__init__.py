"""Supervises one job. Pure: events in, commands out; no clock, no thread, no process.

`machine` dispatches each event. `host_events`, `task_events` and `requests` (of the user) handle them; timers
are handled where they are set. All change one `state.JobState`; `hosts` and `tasks` have the record of each.
"""

from launcher.supervisor.machine import Machine
from launcher.supervisor.records import InvalidTransitionError
from launcher.supervisor.stalls import SILENCE_TIMER as SILENCE_TIMER
from launcher.supervisor.state import JobState, Phase

__all__ = ["SILENCE_TIMER", "InvalidTransitionError", "JobState", "Machine", "Phase"]
