"""What the launcher answers to wrong input: the places stand in the tests, the whole texts in snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from launcher.common.errors import Fault


def faulty(name: str) -> dict[str, str]:
    """Return the documents of a file beside this one, and where the faults of each are.

    A line ``@ PLACES`` stands before each document. A comment may follow the places.
    """
    _, *blocks = Path(__file__).with_name(name).read_text().removesuffix("\n").split("\n@ ")
    documents = (block.partition("\n") for block in blocks)
    return {document: places.partition("#")[0].strip() for places, _, document in documents}


def check_faults(
    places: Mapping[str, str],
    faults_of: Callable[[str], Iterable[Fault]],
    source: str,
    snapshot: SnapshotAssertion,
) -> None:
    """Check that each input has its faults, at their places, with the texts of the snapshot.

    Args:
        places: By input, where its faults are: a line of it, or else the name of something.
        faults_of: Reads an input.
        source: The name of the inputs.
        snapshot: All inputs and answers.
    """
    found = {text: [*faults_of(text)] for text in places}
    assert {
        text: " ".join(fault.where.removeprefix(f"{source}:") for fault in faults)
        for text, faults in found.items()
    } == places
    assert "\n".join(answered(text, map(str, faults)) for text, faults in found.items()) == snapshot


def answered(text: str, answers: Iterable[str]) -> str:
    """Return an input and, indented, its answers."""
    lines = [line.encode("unicode_escape").decode()[:200] for line in text.split("\n")]
    return "\n".join([*lines, *(f"    -> {answer}" for answer in answers)])
