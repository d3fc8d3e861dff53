"""Why a container could not be made or started, in words for the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from launcher.text import signal_name
from launcher.transport.docker.settings import Container, End, size

#: What the kernel's name of a machine is called in images.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "i386": "386"}

_NO_SUCH_PROGRAM = re.compile(r"executable file not found|stat .*: no such file or directory|no such file or")
_WRONG_FORMAT = re.compile(r"exec format error", re.IGNORECASE)


def start_fault(said: str, container: Container) -> str:
    """What is wrong with a container that does not start.

    Args:
        said: the engine's words.
        container: what it was to be.
    """
    if _WRONG_FORMAT.search(said) or (container.architecture and "exec" in said):
        return _wrong_machine(said, container)
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
    if container.python in said and "permission denied" in said:
        return f"{container.python} in the image {container.image} can't be run: permission denied"
    if "is already in use by container" in said:
        return f"a container of its name is there already: {said}"
    return said


def _wrong_machine(said: str, container: Container) -> str:
    return container.architecture or (
        f"the image {container.image} is not for this kind of machine ({said}): "
        "`docker image inspect` says what it is for"
    )


def end_fault(end: End, container: Container, began: bool, said: str) -> str:
    """What is to be said of the end of a container; empty if all is well.

    Args:
        end: how it ended.
        container: what it was.
        began: its agent was there.
        said: what it wrote to stderr.
    """
    lines = said.strip().splitlines()
    if end.out_of_memory and end.code:
        limit = "" if container.memory is None else f" (its limit is {size(container.memory)})"
        return f"its container ran out of memory{limit}"
    if end.code == 0 and began and not lines:
        return ""
    if end.code is None:
        return "its container was removed by somebody else"
    if end.code - 128 in signal.valid_signals():
        return f"its container was killed by {signal_name(end.code - 128)}"
    if not began:
        return _never_began(end.code, container, lines)
    return f"the agent ended: {lines[-1] if lines else 'it was killed'}"


def _never_began(code: int, container: Container, lines: list[str]) -> str:
    last = lines[-1] if lines else ""
    if _WRONG_FORMAT.search(last):
        return _wrong_machine(last, container)
    what = f"{container.python} of the image {container.image} does not run our agent, and ended with {code}"
    return f"{what}: {last}" if last else what


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
