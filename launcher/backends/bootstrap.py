"""How a program of ours starts on a host: a constant command line, and the first code that Python runs there.

The command line is the same for every host and program, and contains nothing of the user's. All else comes
through the pipe, in this order:

    `_EXIT_LINE` with the path of the Python
    frame: `FIRST_CODE`
    frame: our modules, from `packed`
    frame: JSON, ``[entry, arguments]``
    what the program reads

A frame is its size in 8 digits, then as many bytes. Everything can be sent at once. The host answers with a
mark, after whatever its login shell printed. What follows the mark is the output of the program.

`launcher.backends.programs` and the backends call this module. Its code for hosts must run in Python 3.8,
with its standard library only.
"""

from __future__ import annotations

import functools
import json
import marshal
import os
import sys
import zlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER

from launcher.agent.passed_streams import ADDRESS_FORMAT, public_part
from launcher.agent.processes import PASSED_STDIN
from launcher.common.errors import TransportError
from launcher.common.text import sanitize_host_text

_MARK_START = b"\n<tf-launcher program: "
_MARK_END = b">\n"
#: The bytes that a login shell may print, including the mark.
MAX_NOISE_BYTES = 64 * 1024

# The states that a mark reports.
READY = "ready"
TOO_OLD = "too old"
MISSING = "missing"
#: A start-up file of the login shell has read the first line.
EATEN = "eaten"
#: The exit status that tells that a start-up file of the login shell has replaced the shell (``exec zsh``).
#: The new shell does not know the command line, and reads its commands from the pipe, so the first line makes
#: it exit with this status. It uses ``exec``, because csh would execute the other lines after an ``exit``,
#: and fish reads to the end of the pipe before it executes any line.
REPLACED_STATUS = 97
_EXIT_LINE = f'exec /bin/sh -c "exit {REPLACED_STATUS}" #python:'

#: The modules and packages that are sent to every host.
AGENT_MODULES = (
    "launcher.common.errors",
    "launcher.common.events",
    "launcher.common.validation",
    "launcher.common.record",
    "launcher.common.cluster",
    "launcher.common.text",
    "launcher.common.trusted_io",
    "launcher.common.protocol",
    "launcher.agent",
)
#: The number of frames of a program, see above.
_FRAME_COUNT = 3
#: The time for a main process to close the streams that were passed to it, after their other end has closed.
_CLOSE_TIMEOUT_SECONDS = 20
#: A format of `marshal` that every Python 3 can read.
_MARSHAL_VERSION = 2

#: Python code that runs `FIRST_CODE`. Every Python since 2.6 understands it, so that a Python that is too old
#: can report that. It contains no quote, no ``$`` and no ``!``, because it stands within two pairs of quotes.
#: The options ``-E -s -S`` have the effect of ``-I``, which old Pythons do not know, and the code removes the
#: working folder from the path. It reads exactly its own bytes from the descriptor, because the next one
#: belongs to the program.
_LOADER_START = "import sys;del sys.path[0];import os;"
_LOADER_END = "r=lambda n,b=bytes():b if len(b)==n else r(n,b+os.read(0,n-len(b)));exec(r(int(r(8))))"
_LOADER = _LOADER_START + _LOADER_END

#: Python code that asks for the process at the other end of a socket. The pid is 0 if that process does not
#: exist, or is in another process namespace.
_PEER_CODE = 'pid, uid, _ = array.array("i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))'

