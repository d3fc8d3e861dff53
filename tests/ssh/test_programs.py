"""Programs on real hosts: whatever the login shell, exactly the bytes that were sent; else clear words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from launcher.errors import TransportError
from launcher.job import Host
from launcher.transports.base import RemoteCommand
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshConnections
from tests.ssh.connecting import receive, send, start, until
from tests.ssh.host import LabHost

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("home")]


class Runner:
    """Runs programs on hosts, each connected to when it is first needed."""

    def __init__(self) -> None:
        self._fleets: dict[Host, SshConnections] = {}
        self._programs: list[RemoteCommand] = []

    def fleet(self, host: LabHost, python: str | None = None) -> SshConnections:
        """A fleet of this host alone."""
        record = Host(host.name, python=python)
        if record not in self._fleets:
            self._fleets[record] = SshConnections([record], SshSettings(), print)
            self._fleets[record].connect()
        return self._fleets[record]

    def __call__(
        self, host: LabHost, function: str, arguments: object = None, python: str | None = None
    ) -> RemoteCommand:
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


def failure(program: RemoteCommand) -> str:
    """Why it can't be run."""
    with pytest.raises(TransportError) as caught:
        receive(program)
    return str(caught.value)


def test_nothing_of_the_users_is_on_the_command_line_and_nothing_is_inherited(
    hosts: list[LabHost], run: Runner
):
    (hosts[0].home / "os.py").write_text("raise SystemExit('not this one')\n")
    hosts[0].expected.append("os.py")
    short = receive(run(hosts[0], "describes", "x"))
    long = receive(run(hosts[0], "describes", "x" * 10_000))
    assert short == long
    version, in_path, site = eval(short)[:3]
    assert (in_path, site) == (False, False) and version >= (3, 8)


def test_stderr_is_read_on_and_its_end_is_kept(hosts: list[LabHost], run: Runner):
    program = run(hosts[0], "floods", 8 << 20)
    assert receive(program) == b"ok"
    message = program.stderr()
    assert len(message) == 64 * 1024
    assert message.endswith("xxx\nthe last words\n")


def test_sending_never_waits(hosts: list[LabHost], run: Runner):
    program = run(hosts[0], "deaf", 0)
    assert receive(program, 3) == b"up\n"
    pids = [str(process.pid) for process in hosts[0].processes()]
    hosts[0].run(["kill", "-STOP", *pids])
    taken = _send_until_stuck(program, 1 << 20)
    assert 1 << 20 < taken < 64 << 20
    hosts[0].run(["kill", "-CONT", *pids])
    until(lambda: program.send(b"x") == 1)


def _send_until_stuck(program: RemoteCommand, least: int = 0) -> int:
    """Send until nothing more is taken for a while; how much was, which must be so much."""
    data, taken, deadline = bytes(1 << 20), 0, time.monotonic() + 60
    while True:
        sent = _in_no_time(lambda: program.send(data))
        taken += sent
        if not sent:
            time.sleep(0.4)
            sent = _in_no_time(lambda: program.send(data))
            if not sent and taken > least:
                return taken
            taken += sent
        assert time.monotonic() < deadline, f"{taken} bytes taken"
        assert not program.recv(1)


def _in_no_time(call: Callable[[], int]) -> int:
    began = time.monotonic()
    result = call()
    assert time.monotonic() - began < 20
    return result


def test_more_than_the_server_allows_is_reported(hosts: list[LabHost], run: Runner):
    programs = [run(hosts[0], "echo") for _ in range(10)]
    for program in programs:
        assert send(program, b"x") or receive(program, 1)
    with pytest.raises(TransportError) as caught:
        run(hosts[0], "echo")
    assert str(caught.value).startswith(f"{hosts[0].name}: its ssh server gives no further session")


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


def test_a_host_that_is_cut_off_delays_no_call(hosts: list[LabHost], run: Runner):
    program = run(hosts[0], "echo")
    assert send(program, b"x") or receive(program, 1)
    hosts[0].cut()
    assert _send_until_stuck(program) < 64 << 20
    began = time.monotonic()
    program.close()
    run.close()
    assert time.monotonic() - began < 20, "TCP would try for longer"
    hosts[0].restore()
