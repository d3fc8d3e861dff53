"""Finds, reads and writes files at URLs, so that a short failure of the store does no harm.

Each call of a library is limited in time, because some of them would wait for minutes. What fails is tried
again for `PATIENCE_SECONDS`, unless that cannot help: reading goes on at the byte where it stopped, and a
file that is written is written again as a whole. It gets its name only when it is complete. Every error is a
`StorageError` of one line.
"""

import io
import os
import re
import secrets
import socket
import sys
import threading
import time
from concurrent import futures
from contextlib import suppress
from typing import IO, Any, Callable, Dict, List, Optional, Tuple, TypeVar
from urllib.parse import urlsplit

from launcher.common.errors import LaunchError
from launcher.common.record import Record
from launcher.storage import urls

_T = TypeVar("_T")
#: Calls a function and returns its result. The second argument is the time limit in seconds. The third one
#: says whether a success proves that the store answers. A library that only gathers bytes to send proves
#: nothing.
_Bounded = Callable[[Callable[[], Any], float, bool], Any]

#: For how long something that fails is tried again, since it last worked.
PATIENCE_SECONDS = 45.0
#: The same before anything is read or written: then the user waits, and the URL is probably wrong.
_FIRST_PATIENCE_SECONDS = 4.0
#: How long one call of a library may take.
_CALL_SECONDS = 30.0
#: How long the first call may take, which may look for credentials.
_FIRST_CALL_SECONDS = 20.0
#: How long it may take to remove a file that could not be written, and at least the last of several attempts.
_DISCARD_SECONDS, _LAST_CALL_SECONDS = 10.0, 3.0
_MAX_WAIT_SECONDS = 5.0
#: After this time the user is told what is waited for.
_TELL_SECONDS = 1.5
#: How long it may take to find the address of a host.
_LOOKUP_SECONDS = 5.0
#: How much of a file is fetched at once, and from a store that needs a request for each.
_BUFFER_BYTES = 4 << 20
_REQUEST_BYTES = 16 << 20
#: How much more, for lines that reach over the end of what is read.
_MORE_BYTES = 64 << 10
#: How much of a file an object store receives at once. It allows 10,000 such parts.
_PART_BYTES = 16 << 20
#: The longest text of another library in a message.
_MAX_TEXT = 300
#: hdfs-native would try for three minutes. What is worth to be tried again is tried by this module.
_HDFS_OPTIONS = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
}
#: The errors after which trying again is of no use, and the names of such errors of libraries.
_FINAL = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError, ImportError,
    NotImplementedError, ValueError, TypeError,
)  # fmt: skip
_FINAL_NAMES = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError")
#: Answers of web servers.
_NOT_FOUND, _DENIED = 404, (401, 403)
#: By these messages of hdfs-native, what answers is no NameNode.
_NO_NAMENODE = ("RPC listener disconnected", "Fatal RPC error")
#: An answer of a NameNode as hdfs-native writes it, with escapes for the lines of a stack.
_JAVA_ERROR = re.compile(r'\w+\((?:"[\w.$]*", )?"(.*?)(?:\\n|"\))')
#: The connections of this process to stores, by its id, their scheme and their address.
_STORES: Dict[Tuple[int, str, str], Any] = {}


class StorageError(LaunchError):
    """A file at a URL cannot be found, read or written. The message begins with the URL.

    Args:
        url: The URL, which is shown without secrets.
        why: The reason.
        is_final: Whether it is of no use to try again.
    """

    def __init__(self, url: str, why: str, *, is_final: bool = True) -> None:
        """Make the error of one URL."""
        self.is_final = is_final
        super().__init__(f"{urls.shown(url)}: {urls.redacted(why, url)}")


class StoredFile(Record):
    """A file at a URL."""

    url: str
    #: Its size in bytes. It is -1 if the store does not tell it, as some web servers.
    size: int


# ---------------------------------------------------------------------- finding


