"""What TensorFlow prints at every start, which says nothing about a failure. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: Of each line, what no other line has; TensorFlow 2.4 to 2.21.
_NOTICES = (
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on. You may see slightly different numerical results",
    "This TensorFlow binary is optimized ",
    "in other operations, rebuild TensorFlow with the appropriate compiler flags.",
    "Could not find cuda drivers on your machine, GPU will not be used.",
    "TF-TRT Warning: Could not find TensorRT",
    "factory: Attempting to register factory for plugin cu",
    "computation placer already registered. Please check linkage",
)


def without_notices(lines: Sequence[str]) -> list[str]:
    """The lines that are the program's own, or TensorFlow's about this run."""
    return [line for line in lines if not any(notice in line for notice in _NOTICES)]
