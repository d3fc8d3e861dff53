"""A bad cable: a program delays or drops the frames of a host. Many kernels come without netem."""

from __future__ import annotations

import collections
import random
import select
import socket
import subprocess
import sys
import time

# Of <linux/if_packet.h>: keep checksums and big segments; do not show what this program sends.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
#: Of <asm-generic/socket.h>: a receive buffer above the usual limit.
SO_RCVBUFFORCE = 33
_ALL = 0x0003


class Cable:
    """The cable between a host and the switch, bad in both directions until `mend`.

    Args:
        number: of the host.
        switch: the pid of a process of the switch.
        delay: milliseconds.
        loss: per cent.
    """

    def __init__(self, number: int, switch: int, delay: int, loss: int) -> None:
        self._number, self._switch = number, switch
        port, ours = f"port{number}", f"slow{number}"
        self._ip(f"link add {ours} type veth peer name {ours}b", f"link set {port} nomaster")
        self._ip(f"link set {ours} up", f"link set {ours}b master br0", f"link set {ours}b up")
        argv = _inside(switch, sys.executable, "-I", "-S", __file__, port, ours, str(delay), str(loss))
        self._program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={},
        )
        assert self._program.stdout is not None and self._program.stdout.readline() == b"up\n"

    def _ip(self, *lines: str) -> None:
        argv = _inside(self._switch, "ip", "-batch", "-")
        subprocess.run(argv, input="\n".join(lines), text=True, check=True, capture_output=True, timeout=60)

    def mend(self) -> None:
        """Frames that are delayed now are lost; no others are."""
        self._program.kill()
        self._program.communicate()
        self._ip(f"link del slow{self._number}", f"link set port{self._number} master br0")


def _inside(pid: int, *argv: str) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", *argv]


def carry(names: tuple[str, str], delay: float, loss: float) -> None:
    """Take frames from each of two interfaces to the other, without end.

    Args:
        names: of the interfaces.
        delay: seconds.
        loss: 0.2: each fifth frame.
    """
    first, second = map(_tap, names)
    #: When each frame is due, the frame, and where it goes.
    queue: collections.deque[tuple[float, bytes, socket.socket]] = collections.deque()
    print("up", flush=True)
    while True:
        wait = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        for source in select.select([first, second], [], [], wait)[0]:
            target = second if source is first else first
            try:
                for _ in range(64):
                    frame = source.recv(1 << 17)
                    if random.random() >= loss:
                        queue.append((time.monotonic() + delay, frame, target))
            except OSError:  # there is nothing more to read, or the cable was pulled out
                pass
        while queue and queue[0][0] <= time.monotonic():
            _, frame, target = queue.popleft()
            try:
                target.send(frame)
            except OSError:  # its buffer is full, or the cable is out: a lost frame
                pass


def _tap(name: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    tap.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    tap.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    try:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    except PermissionError:  # root of a user namespace
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    tap.bind((name, _ALL))
    tap.setblocking(False)
    return tap


if __name__ == "__main__":
    carry((sys.argv[1], sys.argv[2]), int(sys.argv[3]) / 1000, int(sys.argv[4]) / 100)
