"""A host: a machine that tasks can run on."""

from __future__ import annotations

from launcher.model.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Optional, Tuple


class Host(NamedTuple):
    """One machine of the inventory, as the user wrote it.

    ``None`` (or an empty tuple) always means "not said", never "none".
    """

    #: How to reach it: the name or address exactly as written.
    name: str
    #: What other tasks are told to connect to; ``None``: the name.
    address: Optional[str] = None
    #: Login user and port of its ssh server.
    user: Optional[str] = None
    port: Optional[int] = None
    #: How many tasks fit before other hosts are used, and how many fit at all.
    slots: Optional[int] = None
    max_slots: Optional[int] = None
    #: Ids of the GPUs that may be given out, as ``CUDA_VISIBLE_DEVICES`` takes them;
    #: ``()``: it has none.
    gpus: Optional[Tuple[str, ...]] = None
    #: Only tasks of these roles run here; empty: any.
    roles: Tuple[str, ...] = ()
    #: The Python that runs ``.py`` programs here.
    python: Optional[str] = None
    #: The virtual or conda environment that tasks run in: its folder, or the name of one of conda's.
    venv: Optional[str] = None
    #: Where tasks run.
    workdir: Optional[str] = None
    #: Environment of every task here, ``(name, value)`` pairs in the order written.
    env: Tuple[Tuple[str, str], ...] = ()
    #: Words to select hosts by: ``fast`` or ``zone=a``.
    labels: Tuple[str, ...] = ()
    #: ``file:line`` where it was written, for messages; empty if nowhere.
    source: str = ""

    @property
    def shown_address(self) -> str:
        """The address other tasks use for it: ``address``, else the name as written."""
        return self.name if self.address is None else self.address

    def at(self, port: int) -> str:
        """``host:port`` as other tasks connect to it, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        name = self.shown_address
        return f"[{name}]:{port}" if ":" in name and not name.startswith("[") else f"{name}:{port}"


#: Names that mean the machine itself, whoever says them.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(name: str) -> bool:
    """Whether ``name`` means "this machine" on every machine (``localhost``, ``127.x.y.z``, ``::1``)."""
    return name in LOOPBACK_NAMES or (name.startswith("127.") and name.replace(".", "").isdigit())
