"""Supervises one job. Pure: events in, commands out; no clock, no thread, no process.

`machine` passes each event to the module that handles it: `host_events`, `task_events`, `requests` (the user
and timers). They change one `state.JobState`; `ending` brings the end of the job about. `tasks` has what is
known of each task.
"""

from launcher.supervisor.machine import InvalidTransition, Machine, Phase

__all__ = ["InvalidTransition", "Machine", "Phase"]
