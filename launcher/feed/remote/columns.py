"""Columns of fed rows, for the ``input_mapping`` of a `DataFeed` and for the signature of a dataset.

`launcher.feed.remote.data_feed` calls this in tasks. It must never exchange columns: where it is not certain
which column is meant, it raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.common.errors import InputError
from launcher.common.text import plural
from launcher.feed.remote import codec
from launcher.feed.remote.codec import Block

#: What a dataset expects, for messages.
_EXPECTED_ROWS = "rows as in output_signature"


def named_columns(blocks: Sequence[Block], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of some blocks as columns, one for each name of an ``input_mapping``.

    Args:
        blocks: The blocks. There may be none.
        mapping: The name of each column in the result, by its name in the rows.

    Returns:
        The columns by their names: lists, or arrays if the blocks are arrays.

    Raises:
        InputError: The rows do not have those columns, or it is not certain which column is which.
    """
    if not blocks:
        return {name: [] for name in mapping.values()}
    block = codec.join(blocks)
    # Rows with names are dicts, named tuples or structured arrays.
    if _have_names(block):
        expected = f"the columns {', '.join(map(str, mapping))} of the input_mapping"
        return {name: _named_column(block, key, expected) for key, name in mapping.items()}
    # Rows that are no tuples are the values of the only column.
    if len(mapping) == 1 and _are_values(block):
        return dict.fromkeys(mapping.values(), block)
    _check_unnamed(block, mapping)
    # After this check each column is there, so no message about a missing one needs to say what is expected.
    return {name: _column_at(block, place, expected="") for place, name in enumerate(mapping.values())}


def _check_unnamed(block: Block, mapping: Mapping[str, str]) -> None:
    """Check that rows without names have the columns of an ``input_mapping``, in a certain order.

    TensorFlowOnSpark sorts the mapping, and its users may as well mean the order in which they write it. So
    only a mapping that is sorted is certain.

    Args:
        block: The rows.
        mapping: The ``input_mapping``: the name of each column for the user, by its name in the rows.

    Raises:
        InputError: The rows have more or fewer columns, or the mapping is in another order.
    """
    names = ", ".join(map(str, mapping))
    # All rows of an array have the same form. A tuple of columns stands for its rows.
    rows = [block] if isinstance(block, tuple) else block if isinstance(block, list) else block[:1]
    for row in rows:
        if not _has_columns(row):
            raise codec.refused(f"{row!r:.80} has no columns", f"{names}, as in the input_mapping")
    if wrong := _widths(block) - {len(mapping)}:
        columns = plural(min(wrong), "column")
        text = f"rows of {columns} without names, and an input_mapping of {len(mapping)}: {names}"
        raise codec.refused(text, "rows of just these columns, or rows with names (dicts, named tuples)")
    ordered = dict(sorted(mapping.items()))
    if list(ordered) != list(mapping):
        text = f"rows without names, and an input_mapping that is not sorted: {names}"
        advice = "rows whose columns are in this order, or rows with names (dicts, named tuples)"
        raise codec.refused(text, f"it sorted, {ordered}, with {advice}")


def _have_names(block: Block) -> bool:
    """Return whether the columns of the rows of a block have names.

    Raises:
        InputError: Some rows have names, and others do not.
    """
    samples = [block]
    if isinstance(block, list):
        # Rows of one type are alike.
        samples = block if len({*map(type, block)}) > 1 else block[:1]
    answers = {_has_names(row) for row in samples}
    if len(answers) > 1:
        raise codec.refused("rows with and without names in one batch", "one of them, for an input_mapping")
    return answers.pop()


def _has_names(row: Any) -> bool:
    """Return whether the columns of a row have names: in a dict, a named tuple or a structured array."""
    # The type of a structured array, or of a record in one, has names.
    dtype = getattr(row, "dtype", None)
    return isinstance(row, Mapping) or hasattr(row, "_fields") or getattr(dtype, "names", None) is not None


def _has_columns(row: Any) -> bool:
    """Return whether a row consists of several values: a tuple, a list or an array."""
    return isinstance(row, (tuple, list)) or codec.is_array(row)


def _widths(block: Block) -> set[int]:
    """Return the numbers of columns that the rows of a block have. Rows without columns do not count."""
    if codec.is_array(block):
        return {block.shape[1]} if block.ndim > 1 else set()
    rows = block if isinstance(block, list) else [block]
    return {len(row) for row in rows if _has_columns(row)}


