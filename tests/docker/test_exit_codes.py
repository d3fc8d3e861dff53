"""The exit code of ``launch`` is the same in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.engine import BASE, Engine

#: Case -> (options, program, exit code).
CASES: dict[str, tuple[list[str], list[str], int]] = {
    "its own code": ([], ["sh", "-c", "exit 7"], 7),
    "killed by a signal": ([], ["sh", "-c", "kill -11 $$; sleep 60"], 139),
    "not found": ([], ["no-such-program-anywhere"], 127),
    "not runnable": ([], ["./plain"], 126),
    "too long": (["--timeout", "1"], ["sleep", "60"], 124),
}


@pytest.mark.parametrize("case", CASES)
def test_exit_code(docker: Engine, launch: Launch, tmp_path: Path, case: str):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    options, program, code = CASES[case]
    ended = launch("--docker", BASE, "--grace", "1", *options, "--", *program, cwd=tmp_path, timeout=60)
    assert ended.code == code, ended.err
