"""Hostfiles: text -> hosts, whatever the form.

Each form is one module with ``read(text, faults) -> tuple[Host, ...]``, imported when a text
of that form is read. A new form is a new module and its line in ``FORMATS``.
"""

from __future__ import annotations

import importlib
import re
from typing import NamedTuple

from launcher.errors import HostfileError
from launcher.job import Host
from launcher.marked.faults import Faults


class Format(NamedTuple):
    """One form of hostfile: the module that reads it, and how a file of it is known."""

    module: str
    #: Endings of its files' names, lower case.
    endings: tuple[str, ...] = ()
    #: What its text, and no other's, contains.
    mark: str = ""


#: Every form. A file is read as the first whose ending it has, else the first whose mark it
#: bears, else as ``plain``; ``inline`` is no file.
FORMATS = {
    "yaml": Format("launcher.hostfile.yaml_form", (".yaml", ".yml"), r"(?m)^hosts[ \t]*:(?=\s|$)"),
    "plain": Format("launcher.hostfile.plain"),
    "inline": Format("launcher.hostfile.inline"),
}


def parse(text: str, source: str) -> tuple[Host, ...]:
    """The hosts of a hostfile, in the order written.

    Args:
        text: what the file holds.
        source: its name: for messages, and its ending may tell the form.

    Raises:
        HostfileError: with every fault of the file.
    """
    text = text.removeprefix("\ufeff")
    return _read(_form(text, source), text, source)


def parse_inline(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of a list such as ``h1:2,user@h2,node[01-16]``.

    Raises:
        HostfileError: with every fault of the list.
    """
    return _read("inline", text, source)


def _form(text: str, source: str) -> str:
    for name, form in FORMATS.items():
        if form.endings and source.lower().endswith(form.endings):
            return name
    marked = (name for name, form in FORMATS.items() if form.mark and re.search(form.mark, text))
    return next(marked, "plain")


def _read(form: str, text: str, source: str) -> tuple[Host, ...]:
    faults = Faults(source)
    hosts: tuple[Host, ...] = importlib.import_module(FORMATS[form].module).read(text, faults)
    faults.raise_any(HostfileError)
    return hosts
