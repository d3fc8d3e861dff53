"""``inference(output=URL)``: each partition becomes code for a task, which also stores the results as a file.

`launcher.api.cluster` calls this module. The tasks' side is `launcher.feed.remote.outputs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from launcher.common.errors import Fault, InputError
from launcher.common.record import Record
from launcher.feed.call import Chunker
from launcher.feed.remote.outputs import OutputPartition, SentRows
from launcher.feed.sources import Piece, piece_of
from launcher.messages import say
from launcher.storage import urls
from launcher.storage.store import StorageError, is_empty, remove_unfinished

# A file of rows that the program reads ends at this size of them, because it holds them until it is stored.
_MAX_SENT_BYTES = 32 << 20


class OutputFolder(Record):
    """Where the files of a call are stored."""

    #: The folder as the user has named it: a URL or a path.
    name: str
    url: str
    #: A text in the temporary names of all files of this call.
    mark: str

    def name_of(self, url: str) -> str:
        """Return the name of a file in this folder for the user: a path if the folder was named by one."""
        return url if urls.is_url(self.name) else str(urls.local_path(url))

    def pieces(self, pieces: Generator[Piece]) -> Generator[Piece]:
        """Yield pieces of the same rows, each of which is stored as a file by the task that receives it.

        Args:
            pieces: The pieces of the rows, which are closed at the end.

        Raises:
            FeedError: Rows cannot be sent.
            Exception: Whatever reading the rows raises.
        """
        numbers, chunker = count(), Chunker()
        with closing(pieces):
            for piece in pieces:
                callables: Iterable[Any] = [piece.remote] if piece.remote else _sent_rows(piece, chunker)
                for rows in callables:
                    name = f"part-{next(numbers):05}"
                    yield piece_of(OutputPartition(rows, urls.joined(self.url, name), self.mark))


def _sent_rows(piece: Piece, chunker: Chunker) -> Iterator[SentRows]:
    """Yield the rows of a piece that the program reads, as one or several callables that contain them."""
    chunks: list[list[bytearray]] = []
    weight = 0
    for chunk in chunker.chunks(piece):
        # Arrays that are made of them can be changed, unlike those of bytes.
        chunks.append([bytearray(buffer) for buffer in chunk.buffers])
        weight += chunk.weight
        if weight >= _MAX_SENT_BYTES:
            yield SentRows(chunks)
            chunks, weight = [], 0
    if chunks:
        yield SentRows(chunks)


@contextmanager
def output_folder(caller: str, output: str) -> Iterator[OutputFolder]:
    """Yield the folder for the files of a call, and remove what killed tasks have left half in it afterwards.

    Args:
        caller: The function that the user has called, for messages.
        output: The URL or path of the folder.

    Raises:
        InputError: The folder is not empty, or files cannot be written there.
        StorageError: The folder cannot be reached.
    """
    url = output if urls.is_url(output) else Path(output).expanduser().absolute().as_uri()
    shown = urls.shown(output)
    is_web = urls.scheme_of(url) in urls.WEB_SCHEMES
    if problem := urls.missing_package(url) or ("files cannot be written to a web server" if is_web else ""):
        raise InputError([Fault(caller, f"output={shown!r}", problem)])
    if not is_empty(url):
        expected = "expected a folder that is empty, or does not exist"
        raise InputError([Fault(caller, f"output={shown!r} is not empty", expected)])
    folder = OutputFolder(output, url, secrets.token_hex(8))
    try:
        yield folder
    finally:
        try:
            remove_unfinished(url, folder.mark)
        except StorageError as error:
            say(f"temporary files may be left: {error}")
