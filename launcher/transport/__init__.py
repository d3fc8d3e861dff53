"""Ways to get a byte pipe to an agent on a host. One file each; imported when used.

A transport is chosen per host: this machine's own tasks never go through a network.
"""

from __future__ import annotations

import importlib

from launcher.errors import TransportError
from launcher.transport.base import Link, Transport

__all__ = ["TRANSPORTS", "Link", "Transport", "transport_named"]

#: Name -> ``module:Class``, imported on use.
TRANSPORTS = {
    "local": "launcher.transport.local:LocalTransport",
}


def transport_named(name: str) -> Transport:
    """The transport of this name.

    Raises:
        TransportError: there is none.
    """
    try:
        module, _, attribute = TRANSPORTS[name].partition(":")
    except KeyError:
        raise TransportError(f"no transport {name!r}: there is {', '.join(TRANSPORTS)}") from None
    transport: Transport = getattr(importlib.import_module(module), attribute)()
    return transport
