"""The command: ``launch`` and ``python -m launcher``."""

from __future__ import annotations

import gc
import os
import signal
import sys

from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

#: What a shell shows for a command that Ctrl-C ended.
_INTERRUPTED = 130
#: The launcher itself failed.
_OURS = 125


def main() -> NoReturn:
    """Run the command line and leave the process with its exit code.

    The interpreter is not taken down piece by piece: all that matters is on disk or on the
    terminal by then, and nobody should wait for the rest.
    """
    gc.disable()  # importing makes no garbage, and looking for it takes a quarter of the time
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the ends of our children from us
    _open_standard_streams()
    try:
        code = _flushed(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = _flushed(_INTERRUPTED)
    os._exit(code)


def _open_standard_streams() -> None:
    """A stream that was closed for us (``<&-``) would give its number to the next file we open."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run(argv: list[str]) -> int:
    """The exit code of a command line; argparse's way of ending and faults of ours included."""
    try:
        from launcher.cli.main import main as command

        return command(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        return 0
    except Exception:  # noqa: BLE001 - a fault of ours: shown whole, and with its own exit code
        sys.excepthook(*sys.exc_info())
        return _OURS


def _flushed(code: int) -> int:
    """Write out what is still buffered; a result that can't be written is no success."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
        except (OSError, ValueError) as error:
            os.write(2, f"launch: can't write the output: {error}\n".encode())
            code = code or _OURS
    return code


if __name__ == "__main__":
    main()