#: Python code like `_LOADER` for the main process of a container. It makes a folder. If that fails, a program
#: that needs the folder reports it. Then it waits on an abstract socket for another process of the same user
#: in the same container, which passes its stdin and stdout, and sends the program. The first such process is
#: accepted. The main process exits if none comes in time, and at SIGTERM, for which it needs a handler:
#: without one the first process of a container ignores the signal. Many images lack compiled modules, so this
#: code imports no module that Python would compile.
_WAITING_CODE = f"""\
{_LOADER_START}
try:
    os.makedirs({{!r}}, exist_ok=True)
except OSError:
    pass
import _signal as signal, _socket as socket, array
for number in (signal.SIGALRM, signal.SIGTERM):
    signal.signal(number, lambda *_: os._exit(1))
signal.alarm({{}})
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0{{}}")
listener.listen(8)
streams = ()
while len(streams) != 2:
    peer = socket.socket(fileno=listener._accept()[0])
    {_PEER_CODE}
    if pid and uid == os.getuid():
        passed = peer.recvmsg(1, socket.CMSG_SPACE(8))[1]
        streams = array.array("i", bytes().join(data for _, _, data in passed))
os.dup2(peer.fileno(), 0)
os.dup2(streams[1], 1)
peer.close()
listener.close()
os.dup2(streams[0], {PASSED_STDIN}, False)
for fd in streams:
    os.close(fd)
{_LOADER_END}
"""
#: Python code of the process that passes its stdin and stdout to that main process, which may not listen yet.
#: It passes them only when the whole program has arrived. If the connection breaks before, nothing has
#: happened, and another such process can try. If an earlier connection was passed to the main process and
#: broke, the main process is an agent by now. Then the streams are passed to the agent, which does not need
#: the program. Afterwards this process waits until the main process closes the streams, but for a limited
#: time after the end of stdin. The containers of a pod share the names of abstract sockets, so a process of
#: another container that listens on this name must get nothing. This code, too, imports no module that Python
#: would compile, and Python 2.6 can parse it.
_PASSING_CODE = f"""\
{_LOADER_START}
import _socket as socket, array, select, time
def report(state):
    os.write(1, b"{{opening}}" + state + b"{{closing}}")
if sys.version_info < (3, 8):
    report(b"{TOO_OLD} " + ".".join(map(str, sys.version_info[:3])).encode("ascii"))
    sys.exit(1)
def take(size):
    data = bytes()
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data
agent = take(int(take(8))).decode("ascii")
program = bytes()
for _ in range({_FRAME_COUNT}):
    size = take(8)
    program += size + take(int(size))
until = time.monotonic() + {{seconds}}
peer = socket.socket(socket.AF_UNIX)
while time.monotonic() < until and peer.connect_ex("\\0{{name}}"):
    if agent and not peer.connect_ex({ADDRESS_FORMAT!r} % (os.getuid(), agent)):
        program = bytes()
        report(b"{READY}")
        break
    time.sleep(0.02)
try:
    {_PEER_CODE}
    if not pid or uid != os.getuid():
        sys.exit("the main process does not listen, or another one has its socket")
    peer.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1)))])
    peer.sendall(program)
except OSError:  # it was killed
    sys.exit(1)
poll = select.poll()
poll.register(peer, select.POLLIN)
poll.register(0, select.POLLRDHUP)
poll.poll()
poll.unregister(0)
poll.poll({_CLOSE_TIMEOUT_SECONDS} * 1000)
"""

#: The command line for the login shell. sh, bash, zsh, csh, tcsh and fish all understand it as ``/bin/sh``
#: with one argument. It contains no single quote, backslash, newline or ``!``, because csh and fish treat
#: them in their own ways. ``read`` consumes no byte beyond the newline.
COMMAND = (
    "exec /bin/sh -c '"
    "IFS= read -r p; "
    "case $p in exec*#python:*) p=${p#*#python:};; "
    f'*) echo; echo "<tf-launcher program: {EATEN}>"; exit 127;; esac; '
    'case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>&1 || '
    f'{{ echo; echo "<tf-launcher program: {MISSING}>"; exit 127; }}; '
    f'exec "$p" -E -s -S -c "{_LOADER}"'
    "'"
)

#: Python code of a class that imports modules from the result of `packed`. Python 2.6 can parse it.
IMPORTER = """\
import importlib.util, marshal, zlib
from importlib.machinery import ModuleSpec
class Importer:
    def __init__(self, packed):
        magic, self.modules = marshal.loads(packed)
        self.is_compiled = magic == importlib.util.MAGIC_NUMBER
    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            return ModuleSpec(name, self, is_package=self.modules[name][0])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)
    def get_code(self, name):
        if self.is_compiled:
            return marshal.loads(zlib.decompress(self.modules[name][2]))
        return compile(self.get_source(name), name + ".py", "exec", dont_inherit=True)
    def get_source(self, name):
        return zlib.decompress(self.modules[name][1]).decode("utf-8")
"""

