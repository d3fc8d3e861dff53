"""How long workers may go on when the chief is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launcher.api.members import Member
from launcher.feed.waiting import Waiting
from launcher.text import listed

#: Seconds that they may. With parameter servers they may be servers, too, and never return
#: (``ParameterServerStrategy``); else they are just finishing.
WITH_PS, WITHOUT_PS = 5.0, 600.0
#: Seconds between two looks at how far they are.
_LOOK = 0.02


def until_returned(
    chief: str,
    workers: Sequence[Member],
    patience: Callable[[], float],
    hopeless: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Wait until the function has returned in all workers, or has been given long enough.

    Args:
        chief: its name.
        workers: the others that train.
        patience: seconds; asked again and again.
        hopeless: whether there is nothing to wait for any more.
        say: takes a remark, if it takes long.
    """
    waiting = Waiting()
    while going := [one.name for one in workers if not (one.replied.is_set() or one.ended.is_set())]:
        left = patience() - waiting.seconds
        if left < 0 or hopeless():
            return
        if begun := waiting.due():
            more = "shutdown(grace_secs=) allows longer"
            say(f"{chief} is done; {begun} {listed(going)} to return (at most {left:.0f} s; {more})")
        time.sleep(_LOOK)
