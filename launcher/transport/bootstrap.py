"""How an errand comes up: one constant command line, and the first code that the host's Python runs.

Nothing of the user's is on the command line, it is the same for every host and errand: all else comes
down the pipe. What goes down, in this order:

    ``python:``, the path of the Python, and a newline
    frame: the first code (`FIRST_CODE`)
    frame: the entry
    frame: the modules, compiled (see `bundle`); then it imports what the entry needs
    frame: the arguments, marshalled
    frame: the modules as source, only if the host asks for it
    what the errand reads

A frame is its size in 8 digits, then as many bytes. What comes back is a `mark`, after whatever the login
shell printed, then what the errand writes. Everything can be sent at once, so it takes no round trip but the
one that opens the channel; or the arguments later, so that it is up when they are known.
"""

from __future__ import annotations

import json
import marshal

from launcher.errors import TransportError

_FORM = 1
_OPENING = b"\n<tf-launcher errand %d: " % _FORM
_CLOSING = b">\n"
#: How much a login shell may print, its end being a mark, in bytes.
MAX_NOISE = 64 * 1024

READY, NEEDS_SOURCE, TOO_OLD, MISSING = "ready", "needs source", "too old", "missing"
#: The first line was not there any more: the login shell had read it.
EATEN = "eaten"

#: Runs `FIRST_CODE`. Any Python since 2.6 understands it, so that one which is too old can say so. There is
#: no quote in it, no ``$`` and no ``!``: it stands within two pairs of quotes. The options are what ``-I``
#: does, which old ones do not know, but for the working folder, which is taken off the path. Bytes are
#: read from the descriptor, exactly as many as there are: the next one is the errand's.
LOADER = (
    "import sys;del sys.path[0];import os;"
    "r=lambda n,b=bytes():b if len(b)==n else r(n,b+os.read(0,n-len(b)));exec(r(int(r(8))))"
)

#: For the login shell, whichever it is: sh, bash, zsh, csh, tcsh and fish all take it as ``/bin/sh`` and one
#: argument. Within are no single quote, no backslash, no newline and no ``!``, which csh and fish treat
#: in their own ways. ``read`` takes no byte beyond the newline.
COMMAND = (
    "exec /bin/sh -c '"
    "IFS= read -r p; "
    "case $p in python:*) p=${p#python:};; "
    f'*) echo; echo "<tf-launcher errand {_FORM}: {EATEN}>"; exit 127;; esac; '
    'case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>&1 || '
    f'{{ echo; echo "<tf-launcher errand {_FORM}: {MISSING}>"; exit 127; }}; '
    f'exec "$p" -E -s -S -c "{LOADER}"'
    "'"
)

#: What `LOADER` runs, in words that Python 2.6 can read too up to the end of the first ``if``. What has
#: not been told all within ten minutes never will be: the launcher was killed while the network was down.
FIRST_CODE = b"""\
def say(word):
    os.write(1, ("\\n<tf-launcher errand 1: " + word + ">\\n").encode("ascii"))
if sys.version_info < (3, 8):
    say("too old " + ".".join(map(str, sys.version_info[:3])))
    sys.exit(1)
import marshal, zlib
from _signal import alarm
alarm(600)
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
def frame(size=8):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data
def modules_of(bundle):
    return marshal.loads(zlib.decompress(memoryview(bundle)[4:]))
class Carried:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in modules:
            return None
        spec = ModuleSpec(name, cls, origin="<carried>", is_package=modules[name][0])
        return spec
    @classmethod
    def create_module(cls, spec):
        return None
    @classmethod
    def exec_module(cls, module):
        code = modules[module.__name__][1]
        if compiled:
            code = marshal.loads(code)
        else:
            code = compile(code, module.__name__.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
module, _, function = frame(int(frame())).decode("ascii").partition(":")
bundle = frame(int(frame()))
compiled = bundle[:4] == MAGIC_NUMBER
arguments = None
if not compiled and bundle[:4] != bytes(4):
    arguments = frame(int(frame()))
    say("needs source")
    bundle = frame(int(frame()))
modules = modules_of(bundle)
sys.meta_path.insert(0, Carried)
__import__(module)
function = getattr(sys.modules[module], function)
if arguments is None:
    arguments = frame(int(frame()))
alarm(0)
say("ready")
del bundle
sys.exit(function(marshal.loads(arguments)))
"""


def frame(payload: bytes) -> bytes:
    """A frame: its size in 8 digits, then the bytes."""
    return b"%08d%s" % (len(payload), payload)


def startup(python: str, modules: bytes, entry: str, arguments: object) -> bytes:
    """All that goes down the pipe before what the errand reads.

    Args:
        python: a path, ``~/`` is the user's home there; or a name, looked up there.
        modules: the bundle, in either form.
        entry: ``module:function``.
        arguments: anything JSON can say.

    Raises:
        TransportError: no Python has such a name.
    """
    return prelude(python, modules, entry) + finale(arguments)


def prelude(python: str, modules: bytes, entry: str) -> bytes:
    """The first part of `startup`: the program comes up, imports what it needs, and waits for `finale`.

    Raises:
        TransportError: no Python has such a name.
    """
    if not python or "\n" in python or "\0" in python:
        raise TransportError(f"{python!r} can't be the path of a Python")
    return b"python:" + python.encode("utf-8", "surrogateescape") + b"\n" + _program(modules, entry)


def finale(arguments: object) -> bytes:
    """The rest of it."""
    # By way of JSON, so that whoever takes them gets what JSON gives (lists for tuples), and sent
    # marshalled, because importing json takes the host 8 ms.
    plain = json.loads(json.dumps(arguments))
    return frame(marshal.dumps(plain, 2))


def loaded(modules: bytes, entry: str, arguments: object) -> bytes:
    """What `LOADER` takes: all of `startup` but the name of the Python."""
    return _program(modules, entry) + finale(arguments)


def _program(modules: bytes, entry: str) -> bytes:
    return b"".join((frame(FIRST_CODE), frame(entry.encode("ascii")), frame(modules)))


def find_mark(output: bytes) -> tuple[str, int] | None:
    """The first mark in what a host wrote: its word, and where it ends.

    What lies beyond `MAX_NOISE` is not looked at, so that a noisy host is refused however the pieces come.

    Returns:
        ``None``: there is none yet.
    """
    start = output.find(_OPENING, 0, MAX_NOISE)
    end = output.find(_CLOSING, start + len(_OPENING), MAX_NOISE) if start >= 0 else -1
    if end < 0:
        return None
    return output[start + len(_OPENING) : end].decode("ascii", "replace"), end + len(_CLOSING)
