"""Supervises one job. Pure: events in, commands out; no clock, no thread, no process.

`machine` is the place to start: it says which function handles which event. The handlers change one
`state.JobState`, whose `records` say all that is known about each task and each host, and emit `commands`.
`restart_policy` decides what starts again, and `restarting` does it. `ending` stops the job, `silence` finds
tasks that hang, and `describe` has the words for the user.
"""

from launcher.supervisor.commands import Timer, TimerKind
from launcher.supervisor.machine import Machine
from launcher.supervisor.records import InvalidTransitionError
from launcher.supervisor.state import JobState, Phase

__all__ = ["InvalidTransitionError", "JobState", "Machine", "Phase", "Timer", "TimerKind"]
