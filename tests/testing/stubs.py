"""Commands for the tasks of these tests."""

from __future__ import annotations

#: Counts for ever, ten times a second.
COUNTS = ["sh", "-c", "n=0; while :; do n=$((n+1)); echo step $n; sleep 0.1; done"]

#: The same by a child, which is in a session of its own.
CHILD_COUNTS = ["sh", "-c", f"setsid sh -c '{COUNTS[2]}' & wait"]

#: Says the name of each file that comes into its folder, in this order; the last one half a second later.
_RING = "until test -e {0}; do sleep 0.05; done"
_RUNG = "; ".join(f"{_RING.format(name)}; echo {name}" for name in ("first", "second"))
RINGS = ["sh", "-c", f"{_RUNG}; {_RING.format('late')}; sleep 0.5; echo late; exec sleep 600"]

#: Says so and sleeps.
SLEEPS = ["sh", "-c", "echo asleep; exec sleep 600"]
