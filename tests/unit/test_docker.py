"""Containers: settings from options, hosts from roles, and messages from the end of a ``docker run``."""

from __future__ import annotations

import argparse

import pytest

from launcher.job import JobSpec, Program, Role
from launcher.transports.docker.container import Container, Mount, asked_mounts, own_hosts
from launcher.transports.docker.link import end_fault
from launcher.transports.docker.options import DockerOptions, add_options, settings
from launcher.transports.transport import Asked

RUN = Program.of(["train.py"])
WORKER = Role("worker", 2, RUN)


def options(*args: str, file: DockerOptions | None = None) -> DockerOptions | None:
    """The settings of these args and ``docker:`` of a file in /job."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return settings(Asked(parser.parse_args(args), file, "/job"))


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


def test_the_command_line_comes_before_the_job_file():
    file = DockerOptions(
        "tf:1", ("data:/data", "~/x"), memory=(("", 1 << 30), ("ps", 1 << 29)), user="1", keep=True
    )
    assert options() is None
    assert options(file=file) == file._replace(mounts=("/job/data:/data", "~/x"))
    both = options("--docker", "tf:2", "--memory", "2g", "--user", "3", "--mount", "/d:/data:ro", file=file)
    assert both is not None
    assert (both.image, both.memory, both.user) == ("tf:2", (("", 2 << 30),), "3")
    assert asked_mounts(both)[0][0] == Mount("/d", "/data", True)


def test_containers_as_hosts():
    roles = (WORKER._replace(gpus=1), Role("my_role", 1, RUN))
    hosts, gpus = own_hosts(JobSpec(roles), ["4", "5"])
    assert [host.name for host in hosts] == ["worker-0", "worker-1", "my-role-0"]
    assert (gpus["worker-1"], hosts[1].gpus) == (("5",), ("0",))
