"""Calls code of the user's in a thread of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import FeedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")


def read_by(call: Callable[[], Result]) -> Result:
    """What it returns.

    Raises:
        FeedError: it ends with what would end a program: SystemExit, the outcome of a test. That would end
            the thread, and nobody would know.
        Exception: whatever else it raises.
    """
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        raise FeedError(f"reading the rows ended with {type(error).__name__}: {error}") from error
