"""The process that copies files of a launch to URLs, so that the launcher itself never imports fsspec.

`launcher.files.targets` starts it and reads what it prints: lines of JSON, the last of which says what was
copied and what was not.
"""

import errno
import json
import os
import signal
import sys
import threading
from typing import Callable, Dict, Iterator, List, NoReturn, Sequence, Set, Tuple
from urllib.parse import quote

from launcher.common.text import plural
from launcher.common.trusted_io import open_regular
from launcher.storage.store import StorageError, store
from launcher.storage.urls import joined, scheme_of, shown

#: How long this process may live on after it is asked to end.
_CLEANUP_SECONDS = 1
#: How many of the files that were not copied are named at most.
_MAX_NAMED = 20


def main() -> NoReturn:
    """Copy what stdin names, and exit without waiting for calls that hang."""
    # What libraries print goes to stderr.
    output = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        targets = json.loads(sys.stdin.readline())
        # A copy may take hours or hang, so a thread notices meanwhile that the launcher is gone.
        threading.Thread(target=_end_with_launcher, daemon=True).start()
        _copy(targets, lambda **fields: print(json.dumps(fields), file=output, flush=True))
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - nobody waits for this process to clean up
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _end_with_launcher() -> None:
    """End this process when the launcher closes stdin: it does not want to wait, or has been killed."""
    sys.stdin.read()
    # SIGINT lets the store remove a file that is not complete. SIGALRM has no handler, and kills.
    signal.alarm(_CLEANUP_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


def _copy(targets: Sequence[Tuple[str, str]], tell: Callable[..., None]) -> None:
    """Copy files and folders to URLs. A store that cannot be reached is asked for one file only.

    Args:
        targets: Files and folders of this machine, each with its URL.
        tell: Tells the launcher how far the copy is. If the launcher is gone, this raises an error.
    """
    #: The file that each URL gets.
    files: Dict[str, str] = {}
    failures: List[Tuple[str, str]] = []
    #: A store has no links and no devices.
    left_out: List[str] = []
    for top, top_url in targets:
        for path, url in _files_in(top, top_url, failures):
            if files.setdefault(url, path) != path:
                failures.append((path, f"{shown(url)} is the place of {files[url]}, too"))
    tell(size=sum(os.lstat(path).st_size for path in files.values() if os.path.lexists(path)))
    copied = copied_bytes = 0
    lost_stores: Set[str] = set()
    for url, path in files.items():
        address = "/".join(url.split("/")[:3])
        try:
            if address in lost_stores:
                raise StorageError(url, "not tried, as the store could not be reached")
            with open_regular(path, links=False) as content:
                store(content, url, lambda size: tell(moved=size))
                copied_bytes += content.tell()
            copied += 1
        except StorageError as error:
            lost_stores.update([] if error.is_final else [address])
            failures.append((path, str(error)))
        except OSError as error:
            if error.errno == errno.EINVAL:
                left_out.append(path)
            else:
                failures.append((path, error.strerror or str(error)))
        tell(moved=0)
    named = failures[:_MAX_NAMED]
    if len(failures) > _MAX_NAMED:
        named.append(("", plural(len(failures) - _MAX_NAMED, "more file")))
    tell(copied=copied, bytes=copied_bytes, failures=named, left_out=left_out[:_MAX_NAMED])


def _files_in(top: str, top_url: str, failures: List[Tuple[str, str]]) -> Iterator[Tuple[str, str]]:
    """Yield what is in a folder and in those below it, or one file, each with its URL.

    Args:
        top: The folder or the file.
        top_url: Its URL.
        failures: Receives the folders that cannot be read, each with the reason.
    """
    if os.path.isfile(top):
        yield top, top_url
    elif os.path.lexists(top):  # A task that has left nothing may have no folder.
        errors: List[OSError] = []
        for folder, folders, names in os.walk(top, onerror=errors.append):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted((*links, *names)):
                path = os.path.join(folder, name)
                relative = os.path.relpath(path, top)
                # Only the names in file:// have escapes.
                yield path, joined(top_url, quote(relative) if scheme_of(top_url) == "file" else relative)
        failures.extend((str(error.filename), error.strerror or str(error)) for error in errors)
