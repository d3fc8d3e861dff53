"""Jobs through the installed command, with servers and ``~/.ssh/config`` as users have them."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Launch
from tests.local.stops import SAVES, processes_of
from tests.seeing import kill, last_run
from tests.ssh.host import LabHost
from tests.ssh.lab import ALL, ONE, Lab

pytestmark = pytest.mark.timeout(240)

INCLUDE = """\
Host other
  Include port.conf
Match originalhost short exec "test -d /proc"
  Port 22
"""
CONFIG = """\
Match originalhost short
  HostName {address}
  ProxyCommand P={python}; $P '{script}' %h %p 2>/dev/null | cat
"""


def config(lab: Lab, launch: Launch, host: LabHost) -> Path:
    """A ``.ssh`` whose host ``short`` needs Match and a shell."""
    folder = launch.home / ".ssh"
    script = launch.home / "relay.py"
    script.write_text(_RELAY)
    text = CONFIG.format(address=host.address, python="/usr/bin/python3", script=script)
    (folder / "config").write_text(text + "Host *\n" + (folder / "config").read_text())
    return folder


@pytest.mark.promise("`Include`, `Match`, ProxyCommand")
def test_match_and_a_proxy_command_with_shell_features(lab: Lab, ssh_launch: Launch, hosts: list[LabHost]):
    config(lab, ssh_launch, hosts[0])
    ssh_launch("--hosts", "short", "--workers", "1", "--", "true", cwd="/", timeout=60, code=0)


@pytest.mark.promise("`Include`, `Match`, ProxyCommand")
def test_the_same_by_the_ssh_command(lab: Lab, ssh_launch: Launch, hosts: list[LabHost]):
    """With more of both. ``ssh -G`` reads the account's home: a mount namespace has another ``.ssh``."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    folder = config(lab, ssh_launch, hosts[0])
    (folder / "port.conf").write_text("Port 9\n")
    (folder / "config").write_text(INCLUDE + (folder / "config").read_text())
    os.makedirs(f"{home}/.ssh", 0o700, exist_ok=True)
    script = f'mount --bind "$0" {home}/.ssh && exec "$@"'
    started = ssh_launch.start(
        "--hosts", "short", "--workers", "1", "--", "true", cwd="/", env={"HOME": home},
        command=["unshare", "-m", "sh", "-c", script, str(folder), *COMMAND],
    )  # fmt: skip
    started.wait(60, code=0)


@pytest.mark.parametrize("words", ["--hosts node1,node2 true", "check --hosts node1", "clean --hosts node1"])
def test_a_user_id_without_a_name(launch: Launch, words: str):
    """OpenShift gives a container such a one. OpenSSH refuses it: one message says how to add a name."""
    if os.geteuid() != 0:
        pytest.skip("needs root: another user id")
    another = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:  # the test's own folder is root's alone
        os.chown(home, 54321, 54321)
        environment = {"HOME": home, "USER": "", "LOGNAME": ""}
        command = [*another, *COMMAND]
        ended = launch.start(*words.split(), cwd="/", env=environment, command=command).wait(30, code=125)
    line = f"echo me:x:54321:54321::{home}:/bin/sh >>/etc/passwd"
    assert ended.err.count("No user exists for uid 54321") == ended.err.count(line) == 1, ended.err


def test_a_home_that_is_not_that_of_the_account(ssh_launch: Launch, hosts: list[LabHost]):
    """The configuration of the system counts as well, after that of the user."""
    folder, host, key = ssh_launch.home / "etc-ssh", hosts[0], ssh_launch.home / ".ssh/id_ed25519"
    folder.mkdir()
    (folder / "ssh_config").write_text(
        f"Host system\n  HostName {host.address}\n  Port {host.port}\n  IdentityFile {key}\n"
        "Host node1\n  HostName 192.0.2.1\n"
    )
    command = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/ssh && exec "$@"', str(folder)]
    words = ["--hosts", "system,node1:1", "--workers", "2", "--accept-new-host-keys", "--no-check", "true"]
    command += COMMAND
    for _ in ("both files", "without that of the user"):
        ssh_launch.start(*words, cwd="/", command=command).wait(60, code=0)
        (ssh_launch.home / ".ssh/config").unlink(missing_ok=True)
        words = ["--hosts", "system", "true"]


