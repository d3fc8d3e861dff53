"""What names mean on this host, as its own name services answer."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent.probe_work import together

if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence

    Json = Dict[str, Any]


def resolve(names: Sequence[str], seconds: float) -> Json:
    """What each name is here: ``found`` addresses, ``why`` there are none, ``seconds`` it took."""
    answers = together([partial(_resolved, name) for name in names], seconds)
    slow = {"found": [], "why": f"no answer within {seconds:g} s", "seconds": seconds}
    return {name: answer or slow for name, answer in zip(names, answers)}


def _resolved(name: str) -> Json:
    started = time.monotonic()
    found: List[str] = []
    why = ""
    try:
        for info in socket.getaddrinfo(bare(name), None, type=socket.SOCK_STREAM):
            address = str(info[4][0])
            if address not in found:
                found.append(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    return {"found": found, "why": why, "seconds": round(time.monotonic() - started, 3)}


def bare(address: str) -> str:
    """An address without the brackets of an IPv6 one."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address
