"""The command: ``launch`` and ``python -m launcher``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the half of ``signal`` that is there already
import os
import sys

# ``python -m`` puts the current folder there. The agent, a fork of this process, imports modules later.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

#: Exit code of a command that Ctrl-C ended, as a shell shows it.
_INTERRUPTED_EXIT_CODE = 130


def _exit_interrupted(*_: object) -> None:
    """Ctrl-C ends a command at once, without a traceback; a running job handles it: `Interrupts`."""
    os._exit(_INTERRUPTED_EXIT_CODE)


# Before all other imports. A caller that ignores Ctrl-C (nohup) wants it ignored.
_IS_COMMAND = __name__ == "__main__" or os.path.basename(sys.argv[0]) == "launch"
if _IS_COMMAND and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _exit_interrupted)

import errno  # noqa: E402
import gc  # noqa: E402
import signal  # noqa: E402
from typing import NoReturn  # noqa: E402

from launcher.common.text import NO_THREAD_REASON  # noqa: E402
from launcher.threads import is_no_thread  # noqa: E402

#: Exit code when the launcher itself failed.
_LAUNCHER_FAILED_EXIT_CODE = 125
#: Errors of an output that can't be written, other than a closed pipe.
_UNWRITABLE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> NoReturn:
    """Run the command line and end the process with its exit code.

    The process ends by `os._exit`: all output is written by then, and shutting down the interpreter takes
    time.
    """
    if sys.platform != "linux":
        print(
            f"launch: this system is {sys.platform}, and launch needs Linux; "
            "on macOS: a Linux container, virtual machine or host; on Windows: WSL2",
            file=sys.stderr,
        )
        sys.exit(_LAUNCHER_FAILED_EXIT_CODE)
    gc.disable()  # imports make no garbage, and the collector would take a quarter of the time
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, children leave no exit status
    _open_standard_streams()
    # Print characters that the terminal's encoding lacks as escapes. The stream may be closed.
    getattr(sys.stdout, "reconfigure", dict)(errors="backslashreplace")
    try:
        code = _flushed(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = _flushed(_INTERRUPTED_EXIT_CODE)
    os._exit(code)


def _open_standard_streams() -> None:
    """Open closed standard streams (``<&-``) as /dev/null, so that no other file gets their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python has none for a stream that was closed when it started.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends


def _run(argv: list[str]) -> int:
    """Run a command line, and return its exit code, even where argparse ends it or the launcher fails."""
    try:
        from launcher.cli.main import main as command  # noqa: PLC0415 - if it fails: exit code 125

        return command(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - a fault of the launcher: its traceback, and exit code 125
        if isinstance(error, OSError) and error.errno in _UNWRITABLE_ERRORS and error.filename is None:
            _report_unwritable(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drop the buffered output
            return _LAUNCHER_FAILED_EXIT_CODE
        if is_no_thread(error):
            print(f"launch: {NO_THREAD_REASON}", file=sys.stderr)
        else:
            sys.excepthook(*sys.exc_info())
        return _LAUNCHER_FAILED_EXIT_CODE


def _report_unwritable(error: Exception) -> None:
    try:
        os.write(2, f"launch: can't write the output: {error}\n".encode())
    except OSError:  # stderr can't be written either
        return


def _flushed(code: int) -> int:
    """Flush the standard streams; exit code 0 becomes 125 if that fails."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
        except (OSError, ValueError) as error:
            _report_unwritable(error)
            code = code or _LAUNCHER_FAILED_EXIT_CODE
    return code


if __name__ == "__main__":
    main()
