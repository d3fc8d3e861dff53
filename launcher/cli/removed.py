"""What ``launch clean`` says of what it found."""

from __future__ import annotations

from collections.abc import Sequence


def show(dry_run: bool, found: Sequence[tuple[str, str]], faults: Sequence[str]) -> None:
    """Say what is gone now, or would be.

    Args:
        dry_run: nothing was removed.
        found: what there was, and whose faults would keep it: they begin with that and a colon.
        faults: those.
    """
    for thing, whose in found:
        if not any(fault.startswith(f"{whose}:") for fault in faults):
            print(f"{'would remove' if dry_run else 'removed'} {thing}")
    if not found:
        print("nothing is left")
