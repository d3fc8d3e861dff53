"""The lab does what it says: else nothing that is shown on it means anything."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from tests.ssh.cable import SO_RCVBUFFORCE
from tests.ssh.host import PATIENCE, LabHost, until
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(180)
needs_spaces = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


def ssh(lab: Lab, host: LabHost, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """OpenSSH, not what the launcher uses."""
    argv = ["ssh", "-F", str(lab.ssh_config), "-o", "KexAlgorithms=curve25519-sha256", *options]
    return subprocess.run([*argv, host.name, command], capture_output=True, text=True, timeout=60)


@pytest.fixture
def echo(lab: Lab, hosts: list[LabHost]) -> Iterator[subprocess.Popen[bytes]]:
    """A ``cat`` on the first host."""
    argv = ["ssh", "-F", str(lab.ssh_config), hosts[0].name, "exec cat"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert answer(process, b"one\n", PATIENCE) == b"one\n"
    yield process
    process.kill()
    process.communicate()


def answer(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """What comes back in time for a line that is sent."""
    assert process.stdin and process.stdout
    process.stdin.write(line)
    return heard(process, seconds)


def heard(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """What comes in time."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return os.read(process.stdout.fileno(), 1000) if ready else None


# What a host is


def test_each_host_lets_us_in_and_is_itself(lab: Lab, hosts: list[LabHost]):
    for host in hosts:
        done = ssh(lab, host, "hostname; whoami; pwd; echo $HOME; echo ~")
        name = host.name if lab.spaces else socket.gethostname()
        assert done.stdout.split() == [name, host.user, *[str(host.home)] * 3], done.stderr
    assert len({host.address for host in hosts}) == len(hosts) == 4


def test_the_client_home_serves_paramiko(lab: Lab, hosts: list[LabHost]):
    config = paramiko.SSHConfig.from_path(str(lab.ssh_config)).lookup("node2")
    client = paramiko.SSHClient()
    client.load_host_keys(config["userknownhostsfile"])
    client.connect(
        config["hostname"], int(config["port"]), config["user"], key_filename=config["identityfile"],
        timeout=60, banner_timeout=60, auth_timeout=60, allow_agent=False, look_for_keys=False,
    )  # fmt: skip
    try:
        _, out, _ = client.exec_command("echo hi", timeout=60)
        assert out.read() == b"hi\n"
    finally:
        client.close()
    record = hosts[1].record()
    assert (record.name, record.user, record.port) == (
        config["hostname"], config["user"], int(config["port"]),
    )  # fmt: skip


@needs_spaces
def test_hosts_know_each_other_by_name_and_this_machine_does_not(lab: Lab, hosts: list[LabHost]):
    code = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 30).recv(4))"
    for name in ("node1", "node4"):
        assert hosts[2].run(["python3", "-c", code, name]).stdout == b"b'SSH-'\n"
    assert hosts[0].run(["getent", "hosts", "launcher"]).stdout.split() == [lab.address.encode(), b"launcher"]
    assert "node1" not in Path("/etc/hosts").read_text()


def test_the_python_of_the_tests_is_there_too(lab: Lab, hosts: list[LabHost]):
    code = "import paramiko, sys; print(sys.executable)"
    done = ssh(lab, hosts[0], f"{sys.executable} -c '{code}' && python3 -V")
    assert done.stdout.splitlines()[0] == sys.executable
    assert "Python 3" in done.stdout


@needs_spaces
def test_a_host_has_processes_and_files_of_its_own(lab: Lab, hosts: list[LabHost]):
    started = ssh(lab, hosts[0], "sleep 600 >/dev/null 2>&1 & echo $!; touch ~/mine /tmp/mine")
    pid = int(started.stdout.split()[0])
    # Its shell has forked it, but it may not have called exec yet.
    until(lambda: (pid, "sleep 600") in hosts[0].processes(), PATIENCE, "the sleeper sleeps")
    assert hosts[0].files() == ["/tmp/mine", f"{hosts[0].home}/mine"]
    files = [f"file {path}" for path in hosts[0].files()]
    assert hosts[0].left() == [f"process {pid} (sleep 600)", *files]
    assert all(host.left() == [] for host in hosts[1:])
    assert not Path("/tmp/mine").exists()
    hosts[0].run(["kill", str(pid)])
    # Its first process reaps what it inherited, as an init does.
    until(lambda: not hosts[0].processes(), PATIENCE, "the sleeper is gone, not even a zombie")
    hosts[0].empty()
    assert hosts[0].left() == []


