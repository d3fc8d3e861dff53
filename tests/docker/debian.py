"""An image of Debian with Python and pip, from which the Dockerfile is built where no image can be pulled.

It is used by ``make soak`` only, as it takes a minute to make.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.docker.engine import BASE, CACHE, CHANGES, MAKE, Engine, take

_IMAGE = "tf-launcher-test-debian"
_INCLUDE = "python3,python3-venv,python3-pip,ca-certificates"
_SUITE = "bookworm"
#: What a machine's own certificate authorities are called, for a pip in a container.
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def debian(found: Engine) -> str:
    """The name of an image with pip: `BASE` if it was pulled, else one made from Debian's packages."""
    if found.tried("run", "--rm", BASE, "python3", "-m", "pip", "--version").returncode == 0:
        return BASE
    if found.tried("image", "inspect", _IMAGE).returncode:
        found.docker("import", *CHANGES, str(_archive()), _IMAGE, timeout=MAKE)
    return _IMAGE


def _archive() -> Path:
    """The file system of the image as a tar file, which is made once for this machine."""
    archive = CACHE / f"{_SUITE}-python.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "archive.lock", "w") as lock:
        take(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make_archive(archive)
    return archive


def _make_archive(archive: Path) -> None:
    assert shutil.which("debootstrap"), f"{BASE} can't be pulled: apt-get install debootstrap, to make one"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="rootfs-") as folder:
        root = Path(folder)
        argv = ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", _SUITE, str(root)]
        done = subprocess.run(argv, capture_output=True, timeout=MAKE)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
        for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        (root / "usr/bin/python").symlink_to("python3")
        if _BUNDLE.exists():
            shutil.copy(_BUNDLE, root / _BUNDLE.relative_to("/"))
        part = archive.with_suffix(".part")
        excluded = [f"--exclude=./{path}" for path in ("usr/share/doc/*", "var/cache/apt/archives/*.deb")]
        subprocess.run(["tar", "-C", str(root), "-cf", str(part), *excluded, "."], check=True, timeout=MAKE)
        part.rename(archive)
