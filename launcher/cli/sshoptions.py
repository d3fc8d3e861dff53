"""The options about connecting to other machines, the same for every command that does."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.transport.ssh.settings import SshSettings

#: Hosts that may be connected to at a time, at most.
_MOST_AT_ONCE = 1024


def add_ssh_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Options of connecting; `ssh_settings` reads them."""
    parser.add_argument(
        "--accept-new-host-keys", action="store_true", help="trust hosts that were never connected to before"
    )
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        metavar="S",
        help="for each step of connecting to a host (default: 10)",
    )
    parser.add_argument(
        "--fanout", type=_at_once, metavar="N", help="hosts to connect to at the same time (default: 32)"
    )


def ssh_settings(args: argparse.Namespace) -> SshSettings:
    """What the options say; a command with ``--lease`` has its seconds, or ``None``, in ``args.lease``."""
    from launcher.transport.ssh.settings import SshSettings

    said = {
        "connect_timeout": args.connect_timeout,
        "fanout": args.fanout,
        "lease": getattr(args, "lease", None),
    }
    settings = SshSettings(accept_new=args.accept_new_host_keys)
    return settings._replace(**{name: value for name, value in said.items() if value is not None})


def seconds(text: str) -> float:
    """A time that is more than none; see `duration`."""
    found = duration(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected more than no time at all")
    return found


def duration(text: str) -> float:
    """How ``type=`` of an option reads a time: seconds, or ``10s``, ``5m``."""
    from launcher.jobfile.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: {error}") from None


def _at_once(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_AT_ONCE:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {_MOST_AT_ONCE}")
    return int(text)