#: Python code that `_LOADER` runs. Python 2.6 can run it up to the end of the first ``if``. The alarm ends a
#: program whose launcher was killed while the network was down.
FIRST_CODE = f"""\
def report(state):
    os.write(1, ("\\n<tf-launcher program: " + state + ">\\n").encode("ascii"))
if sys.version_info < (3, 8):
    report("too old " + ".".join(map(str, sys.version_info[:3])))
    sys.exit(1)
import gc, json, signal
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
{IMPORTER}
sys.meta_path.insert(0, Importer(frame(int(frame()))))
entry, arguments = json.loads(frame(int(frame())))
module, _, function = entry.partition(":")
__import__(module)
gc.enable()
signal.alarm(0)
report("ready")
sys.exit(getattr(sys.modules[module], function)(arguments))
""".encode()


def startup(python: str, entry: str, arguments: object) -> bytes:
    """Return all bytes that go through the pipe before the input of the program.

    Args:
        python: The path of a Python, where ``~/`` is the user's home on the host, or a name to look up there.
        entry: ``module:function``. The module is sent, too. The function is called with ``arguments``, and
            its result is the exit status.
        arguments: Anything that JSON can express.

    Raises:
        TransportError: No Python can have this path.
    """
    if not python or "\n" in python or "\0" in python:
        raise TransportError(f"{python!r} cannot be the path of a Python")
    # `COMMAND` reads the Python from this line. Another shell that reads it exits, see `REPLACED_STATUS`.
    line = f"{_EXIT_LINE}{python}\n".encode("utf-8", "surrogateescape")
    return line + program(entry, arguments)


def program(entry: str, arguments: object) -> bytes:
    """Return the bytes by which a process that runs `_LOADER` becomes a program of ours.

    `startup` also contains a line that names the Python, which such a process no longer needs.

    Args:
        entry: The function that the program calls, ``module:function``. Its module is sent, too.
        arguments: The argument of that function, which JSON must be able to express.
    """
    module, _, _ = entry.partition(":")
    # The package of the agent is sent to every host, with all of its modules.
    modules = AGENT_MODULES if module.startswith("launcher.agent.") else (*AGENT_MODULES, module)
    call = json.dumps([entry, arguments]).encode("ascii")
    return frame(FIRST_CODE) + frame(packed(modules)) + frame(call)


def frame(data: bytes) -> bytes:
    """Return a frame that contains these bytes: their number in 8 digits, then the bytes."""
    return b"%08d%s" % (len(data), data)


def loader_command(python: str) -> list[str]:
    """Return the command line of a process that reads `program` from its stdin, and becomes that program.

    It needs no shell.

    Args:
        python: The Python that runs it: a path, or a name to look up.
    """
    return [python, "-E", "-s", "-S", "-c", _LOADER]


def waiting_command(python: str, name: str, seconds: int, folder: str) -> list[str]:
    """Return the command line of the main process of a container, which waits for its program.

    Another process in the container, started by `passing_command`, hands the program over.

    Args:
        python: The Python that runs it.
        name: The name of the abstract socket on which it waits.
        seconds: The process exits if no program comes within this time.
        folder: The folder that the process makes before that, as the home of what runs in the container.
    """
    return [python, "-E", "-s", "-S", "-c", _WAITING_CODE.format(folder, seconds, name)]


def passing_command(python: str, name: str, seconds: int) -> list[str]:
    """Return the command line of a process that hands its stdin and stdout over to the main process.

    The main process, started by `waiting_command`, cannot be reached otherwise, because ``kubectl exec`` only
    starts another process in the container. That process first reads the bytes of `passing_input`.

    Args:
        python: The Python that runs it.
        name: The name of the abstract socket of the waiting process.
        seconds: The process exits if nothing listens on the socket within this time.
    """
    # The code contains the marks within quotes, so they are escaped, but without the ``b''`` around them.
    opening, closing = (repr(mark)[2:-1] for mark in (_MARK_START, _MARK_END))
    code = _PASSING_CODE.format(opening=opening, closing=closing, seconds=seconds, name=name)
    return [python, "-E", "-s", "-S", "-c", code]


def passing_input(entry: str, arguments: object, token: str = "") -> bytes:
    """Return the bytes that the process of `passing_command` reads from its stdin.

    The main process of a container waits for a program. The passing process sends it the one in these bytes,
    unless the main process has become an agent already. Then the passing process connects to that agent,
    whose socket it finds by the public part of the agent's token.

    Args:
        entry: The function that the main process shall call, ``module:function``.
        arguments: The argument of that function, which JSON must be able to express.
        token: The token of the agent that the main process becomes. Empty if it becomes no agent.
    """
    return frame(public_part(token).encode("ascii")) + program(entry, arguments)


