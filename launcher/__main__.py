"""The entry point of ``launch`` and of ``python -m launcher``.

It prepares the process (signals, standard streams, garbage collection), runs the command line and exits with
its code. It must not import more than it needs: every command waits for these imports. Exit code 125 means
that the launcher itself failed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the half of ``signal`` that Python has already loaded
import os
import sys

# ``python -m`` puts the current folder first on the path. The agent, which is a fork of this process, imports
# modules later, and must not find files of the user there.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

#: Exit code of a command that Ctrl-C ended, as a shell shows it.
_INTERRUPTED_EXIT_CODE = 130


def _exit_interrupted(*_: object) -> None:
    """Exit at Ctrl-C, at once and without a traceback.

    This is the signal handler of a command. While a job runs, `launcher.launch.interrupts` replaces it.
    """
    os._exit(_INTERRUPTED_EXIT_CODE)


# This happens before all other imports, because Ctrl-C may come during them. A caller that ignores Ctrl-C, as
# nohup does, wants it ignored.
_IS_COMMAND = __name__ == "__main__" or os.path.basename(sys.argv[0]) == "launch"
if _IS_COMMAND and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _exit_interrupted)

import errno  # noqa: E402
import gc  # noqa: E402
import signal  # noqa: E402
from contextlib import suppress  # noqa: E402
from typing import NoReturn  # noqa: E402

from launcher.common.text import NO_THREAD_REASON  # noqa: E402
from launcher.threads import is_no_thread  # noqa: E402

#: Exit code of a command in which the launcher itself failed.
_LAUNCHER_FAILED_EXIT_CODE = 125
#: Errors of an output that cannot be written, other than a closed pipe.
_UNWRITABLE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> NoReturn:
    """Run the command line and exit with its code.

    The process exits by `os._exit`, because shutting down the interpreter takes time. All output is written
    before.
    """
    if sys.platform != "linux":
        print(
            f"launch: this system is {sys.platform}, and launch needs Linux; "
            "on macOS: a Linux container, virtual machine or host; on Windows: WSL2",
            file=sys.stderr,
        )
        sys.exit(_LAUNCHER_FAILED_EXIT_CODE)
    # Imports make no garbage, and the collector would take a quarter of the time.
    gc.disable()
    # While a process ignores SIGCHLD, the kernel keeps no exit status of its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _open_standard_streams()
    # Characters that the terminal's encoding lacks are printed as escapes. Whatever stands in for stdout may
    # not have this method. `dict` then takes its place, because it accepts the argument and does nothing.
    getattr(sys.stdout, "reconfigure", dict)(errors="backslashreplace")
    try:
        code = _flushed(_run(sys.argv[1:]))
    except KeyboardInterrupt:  # A command such as attach has replaced the handler of Ctrl-C.
        # Another Ctrl-C must not interrupt the flushing.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = _flushed(_INTERRUPTED_EXIT_CODE)
    os._exit(code)


def _open_standard_streams() -> None:
    """Open closed standard streams (``<&-``) as /dev/null, so that no other file gets their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, which is this one.
    # Python sets ``sys.stdout`` to None if the stream was closed when Python started.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process exits


def _run(argv: list[str]) -> int:
    """Run a command line and return its exit code.

    It also returns the code where argparse exits, where the reader of a pipe has gone (0), and where launch
    itself fails (125): stdout cannot be written, the system starts no more threads, or there is a bug.

    Args:
        argv: The words after ``launch``.
    """
    try:
        from launcher.cli.main import main as command  # noqa: PLC0415 - a failed import is caught below

        return command(argv)
    except SystemExit as exit_:  # Its code may be a number, a message, or None for success.
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BrokenPipeError:  # As in `launch logs | head`.
        return 0
    except Exception as error:  # noqa: BLE001 - any fault of the launcher leads to exit code 125
        # An error without a file name is about stdout.
        if isinstance(error, OSError) and error.errno in _UNWRITABLE_ERRORS and error.filename is None:
            _report_unwritable(error)
            # Python writes the rest of its buffer to stdout at exit, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return _LAUNCHER_FAILED_EXIT_CODE
        if is_no_thread(error):
            print(f"launch: {NO_THREAD_REASON}", file=sys.stderr)
        else:
            sys.excepthook(*sys.exc_info())
        return _LAUNCHER_FAILED_EXIT_CODE


def _report_unwritable(error: Exception) -> None:
    """Tell the user on stderr that the output cannot be written, if stderr can be."""
    with suppress(OSError):  # It fails if stderr cannot be written either.
        os.write(2, f"launch: cannot write the output: {error}\n".encode())


def _flushed(code: int) -> int:
    """Flush the standard streams and return the exit code of the command.

    Args:
        code: The exit code so far.

    Returns:
        The same code, but 125 instead of 0 if output could not be written. A closed pipe is no failure.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
        except (OSError, ValueError) as error:  # ValueError: the stream is closed.
            _report_unwritable(error)
            code = code or _LAUNCHER_FAILED_EXIT_CODE
    return code


if __name__ == "__main__":
    main()
