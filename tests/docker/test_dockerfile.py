"""The Dockerfile of the repository, and real TensorFlow in containers of its image."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.debian import debian
from tests.docker.engine import CACHE, Engine, take
from tests.docker.test_tensorflow import trains_mnist
from tests.seeing import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.tensorflow,
    pytest.mark.timeout(450, func_only=True),
    # Built before the first test: it does not count as time of a test.
    pytest.mark.usefixtures("tf_image"),
]

#: Seconds for TensorFlow to be fetched and installed, once for an engine.
_BUILD = 900.0
#: Seconds for another test session to be through with this module: an image, and two tests with it.
_TURN = 3600.0


def built(engine: Engine, name: str) -> str:
    """Build the image of the repository; an older one of this name is removed."""
    before = engine.tried("image", "inspect", "-f", "{{.Id}}", name).stdout.decode().strip()
    base = f"BASE={debian(engine)}"
    engine.docker("build", "-q", "--force-rm", "--build-arg", base, "-t", name, str(ROOT), timeout=_BUILD)
    if before and before != engine.docker("image", "inspect", "-f", "{{.Id}}", name):
        engine.tried("rmi", before)
    return name


@pytest.fixture(scope="module")
def tf_image(real_engine: Engine) -> Iterator[str]:
    """What `docker build` makes. Only one test session makes and uses it at a time."""
    with open(CACHE / "images.lock", "w") as lock:
        take(lock, fcntl.LOCK_EX, _TURN)
        yield built(real_engine, "tf-launcher-test")


def test_mnist_in_containers(docker: Engine, launch: Launch, tf_image: str):
    trains_mnist(docker, launch, tf_image)


def test_the_image_as_a_command(real_engine: Engine, tf_image: str, tmp_path: Path):
    """It is the launcher, as an ordinary user, and has the examples beside it."""
    printed = real_engine.docker(
        "run", "--rm", tf_image, "--workers", "2", "--", "sh", "-c", "id -u; ls examples"
    )
    lines = {line.partition(" | ")[2] for line in printed.splitlines() if " | " in line}
    assert "mnist_dist" in lines
    assert "0" not in lines
