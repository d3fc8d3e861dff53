"""``tf_dataset`` with TensorFlow: which records each task gets, from local files and from stores."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c

from launcher import InputError, TFCluster, TFParallel
from launcher.feed.remote.readers import as_record
from tests.conftest import Launch
from tests.local.training import tf_keras
from tests.storage.stores import S3

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.promise("`tf_dataset`: each task has its share, nothing is missing or read twice"),
]
PRELOADED: dict[str, Any] = {"preload": "tensorflow", "env": {"TF_CPP_MIN_LOG_LEVEL": "3"}, "quiet": True}

#: Prints the records that this task gets of each pattern of a JSON file.
PROGRAM = """
import json, os, sys, time
from launcher.data import tf_dataset

def records(names, lines):
    dataset = tf_dataset(names, lines=lines)
    found = [list(dataset.as_numpy_iterator()) for _ in range(2)]
    assert found[0] == found[1] == list(dataset.repeat(2).as_numpy_iterator())[len(found[0]):]
    return [record.decode("latin-1") for record in found[0]]

task = os.environ.get("JOB_NAME", "none") + "-" + os.environ.get("TASK_INDEX", "")
found = {name: records(*case) for name, case in json.load(open("cases.json")).items()}
with open(f"new-{task}", "w") as file:
    json.dump(found, file)
os.replace(f"new-{task}", f"found-{task}")
# When the chief has exited, the job is done, and these are stopped.
while task == "chief-0" and not all(map(os.path.exists, ("found-ps-0", "found-evaluator-0"))):
    time.sleep(0.05)
