"""What a launch shows and writes: made when there is something to show."""

from __future__ import annotations

import argparse
import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.events import StopAsked, Tell
from launcher.job import RunPaths
from launcher.output.base import Renderer
from launcher.output.files import Files
from launcher.output.writer import Writer

if TYPE_CHECKING:
    from launcher.output.selection import Selection
    from launcher.output.tmux import Tmux

_STDOUT, _STDERR, _SIGPIPE = 1, 2, 13


class Screen:
    """The renderers of a launch, and the thread that writes for them.

    Args:
        args: the options that say how to show it.
        show: whose output is shown; ``None``: everybody's.
        paths: where the run's files are.
        tmux: the session, if there is one.
    """

    def __init__(
        self, args: argparse.Namespace, show: Selection | None, paths: RunPaths, tmux: Tmux | None
    ) -> None:
        self._paths = paths
        self._asked = False
        #: Something that was to be written is not.
        self.unwritten = False
        self.writer = Writer(logs=paths.logs, notice=_notice(args))
        shown = _shown(args, show, self.writer)
        around = [shown] if tmux is None else tmux.around(shown)
        self.files: Files = Files(self._warn)
        self.renderers: Sequence[Renderer] = [self.files, *around]

    def stop_wanted(self) -> StopAsked | None:
        """When whoever read our output is gone, nobody wants the job any more (as SIGPIPE has it)."""
        if self._asked or not isinstance(self.writer.broken(_STDOUT), BrokenPipeError):
            return None
        self._asked = True
        return StopAsked(time.time(), _SIGPIPE, "a closed pipe (nobody reads the output any more)")

    def close(self) -> None:
        """Say so where the output could not be written (not to who has stopped reading, or closed it)."""
        error = self.writer.broken(_STDOUT)
        if error is not None and error.errno not in (errno.EPIPE, errno.EBADF):
            text = f"the output could not be written: {error.strerror}; it is complete in {self._paths.logs}"
            self._warn(Tell(text, urgent=True))
            self.unwritten = True
        self.unwritten = self.unwritten or self.files.unwritten
        self.writer.close()

    def _warn(self, tell: Tell) -> None:
        text = f"launch: {tell.text}\n".encode("utf-8", "backslashreplace")
        self.writer.write(_STDERR, text, urgent=True)


def _notice(args: argparse.Namespace) -> Callable[[int, int], bytes] | None:
    """What says that lines were skipped; ``None``: a line for people."""
    if not args.json:
        return None
    from launcher.output.jsonl import skipped_notice

    return skipped_notice


def _shown(args: argparse.Namespace, show: Selection | None, writer: Writer) -> Renderer:
    """The renderer for whoever looks at stdout."""
    if args.json:
        from launcher.output.jsonl import Jsonl

        return Jsonl(writer)
    from launcher.output.console import Console, Options, wants_colour
    from launcher.output.selection import Selection

    terminal = os.isatty(_STDOUT)
    # Not when stdout goes to a pager or to tee: two writers on one terminal tear each other's lines.
    live = terminal and os.isatty(_STDERR) and not args.tmux
    options = Options(
        terminal=terminal,
        live=live and os.environ.get("TERM") != "dumb",
        colour=wants_colour(terminal, os.environ),
        show=Selection(frozenset()) if show is None and args.tmux and terminal else show or Selection(),
        quiet=args.quiet,
        last_lines=not args.no_last_lines,
    )
    return Console(writer, options)
