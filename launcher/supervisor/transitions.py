"""Records that have a state, and the changes of it that are possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

#: Changes of a state that are kept.
_MAX_HISTORY = 100


class InvalidTransitionError(Exception):
    """An impossible change of a state: a fault of the launcher. The text has the history of the record."""


class StateRecord:
    """A record with a state, which is a member of an enumeration.

    Args:
        name: of what it is the record, for messages.
        state: the first one.
        transitions: every possible change of the state; any other is a fault of the launcher.
    """

    def __init__(self, name: str, state: Any, transitions: Mapping[Any, Sequence[Any]]) -> None:
        self._name, self._transitions = name, transitions
        self.state: Any = state
        self._history: deque[tuple[Any, Any, object]] = deque(maxlen=_MAX_HISTORY)

    def transition_to(self, state: Any, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransitionError: there is no such change.
        """
        self._history.append((self.state, state, cause))
        if state not in self._transitions.get(self.state, ()):
            changes = [f"{old.value} -> {new.value}: {why}" for old, new, why in self._history]
            raise InvalidTransitionError(f"{self._name}: {'; '.join(changes)}")
        self.state = state
