"""Whether the hosts run the same: Python, TensorFlow, Keras, numpy; and whether that can work at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcher.checking.records import Finding, Severity, Sight, odd_ones
from launcher.text import listed

#: What TensorFlow takes for yes (``tensorflow/python/util/tf2.py`` and keras' lazy loader).
_YES = ("1", "true", "True")
_SAME = "install the same version on all hosts"


def of_versions(sights: Sequence[Sight]) -> Iterator[Finding]:
    """All that is to be said of versions."""
    usable = [sight for sight in sights if sight.facts["task_python"]["state"] == "ok"]
    for sight in sights:
        if sight not in usable:
            yield _no_python(sight)
    yield from of_pythons({sight.name: sight.version("version") or "" for sight in usable})
    yield from _of_tensorflow(usable)
    with_tensorflow = [sight for sight in usable if sight.version("tensorflow")]
    yield from _differing(
        with_tensorflow, "keras", Severity.WARNING, "models saved by one may not load in others"
    )
    yield from _differing(with_tensorflow, "numpy", Severity.NOTE, "")
    for sight in with_tensorflow:
        yield from _of_keras(sight)


def _no_python(sight: Sight) -> Finding:
    """The Python of the tasks can't be asked."""
    python = sight.facts["task_python"]
    what = {
        "missing": "is not there",
        "slow": "did not answer in time",
        "failed": "can't be run",
    }.get(python["state"], python["state"])
    said = str(python["said"]).strip().splitlines()
    why = f": {said[-1]}" if said else ""
    advice = "write the right one as `python:` or `venv:` into the hostfile"
    return Finding(Severity.PROBLEM, "python", (sight.name,), f"{python['asked']} {what}{why}", advice)


def of_pythons(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Python versions that differ in more than the last number."""
    minors = {host: _minor(version) for host, version in versions.items()}
    for other, hosts, usual in _odd(minors):
        seen = f"Python {other}, the others have {usual}"
        advice = (
            "what one pickles or compiles another may not read; one `python:` or `venv:` for all avoids it"
        )
        yield Finding(Severity.WARNING, "python-differs", hosts, seen, advice)


def _of_tensorflow(sights: Sequence[Sight]) -> Iterator[Finding]:
    """Missing somewhere, or another version."""
    versions = {sight.name: sight.version("tensorflow") for sight in sights}
    missing = tuple(name for name, version in versions.items() if version is None)
    found = {name: version for name, version in versions.items() if version is not None}
    if missing:
        some = "" if not found else " (others have it)"
        paths = sorted({str(sight.facts["task_python"]["path"]) for sight in sights if sight.name in missing})
        seen = f"no TensorFlow for {listed(paths)}{some}"
        advice = "`pip install tensorflow` there, or write `python:` or `venv:` into the hostfile"
        yield Finding(Severity.WARNING, "tensorflow-missing", missing, seen, advice)
    for other, hosts, usual in _odd(found):
        seen = f"TensorFlow {other}, the others have {usual}"
        if _minor(other) == _minor(usual):
            yield Finding(Severity.WARNING, "tensorflow-differs", hosts, seen, _SAME)
        else:
            seen += ": they may not understand each other's graphs and messages"
            yield Finding(Severity.PROBLEM, "tensorflow-differs", hosts, seen, _SAME)


def _differing(sights: Sequence[Sight], package: str, severity: Severity, why: str) -> Iterator[Finding]:
    versions = {sight.name: version for sight in sights if (version := sight.version(package))}
    for other, hosts, usual in _odd(versions):
        seen = f"{package} {other}, the others have {usual}{f': {why}' if why else ''}"
        yield Finding(severity, f"{package}-differs", hosts, seen, _SAME)


def _of_keras(sight: Sight) -> Iterator[Finding]:
    """Keras 3 can't ``model.fit`` across workers; the legacy one can, if it is there and asked for."""
    tensorflow, keras, legacy = (sight.version(name) or "" for name in ("tensorflow", "keras", "tf_keras"))
    wanted = str(sight.facts["environment"].get("TF_USE_LEGACY_KERAS", "")) in _YES
    install = f"`pip install 'tf_keras~={_minor(tensorflow)}.0'`"
    if wanted and not legacy:
        seen = "TF_USE_LEGACY_KERAS is set, and tf_keras is not installed: `tf.keras` can't be imported"
        yield Finding(Severity.PROBLEM, "keras", (sight.name,), seen, f"{install} there")
    elif wanted and _minor(legacy) != _minor(tensorflow):
        seen = f"tf_keras {legacy} is for another TensorFlow than {tensorflow}"
        yield Finding(Severity.WARNING, "keras", (sight.name,), seen, f"{install} there")
    elif not wanted and _major(keras) >= 3:
        seen = (
            f"Keras {_major(keras)}: `model.fit` fails under MultiWorkerMirroredStrategy and "
            "ParameterServerStrategy (loops of your own work)"
        )
        first = "" if _minor(legacy) == _minor(tensorflow) else f"{install} there and "
        advice = f"if you need it: {first}launch with `-x TF_USE_LEGACY_KERAS=1`"
        yield Finding(Severity.WARNING, "keras", (sight.name,), seen, advice)


def _odd(versions: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each version that is not the usual one, who has it, and the usual one."""
    if versions:
        usual, others = odd_ones(versions)
        yield from ((other, tuple(hosts), usual) for other, hosts in others.items())


def _minor(version: str) -> str:
    """``3.11`` of ``3.11.7``."""
    return ".".join(version.split(".")[:2])


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
