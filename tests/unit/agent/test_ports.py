"""Ports where IPv6 is missing, and where there is none left."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent.ports import PortKeeper
from launcher.model.task import TaskId

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


def in_a_namespace(*settings: str) -> str:
    """What HOLD prints in a fresh network namespace."""
    argv = ["unshare", "-rn", sys.executable, "-c", HOLD, ROOT, *settings]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


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


def test_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch):
    real = socket.socket

    def only_ipv4(family: int = socket.AF_INET, *more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *more)

    monkeypatch.setattr("launcher.agent.ports.socket.socket", only_ipv4)
    keeper = PortKeeper()
    port = keeper.hold(TaskId("worker/0"))
    with real() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    keeper.release(TaskId("worker/0"))
    keeper.release(TaskId("worker/0"))
    with real() as other:
        other.bind(("127.0.0.1", port))