@functools.cache
def packed(modules: tuple[str, ...]) -> bytes:
    """Return these modules and packages in the form that `IMPORTER` reads. Packages around them are empty.

    Each module is sent as source and as compiled code. `IMPORTER` uses the code if the host's Python has the
    bytecode format of this one. The result is cached, because most hosts get the same modules.

    Args:
        modules: Their full names, as in ``launcher.agent``. This process must have imported the top package
            of each.
    """
    #: The path of each source file, by its path relative to the folder that contains the top package.
    paths: dict[str, str] = {}
    for module in modules:
        top_package, *inner_names = module.split(".")
        folder = os.path.dirname(sys.modules[top_package].__path__[0])
        relative = top_package
        for name in inner_names:
            paths.setdefault(f"{relative}/__init__.py", os.devnull)
            relative = f"{relative}/{name}"
        paths.update(_sources(os.path.join(folder, relative), relative))
    contents = {}
    for relative, path in paths.items():
        with open(path, "rb") as file:
            source = file.read()
        # This takes the code from ``__pycache__`` if it is up to date there. Only a Python with the same
        # bytecode format reads it, so it need not be in the format that every Python can read.
        code = marshal.dumps(SourceFileLoader("", path).get_code(""))
        module = relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        is_package = relative.endswith("/__init__.py")
        contents[module] = is_package, zlib.compress(source, 1), zlib.compress(code, 1)
    return marshal.dumps((MAGIC_NUMBER, contents), _MARSHAL_VERSION)


def _sources(path: str, relative: str) -> Iterator[tuple[str, str]]:
    """Yield the source files of a module or a package: for each its relative path, and its path.

    Args:
        path: The path of the package's folder, or that of the module's file without ``.py``.
        relative: The same path, relative to the folder that contains the top package.
    """
    if not os.path.isdir(path):
        yield f"{relative}.py", f"{path}.py"
        return
    for folder, subfolders, files in os.walk(path):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")  # So it is not walked.
        for file in files:
            if file.endswith(".py"):
                full = os.path.join(folder, file)
                yield relative + full.removeprefix(path), full


def find_mark(output: bytes) -> tuple[str, int] | None:
    """Find the first mark in the output of a host. The mark says whether a program of ours runs there.

    Bytes beyond `MAX_NOISE_BYTES` are ignored, so that a noisy host is refused no matter in which pieces its
    output arrives.

    Returns:
        The text of the mark, and the position at which it ends. None if there is no mark yet.
    """
    before, mark_start, rest = output[:MAX_NOISE_BYTES].partition(_MARK_START)
    text, mark_end, _ = rest.partition(_MARK_END)
    if not mark_end:
        return None
    return text.decode("ascii", "replace"), len(before + mark_start + text + mark_end)


def explain(state: str, python: str, advice: str) -> str:
    """Return why the program cannot run on the host, for messages.

    Args:
        state: The text of the mark, which is not `READY`.
        python: The Python that should run the program.
        advice: What to do about a Python that is missing or too old.
    """
    if state == EATEN:
        return (
            "a start-up file of its login shell (~/.bashrc?) reads standard input even if a command is run; "
            "let it do so only in a terminal: [ -t 0 ] && ..."
        )
    if state == MISSING:
        return f"there is no {python} there; {advice}"
    if state.startswith(TOO_OLD):
        version = sanitize_host_text(state.removeprefix(TOO_OLD))
        return f"its {python} is Python {version}, which is too old; {advice}"
    return f"it answered {sanitize_host_text(state)!r}, which this version does not know"


def explain_status(status: int | None) -> str:
    """Return why a program never ran, for messages, as far as its exit status says it.

    Args:
        status: The exit status. None if nobody knows it.

    Returns:
        The reason. Empty if the status does not say it.
    """
    if status != REPLACED_STATUS:
        return ""
    return (
        "a start-up file of its login shell (~/.bashrc?) replaces it by another shell even if a command is "
        "run, which is then lost; let it do so only in a terminal: [ -t 0 ] && exec zsh"
    )


def is_echoed(output: bytes) -> bool:
    """Return whether the output of a host contains the beginning of our first code.

    Then the login shell has passed the code on to something that prints it, instead of running it.
    """
    return FIRST_CODE[:40] in output
