"""The program by which the Python of tasks tells ``launch check`` which URLs it can reach.

`launcher.cli.check` makes its text, and the host runs it. It exits without waiting for what hangs.
"""

import json
import os
import threading
import time
from typing import Dict, Sequence

from launcher.storage.store import StorageError, check_url
from launcher.storage.urls import missing_package

#: By this `launcher.agent.checks` knows the line with the answer.
_MARK = "launch-check "


def main(urls: Sequence[str], seconds: float) -> None:
    """Try to reach all URLs side by side, print the results on one line, and exit.

    Each result contains ``state``, which is ``ok``, ``missing``, ``failed`` or ``slow``, and ``why``, which
    is the error, or what to install.

    Args:
        urls: The URLs.
        seconds: The time limit for all of them together.
    """
    results = [{"state": "slow", "why": ""} for _ in urls]
    threads = [threading.Thread(target=_reach, args=pair, daemon=True) for pair in zip(urls, results)]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    print(f"\n{_MARK}{json.dumps(results)}", flush=True)
    # Threads of packages below fsspec may hang, and could hold up the end of this Python.
    os._exit(0)


def _reach(url: str, result: Dict[str, str]) -> None:
    """Try to reach a URL, and note what became of it.

    Args:
        url: The URL.
        result: Receives ``state`` and ``why``.
    """
    if why := missing_package(url):
        result.update(state="missing", why=why)
        return
    try:
        check_url(url)
        result.update(state="ok")
    except StorageError as error:
        result.update(state="failed", why=str(error))
