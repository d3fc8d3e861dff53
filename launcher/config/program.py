"""Reads the program of a job, or of a role, in a file."""

from __future__ import annotations

import shlex

from launcher.config.schema import ConfigNode, FaultList, text_of
from launcher.job import Program


def read_program(node: ConfigNode, label: str, faults: FaultList) -> Program | None:
    """Read a program: a list of words, or a text that is split as a shell does, without expansions."""
    if isinstance(node.value, list):
        command = [text for item in node.value if (text := text_of(item, label, faults)) is not None]
        if len(command) < len(node.value):
            return None
        return faults.check(node.line, label, " ".join(command), lambda _: Program.of(command))
    text = text_of(node, label, faults)
    return None if text is None else faults.check(node.line, label, text, _split_program)


def _split_program(text: str) -> Program:
    try:
        command = shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None
    return Program.of(command)
