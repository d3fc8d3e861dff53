"""Reads the hosts that ``--hosts X`` and ``launch hosts X`` name."""

from __future__ import annotations

import os

from launcher.cli.textfile import read_text, shown
from launcher.errors import Fault, HostfileError
from launcher.job import Host

#: Endings that nobody gives a host.
_FILE_ENDINGS = (".yaml", ".yml", ".txt", ".hosts")


def read_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of a hostfile or of an inline list.

    What exists is a file. Of what does not, a word with a slash or with the ending of a hostfile
    was meant to be one: a typing error there must not start a job on hosts of that name. All else
    is a list, ``host[:slots],...``.

    Raises:
        HostfileError: it can't be read, or is wrong; all faults at once.
    """
    if os.path.exists(text):
        return _parsed_file(text)
    if "/" in text or text.lower().endswith(_FILE_ENDINGS):
        raise HostfileError([Fault(shown(text), "no such hostfile", "expected a file, or host[:slots],...")])
    from launcher.hostfile import parse_inline

    return parse_inline(text)


def _parsed_file(path: str) -> tuple[Host, ...]:
    """What the file says. A job file has faults as a hostfile, and one word explains them all."""
    text = read_text(path, "hostfile", HostfileError)
    from launcher.hostfile import parse

    try:
        return parse(text, path)
    except HostfileError:
        if any(line.startswith("roles:") for line in text.splitlines()):
            what = f"this is a job file: launch {shown(path)}"
            raise HostfileError([Fault(shown(path), what)]) from None
        raise