def find_files(name: str) -> List[StoredFile]:
    """Return the files that a URL or a pattern in it names, sorted by name.

    A pattern leaves out names that begin with ``_`` or ``.``, as Hadoop does: they are no data.

    Args:
        name: The URL. In a pattern ``*`` stands for any text without a slash, and ``**`` for any folders.

    Raises:
        StorageError: There is no such file, it is a folder, or the store cannot be reached.
    """
    is_web = urls.scheme_of(name) in urls.WEB_SCHEMES
    # In the address of a web page a question mark has another meaning.
    is_pattern = any(character in name for character in ("*" if is_web else "*?["))

    def look(files: Any, path: str) -> List[StoredFile]:
        """Ask the store once."""
        # By default folders that cannot be listed are left out without an error. Asynchronous file systems
        # know no such option, and raise.
        strict = {} if files.async_impl else {"on_error": "raise"}
        try:
            found = files.glob(path, detail=True, **strict) if is_pattern else {path: files.info(path)}
        except FileNotFoundError:
            if is_web or is_pattern:
                raise
            found = {}
        chosen = []
        for file, about in sorted(found.items()):
            base = file.rstrip("/").rpartition("/")[2]
            if is_pattern and (about["type"] == "directory" or base.startswith(("_", "."))):
                continue
            if about["type"] == "directory":
                raise StorageError(name, f"is a folder; expected its files, as in {urls.joined(name, '*')}")
            size = about.get("size")
            chosen.append(StoredFile(_url_of(name, file), -1 if size is None else int(size)))
        if not chosen:
            _check_bucket(files, path, name)
            raise StorageError(name, "no file has such a name" if is_pattern else "there is no such file")
        return chosen

    return _asked(name, look)


def is_empty(url: str) -> bool:
    """Return whether a folder contains nothing, or does not exist. A file is not empty.

    Raises:
        StorageError: The store cannot be reached.
    """

    def look(files: Any, path: str) -> bool:
        """Ask the store once."""
        try:
            found = files.ls(path, detail=True)
        except FileNotFoundError:
            _check_bucket(files, path, url)
            return True
        # Some stores list the folder itself, as a folder or as an empty file whose name ends with a slash.
        return all(
            file["name"].strip("/") == path.strip("/")
            and (file["type"] == "directory" or (file["name"].endswith("/") and not file["size"]))
            for file in found
        )

    return _asked(url, look)


def check_url(url: str) -> None:
    """Check that this process can reach the store of a URL. The file or folder itself may be missing.

    Raises:
        StorageError: It cannot, or the user may not see it.
    """
    if (local := urls.local_path(url)) is not None:
        # This needs no package. The folder may belong to a file system that is missing here.
        folder = os.path.dirname(local.partition("*")[0])
        _tried(url, lambda: os.stat(folder), _FIRST_PATIENCE_SECONDS)
        return

    def look(files: Any, path: str) -> None:
        """Ask the store once, and after a missing file for the top: the bucket, or the root."""
        try:
            files.info(path.partition("*")[0].rpartition("/")[0] if "*" in path else path)
        except FileNotFoundError:
            if urls.scheme_of(url) in urls.WEB_SCHEMES:
                raise
            _check_bucket(files, path, url)
            if path.startswith("/"):
                files.info("/")

    _asked(url, look)


def _asked(url: str, ask: Callable[[Any, str], _T]) -> _T:
    """Return the answer of a store before anything is read or written.

    Args:
        url: The URL of a file or a folder.
        ask: Is given the file system of fsspec and the path in it. It may be called several times.
    """

    def call() -> _T:
        """Ask once."""
        files, path = _store(url)
        files.invalidate_cache()
        return ask(files, path)

    return _tried(url, call, _FIRST_PATIENCE_SECONDS, _FIRST_CALL_SECONDS)


def _check_bucket(files: Any, path: str, url: str) -> None:
    """Check that there is the bucket of a file that is missing, as far as its store has buckets."""
    bucket = path.partition("/")[0]
    if urls.scheme_of(url) in urls.OBJECT_STORES:
        try:
            files.info(bucket)
        except FileNotFoundError:
            raise StorageError(url, f"there is no bucket {bucket!r}") from None


# ---------------------------------------------------------------------- reading