def test_the_cache_may_stay_and_what_is_beside_it_not(hosts: list[LabHost]):
    cache = hosts[0].home / ".cache/tf-launcher/blobs"
    cache.mkdir(parents=True)
    assert hosts[0].left() == []
    (hosts[0].home / ".cache/other").touch()
    assert hosts[0].left() == [f"file {hosts[0].home}/.cache/other"]
    hosts[0].expected.append(".cache/other")
    assert hosts[0].left() == []


def test_run_ends_what_takes_too_long(hosts: list[LabHost]):
    with pytest.raises(subprocess.TimeoutExpired):
        hosts[0].run(["sleep", "600"], timeout=0.2)
    until(lambda: not hosts[0].processes(), PATIENCE, "the sleeper is gone")
    assert hosts[0].run(["cat"], b"in").stdout == b"in"
    with pytest.raises(subprocess.CalledProcessError):
        hosts[0].run(["false"])


# What can happen to it


@needs_spaces
def test_cut_is_silence_and_restore_brings_all_of_it(echo: subprocess.Popen[bytes], hosts: list[LabHost]):
    hosts[0].cut()
    assert answer(echo, b"two\n", 1.0) is None
    assert not hosts[0].answers()
    until(hosts[1].answers, PATIENCE, "the other host answers")
    assert echo.poll() is None
    hosts[0].restore()
    # As long again as it was cut, at most: so TCP tries again.
    assert heard(echo, 60) == b"two\n"
    until(hosts[0].answers, PATIENCE, "it answers again")


@needs_spaces
def test_delay(echo: subprocess.Popen[bytes], hosts: list[LabHost]):
    hosts[0].netem("delay 300ms")
    since = time.monotonic()
    assert answer(echo, b"two\n", PATIENCE) == b"two\n"
    assert time.monotonic() - since >= 0.3
    hosts[0].netem_off()

    def soon() -> bool:
        since = time.monotonic()
        return answer(echo, b"three\n", PATIENCE) == b"three\n" and time.monotonic() - since < 0.3

    assert any(soon() for _ in range(20))


@needs_spaces
@pytest.mark.parametrize("both_ways", [False, True])
def test_loss(lab: Lab, hosts: list[LabHost], both_ways: bool):
    """Of 1000 datagrams a fifth is lost on the way from the host; on the way to it only if we say so."""
    hosts[0].netem("loss 20%", both_ways)
    assert 700 < _arrive(lab, hosts[0]) < 880
    back = _arrive(lab, hosts[0], backwards=True)
    assert 700 < back < 880 if both_ways else back == 1000


def _arrive(lab: Lab, host: LabHost, backwards: bool = False) -> int:
    """How many of 1000 datagrams a host gets through to this machine, or this machine to it."""
    listen = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 0))\n"
        # All that is sent has room there, however late it is read; as far as we may have it.
        f"try: s.setsockopt(socket.SOL_SOCKET, {SO_RCVBUFFORCE}, 1 << 23)\n"
        "except PermissionError: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)\n"
        "print(s.getsockname()[1], flush=True); got = 0; s.settimeout(60)\n"
        "while s.recv(99) != b'end': got += 1\n"
        "print(got)\n"
    )
    send = (
        "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "to = (sys.argv[1], int(sys.argv[2]))\n"
        "for n in range(1000): s.sendto(b'x', to); n % 20 or time.sleep(0.001)\n"
        # Not connected: whoever has heard one of these may be gone before the last.
        "for n in range(100): s.sendto(b'end', to)\n"
    )
    here, there = [sys.executable, "-I", "-S", "-c"], ["python3", "-I", "-S", "-c"]
    pipe = subprocess.PIPE
    if backwards:
        listener = host.start([*there, listen, host.address])
    else:
        listener = subprocess.Popen([*here, listen, lab.address], stdout=pipe)
    with listener:
        assert listener.stdout
        port = listener.stdout.readline().strip().decode()
        if backwards:
            subprocess.run([*here, send, host.address, port], check=True, timeout=60)
        else:
            host.run([*there, send, lab.address, port])
        return int(listener.stdout.read())


@needs_spaces
@pytest.mark.parametrize("spec", ["", "delay", "delay 1s", "loss 20", "reorder 25%"])
def test_a_spec_that_is_not_understood(hosts: list[LabHost], spec: str):
    with pytest.raises(ValueError, match="expected 'delay 200ms loss 20%'"):
        hosts[0].netem(spec)


