"""What decides, pure: facts in, orders out; no clock, no thread, no process.

``machine`` hands each fact to who decides: ``agentfacts`` and ``taskfacts`` follow agents and tasks,
``wishes`` hears the user and the clock, ``ending`` brings the job's end about, ``draining`` says who may take
some time for it. All of them look at one ``jobstate``. ``policy`` says what one task's end means for the job,
``stopping`` builds the stop ladders, ``wording`` tells the user.
"""

from launcher.supervision.machine import InvalidTransition, Machine, Phase

__all__ = ["InvalidTransition", "Machine", "Phase"]
