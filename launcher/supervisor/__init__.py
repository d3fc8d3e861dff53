"""Supervises one job. Pure: events in, commands out; no clock, no thread, no process.

`machine` passes each event to the module that handles it: `startup` (agents come up), `task_events`,
`host_events`, `requests` (the user and timers). They change one `state.JobState`; `ending` brings the end of
the job about. `tasks`, `hosts` and `draining` hold what is known, `stopping` has the stop sequences,
`messages` the texts.
"""

from launcher.supervisor.machine import InvalidTransition, Machine, Phase

__all__ = ["InvalidTransition", "Machine", "Phase"]
