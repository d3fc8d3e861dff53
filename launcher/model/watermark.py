"""The watermark: a number that every process of a task carries, whatever it does to get away.

Resource limits are inherited through fork, exec and setsid, and no cleared environment washes them
out. So the agent starts each task with a soft limit on something that limits nobody (realtime
scheduling without a pause, in microseconds: the numbers used here are beyond 100,000 years), and that
number says whose it is. Everybody may read it, in ``/proc/PID/limits``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Optional

#: Keeps clear of numbers that mean something; the sum stays below 2**63, which is all Python passes on.
_BASE = 5 << 60
#: Tasks that one agent can start, as a power of two, and agents that can be told apart.
_TASK_BITS = 24
_AGENT_BITS = 36


def agent_number(seed: int) -> int:
    """A number for an agent, from a random one of any size."""
    return seed % (1 << _AGENT_BITS)


def watermark(agent: int, ordinal: int) -> int:
    """The watermark of what is the ``ordinal``-th process started by this agent."""
    return _BASE + (agent << _TASK_BITS) + ordinal % (1 << _TASK_BITS)


def is_of_agent(number: int, agent: int) -> bool:
    """Whether this watermark (any number) is one that this agent gave."""
    return number >> _TASK_BITS == (_BASE >> _TASK_BITS) + agent


def agent_of(number: int) -> Optional[int]:
    """The agent that gave this watermark (any number); ``None``: it is none."""
    agent = (number >> _TASK_BITS) - (_BASE >> _TASK_BITS)
    return agent if 0 <= agent < 1 << _AGENT_BITS else None


def ordinal_of(number: int) -> int:
    """Which process of its agent carries this watermark; 0: the agent itself, or what guards it."""
    return number % (1 << _TASK_BITS)


def read_watermark(limits: bytes) -> int:
    """The number in a ``/proc/PID/limits``; 0 if there is none.

    The line is ``Max realtime timeout      5764607523034234881    unlimited    us``.
    """
    words = limits.partition(b"Max realtime timeout ")[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0
