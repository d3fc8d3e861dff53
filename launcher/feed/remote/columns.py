"""Rows -> columns by name, as an ``input_mapping`` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import FeedError
from launcher.feed.remote.blocks import is_array, join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from launcher.feed.remote.blocks import Block


def columns(pieces: Sequence[Block], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The rows of some blocks as one column for each name.

    Args:
        pieces: blocks; none makes empty columns.
        mapping: ``{column: name}``, in the order in which rows without names have their columns.

    Raises:
        FeedError: the rows do not have those columns.
    """
    if not pieces:
        return {name: [] for name in mapping.values()}
    block = join(pieces)
    try:
        return _columns(block, mapping)
    except (KeyError, IndexError, TypeError) as error:
        raise FeedError(
            f"the rows fed do not have the columns {', '.join(mapping)} of the input_mapping: "
            f"{type(error).__name__}: {error}"
        ) from error


def _columns(block: Block, mapping: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(block, dict):
        return {name: block[column] for column, name in mapping.items()}
    if isinstance(block, tuple):
        return {name: block[place] for place, name in enumerate(mapping.values())}
    if is_array(block):
        return _of_array(block, list(mapping.values()))
    if isinstance(block[0], dict):
        return {name: [row[column] for row in block] for column, name in mapping.items()}
    return {name: [row[place] for row in block] for place, name in enumerate(mapping.values())}


def _of_array(block: Any, names: Sequence[str]) -> dict[str, Any]:
    """A column for each name along the second axis; a single name can also mean rows as they are."""
    if len(names) == 1 and (block.ndim == 1 or block.shape[1] != 1):
        return {names[0]: block}
    return {name: block[:, place] for place, name in enumerate(names)}
