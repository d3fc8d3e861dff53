"""Why a container could not be made or started, in words for the user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.transport.docker.settings import Container

#: What the kernel's name of a machine is called in images.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "i386": "386"}

_NO_SUCH_PROGRAM = re.compile(r"executable file not found|stat .*: no such file or directory|no such file or")
_WRONG_FORMAT = re.compile(r"exec format error", re.IGNORECASE)


def start_fault(said: str, container: Container, architecture: str) -> str:
    """What is wrong with a container that does not start.

    Args:
        said: the engine's words.
        architecture: a remark on image and machine (see `mismatch`); empty: they fit.
    """
    if _WRONG_FORMAT.search(said) or (architecture and "exec" in said):
        return architecture or f"the image {container.image} is not for this kind of machine: {said}"
    if "bind source path does not exist" in said:
        path = said.rpartition("does not exist:")[2].strip()
        return f"there is no {path} on the engine's machine to mount"
    if "could not select device driver" in said:
        return "the engine can't give GPUs to containers: install the NVIDIA Container Toolkit there"
    if container.python in said and _NO_SUCH_PROGRAM.search(said):
        return (
            f"there is no {container.python} in the image {container.image}: it must have a Python of 3.8 or "
            "later; --python says where it is"
        )
    if "is already in use by container" in said:
        return f"a container of its name is there already: {said}"
    return said


def mismatch(image: Mapping[str, Any], machine: str) -> str:
    """What is wrong with an image on a machine of another kind; empty: they fit.

    Args:
        image: as ``docker image inspect`` has it.
        machine: of the engine, as the kernel calls it: ``x86_64``.
    """
    mine, its = _ARCHITECTURES.get(machine, machine), image.get("Architecture") or ""
    if not its or not machine or its == mine:
        return ""
    name = next(iter(image.get("RepoTags") or ()), "the image")
    return (
        f"{name} is for {its}, the engine's machine is {mine}: `docker pull --platform linux/{mine}` "
        "gets the other one, if there is one"
    )
