"""A porter whose host was brought files: whoever ends the job without the launcher removes them too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from launcher.agent import porter
from launcher.agent.trees import Failed, discard

if TYPE_CHECKING:
    from typing import Any, Callable, Mapping


def main(arguments: Mapping[str, Any]) -> int:
    """See `launcher.agent.porter.main`; ``job`` is the run whose folders are removed if nobody else does."""
    return porter.main(arguments, abandoned(arguments))


def abandoned(arguments: Mapping[str, Any]) -> Callable[[], None]:
    """What is left to be done where no launcher saw the end; nothing where no files were brought."""
    return partial(_clear, str(arguments["job"])) if "job" in arguments else _nothing


def _nothing() -> None:
    """Nothing was brought."""


def _clear(job: str) -> None:
    try:
        discard(job)
    except (OSError, Failed):  # the next sync there tries again
        return
