"""Why a container did not start, or how it ended, in words for the user."""

from __future__ import annotations

import re
import signal

from launcher.text import byte_size, printable, signal_name
from launcher.transports.docker.container import Container

_NO_SUCH_PROGRAM = re.compile(r"executable file not found|stat .*: no such file or directory|no such file or")
_WRONG_FORMAT = re.compile(r"exec format error", re.IGNORECASE)
#: The error of ``docker run`` where the engine refused; and a line as the command logs it.
_REFUSED = re.compile(r"^docker: (?:Error response from daemon: )?(.*?)\.?$", re.MULTILINE)
_LOGGED = re.compile(r'level=error msg="([^"]*)"')
#: Exit statuses of ``docker run`` where no container started: refused; not runnable; not found.
NOT_STARTED = (125, 126, 127)
_REFUSAL = 125


def end_fault(code: int, container: Container, began: bool, stderr: str) -> str:
    """How a container ended, from its ``docker run``; empty if all is well.

    Args:
        code: exit status of the command; negative: killed by that signal.
        container: what it was.
        began: its agent was up.
        stderr: what the command and the container wrote there.
    """
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    last = printable(lines[-1]) if lines else ""
    if code < 0:
        return f"its `docker run` was killed by {signal_name(-code)}"
    if code in NOT_STARTED:
        if began:
            logged = _LOGGED.search(last)
            return f"its Docker engine has gone: was it stopped? ({logged[1] if logged else last})"
        refused = _REFUSED.search(stderr)
        if refused:
            return start_fault(printable(refused[1]), container)
        if code == _REFUSAL and lines:  # an option that the command itself refuses
            return printable(lines[0])
    if code == 0 and began and not lines:
        return ""
    if code - 128 in signal.valid_signals():
        limit = (
            ""
            if container.memory is None
            else f" (its memory limit is {byte_size(container.memory, binary=True)})"
        )
        return f"its container was killed by {signal_name(code - 128)}{limit if code == 137 else ''}"
    if began:
        return f"the agent ended: {last or 'it was killed'}"
    if _WRONG_FORMAT.search(last):
        return _wrong_machine(last, container)
    text = f"{container.python} of the image {container.image} does not run the agent, and ended with {code}"
    return f"{text}: {last}" if last else text


def start_fault(refusal: str, container: Container) -> str:
    """Why a container does not start.

    Args:
        refusal: the engine's message.
        container: what it was to be.
    """
    if _WRONG_FORMAT.search(refusal) or (container.architecture and "exec" in refusal):
        return _wrong_machine(refusal, container)
    if "bind source path does not exist" in refusal:
        path = refusal.rpartition("does not exist:")[2].strip()
        return f"there is no {path} on the engine's machine to mount"
    if "could not select device driver" in refusal:
        return "the engine can't give GPUs to containers: install the NVIDIA Container Toolkit there"
    if container.python in refusal and _NO_SUCH_PROGRAM.search(refusal):
        return (
            f"there is no {container.python} in the image {container.image}: it must have a Python of 3.8 or "
            "later; --python says where it is"
        )
    if container.python in refusal and "permission denied" in refusal:
        return f"{container.python} in the image {container.image} can't be run: permission denied"
    if "is already in use by container" in refusal:
        return f"a container of its name is there already: {refusal}"
    return refusal


def _wrong_machine(refusal: str, container: Container) -> str:
    return container.architecture or (
        f"the image {container.image} is not for this kind of machine ({refusal}): "
        "`docker image inspect` says what it is for"
    )
