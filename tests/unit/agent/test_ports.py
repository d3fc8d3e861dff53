"""Ports where IPv6 is missing, and where there is none left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent.ports import PortKeeper
from launcher.job import TaskId

ROOT = str(Path(__file__).parents[3])

#: In a network namespace of its own: set things up, hold two ports, say what is held and what is refused.
HOLD = """
import socket, sys
sys.path.insert(0, sys.argv[1])
for setting in sys.argv[2:]:
    name, _, value = setting.partition("=")
    open("/proc/sys/net/" + name, "w").write(value)
from launcher.agent.ports import PortKeeper, refusal
keeper = PortKeeper()
try:
    ports = [keeper.hold(name) for name in ("worker/0", "worker/1")]
except OSError as error:
    print("refused:", refusal(error))
    sys.exit()
assert len(set(ports)) == 2
for port in ports:
    for address in ("127.0.0.1", "0.0.0.0"):
        other = socket.socket()
        try:
            other.bind((address, port))
            print("free")
        except OSError:
            pass
        other.close()
print(*(socket.socket(fileno=holder).family.name for holder in keeper._held.values()))
"""


#: Where the kernel knows no IPv6: a port that is held, and let go. Elsewhere somebody else may take it then.
LET_GO = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from launcher.agent.ports import PortKeeper
real = socket.socket
def only_ipv4(family=socket.AF_INET, *more):
    if family == socket.AF_INET6:
        raise OSError(97, "Address family not supported by protocol")
    return real(family, *more)
socket.socket = only_ipv4
def bound(port):
    with real() as other:
        try:
            other.bind(("0.0.0.0", port))
        except OSError as error:
            return error.strerror
        return "bound"
keeper = PortKeeper()
port = keeper.hold("worker/0")
print(bound(port))
keeper.release("worker/0")
keeper.release("worker/0")
print(bound(port))
"""


#: What keeps somebody from a network namespace of his own, and what to do.
REFUSED = """\
this test needs a network namespace of its own, and may not have one, or not change its settings: {}
Run it as root, as CI does; or allow user namespaces: `sysctl -w user.max_user_namespaces=10000`, and where
there are such settings also `kernel.unprivileged_userns_clone=1` (Debian) and
`kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu). In a container: `docker run --privileged`."""


def in_a_namespace(*settings: str, code: str = HOLD) -> str:
    """What this prints in a fresh network namespace."""
    unshare = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    may_set = [*unshare, "test", "-w", "/proc/sys/net/ipv4/ip_local_port_range"]
    tried = subprocess.run(may_set, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.fail(REFUSED.format(tried.stderr.strip() or "/proc/sys/net is read-only"), pytrace=False)
    argv = [*unshare, sys.executable, "-c", code, ROOT, *settings]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_both_worlds():
    assert in_a_namespace() == "AF_INET6 AF_INET6"


def test_ipv6_is_switched_off():
    """Linux lets ``::`` be bound all the same, and that keeps the port in the world of IPv4."""
    assert "free" not in in_a_namespace("ipv6/conf/all/disable_ipv6=1", "ipv6/conf/lo/disable_ipv6=1")


def test_ipv6_can_not_be_bound(monkeypatch: pytest.MonkeyPatch):
    real, tried = socket.socket, []

    class Refuses(real):  # type: ignore[misc, valid-type]
        """``::`` can't be assigned."""

        def bind(self, address: tuple[str, int]) -> None:
            tried.append(address[0])
            if address[0] == "::":
                raise OSError(99, "Cannot assign requested address")
            super().bind(address)

    monkeypatch.setattr("launcher.agent.ports.socket.socket", Refuses)
    keeper = PortKeeper()
    assert keeper.hold(TaskId("worker/0")) > 0
    keeper.release_all()
    assert tried == ["::", "0.0.0.0"]


def test_no_port_is_left():
    said = in_a_namespace("ipv4/ip_local_port_range=60000 60000")
    assert said.startswith("refused: Address already in use (none is free: `sysctl ")


def test_a_kernel_without_ipv6():
    assert in_a_namespace(code=LET_GO).splitlines() == ["Address already in use", "bound"]
