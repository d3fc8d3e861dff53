"""How long a role lives: keys that can't be together, or would say nothing of a role as the others are."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import TENSORFLOW_ROLES, Role
from launcher.marked.faults import Faults, quoted
from launcher.marked.fields import Fields
from launcher.marked.nodes import Node, Scalar, Table

_CHIEF = "chief"


def check_life(name: str, fields: Fields, sidecar: bool) -> None:
    """Note keys that say of a role's end what can't be together."""
    if sidecar and name in TENSORFLOW_ROLES:
        what, wanted = (
            f"{name} as a sidecar",
            "expected a role with a name of your own: the job needs this one",
        )
        fields.faults.add(fields.line_of("sidecar"), what, wanted)
    if fields.node("drain") is None:
        return
    if sidecar:
        what, wanted = '"drain" and "sidecar" both', "expected one of them: a sidecar is stopped with the job"
        fields.faults.add(fields.line_of("drain"), what, wanted)
    elif name == _CHIEF:
        wanted = "expected it in another role: the job is done when the chief is"
        fields.faults.add(fields.line_of("drain"), f'"drain" for {quoted(name)}', wanted)


def check_drains(roles: Sequence[Role], entries: Sequence[tuple[Scalar, Node]], faults: Faults) -> None:
    """Note a ``drain`` of roles whose end is the job's, there being no chief: they have all the time anyway.

    Args:
        roles: all that have tasks.
        entries: what is written of them.
    """
    if any(role.name == _CHIEF for role in roles):
        return
    decide = [role.name for role in roles if role.drain and not role.service]
    for word, node in entries:
        if word.text in decide and isinstance(node, Table):
            line = next(key.line for key, _ in node.entries if key.text == "drain")
            wanted = "expected a chief, or a service: without a chief the job waits for this role anyway"
            faults.add(line, f'"drain" for {quoted(word.text)}', wanted)
