"""Versions that differ, and Keras."""

from __future__ import annotations

import pytest

from tests.unit.checking.seen import NOTE, PROBLEM, PYTHON, WARNING, only, python, said, sight


def test_the_same_everywhere():
    assert said(python(1), python(2), python(3)) == []


@pytest.mark.parametrize(
    ("state", "heard", "text"),
    [
        ("missing", "it is not in PATH", "python3 is not there: it is not in PATH"),
        ("failed", "Traceback\nImportError: no encodings", "python3 can't be run: ImportError: no encodings"),
        ("slow", "", "python3 did not answer in time"),
    ],
)
def test_no_python(state: str, heard: str, text: str):
    broken = sight(2, task_python={"asked": "python3", "path": "", "state": state, "said": heard})
    found = only(python(1), broken)
    assert (found.severity, found.kind, found.hosts, found.seen) == (PROBLEM, "python", ("node2",), text)


def test_another_python():
    found = only(python(1), python(2, version="3.8.18"), python(3))
    assert (found.severity, found.hosts, found.seen) == (
        WARNING, ("node2",), "Python 3.8, the others have 3.11",
    )  # fmt: skip


def test_the_last_number_of_python_is_no_difference():
    assert said(python(1), python(2, version="3.11.2")) == []


def test_another_tensorflow():
    found = only(python(1), python(2, tensorflow="2.15.1", tf_keras="2.15.1"), python(3))
    assert (found.severity, found.kind, found.hosts) == (PROBLEM, "tensorflow-differs", ("node2",))
    assert found.seen.startswith("TensorFlow 2.15.1, the others have 2.21.0")


def test_another_patch_of_tensorflow():
    assert only(python(1), python(2, tensorflow="2.21.3")).severity is WARNING


def test_no_tensorflow_on_one():
    found = only(python(1), python(2, tensorflow=None))
    assert (found.severity, found.kind, found.hosts) == (WARNING, "tensorflow-missing", ("node2",))
    assert found.seen == "no TensorFlow for /usr/bin/python3 (others have it)"


def test_no_tensorflow_anywhere():
    found = only(python(1, tensorflow=None), python(2, tensorflow=None))
    assert (found.hosts, found.seen) == (("node1", "node2"), "no TensorFlow for /usr/bin/python3")


def test_other_packages():
    assert only(python(1), python(2, keras="3.1.0")).severity is WARNING
    found = only(python(1), python(2, numpy="1.26.4"))
    assert (found.severity, found.seen) == (NOTE, "numpy 1.26.4, the others have 2.4.6")


# ---------------------------------------------------------------------- Keras 3 does not fit across workers


def keras(environment: dict[str, str], **changed: object):
    return sight(1, environment=environment, task_python={**PYTHON, **changed})


def test_keras_3():
    found = only(keras({}, tf_keras=None))
    assert (found.severity, found.kind) == (WARNING, "keras")
    assert "`model.fit` fails under MultiWorkerMirroredStrategy" in found.seen
    assert "pip install 'tf_keras~=2.21.0'" in found.advice and "-x TF_USE_LEGACY_KERAS=1" in found.advice


def test_keras_3_beside_a_legacy_one():
    assert "pip" not in only(keras({})).advice


@pytest.mark.parametrize("yes", ["1", "true", "True"])
def test_the_legacy_keras_is_asked_for(yes: str):
    assert said(keras({"TF_USE_LEGACY_KERAS": yes})) == []


def test_the_legacy_keras_is_asked_for_and_missing():
    found = only(keras({"TF_USE_LEGACY_KERAS": "1"}, tf_keras=None))
    assert (found.severity, found.kind) == (PROBLEM, "keras")


def test_the_legacy_keras_of_another_tensorflow():
    found = only(keras({"TF_USE_LEGACY_KERAS": "1"}, tf_keras="2.15.0"))
    assert (found.severity, found.seen) == (WARNING, "tf_keras 2.15.0 is for another TensorFlow than 2.21.0")


def test_keras_2_can():
    assert said(keras({}, tensorflow="2.15.0", keras="2.15.0", tf_keras=None)) == []
