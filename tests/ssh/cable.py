"""A bad cable: what goes through it is late, or lost. The kernel's netem where it has it, else a program.

Many kernels of virtual machines come without netem. Then two raw sockets take every frame off the cable, and
put it back later, or never: for whoever is at the ends that is the same.
"""

from __future__ import annotations

import collections
import random
import re
import select
import socket
import subprocess
import sys
import time

# Of <linux/if_packet.h>: keep checksums and big segments as they are; don't show us what we send.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
#: Of <asm-generic/socket.h>: as much as is asked for, whatever is usual on this machine.
SO_RCVBUFFORCE = 33
_ALL = 0x0003


class Cable:
    """The cable between a host and the switch, spoilt from its making until `mend`.

    Args:
        number: of the host.
        host: the pid of a process of the host.
        switch: the pid of a process of the switch.
        spec: ``delay 200ms loss 20%``, or one of the two.
        both_ways: also what is sent to the host.
    """

    def __init__(self, number: int, host: int, switch: int, spec: str, both_ways: bool) -> None:
        _understood(spec)
        self._number, self._host, self._switch = number, host, switch
        self._program: subprocess.Popen[bytes] | None = None
        netem = ["root", "netem", *spec.split()]
        if not self._tc(host, "add", "eth0", *netem):
            self._between(spec, both_ways)
        elif both_ways:
            self._tc(switch, "add", f"port{number}", *netem)

    def _tc(self, where: int, what: str, device: str, *more: str) -> bool:
        argv = _inside(where, "tc", "qdisc", what, "dev", device, *more)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        if done.returncode and "kind is unknown" not in done.stderr:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return not done.returncode

    def _between(self, spec: str, both_ways: bool) -> None:
        """Unplug the host from the bridge, and put our program between them."""
        port, ours = f"port{self._number}", f"slow{self._number}"
        self._ip(f"link add {ours} type veth peer name {ours}b", f"link set {port} nomaster")
        self._ip(f"link set {ours} up", f"link set {ours}b master br0", f"link set {ours}b up")
        argv = _inside(
            self._switch, sys.executable, "-I", "-S", __file__, port, ours, spec, str(int(both_ways))
        )
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
        """What is under way is lost; from now on nothing is."""
        if self._program is None:
            for where, device in ((self._host, "eth0"), (self._switch, f"port{self._number}")):
                argv = _inside(where, "tc", "qdisc", "del", "dev", device, "root")
                subprocess.run(argv, capture_output=True, timeout=10)
            return
        self._program.kill()
        self._program.communicate()
        self._ip(f"link del slow{self._number}", f"link set port{self._number} master br0")


def _inside(pid: int, *argv: str) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", *argv]


def _understood(spec: str) -> tuple[float, float]:
    """Seconds of delay, and the share that is lost.

    Raises:
        ValueError: it says something else, too.
    """
    found = re.fullmatch(r"(?:delay (?P<delay>\d+)ms)? ?(?:loss (?P<loss>\d+)%)?", spec.strip())
    if found is None or not spec.strip():
        raise ValueError(f"{spec!r}: expected 'delay 200ms loss 20%', or one of the two")
    return int(found["delay"] or 0) / 1000, int(found["loss"] or 0) / 100


#: When each frame is to go on, and the frame.
Queue = collections.deque[tuple[float, bytes]]


def carry(outer: str, inner: str, spec: str, both_ways: bool) -> None:
    """Take frames from each of two interfaces to the other, for ever; ``spec`` is true from ``outer`` on."""
    sockets = [_tap(outer), _tap(inner)]
    spoilt = [_understood(spec), _understood(spec) if both_ways else (0.0, 0.0)]
    waiting: list[Queue] = [collections.deque(), collections.deque()]
    print("up", flush=True)
    while True:
        due = min((queue[0][0] for queue in waiting if queue), default=None)
        select.select(sockets, [], [], None if due is None else max(0.0, due - time.monotonic()))
        for source, queue, (delay, loss) in zip(sockets, waiting, spoilt, strict=True):
            _take(source, queue, delay, loss)
        for target, queue in zip(reversed(sockets), waiting, strict=True):
            _give(target, queue)


def _tap(name: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    tap.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    tap.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    try:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    except PermissionError:  # root of a user namespace: as much as everybody may have
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    tap.bind((name, _ALL))
    tap.setblocking(False)
    return tap


def _take(source: socket.socket, queue: Queue, delay: float, loss: float) -> None:
    for _ in range(64):
        try:
            frame = source.recv(1 << 17)
        except BlockingIOError:
            return
        if random.random() >= loss:
            queue.append((time.monotonic() + delay, frame))


def _give(target: socket.socket, queue: Queue) -> None:
    while queue and queue[0][0] <= time.monotonic():
        try:
            target.send(queue.popleft()[1])
        except OSError:  # its buffer is full, or the cable is out: a lost frame
            pass


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1")