@pytest.mark.promise("host key of a gateway")
def test_the_host_key_of_a_gateway_is_checked(ssh_launch: Launch, hosts: list[LabHost]):
    config = ssh_launch.home / ".ssh/config"
    config.write_text(f"Host node2\n  ProxyJump node1\n{config.read_text()}")
    words = ["--hosts", "node2", "--workers", "1", "--", "echo", "through"]
    assert "| through\n" in ssh_launch(*words, cwd="/", timeout=60).out
    hosts[0].new_host_key()
    ended = ssh_launch("--accept-new-host-keys", *words, cwd="/", timeout=60, code=125)
    assert ended.out == ""
    assert re.search("node2: its gateway node1: the host key of .* has changed: ", ended.err), ended.err


SHELLS = ["sh", "bash", "dash", "zsh", "csh", "tcsh", "ksh", "fish"]


@pytest.mark.promise("login shells with banners")
@pytest.mark.parametrize("shells", [SHELLS[:4], SHELLS[4:]], ids=str)
def test_every_login_shell_and_its_banner(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path, shells: list[str]
):
    """Every byte arrives as it is, whatever the start-up files print."""
    (tmp_path / "data").write_bytes(bytes(range(256)) * 300)
    for host, shell in zip(hosts, shells, strict=True):
        host.set_shell(f"/bin/{shell}")
        host.banner("welcome to <tf-launcher program 7: nothing>\n" + "#" * 2000)
    ended = ssh_launch(*ALL, "--sync", ".", "cksum", "data", cwd=tmp_path, timeout=60, code=0)
    sums = re.findall(r"^node\d worker/\d \| (.*)$", ended.out, re.MULTILINE)
    assert sums == subprocess.check_output(["cksum", "data"], cwd=tmp_path, text=True).splitlines() * 4


@pytest.mark.promise("keys renewed during output and sync")
def test_keys_are_renewed_during_output_and_sync(
    lab: Lab, ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    (tmp_path / "data").write_bytes(os.urandom(6 << 20))
    with hosts[0].sshd_with("RekeyLimit 1M"):
        words = [*ONE, "--sync", ".", "--", "sh", "-c", "cksum < data; seq 1000000"]
        ssh_launch(*words, cwd=tmp_path, timeout=120, code=0)
    first, *numbers = last_run(ssh_launch).log("worker/0").split(b"\n")[:-1]
    assert first.split()[1] == b"%d" % (6 << 20)
    assert numbers == [b"%d" % number for number in range(1, 1_000_001)]


def test_faults_of_all_hosts_at_once(lab: Lab, ssh_launch: Launch, hosts: list[LabHost]):
    hosts[0].new_host_key()
    hosts[1].stop_sshd()
    names = "node1,node2,no-such-user@node3,no-such-host.invalid"
    ended = ssh_launch("--hosts", names, "--workers", "4", "true", cwd="/", code=125)
    for text in (
        "node1: the host key of ",
        "refused the connection; does an ssh server run there, on this port? (3 attempts)",
        "refused the login as no-such-user (tried: ~/.ssh/id_ed25519)",
        "no-such-host.invalid: 'no-such-host.invalid' was not found (",
    ):
        assert text in ended.err


_RELAY = """\
import os, select, socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([0, peer], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else peer.recv(65536)
        if not data:
            sys.exit()
        (peer.sendall if ready == 0 else lambda data: os.write(1, data))(data)
"""


def test_sigterm_to_the_proxy_command_too(lab: Lab, ssh_launch: Launch, hosts: list[LabHost]):
    """A service manager signals all processes: launch connects again, and the tasks keep their grace."""
    config(lab, ssh_launch, hosts[0])
    words = ["--hosts", "short", "--workers", "1", "--grace", "20", "--", "sh", "-c", SAVES, "sh", "6"]
    started = ssh_launch.start(*words, cwd="/").up(1, 60)
    pids = [*processes_of(started.pid)]
    assert len(pids) >= 3, "the launcher, the shell of the ProxyCommand, and its commands"
    for pid in pids:
        kill(pid, signal.SIGTERM)
    assert "| saved" in started.wait(60, code=143).out
