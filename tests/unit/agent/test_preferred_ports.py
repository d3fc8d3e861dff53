"""Ports that a task gets if they are free."""

from __future__ import annotations

import socket

from launcher.agent.ports import PortKeeper
from launcher.task_id import TaskId

TASK = TaskId("tensorboard/0")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_first_free_one_is_held():
    one, other, port, second = PortKeeper(), PortKeeper(), free_port(), free_port()
    try:
        assert one.hold(TASK, (port, second)) == port
        assert other.hold(TASK, (port, second)) == second
        assert one.hold(TASK, (second,)) == port
        with socket.create_server(("127.0.0.1", port)):  # what TensorBoard does
            one.release_all()
            assert one.hold(TASK, (port,)) != port
    finally:
        one.release_all()
        other.release_all()


def test_connections_that_linger_do_not_matter():
    keeper = PortKeeper()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()  # the end that closes first is in TIME_WAIT
        client.recv(1)
        client.close()
    try:
        assert keeper.hold(TASK, (port,)) == port
    finally:
        keeper.release_all()
