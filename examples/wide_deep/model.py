"""The wide and deep model of the Titanic's people: what a record holds, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Columns of few values, and pairs of them that mean more together.
CATEGORIES = ("gender", "class", "embarked")
CROSSES = (("gender", "class"), ("class", "embarked"))
NUMBERS = ("age", "fare", "sibsp", "parch")
#: What numbers are divided by, so that they are about as large as each other.
SCALES = (80.0, 100.0, 3.0, 3.0)
#: Rows of the tables that hashed columns are looked up in.
BUCKETS = 512


def example_of(person: Mapping[str, str]) -> bytes:
    """One of them as a ``tf.train.Example``."""
    import tensorflow as tf

    def texts(value: str) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))

    def numbers(value: str) -> Any:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[float(value or 0)]))

    features = {name: texts(person[name]) for name in CATEGORIES}
    features.update({name: numbers(person[name]) for name in (*NUMBERS, "survived")})
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parse(records):  # without types: where TensorFlow traces it, they are not known
    """A batch of such records as what the model takes, and what it should say."""
    import tensorflow as tf

    form = {name: tf.io.FixedLenFeature([], tf.string) for name in CATEGORIES}
    form.update({name: tf.io.FixedLenFeature([], tf.float32) for name in (*NUMBERS, "survived")})
    columns = tf.io.parse_example(records, form)
    words = [tf.strings.join([name, columns[name]], "=") for name in CATEGORIES]
    words += [tf.strings.join([columns[one], columns[other]], "&") for one, other in CROSSES]
    hashed = [tf.strings.to_hash_bucket_fast(word, BUCKETS) for word in words]
    scaled = [columns[name] / scale for name, scale in zip(NUMBERS, SCALES, strict=True)]
    return {"words": tf.stack(hashed, 1), "numbers": tf.stack(scaled, 1)}, columns["survived"]


def wide_and_deep() -> Any:
    """A Keras model: one weight for each word (wide), vectors and layers (deep); their sum is the logit."""
    import tensorflow as tf

    layers, count = tf.keras.layers, len(CATEGORIES) + len(CROSSES)
    words = tf.keras.Input((count,), dtype="int64", name="words")
    numbers = tf.keras.Input((len(NUMBERS),), name="numbers")
    wide = layers.Dense(1, use_bias=False)(layers.Flatten()(layers.Embedding(BUCKETS, 1)(words)))
    vectors = layers.Flatten()(layers.Embedding(BUCKETS, 8)(words))
    deep = layers.Dense(32, activation="relu")(layers.Concatenate()([vectors, numbers]))
    deep = layers.Dense(1)(layers.Dense(16, activation="relu")(deep))
    return tf.keras.Model({"words": words, "numbers": numbers}, layers.Add()([wide, deep]))
