"""A ``tf.data.Dataset`` of the rows of a feed; TensorFlow is imported when one is made.

The signature is that of one row, as for ``tf.data.Dataset.from_generator``; the elements are batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.feed.remote.blocks import is_array, join, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from launcher.feed.remote.blocks import Block
    from launcher.feed.remote.data_feed import DataFeed


def dataset(feed: DataFeed, output_signature: Any, batch_size: int) -> Any:
    """Batches of the rows that come from now on; the last one may be shorter.

    A second iteration goes on where the first one stopped: it finds nothing after the end of the feed. The
    driver repeats epochs.

    Args:
        feed: of this task.
        output_signature: a ``tf.TensorSpec``, or a tuple or dict of them: that of one row. Where a dimension
            is ``None``, the rows of a batch are padded with zeros (or empty texts) to the longest.
        batch_size: rows of a batch.

    Raises:
        InputError: the signature is something else; while iterating: a row does not fit it.
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
        InputError: a row does not fit the signature.
    """
    if isinstance(signature, Mapping):
        return {name: columns(_column(block, name), inner) for name, inner in signature.items()}
    if isinstance(signature, (tuple, list)):
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
        if isinstance(block, (Mapping, tuple)):
            return block[key]
        return block[:, key] if is_array(block) else [row[key] for row in block]
    except (KeyError, IndexError, TypeError) as error:
        row = block if isinstance(block, (Mapping, tuple)) else block[0]
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
    """Values of different length in one array, padded with zeros or empty texts."""
    import numpy

    if is_array(values):
        return values
    each = [numpy.asarray(value, kind) for value in values]
    rank = spec.shape.rank
    if wrong := [array.ndim for array in each if array.ndim != rank]:
        raise ValueError(f"{wrong[0]} dimensions instead of {rank}")
    longest = [max(array.shape[axis] for array in each) for axis in range(rank)]
    filled = numpy.full([len(each), *longest], "" if kind.hasobject else 0, kind)
    for row, array in zip(filled, each):
        row[tuple(map(slice, array.shape))] = array
    return filled
