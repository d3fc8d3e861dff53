"""An agent that is ready reports its host, and holds ports."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pytest

from launcher.agent import listening
from launcher.common import events
from tests.contract.driver import Driver
from tests.contract.sites import Eyes

#: Ports that are let go, and how many of them no other process can have been given in that moment.
MANY, MOST = 5, 3

#: Prints those of the addresses, with those of the ports, that a plain bind gets.
PLAIN_BINDS = """
import socket, sys
v6only, *ports = map(int, sys.argv[1:])
for port in ports:
    for family, address in ((2, "127.0.0.1"), (2, "0.0.0.0"), (10, "::1"), (10, "::")):
        s = socket.socket(family)
        if family == 10:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        try:
            s.bind((address, port))
            s.listen()
            print(address, port)
        except OSError:
            pass
        s.close()
"""

#: Serves on a port as gRPC does, and fetches an answer from it.
SERVE = """
import socket, sys
s = socket.socket(int(sys.argv[2]))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[3], int(sys.argv[1])))
s.listen()
c = socket.create_connection(("localhost" if sys.argv[3] == "::" else "127.0.0.1", int(sys.argv[1])), 5)
a, _ = s.accept()
a.sendall(b"served")
print(c.recv(100).decode())
"""

#: Listens on a port, in a child.
LISTEN = """
import os, socket, sys, time
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    time.sleep(600)
"""


def free(eyes: Eyes, ports: Iterable[int], v6only: int = 1) -> set[str]:
    """Those of the ports that can be had. Any other program may be given one as soon as it is free."""
    return {line.split()[1] for line in eyes.code(PLAIN_BINDS, str(v6only), *map(str, ports)).splitlines()}


def test_ready(agent: Driver, eyes: Eyes):
    ready = agent.ready()
    facts = ready.facts
    assert eyes.alive(ready.pid) == [ready.pid]
    assert facts.hostname == eyes.code("import os; print(os.uname().nodename)")
    assert facts.cpus == int(eyes.code("import os; print(len(os.sched_getaffinity(0)))"))
    assert facts.user == int(eyes.code("import os; print(os.getuid())"))
    assert 1 << 26 < facts.memory < 1 << 50
    assert tuple(map(int, facts.python.split("."))) >= (3, 8)
    assert facts.executable.startswith("/")
    assert not [address for address in facts.addresses if address.startswith("127.")]


@pytest.mark.promise("ports are held, no clash")
def test_ports_are_held_against_all_other_processes(agent: Driver, eyes: Eyes):
    port = agent.hold("worker/0")["worker/0"]
    assert [free(eyes, [port], v6only) for v6only in (0, 1)] == [set(), set()]


def test_a_server_that_reuses_addresses_serves_on_its_held_port(agent: Driver, eyes: Eyes):
    port = agent.hold("worker/0")["worker/0"]
    assert eyes.code(SERVE, str(port), "2", "0.0.0.0") == "served"
    assert eyes.code(SERVE, str(port), "2", "127.0.0.1") == "served"
    assert eyes.code(SERVE, str(port), "10", "::") == "served"
    exited = agent.run("worker/0", [eyes.site.python, "-c", SERVE, str(port), "10", "::"])
    assert (exited.code, agent.output("worker/0")) == (0, b"served\n")


def test_addresses_are_tried(agent: Driver):
    """Held ports refuse connections: they can be reached. A name with an empty part has no address."""
    port = agent.hold("worker/0")["worker/0"]
    addresses = (f"127.0.0.1:{port}", f"localhost:{port}", "no..name:1")
    agent.send(events.TryPeers(agent.host, addresses))
    assert agent.wait(events.PeersTried).unreachable == {"no..name:1": "its name is unknown here"}


def test_no_port_is_given_twice(open_agent: Callable[[], Driver]):
    tasks = [f"worker/{index}" for index in range(40)]
    ports = [port for _ in range(4) for port in open_agent().hold(*tasks).values()]
    assert len(set(ports)) == len(ports) == 160


def test_a_port_is_held_after_the_end_of_its_task(agent: Driver, eyes: Eyes):
    tasks = [f"worker/{index}" for index in range(MANY)]
    ports = [*agent.hold(*tasks).values()]
    for task in tasks:
        agent.started(task, ["sleep", "60"])
    assert free(eyes, ports) == set()
    for task in tasks:
        agent.stopped(task)
    assert free(eyes, ports) == set()
    assert agent.hold(*tasks) == dict(zip(tasks, ports, strict=True)), "another attempt has the same port"


def test_ports_are_free_when_the_agent_is_gone(open_agent: Callable[[], Driver], eyes: Eyes):
    agent = open_agent()
    held = agent.hold(*(f"worker/{index}" for index in range(MANY)))
    assert agent.close() == ""
    assert agent.all(events.AgentClosed)
    assert len(free(eyes, held.values())) >= MOST


def _chosen() -> Iterator[int]:
    """Free ports that the kernel chooses for no socket."""
    for port in range(random.randrange(20000, 31000), 32000):
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)):
                yield port


def test_tasks_that_listen_on_ports_of_their_own_choice_are_named(
    open_agent: Callable[[], Driver], eyes: Eyes, monkeypatch: pytest.MonkeyPatch
):
    """The agent that is forked here looks sooner than after a minute."""
    monkeypatch.setattr(listening, "CHECK_AFTER_SECONDS", 5.0)
    agent, chosen = open_agent(), [*islice(_chosen(), 2)]
    own = agent.hold("worker/0", "worker/1", "worker/2", "ps/0")
    agent.send(events.SetCluster("", {"worker": ("", "", ""), "ps": ("",)}, ()))
    # One listens on its own port, two on others, and one on a port that the kernel chooses.
    for task, port in zip(own, (own["worker/0"], *chosen, 0), strict=True):
        agent.start(task, [eyes.site.python, "-c", LISTEN, str(port)])
    text = agent.wait(events.HostNotice, timeout=100).text
    assert f"not the one in TF_CONFIG: worker/1 on {chosen[0]}, worker/2 on {chosen[1]}; does the" in text
