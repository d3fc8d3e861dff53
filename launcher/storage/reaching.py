"""The program by which the Python of tasks tells ``launch check`` which URLs it can reach.

`launcher.cli.check` makes its text, and the host runs it. It exits without waiting for what hangs.
"""

import json
import os
import threading
import time
from typing import Sequence

from launcher.storage.store import StorageError, check_url
from launcher.storage.urls import shown

#: By this `launcher.agent.checks` knows the line with the answer.
_MARK = "launch-check "


def main(urls: Sequence[str], seconds: float) -> None:
    """Try to reach all URLs side by side, print the results on one line, and exit.

    Each result contains the ``url`` without secrets, and the ``error``, which is empty if it was reached.

    Args:
        urls: The URLs.
        seconds: The time limit for all of them together.
    """
    errors = [f"{shown(url)}: no answer in time" for url in urls]

    def reach(index: int) -> None:
        """Try to reach one URL, and note what became of it."""
        try:
            check_url(urls[index])
            errors[index] = ""
        except StorageError as error:
            errors[index] = str(error)

    # Each URL gets a thread, because a store that does not answer may block its thread for minutes.
    threads = [threading.Thread(target=reach, args=[index], daemon=True) for index in range(len(urls))]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    results = [{"url": shown(url), "error": error} for url, error in zip(urls, errors)]
    print(f"\n{_MARK}{json.dumps(results)}", flush=True)
    # Threads of packages below fsspec may hang, and could hold up the end of this Python.
    os._exit(0)
