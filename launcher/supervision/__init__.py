"""What decides, pure: facts in, orders out; no clock, no thread, no process.

``machine`` follows the tasks, ``policy`` says what one task's end means for the job, ``stopping`` builds
the stop ladders, ``wording`` tells the user, ``reporting`` writes it all down at the end.
"""

from launcher.supervision.machine import InvalidTransition, Machine, Phase

__all__ = ["InvalidTransition", "Machine", "Phase"]
