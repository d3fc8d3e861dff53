"""How a program of ours starts on a host: a constant command line, and the first code Python runs there.

The command line is the same for every host and program, with nothing of the user's on it. All else comes
through the pipe, in this order:

    ``python:``, the path of the Python, and a newline
    frame: `FIRST_CODE`
    frame: the sources of our modules, in one zip
    frame: JSON, ``[entry, arguments]``
    what the program reads

A frame is its size in 8 digits, then as many bytes. The host answers with a mark, after whatever its login
shell printed; what follows the mark is what the program writes. Everything can be sent at once.
"""

from __future__ import annotations

import functools
import io
import json
import marshal
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash

from launcher.errors import TransportError

_OPENING, _CLOSING = b"\n<tf-launcher program: ", b">\n"
#: How much a login shell may print, including the mark, in bytes.
MAX_NOISE = 64 * 1024

READY, TOO_OLD, MISSING = "ready", "too old", "missing"
#: The login shell had read the first line.
EATEN = "eaten"

#: The modules and packages that hosts get.
AGENT_MODULES = (
    "launcher.errors",
    "launcher.events",
    "launcher.task_id",
    "launcher.text",
    "launcher.protocol",
    "launcher.scheduler.cluster_spec",
    "launcher.agent",
)
#: The zip's bytes depend on the sources alone.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
#: Flags of a ``.pyc`` file (PEP 552): it has the hash of its source, which nothing checks.
_UNCHECKED_HASH = 1

#: Runs `FIRST_CODE`. Any Python since 2.6 understands it, so that one which is too old can report it. It
#: contains no quote, no ``$`` and no ``!``, as it stands within two pairs of quotes. The options have the
#: effect of ``-I``, which old Pythons do not know; the working folder is taken off the path. It reads
#: exactly its bytes from the descriptor: the next one belongs to the program.
_LOADER = (
    "import sys;del sys.path[0];import os;"
    "r=lambda n,b=bytes():b if len(b)==n else r(n,b+os.read(0,n-len(b)));exec(r(int(r(8))))"
)

#: For the login shell: sh, bash, zsh, csh, tcsh and fish all take it as ``/bin/sh`` and one argument.
#: Within are no single quote, backslash, newline or ``!``, which csh and fish treat in their own ways.
#: ``read`` takes no byte beyond the newline.
COMMAND = (
    "exec /bin/sh -c '"
    "IFS= read -r p; "
    "case $p in python:*) p=${p#python:};; "
    f'*) echo; echo "<tf-launcher program: {EATEN}>"; exit 127;; esac; '
    'case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>&1 || '
    f'{{ echo; echo "<tf-launcher program: {MISSING}>"; exit 127; }}; '
    f'exec "$p" -E -s -S -c "{_LOADER}"'
    "'"
)

#: What `_LOADER` runs; Python 2.6 can read it up to the end of the first ``if``. The zip goes into memory
#: that has a path. The alarm ends a program whose launcher was killed while the network was down.
FIRST_CODE = b"""\
def report(state):
    os.write(1, ("\\n<tf-launcher program: " + state + ">\\n").encode("ascii"))
if sys.version_info < (3, 8):
    report("too old " + ".".join(map(str, sys.version_info[:3])))
    sys.exit(1)
import gc, json, signal, zlib
gc.disable()
signal.alarm(600)
def frame(size=8):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data
zipped = zlib.decompress(frame(int(frame())))
if hasattr(os, "memfd_create"):
    fd = os.memfd_create("tf-launcher")
else:
    import tempfile
    fd = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
while zipped:
    zipped = zipped[os.write(fd, zipped):]
sys.path.insert(0, "/proc/self/fd/%d" % fd)
entry, arguments = json.loads(frame(int(frame())))
module, _, function = entry.partition(":")
__import__(module)
gc.enable()
signal.alarm(0)
report("ready")
sys.exit(getattr(sys.modules[module], function)(arguments))
"""


def startup(python: str, entry: str, arguments: object, modules: tuple[str, ...] = AGENT_MODULES) -> bytes:
    """All that goes through the pipe before what the program reads.

    Args:
        python: a path, where ``~/`` is the user's home on the host, or a name to look up there.
        entry: ``module:function``; called with ``arguments``, its result is the exit status.
        arguments: anything JSON can express.
        modules: the modules and packages that travel.

    Raises:
        TransportError: no Python can have this path.
    """
    if not python or "\n" in python or "\0" in python:
        raise TransportError(f"{python!r} can't be the path of a Python")
    line = b"python:" + python.encode("utf-8", "surrogateescape") + b"\n"
    return line + program(entry, arguments, modules)