def open_url(url: str, start: int = 0, size: Optional[int] = None) -> io.BufferedReader:
    """Open a file to read its bytes.

    The store is asked when the first bytes are read, which may raise a `StorageError`, too.

    Args:
        url: The URL of the file.
        start: The number of bytes to skip.
        size: About how many bytes will be read, so that few others are fetched. None for all of the file.
    """
    most = _BUFFER_BYTES if urls.scheme_of(url) in urls.HDFS else _REQUEST_BYTES
    # All pieces are about equally large, so that little is fetched beyond the range.
    pieces = 1 if size is None else max(1, round(size / most))
    return io.BufferedReader(_UrlFile(url, start), (most if size is None else size // pieces) + _MORE_BYTES)


class _UrlFile(io.RawIOBase):
    """The bytes of a file at a URL, one after another. A connection that is lost is made again.

    Args:
        url: The URL of the file.
        start: The number of bytes to skip.
    """

    def __init__(self, url: str, start: int) -> None:
        """Prepare to read, without asking the store."""
        super().__init__()
        self._url = url
        #: The number of the next byte.
        self._position = start
        #: Whether the file of the library is at another byte.
        self._has_moved = False
        #: Whether the bytes are not read one after another.
        self._is_random = False
        #: The file of the library. None before the first byte, and after a failure.
        self._file: Any = None

    def readable(self) -> bool:
        """Return that this file can be read."""
        return True

    def seekable(self) -> bool:
        """Return that any byte can be the next one."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, as any file does, and return its number.

        Raises:
            StorageError: The size of the file cannot be found out, for a place before its end.
        """
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            store, path = _store(self._url)
            offset += _tried(self._url, lambda: int(store.info(path)["size"]), PATIENCE_SECONDS)
        if offset != self._position:
            self._has_moved = self._is_random = True
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return their number. It is 0 at the end of the file.

        Raises:
            StorageError: They could not be read, for longer than is worth waiting.
        """
        # If a call takes too long, another thread reads the same bytes from a file of its own, and nothing
        # of the late one may come here.
        data, self._file = _tried(self._url, lambda: self._read(len(buffer)), PATIENCE_SECONDS)
        buffer[: len(data)] = data
        self._position += len(data)
        self._has_moved = False
        return len(data)

    def _read(self, size: int) -> Tuple[bytes, Any]:
        """Read up to `size` bytes at the present position. This is one attempt.

        Returns:
            The bytes, and the file of the library from which the next ones can be read.
        """
        (file, self._file), has_moved = (self._file, None), self._has_moved
        if file is None:
            store, path = _store(self._url)
            scheme = urls.scheme_of(self._url)
            # The buffer is above this. Others read ahead what is in no range.
            options: Dict[str, Any] = {} if scheme in urls.HDFS else {"cache_type": "none"}
            # Some web servers send a file only as a whole.
            if scheme in urls.WEB_SCHEMES and not self._is_random:
                options = {"block_size": 0}
            file = store.open(path, "rb", **options)
            has_moved = self._position > 0
        if has_moved:
            _skip(file, self._position)
        data: bytes = file.read(size)
        total = getattr(file, "size", None)
        if not data and total is not None and self._position < total:
            raise OSError(f"ended after {self._position} of {total} bytes")
        return data, file

    def close(self) -> None:
        """Close the file of the library."""
        file, self._file = self._file, None
        if file is not None:
            # Nothing was written, so an error is of no interest.
            with suppress(Exception):
                file.close()
        super().close()


def _skip(file: Any, size: int) -> None:
    """Go to the byte with this number, also in what some web servers send, which can only be read."""
    try:
        file.seek(size)
    except (ValueError, io.UnsupportedOperation):
        while size and (data := file.read(min(size, _BUFFER_BYTES))):
            size -= len(data)


# ---------------------------------------------------------------------- writing


def store(
    content: IO[bytes], url: str, moved: Callable[[int], None] = lambda size: None, *, mark: str = ""
) -> None:
    """Write a file as a whole. It replaces a file of this name.

    It gets its name when it is complete. If writing fails, nothing of it stays, and it is written again.

    Args:
        content: What is written, from its beginning. It must be seekable.
        url: The URL of the file. Folders above it are made.
        moved: Called after some bytes were written, with their number, in another thread.
        mark: A text in the temporary name, by which `remove_unfinished` finds what a killed process has left.

    Raises:
        StorageError: It could not be written, for longer than is worth waiting.
    """
    if urls.scheme_of(url) in urls.WEB_SCHEMES:
        raise StorageError(url, "files cannot be written to a web server")

    #: What failed attempts could not remove either, while the store did not answer.
    left: List[_FileWriter] = []

    def write(bounded: _Bounded) -> None:
        """Write the file once."""
        content.seek(0)
        written = 0
        writer = bounded(lambda: _writer(url, mark), _CALL_SECONDS, False)
        try:
            while data := content.read(_BUFFER_BYTES):
                written += len(data)
                # The default binds this piece: a call that takes too long goes on in its thread.
                has_sent = written > 2 * _PART_BYTES
                bounded(lambda data=data: writer.write(data), _CALL_SECONDS, has_sent)  # type: ignore[misc]
                moved(len(data))
            bounded(writer.commit, _CALL_SECONDS, True)
        except BaseException:
            left.append(writer)
            with suppress(Exception):
                bounded(writer.discard, _DISCARD_SECONDS, False)
                left.remove(writer)
            raise

    _retried(url, write, PATIENCE_SECONDS)
    for writer in left:
        with suppress(Exception):
            _bounded(writer.discard, _DISCARD_SECONDS)


def remove_unfinished(folder: str, mark: str) -> None:
    """Remove the temporary files with this mark from a folder, whose writers were killed.

    Raises:
        StorageError: The store cannot be reached.
    """

    def remove(files: Any, path: str) -> None:
        """Ask the store once. In a store of objects, nothing appears before it is complete."""
        with suppress(FileNotFoundError):
            for file in files.ls(path, detail=False):
                name = file.rpartition("/")[2]
                if name.startswith(".") and name.rpartition(".")[2].startswith(mark):
                    files.rm_file(file)

    if urls.scheme_of(folder) not in urls.OBJECT_STORES:
        _asked(folder, remove)


def _writer(url: str, mark: str) -> "_FileWriter":
    """Return what writes one file, whose temporary name contains the mark."""
    if (local := urls.local_path(url)) is not None:
        os.makedirs(os.path.dirname(local), exist_ok=True)
        return _LocalWriter(local, mark)
    files, path = _store(url)
    if path.rpartition("/")[2] != url.rpartition("/")[2]:  # Such as after a # or a question mark.
        raise StorageError(url, "this name cannot be written to this store")
    return (_ObjectWriter if urls.scheme_of(url) in urls.OBJECT_STORES else _FileWriter)(path, mark, files)


class _FileWriter:
    """Writes a file under a temporary name beside it, which is then renamed.

    The name begins with a dot, so that patterns leave it out.

    Args:
        path: The path of the file.
        mark: A text in the temporary name.
        files: The file system of the library.
    """

    def __init__(self, path: str, mark: str, files: Any = None) -> None:
        """Open the temporary file, in its folder, which is made."""
        folder, _, name = path.rpartition("/")
        self._path, self._files = path, files
        self._temporary = f"{folder}/.{name}.{mark}{secrets.token_hex(4)}"
        self._file = self._open()

    def _open(self) -> Any:
        """Open the temporary file to write it."""
        self._files.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        return self._files.open(self._temporary, "wb")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def commit(self) -> None:
        """Give the file its name."""
        self._file.close()
        if self._files.protocol in urls.HDFS:
            self._files.mv(self._temporary, self._path, overwrite=True)
            return
        if self._files.exists(self._path):
            self._files.rm_file(self._path)
        self._files.mv(self._temporary, self._path)
        # WebHDFS tells by its answer, which fsspec ignores, that nothing was renamed.
        self._files.info(self._path)

    def discard(self) -> None:
        """Remove what was written. It may be called again after it has failed."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):
                file.close()
        self._files.rm_file(self._temporary)


class _LocalWriter(_FileWriter):
    """The same for a file of this machine, or of a file system that it shares."""

    def _open(self) -> Any:
        return open(self._temporary, "wb")  # noqa: SIM115 - closed by `commit` or `discard`

    def commit(self) -> None:
        """Give the file its name, when the disk has its content."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Remove what was written."""
        with suppress(OSError):  # The disk may be full.
            self._file.close()
        os.unlink(self._temporary)


class _ObjectWriter(_FileWriter):
    """The same for a store of objects, in which a file appears when it is committed."""

    def _open(self) -> Any:
        return self._files.open(self._path, "wb", autocommit=False, block_size=_PART_BYTES)

    def commit(self) -> None:
        """Let the store make the object of its parts."""
        self._file.close()
        self._file.commit()

    def discard(self) -> None:
        """Let the store forget the parts."""
        self._file.discard()


# ---------------------------------------------------------------------- calls of libraries


def _store(url: str) -> Tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it.

    Raises:
        StorageError: A package is missing, or the scheme is unknown.
    """
    if fault := urls.url_fault(url) or urls.missing_package(url):
        raise StorageError(url, fault)
    import fsspec  # noqa: PLC0415 - slow, and only where a URL is used

    scheme = urls.scheme_of(url)
    key = (os.getpid(), scheme, urlsplit(url).netloc)
    files = _STORES.get(key)
    if files is None:
        options: Dict[str, Any] = dict(_HDFS_OPTIONS) if scheme in urls.HDFS else {}
        try:
            # fsspec itself keeps one for each thread, and calls run in many. The path is that of this URL
            # alone, so it is not kept.
            files, _ = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
        except (ImportError, ValueError) as error:
            raise StorageError(url, f"cannot be used: {_first_line(url, error)}") from error
        _STORES[key] = files
    return files, urls.local_path(url) or files._strip_protocol(url)


def _url_of(pattern: str, name: str) -> str:
    """Return the URL of a file that a pattern has found.

    Args:
        pattern: The URL with the pattern.
        name: The name of the file as fsspec tells it: a URL, a path from the root, or one with a bucket.
    """
    if urls.is_url(name):
        return name
    parts = urlsplit(pattern)
    return f"{parts.scheme}://{parts.netloc if name.startswith('/') else ''}{name}"


def _tried(url: str, call: Callable[[], _T], patience: float, seconds: float = _CALL_SECONDS) -> _T:
    """Return what a call of a library returns, which is tried again after a failure.

    Args:
        url: The URL, for messages.
        call: The call. It may run several times, each time in another thread.
        patience: For how long it is tried again, in seconds.
        seconds: How long it may take each time.

    Raises:
        StorageError: It has failed for too long, or it is of no use to try again.
    """
    return _retried(url, lambda bounded: bounded(call, seconds, True), patience)  # type: ignore[no-any-return]


def _retried(url: str, work: Callable[[_Bounded], _T], patience: float) -> _T:
    """Do the same in this thread, for several calls.

    Args:
        url: The URL, for messages.
        work: The calls. Its argument makes each of them with a time limit. After a failure the limit is
            shorter, so that all attempts together take little longer than the patience.
        patience: For how long all of it is tried again, in seconds.
    """
    succeeded, wait = time.monotonic(), 0.2
    began, has_told = succeeded, False
    deadline: Optional[float] = None
    earlier: Optional[StorageError] = None

    def bounded(call: Callable[[], Any], seconds: float, is_answer: bool) -> Any:
        """Make one call."""
        nonlocal succeeded
        if deadline is not None:
            seconds = min(seconds, max(succeeded + patience - time.monotonic(), _LAST_CALL_SECONDS))
        value = _bounded(call, seconds)
        if is_answer:
            succeeded = time.monotonic()
        return value

    while True:
        try:
            return work(bounded)
        except Exception as error:  # noqa: BLE001 - libraries raise what they like
            failure = _failure(url, error)
            if isinstance(error, TimeoutError) and earlier is not None:
                failure = earlier  # It says more.
            earlier = failure
            # The first failure sets the deadline. Later successes do not move it: a file that always fails at
            # the same place would otherwise be written again without end.
            deadline = succeeded + patience if deadline is None else deadline
            if failure.is_final or time.monotonic() + wait > deadline:
                why = failure if failure is error else _no_host(url) or failure
                # The traceback of a library says nothing to the user, and may contain secrets.
                raise why from None
            if not has_told and time.monotonic() - began > _TELL_SECONDS:
                # Nobody else knows that this task or program waits.
                print(f"waiting for {failure}", file=sys.stderr, flush=True)
                has_told = True
        # The next attempt makes a connection of its own.
        _STORES.clear()
        time.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT_SECONDS)


def _no_host(url: str) -> Optional[StorageError]:
    """Return the error about a URL whose host is unknown here, which libraries describe in many ways.

    Returns:
        The error, or None if the host is known, or the URL names a bucket instead.
    """
    host, scheme = urlsplit(url).hostname, urls.scheme_of(url)
    if not host or scheme not in ("hdfs", "webhdfs", "http", "https"):
        return None
    try:
        _bounded(lambda: socket.getaddrinfo(host, None), _LOOKUP_SECONDS)
    except (OSError, UnicodeError):
        # Hadoop's files give a name to a group of NameNodes.
        advice = "; for a name service HADOOP_CONF_DIR must be set" if scheme == "hdfs" else ""
        return StorageError(url, f"no host {host!r} is known here{advice}")
    return None


def _bounded(call: Callable[[], _T], seconds: float) -> _T:
    """Return what a call returns, if it takes no longer than these seconds.

    Raises:
        TimeoutError: It takes longer. It goes on in a thread that does not keep the process alive.
        Exception: Whatever the call raises.
    """
    future: "futures.Future[_T]" = futures.Future()

    def run() -> None:
        """Call, and pass on the result or the error."""
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            future.set_exception(error)

    # Libraries may block without a time limit, so another thread calls them, and this one only waits.
    threading.Thread(target=run, name="storage", daemon=True).start()
    try:
        return future.result(seconds)
    except futures.TimeoutError:
        if future.done():  # It is an error of the call.
            raise
        raise TimeoutError(f"no answer within {seconds:g}s") from None


def _failure(url: str, error: Exception) -> StorageError:
    """Return the error of a library as one of ours."""
    if isinstance(error, StorageError):
        return error
    cause, scheme = error.__cause__, urls.scheme_of(url)
    # fsspec calls whatever goes wrong with a web server a missing file.
    is_unclear = scheme in urls.WEB_SCHEMES and isinstance(error, FileNotFoundError)
    if is_unclear and isinstance(cause, Exception) and getattr(cause, "status", 0) != _NOT_FOUND:
        error = cause
    is_final = isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES
    text = _first_line(url, error)
    # hdfs-native has one kind of error for all that a NameNode answers.
    is_denied = isinstance(error, PermissionError) or "AccessControlException" in str(error)
    is_denied = is_denied or getattr(error, "status", 0) in _DENIED
    # A folder where a file should be, or the other way round.
    is_final = is_final or any(
        text in str(error) for text in ("NotDirectoryException", "both be directories")
    )
    if is_denied and "denied" not in text.lower():
        text = f"permission denied: {text}"
    if isinstance(error, FileNotFoundError):
        missing = (
            "there is no such file or bucket" if scheme in urls.OBJECT_STORES else "there is no such file"
        )
        text = missing if "is not a file" not in text.lower() else "is a folder"
    return StorageError(url, text, is_final=is_final or is_denied)


def _first_line(url: str, error: Exception) -> str:
    """Return the first line of an error: the others are the stack of a Java program."""
    if java := _JAVA_ERROR.match(str(error)):
        return java[1].replace('\\"', '"')
    root: BaseException = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    # The texts of libraries about a connection are long. Only for a bucket they tell the address.
    if (
        urls.scheme_of(url) not in urls.OBJECT_STORES
        and isinstance(root, ConnectionError)
        and root is not error
        and root.errno
    ):
        return os.strerror(root.errno)
    # hdfs-native shows what a NameNode answers as Python would.
    lines = str(error).replace("\\n\\tat ", "\n").strip().splitlines()
    if lines and lines[0] in _NO_NAMENODE:
        return "what answers at this address is no NameNode"
    # Those of botocore may begin with a line such as "Parameter validation failed:".
    text = " ".join(lines[:2] if lines and lines[0].endswith("failed:") else lines[:1])
    # hdfs-native adds all that it knows about each DataNode.
    text = text.partition(": [DatanodeInfoProto")[0].strip()
    return text[:_MAX_TEXT] or type(error).__name__
