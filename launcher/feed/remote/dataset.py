"""A ``tf.data.Dataset`` over a feed.

TensorFlow is imported when a dataset is asked for. The signature is that of one row, as for
``tf.data.Dataset.from_generator``; the elements are batches of rows, the last one may be shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from launcher.feed.pieces import refused
from launcher.feed.remote.blocks import Block, is_array, join


class Feed(Protocol):
    """What rows come from, in the task."""

    def next_blocks(self, rows: int) -> list[Block]:
        """So many rows, in the form in which they came; fewer at the end."""

    def should_stop(self) -> bool:
        """Whether there are no more."""


def dataset(feed: Feed, output_signature: Any, batch_size: int) -> Any:
    """Batches of the rows that come from now on.

    The rows are gone once they were iterated: a second iteration goes on where the first one stopped, and
    finds nothing after the end of the feed. Epochs are the driver's affair.

    Args:
        feed: the task's.
        output_signature: a ``tf.TensorSpec``, or a tuple or dict of them: what one row is. Where a dimension
            is ``None``, the rows of a batch are filled up with zeros (or empty texts) to the longest.
        batch_size: rows of a batch.

    Raises:
        InputError: the signature is no such thing; while iterating: a row is not as it says.
    """
    import tensorflow as tf

    batched = tf.nest.map_structure(_batched, output_signature)

    def batches() -> Iterator[Any]:
        while not feed.should_stop():
            if blocks := feed.next_blocks(batch_size):
                yield columns(join(blocks), output_signature)

    return tf.data.Dataset.from_generator(batches, output_signature=batched)


def columns(block: Block, signature: Any) -> Any:
    """The rows of a block as arrays, in the structure of a row's signature.

    Raises:
        InputError: a row is not as the signature says.
    """
    if isinstance(signature, Mapping):
        return {name: columns(_column(block, name), inner) for name, inner in signature.items()}
    if isinstance(signature, tuple | list):
        return tuple(columns(_column(block, place), inner) for place, inner in enumerate(signature))
    return _array(block, signature)


def _batched(spec: Any) -> Any:
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise refused(
            f"output_signature has {spec!r}", "tf.TensorSpec, of known rank, for each value of a row"
        )
    return tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name)


def _column(block: Block, key: Any) -> Any:
    """One column of a block of any form, or of a list of rows."""
    try:
        if isinstance(block, Mapping | tuple):
            return block[key]
        return block[:, key] if is_array(block) else [row[key] for row in block]
    except (KeyError, IndexError, TypeError) as error:
        row = block if isinstance(block, Mapping | tuple) else block[0]
        problem = f"{type(error).__name__}: {error}"
        raise refused(
            f"no {key!r} in {str(row)[:80]} ({problem})", "rows as output_signature says"
        ) from error


def _array(values: Sequence[Any], spec: Any) -> Any:
    """A column as one array."""
    import numpy

    kind = numpy.dtype(spec.dtype.as_numpy_dtype)
    try:
        array = numpy.asarray(_filled(values, spec, kind) if None in tuple(spec.shape) else values, kind)
    except (ValueError, TypeError) as error:
        raise refused(f"rows are not {spec!r}: {error}", "rows as output_signature says") from error
    if not spec.shape.is_compatible_with(array.shape[1:]):
        shape = tuple(array.shape[1:])
        raise refused(f"a row has the shape {shape}", f"{tuple(spec.shape)}, as output_signature says")
    return array


def _filled(values: Sequence[Any], spec: Any, kind: Any) -> Any:
    """Values of different length in one array; what is missing is zero, or an empty text."""
    import numpy

    if is_array(values):
        return values
    each = [numpy.asarray(value, kind) for value in values]
    rank = spec.shape.rank
    if wrong := [array.ndim for array in each if array.ndim != rank]:
        raise ValueError(f"{wrong[0]} dimensions instead of {rank}")
    longest = [max(array.shape[axis] for array in each) for axis in range(rank)]
    filled = numpy.full([len(each), *longest], "" if kind.hasobject else 0, kind)
    for row, array in zip(filled, each, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return filled