def test_killed_sessions_end_and_others_can_come(echo: subprocess.Popen[bytes], hosts: list[LabHost]):
    assert hosts[0].kill_sshd_sessions() >= 1
    assert echo.wait(PATIENCE) == 255
    until(hosts[0].answers, PATIENCE, "it answers")


def test_a_stopped_sshd_refuses(lab: Lab, hosts: list[LabHost]):
    hosts[0].stop_sshd()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((hosts[0].address, hosts[0].port), PATIENCE)
    hosts[0].start_sshd()
    assert ssh(lab, hosts[0], "exit 7").returncode == 7


def test_a_frozen_sshd_accepts_and_says_nothing(hosts: list[LabHost]):
    hosts[0].freeze_sshd()
    with socket.create_connection((hosts[0].address, hosts[0].port), PATIENCE) as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.parametrize("shell", ["/bin/csh", "/usr/bin/fish", "/bin/sh", "/bin/bash"])
def test_login_shells(lab: Lab, hosts: list[LabHost], shell: str):
    hosts[0].set_shell(shell)
    code = 'import os; print(open(f"/proc/{os.getppid()}/comm").read())'
    assert ssh(lab, hosts[0], f"python3 -c '{code}'; true").stdout.strip() == Path(shell).name


@pytest.mark.parametrize("shell", ["/bin/csh", "/usr/bin/fish", "/bin/bash"])
def test_a_banner_comes_before_whatever_is_run(lab: Lab, hosts: list[LabHost], shell: str):
    hosts[0].set_shell(shell)
    hosts[0].banner("it's $HOME")
    out = ssh(lab, hosts[0], "echo then").stdout.splitlines()
    assert (out[0], out[-1]) == ("it's $HOME", "then")


def test_a_shell_that_is_not_there(hosts: list[LabHost]):
    with pytest.raises(RuntimeError, match="apt-get install no-such-shell"):
        hosts[0].set_shell("/usr/bin/no-such-shell")


@needs_spaces
def test_full_disk(lab: Lab, hosts: list[LabHost]):
    hosts[0].fill_disk()
    for command in ("echo hi >x", "mkdir y", "echo hi >>.full"):
        assert "No space left on device" in ssh(lab, hosts[0], command).stderr
    assert b"No space left on device" in hosts[0].run(["mkdir", "y"], check=False).stderr
    assert ssh(lab, hosts[1], "echo hi >x && rm x").returncode == 0


@needs_spaces
def test_read_only_home(lab: Lab, hosts: list[LabHost]):
    hosts[0].read_only_home()
    assert "Read-only file system" in ssh(lab, hosts[0], "echo hi >x").stderr


@needs_spaces
def test_programs_of_one_host_alone(lab: Lab, hosts: list[LabHost]):
    hosts[0].no_python()
    assert ssh(lab, hosts[0], "python3 -V").returncode == 127
    hosts[0].program("python3", "#!/bin/sh\necho Python 2.4\n")
    assert ssh(lab, hosts[0], "python3 -V").stdout == "Python 2.4\n"
    assert ssh(lab, hosts[1], "python3 -V").stdout.startswith("Python 3")


def test_a_new_host_key_is_not_the_known_one(lab: Lab, hosts: list[LabHost]):
    hosts[0].new_host_key()
    assert "HOST IDENTIFICATION HAS CHANGED" in ssh(lab, hosts[0], "true").stderr
    assert ssh(lab, hosts[1], "true").returncode == 0


@needs_spaces
def test_healing_undoes_everything_at_once(lab: Lab, hosts: list[LabHost]):
    host = hosts[0]
    ssh(lab, host, "mkdir -p deep/er && touch deep/er/x; ln -s / link; setsid sleep 600 >/dev/null 2>&1 &")
    host.banner("hello")
    host.set_shell("/bin/csh")
    host.no_python()
    host.netem("delay 100ms")
    host.new_host_key()
    host.read_only_home()
    host.fill_disk()
    host.cut()
    lab.heal()
    assert host.left() == []
    assert host.files() == []
    done = ssh(lab, host, "python3 -c 'import os; print(os.environ[\"SHELL\"])' && touch x && rm x")
    assert (done.stdout, done.stderr, done.returncode) == ("/bin/bash\n", "", 0)