def _are_values(block: Block) -> bool:
    """Return whether the rows of a block are the values of one column.

    They are not if they are tuples or lists, or arrays of one number, which could be meant in two ways.
    """
    if codec.is_array(block):
        return bool(block.ndim == 1 or block.shape[1] != 1)
    return isinstance(block, list) and not any(isinstance(row, (tuple, list, Mapping)) for row in block)


def _named_column(block: Block, name: Any, expected: str) -> Any:
    """Return a column of rows whose columns have names.

    Args:
        block: The rows.
        name: The name of the column.
        expected: What is expected, for the message.

    Raises:
        InputError: There is no such column.
    """
    try:
        if not isinstance(block, list):
            return block[_key(type(block), name)]
        # Rows of different classes may have the column in different places.
        keys = {kind: _key(kind, name) for kind in {*map(type, block)}}
        return [row[keys[type(row)]] for row in block]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise _no_column(block, name, error, expected) from error


def _key(kind: type, name: Any) -> Any:
    """Return the key of a column in rows of a class.

    It is the name itself, or in a named tuple the number of the column.

    Raises:
        AttributeError: It is a class of tuples without names.
        ValueError: It is a class of named tuples without this name.
    """
    return kind._fields.index(name) if issubclass(kind, tuple) else name  # type: ignore[attr-defined]


def _column_at(block: Block, place: Any, expected: str) -> Any:
    """Return a column of rows by its place in them, or by its key in dicts.

    Args:
        block: The rows.
        place: The place or key of the column.
        expected: What is expected, for the message.

    Raises:
        InputError: There is no such column.
    """
    try:
        # Such a block consists of columns itself. In an array they lie along the second dimension.
        if isinstance(block, (Mapping, tuple)):
            return block[place]
        return block[:, place] if codec.is_array(block) else [row[place] for row in block]
    except (KeyError, IndexError, TypeError) as error:
        raise _no_column(block, place, error, expected) from error


def _no_column(block: Block, key: Any, error: Exception, expected: str) -> InputError:
    """Return the error that rows have no such column.

    Args:
        block: The rows, the first of which the message shows.
        key: The name or the place of the column.
        error: The exception that looking it up has raised.
        expected: What is expected, for the message.
    """
    row = block if isinstance(block, (Mapping, tuple)) else block[0]
    return codec.refused(f"no {key!r} in {str(row)[:80]} ({type(error).__name__}: {error})", expected)


def columns(block: Block, signature: Any) -> Any:
    """Return the rows of a block as arrays, in the structure of the signature of a row.

    Args:
        block: The rows.
        signature: A ``tf.TensorSpec``, or a tuple or dict of them.

    Returns:
        An array for each ``tf.TensorSpec``, with the rows along its first dimension.

    Raises:
        InputError: A row does not fit the signature.
    """
    if isinstance(signature, Mapping):
        return {
            name: columns(_named_column(block, name, _EXPECTED_ROWS), spec)
            for name, spec in signature.items()
        }
    if isinstance(signature, (tuple, list)):
        _check_width(block, len(signature))
        arrays = [
            columns(_column_at(block, place, _EXPECTED_ROWS), spec) for place, spec in enumerate(signature)
        ]
        return tuple(arrays)
    return _array(block, signature)


def _check_width(block: Block, max_width: int) -> None:
    """Check that rows have no more columns than their signature, because it is unknown which one is left out.

    Args:
        block: The rows.
        max_width: The number of columns in the signature.

    Raises:
        InputError: The rows have more columns.
    """
    widest = max(_widths(block), default=0)
    if widest > max_width:
        raise codec.refused(f"rows of {plural(widest, 'column')}", f"{max_width}, {_EXPECTED_ROWS}")


def _array(values: Sequence[Any], spec: Any) -> Any:
    """Return a column as one array with the type of a ``tf.TensorSpec``.

    Args:
        values: The values of the column, one for each row: a list or an array.
        spec: The specification of one value, a ``tf.TensorSpec``.

    Raises:
        InputError: The values do not fit the specification.
    """
    import numpy  # noqa: PLC0415 - the user's, in the task

    kind = numpy.dtype(spec.dtype.as_numpy_dtype)
    try:
        array = numpy.asarray(values, kind)
        if not spec.shape.is_compatible_with(array.shape[1:]):
            raise ValueError(f"a row has the shape {array.shape[1:]}")
    except (ValueError, TypeError) as error:
        raise codec.refused(f"rows are not {spec!r}: {error}", _EXPECTED_ROWS) from error
    return array