"""


def shards(texts: Sequence[bytes], files: int, *, lines: bool = False) -> dict[str, bytes]:
    """Records as files of TFRecords or of lines, by name."""
    return {
        f"{number:02}.{'txt' if lines else 'tfrecord'}": b"".join(
            text + b"\n" if lines else as_record(text, crc32c) for text in texts[number::files]
        )
        for number in range(files)
    }


def put(store: S3 | Path, folder: str, files: dict[str, bytes]) -> str:
    """Write files into a folder here or of a store: the pattern of all of them."""
    for name, content in files.items():
        if isinstance(store, Path):
            (store / folder).mkdir(exist_ok=True)
            (store / folder / name).write_bytes(content)
        else:
            store.put(f"{folder}/{name}", content)
    return f"{store if isinstance(store, Path) else store.url}/{folder}/*"


def test_the_records_of_a_program(launch: Launch, s3: S3, tmp_path: Path):
    texts = [b"%d \xff \0" % number for number in range(31)]
    expected = sorted(text.decode("latin-1") for text in texts)
    cases: dict[str, tuple[str | list[str], bool]] = {}
    for place in (tmp_path, s3):
        name = type(place).__name__
        # Three tasks share four files, of which each takes whole ones; and they share two files.
        cases[f"{name} 4 files"] = (put(place, "records", shards(texts, 4)), False)
        cases[f"{name} 2 files"] = (put(place, "few", shards(texts, 2)), False)
        cases[f"{name} lines"] = ([put(place, "lines", shards(texts, 3, lines=True))], True)
        packed = {f"{file}.gz": gzip.compress(text) for file, text in shards(texts, 2, lines=True).items()}
        cases[f"{name} gz"] = (put(place, "gz", packed), True)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    roles = ["--ps", "1", "--chief", "--workers", "2", "--evaluator"]
    launch(*roles, "--preload", "tensorflow", *s3.options, "program.py", cwd=tmp_path, timeout=200, code=0)
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("found-*")}
    for case in cases:
        shares = [found[f"found-{task}"][case] for task in ("chief-0", "worker-0", "worker-1")]
        assert sorted(chain.from_iterable(shares)) == expected, case
        # Whole files, or as many records as the others.
        assert {len(share) for share in shares} <= ({8, 15} if "4 files" in case else {10, 11}), case
        for task in ("ps-0", "evaluator-0"):
            assert sorted(found[f"found-{task}"][case]) == expected, (case, task)


def train(args: Sequence[str], ctx: Any) -> None:
    """Say which numbers a node reads under the strategy, and what all nodes have read."""
    import tensorflow as tf

    from launcher.data import tf_dataset

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for names in args:
        assert list(tf_dataset(names)) == list(ctx.tf_dataset(names))
        numbers = ctx.tf_dataset(names).batch(4).map(lambda records: tf.strings.to_number(records, tf.int64))
        read: list[int] = []
        for batch in strategy.experimental_distribute_dataset(numbers):
            for values in strategy.experimental_local_results(batch):
                read += values.numpy().tolist()
        print("read", json.dumps(read), flush=True)
    try:
        tf.function(lambda: ctx.tf_dataset(args[0]).reduce(0, lambda count, _: count + 1))()
    except InputError as error:
        print("refused", error, flush=True)


def fit(args: Sequence[str], ctx: Any) -> None:
    """Say the sum of the numbers that all nodes have fitted, by Keras 2."""
    import tensorflow as tf

    class Model(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.keras.metrics.Sum()
            self.weight = self.add_weight("weight", [], tf.float32)

        def train_step(self, batch: Any) -> dict[str, Any]:
            self.total.update_state(batch)
            return {}

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = Model()
    model.compile()
    for names in args:
        numbers = ctx.tf_dataset(names).batch(4).map(lambda records: tf.strings.to_number(records))
        model.fit(numbers, epochs=2, verbose=0)
        print("read", int(model.total.result()), flush=True)


def numbers_of(place: S3 | Path) -> list[str]:
    """40 numbers in four files, and in a single one: the patterns."""
    texts = [b"%d" % number for number in range(40)]
    return [put(place, f"{files} files", shards(texts, files)) for files in (4, 1)]


def said(cluster: TFCluster, word: str) -> list[list[Any]]:
    """What chief and worker have printed behind a word."""
    logs = [Path(cluster.run_dir, "logs", f"{task}.log").read_text() for task in ("chief-0", "worker-0")]
    return [re.findall(rf"^{word} (.*)", log, re.MULTILINE) for log in logs]


def test_the_records_of_functions_in_step(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    cases = numbers_of(tmp_path) + numbers_of(s3)
    with TFCluster.run(train, cases, 2, master_node="chief", **PRELOADED) as cluster:
        pass
    for number, case in enumerate(cases):
        shares = [json.loads(lines[number]) for lines in said(cluster, "read")]
        assert [len(share) for share in shares] == [20, 20], case
        assert sorted(sum(shares, [])) == list(range(40)), case
    assert all("called within a tf.function" in lines[0] for lines in said(cluster, "refused"))


@pytest.mark.long
def test_the_records_that_keras_2_fits(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    cases = numbers_of(tmp_path) + numbers_of(s3)
    env = {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": tf_keras()}
    with TFCluster.run(fit, cases, 2, master_node="chief", env=env, quiet=True) as cluster:
        pass
    # Of the second epoch: at the start of each, the metric is 0.
    assert said(cluster, "read") == [[str(sum(range(40)))] * 4] * 2


def instance(args: Sequence[str], ctx: Any) -> list[Any]:
    """The numbers of this instance in some files, and why another file cannot be read."""
    import tensorflow as tf

    *good, broken = args
    numbers = [[int(record) for record in ctx.tf_dataset(names).as_numpy_iterator()] for names in good]
    try:
        list(ctx.tf_dataset([broken] * 3))
    except tf.errors.UnknownError as error:
        return [*numbers, str(error)]
    raise AssertionError("it was read")


def test_instances_and_a_file_that_is_cut_off(s3: S3, monkeypatch: pytest.MonkeyPatch):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    record = as_record(b"x" * 1000, crc32c)
    broken = s3.put("cut/a.tfrecord", record * 2 + record[:700])
    *numbers, errors = zip(
        *TFParallel.run(instance, [[*numbers_of(s3), broken]] * 3, **PRELOADED), strict=True
    )
    for shares in numbers:
        assert sorted(chain.from_iterable(shares)) == list(range(40))
    assert all(f"Error: {broken}: cut off within the record" in error for error in errors)
