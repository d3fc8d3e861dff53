"""The command: ``launch`` and ``python -m launcher``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the half of ``signal`` that is there already
import os
import sys

#: What a shell shows for a command that Ctrl-C ended.
_INTERRUPTED = 130


def _leave(*_: object) -> None:
    """Ctrl-C ends a command at once, without a traceback; a running job handles it: `Interrupts`."""
    os._exit(_INTERRUPTED)


# Before all other imports. A caller that ignores Ctrl-C (nohup) wants it ignored.
_IS_COMMAND = __name__ == "__main__" or os.path.basename(sys.argv[0]) == "launch"
if _IS_COMMAND and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _leave)

import errno  # noqa: E402
import gc  # noqa: E402
import signal  # noqa: E402
from typing import NoReturn  # noqa: E402

#: The launcher itself failed.
_OURS = 125
#: Errors of an output that can't be written, other than a closed pipe.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> NoReturn:
    """Run the command line and leave the process with its exit code.

    The interpreter is not taken down piece by piece: all that matters is on disk or on the
    terminal by then, and the rest takes time.
    """
    gc.disable()  # importing makes no garbage, and looking for it takes a quarter of the time
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the ends of our children from us
    _open_standard_streams()
    # Show letters that the terminal's encoding lacks with escapes. The stream may be closed.
    getattr(sys.stdout, "reconfigure", dict)(errors="backslashreplace")
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
    except Exception as error:  # noqa: BLE001 - a fault of ours: shown whole, and with its own exit code
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            _complain(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere
            return _OURS
        sys.excepthook(*sys.exc_info())
        return _OURS


def _complain(error: Exception) -> None:
    try:
        os.write(2, f"launch: can't write the output: {error}\n".encode())
    except OSError:  # nor can this
        return


def _flushed(code: int) -> int:
    """Write out what is still buffered; a result that can't be written is no success."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
        except (OSError, ValueError) as error:
            _complain(error)
            code = code or _OURS
    return code


if __name__ == "__main__":
    main()
