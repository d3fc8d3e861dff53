"""Supervises one job. Pure: events in, commands out; no clock, no thread, no process.

`machine` dispatches each event, and handles those of the user and of timers; `host_events` and
`task_events` handle the others. They change one `state.JobState`; `tasks` has the record of each task.
"""

from launcher.supervisor.machine import InvalidTransition, Machine, Phase
from launcher.supervisor.stalls import TIMER as SILENCE_TIMER

__all__ = ["SILENCE_TIMER", "InvalidTransition", "Machine", "Phase"]
