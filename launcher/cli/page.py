"""``launch page``: show a run in a browser, while it runs or when it is over.

The page is served by this process on the loopback interface, until Ctrl-C. It reads the files of the run and
follows its launcher, so that it cannot harm the job. ``launch --page`` runs this command beside its job.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from launcher.backends.queued_runs import find
from launcher.backends.watcher import RunWatcher
from launcher.cli.run_names import run_argument
from launcher.common.errors import Fault, InputError
from launcher.common.record import replace
from launcher.common.trusted_io import is_ours, open_regular, read_at_most
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import not_empty, one_line, whole
from launcher.runs.run import Run, RunState
from launcher.threads import start_function

SUMMARY = "show a run in a browser"

EXAMPLES = """\
launch page                      the run that runs, else the newest
launch page --port 8080 k3f9m    at the same address each time
launch page --share              also an address that only allows to read
launch page --port 9400 --token-file FILE   with /metrics for Prometheus

Only this machine can open it, with the token in the address; from another one
through SSH. Ctrl-C ends the page, and not the run.
Exit code: 130 Ctrl-C, 143 SIGTERM; 0 with --until-end; 2 there is no such run;
125 the port is not free."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOKEN_PATTERN = r"[A-Za-z0-9._~+/=-]{16,}"
_MAX_TOKEN_BYTES = 1024


RUN = run_argument(" (default: `latest`)")
PORT = Setting("port", whole(0, 65535), "its port (default: any free one)", metavar="N", default=0)
SHARE = Setting("share", switch, "print a second address, which only allows to read", default=False)
NO_BROWSER = Setting("no_browser", switch, "do not open a browser", default=False)
ALLOW_HOST: Setting[tuple[str, ...]] = Setting(
    "allow_host", one_line, "another name of this server, such as a proxy's; repeatable", metavar="NAME",
    default=(), repeatable=True,
)  # fmt: skip
TOKEN_FILE: Setting[str | None] = Setting(
    "token_file", not_empty, "serve /metrics to whoever has the token in this file", metavar="FILE",
    default=None,
)  # fmt: skip
UNTIL_END = Setting("until_end", switch, "end when the run has ended", default=False)
GROUPS = (
    Group("positional arguments", (RUN,)),
    Group("options", (PORT, NO_BROWSER, SHARE, ALLOW_HOST, TOKEN_FILE, UNTIL_END)),
)


def run(settings: Settings) -> int:
    """Serve the page of a run until Ctrl-C, or with ``--until-end`` until the run has ended.

    Raises:
        InputError: There is no such run, or the file of the token is missing or can be read by others.
        LaunchError: The port is not free, or the run cannot be read.
    """
    # Only this command needs these libraries, which take 0.2 s.
    from launcher.page.access import Access  # noqa: PLC0415 - imports starlette
    from launcher.page.app import PageApp  # noqa: PLC0415 - imports starlette
    from launcher.page.server import follow, listen, serving  # noqa: PLC0415 - imports uvicorn

    target_run = find(settings[RUN])
    target_run.check_trusted()
    access = Access(settings[ALLOW_HOST], _metrics_token(settings), is_shared=settings[SHARE])
    # A signal that the parent process ignores, as nohup does, stays ignored.
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    with RunWatcher(target_run) as watcher:
        app = PageApp(target_run, access)
        app.show(watcher.look(0.0))
        listener = listen(settings[PORT])
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token="
        with serving(app, listener):
            print(f"page of {target_run.called}: {address}{access.token}")
            if access.read_token:
                print(f"only to read: {address}{access.read_token}")
            try:
                with _browser(f"{address}{access.token}", watcher.run, settings):
                    follow(app, watcher, until_end=settings[UNTIL_END])
            except SystemExit:
                # `launch --page` ends its page by a signal after it has written the report. Browsers that
                # show the page get the end of the run before the page ends.
                if target_run.report():
                    app.show(replace(watcher.look(0.0), state=RunState.ENDED))
                raise
    return 0


def _end(number: int, _: object) -> None:
    """End the page at the first signal: the exception of this handler closes the contexts of `run`."""
    for each in _SIGNALS:  # A second signal must not interrupt that.
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def _browser(url: str, run: Run, settings: Settings) -> Iterator[None]:
    """Open a browser with the page, or print how it is opened from another machine.

    The browser gets the path of a file of this user, which leads to the page. So no command line
    contains the token, which other users could read there. The file is removed at the end of the context.

    Args:
        url: The address with the token.
        run: The run, to whose folder the file is written.
        settings: The settings of the command.
    """
    path, port = run.paths.page, urlsplit(url).port
    has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not has_display:
        print(f"from another machine: ssh -L {port}:127.0.0.1:{port} {os.uname().nodename}")
    sys.stdout.flush()
    if not has_display or settings[NO_BROWSER]:
        yield
        return
    try:
        with suppress(OSError):  # A page that was killed may have left its file.
            os.unlink(path)
        # If the folder cannot be written, the user still has the address that was printed.
        with suppress(OSError):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">')
            # Some browsers keep whoever starts them waiting.
            start_function(webbrowser.open, Path(path).as_uri(), name="browser")
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)


def _metrics_token(settings: Settings) -> str:
    """Return the token with which ``/metrics`` can be read. Empty if nobody may read the metrics.

    Raises:
        InputError: The file is missing, or can be read by others, or contains no token; or there is no port.
    """
    path = settings[TOKEN_FILE]
    if path is None:
        return ""
    if not settings[PORT]:
        raise InputError([Fault("--token-file", "Prometheus needs a fixed address", "expected --port, too")])
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            token = read_at_most(file, _MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise InputError([Fault("--token-file", f"cannot read {path!r}: {error.strerror}")]) from error
    if not is_ours(status.st_uid) or status.st_mode & 0o077:
        expected = "expected a file that only you can read (chmod 600)"
        raise InputError([Fault("--token-file", f"others can read or write {path!r}", expected)])
    if not re.fullmatch(_TOKEN_PATTERN, token):
        expected = "expected at least 16 letters, digits or -._~+/="
        raise InputError([Fault("--token-file", f"{path!r} contains no token", expected)])
    return token
