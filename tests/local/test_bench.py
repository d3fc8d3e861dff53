"""The bench works with the launcher as it is now; `make types` checks all of its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale.agents import FIRST_LINES, lines
from bench.scale.simulation import Size, simulation


def test_simulated_hosts_run_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    size = Size(hosts=3, tasks=2)
    with simulation(size, tmp_path, latency=0.0, limit=60.0) as run:
        run.wait("start", run.all_taken)
        run.order("end")
        run.expect(0, "end")
        logs = [(run.run / "logs" / f"worker-{n}.log").read_bytes() for n in range(size.all_tasks)]
    assert logs == [lines(f"worker/{n}", 0, FIRST_LINES) for n in range(size.all_tasks)]