def program(entry: str, arguments: object, modules: tuple[str, ...] = AGENT_MODULES) -> bytes:
    """The same without the line that names the Python: for a process that runs `_LOADER` already."""
    frames = (FIRST_CODE, zipped(modules), json.dumps([entry, arguments]).encode("ascii"))
    return b"".join(b"%08d%s" % (len(frame), frame) for frame in frames)


def loader(python: str) -> list[str]:
    """The command line of a process that takes `program`, for a container or this machine: no shell."""
    return [python, "-E", "-s", "-S", "-c", _LOADER]


@functools.cache
def zipped(modules: tuple[str, ...]) -> bytes:
    """A zip of these modules and packages, compressed as a whole; the packages around them are empty.

    The top package of each is one that this process has imported.
    Compiled code lies beside each source: `zipimport` takes it where the host's Python has the bytecode
    format of this one, and compiles the source elsewhere.
    """
    files: dict[str, str] = {}
    for module in modules:
        name, _, _ = module.partition(".")
        folder = os.path.dirname(sys.modules[name].__path__[0])
        for parent in module.split(".")[1:]:
            files.setdefault(f"{name}/__init__.py", os.devnull)
            name = f"{name}/{parent}"
        files.update(_sources(os.path.join(folder, name), name))
    buffer = io.BytesIO()
    archive = zipfile.ZipFile(buffer, "w")
    try:
        for name in sorted(files):
            with open(files[name], "rb") as file:
                source = file.read()
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), source)
            archive.writestr(zipfile.ZipInfo(f"{name}c", _ZIP_TIME), _compiled(files[name], source))
        archive.close()
    finally:
        archive.fp = None  # else closing it raises, where a signal has interrupted the writing
    return zlib.compress(buffer.getvalue())


def _compiled(path: str, source: bytes) -> bytes:
    """The content of a ``.pyc`` that is used without a look at its source."""
    code = SourceFileLoader("", path).get_code("")
    return MAGIC_NUMBER + struct.pack("<I", _UNCHECKED_HASH) + source_hash(source) + marshal.dumps(code)


def _sources(path: str, name: str) -> Iterator[tuple[str, str]]:
    """Names in the zip and paths of the sources of a module or package."""
    if not os.path.isdir(path):
        yield f"{name}.py", f"{path}.py"
        return
    for folder, folders, files in os.walk(path):
        folders[:] = [inner for inner in folders if inner != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                full = os.path.join(folder, file)
                yield name + full[len(path) :], full


def find_mark(output: bytes) -> tuple[str, int] | None:
    """The first mark in what a host wrote: its text, and where it ends.

    What lies beyond `MAX_NOISE` is ignored, so that a noisy host is refused however the pieces come.

    Returns:
        ``None``: no mark yet.
    """
    start = output.find(_OPENING, 0, MAX_NOISE)
    end = output.find(_CLOSING, start + len(_OPENING), MAX_NOISE) if start >= 0 else -1
    if end < 0:
        return None
    return output[start + len(_OPENING) : end].decode("ascii", "replace"), end + len(_CLOSING)


_ADVICE = "name a Python of 3.8 or later with `python` in the hostfile, or install one"


def explain(state: str, python: str, advice: str = _ADVICE) -> str:
    """Why the program can't run on the host, for the user; ``state`` is that of the mark, and not `READY`."""
    if state == EATEN:
        return (
            "its login shell's start-up files read standard input (~/.bashrc?), which is not theirs when a "
            "command is run; let them do so only in a terminal: [ -t 0 ] && ..."
        )
    if state == MISSING:
        return f"there is no {python} there; {advice}"
    if state.startswith(TOO_OLD):
        return f"its {python} is Python {state[len(TOO_OLD) :].strip()}, which is too old; {advice}"
    return f"it answered {state!r}, which this version does not know"


def echoes(output: bytes) -> bool:
    """Whether the login shell passed our first code on to something that prints it."""
    return FIRST_CODE[:40] in output
