"""Messages from the end of a ``docker run``."""

from __future__ import annotations

import pytest

from launcher.transports.docker.container import Container
from launcher.transports.docker.link import end_fault


@pytest.mark.parametrize(
    ("code", "began", "stderr", "text"),
    [
        (0, True, "", ""),
        (0, True, "WARNING: no swap\n", ""),
        (137, True, "", "its container was killed by SIGKILL (its memory limit is 64 MiB)"),
        (143, True, "", "its container was killed by SIGTERM"),
        (1, True, "the agent was sent SIGTERM", "the agent exited: the agent was sent SIGTERM"),
        (-9, True, "", "its `docker run` was killed by SIGKILL"),
        (125, False, "unknown flag: --frob\n\nUsage: docker", "unknown flag: --frob"),
        (1, False, "exec /python3: exec format error", "is not for this kind of machine"),
    ],
)  # fmt: skip
def test_how_a_container_ended(code: int, began: bool, stderr: str, text: str):
    found = end_fault(code, Container("worker-0", "tf:1", "python3", memory=64 << 20), began, stderr)
    assert text in found
    assert bool(text) == bool(found)
