"""Programs on real hosts: whatever the login shell, exactly the bytes that were sent; else clear words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.backends.programs import RemoteProgram
from launcher.backends.ssh.connections import SshConnections
from launcher.common.errors import TransportError
from launcher.config.settings import Settings
from launcher.job import Host
from tests.ssh.connecting import receive, send, start
from tests.ssh.host import LabHost

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("home")]


class Runner:
    """Runs programs on hosts, each connected to when it is first needed."""

    def __init__(self) -> None:
        self._fleets: dict[Host, SshConnections] = {}
        self._programs: list[RemoteProgram] = []

    def fleet(self, host: LabHost, python: str | None = None) -> SshConnections:
        """A fleet of this host alone."""
        record = Host(host.name, python=python)
        if record not in self._fleets:
            self._fleets[record] = SshConnections([record], Settings())
            self._fleets[record].connect()
        return self._fleets[record]

    def __call__(
        self, host: LabHost, function: str, arguments: object = None, python: str | None = None
    ) -> RemoteProgram:
        program = start(self.fleet(host, python), host.name, function, arguments)
        self._programs.append(program)
        return program

    def close(self) -> None:
        """Close everything."""
        for program in self._programs:
            program.close()
        for fleet in self._fleets.values():
            fleet.close()


@pytest.fixture
def run() -> Iterator[Runner]:
    """``run(host, "echo")``."""
    runner = Runner()
    yield runner
    runner.close()


def failure(program: RemoteProgram) -> str:
    """Why it can't be run."""
    with pytest.raises(TransportError) as caught:
        receive(program)
    return str(caught.value)


def test_more_than_the_server_allows_is_reported(hosts: list[LabHost], run: Runner):
    programs = [run(hosts[0], "echo") for _ in range(10)]
    for program in programs:
        assert send(program, b"x") or receive(program, 1)
    with pytest.raises(TransportError) as caught:
        run(hosts[0], "echo")
    assert str(caught.value).startswith(f"{hosts[0].name}: its ssh server opens no further session")


def test_endless_noise_is_refused(hosts: list[LabHost], run: Runner):
    hosts[0].banner("#" * 70_000)
    assert "printed more than 64 KiB" in failure(run(hosts[0], "shown", 1))


def test_a_login_shell_that_refuses_commands(hosts: list[LabHost], run: Runner):
    hosts[0].set_shell("/usr/sbin/nologin")
    message = failure(run(hosts[0], "shown", 1))
    assert message.startswith(
        f"{hosts[0].name}: the agent could not be started there: its login shell exited with 1"
    )
    assert "not available" in message


@pytest.mark.parametrize("line", ["read x", "cat"])
def test_a_login_shell_that_reads_our_input(hosts: list[LabHost], run: Runner, line: str):
    (hosts[0].home / ".bashrc").write_text(f"{line}\n")
    hosts[0].expected.append(".bashrc")
    message = failure(run(hosts[0], "shown", 1))
    assert message.startswith(
        f"{hosts[0].name}: a start-up file of its login shell (~/.bashrc?) reads standard input"
    )


@pytest.mark.parametrize("shells", [("zsh -l", "tcsh", "csh"), ("ksh", "dash", "bash -l")], ids=str)
def test_a_login_shell_that_is_replaced(hosts: list[LabHost], run: Runner, shells: tuple[str, ...]):
    """The other shell reads our input as its commands: it runs none of them."""
    for host, shell in zip(hosts, shells, strict=False):
        (host.home / ".bashrc").write_text(f"exec {shell}\n")
        host.expected.append(".bashrc")
        if shell == "bash -l":  # which reads it again
            (host.home / ".profile").write_text("\n")
            host.expected.append(".profile")
    for host, _ in zip(hosts, shells, strict=False):
        message = failure(run(host, "shown", 1))
        cause = "a start-up file of its login shell (~/.bashrc?) replaces it by another shell"
        assert message.startswith(f"{host.name}: {cause}"), message


def test_the_python_of_the_hostfile_is_used_and_missed(hosts: list[LabHost], run: Runner):
    message = failure(run(hosts[0], "shown", 1, python="~/no such/python"))
    assert message.startswith(f"{hosts[0].name}: there is no ~/no such/python there")
    (hosts[0].home / "my own").mkdir()
    (hosts[0].home / "my own/python").symlink_to("/usr/bin/python3")
    hosts[0].expected.append("my own")
    assert receive(run(hosts[0], "shown", 1, python="~/my own/python")) == b"1"
    # Relative to where tasks run, which need not be there yet.
    assert receive(run(hosts[0], "shown", 1, python="venv/bin/python")) == b"1"


def test_a_python_that_does_not_start(hosts: list[LabHost], run: Runner):
    hosts[0].program("brokenpython", "#!/bin/sh\necho no libpython >&2\nexit 3\n")
    message = failure(run(hosts[0], "shown", 1, python="brokenpython"))
    assert "exited with 3 and printed: no libpython" in message
