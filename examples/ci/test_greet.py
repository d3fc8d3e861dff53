"""The same test for pytest, with the fixture ``cluster`` of tf-launcher: it looks at each task by itself."""

import os

IMAGE = os.environ.get("IMAGE", "python:3.11-slim")


def test_every_worker_is_greeted_by_the_other_machine(cluster):
    job = cluster.start(
        ["greet.py"], ps=1, workers=2, backend=f"docker:{IMAGE}", options=["--memory", "512m"], timeout=300
    )
    assert job.wait().exit_code == 0
    for worker in job.tasks[:2]:
        assert worker.lines == [f"ps-0 greets {worker.host}"]
