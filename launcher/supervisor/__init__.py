"""The supervisor of one job: a state machine that turns events into commands.

It is pure: it knows no clock, no thread and no process, so a test can replay any history of a job.
`launcher.launch.orchestrator` calls it, passes it the events, and executes the commands.

`machine` is the place to start: its tables say which function handles which event. The handlers change one
`state.JobState`, whose `records` contain all that is known about each task and each host, and emit
`commands`. `restart_policy` decides what starts again, and `restarting` does it. `ending` stops the job,
`silence` finds tasks that hang, and `describe` contains the words for the user.
"""

from launcher.supervisor.commands import Timer, TimerKind
from launcher.supervisor.machine import Machine
from launcher.supervisor.records import InvalidTransitionError
from launcher.supervisor.state import JobState, Phase

__all__ = ["InvalidTransitionError", "JobState", "Machine", "Phase", "Timer", "TimerKind"]
