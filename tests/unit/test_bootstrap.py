"""How programs of ours start on a host: by any login shell, with any Python."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from launcher import text
from launcher.errors import TransportError
from launcher.transports import bootstrap

SHELLS = [shell for shell in ("sh", "bash", "zsh", "csh", "tcsh", "fish") if shutil.which(shell)]
#: Has no effect and prints what it got.
ENTRY = "launcher.text:printable"


def answer(python: str, shell: str = "sh", entry: str = ENTRY) -> tuple[str, bytes, str]:
    """The word of the mark, what follows it, and stderr."""
    data = bootstrap.startup(python, entry, "printed")
    result = subprocess.run([shell, "-c", bootstrap.COMMAND], input=data, capture_output=True, timeout=60)
    found = bootstrap.find_mark(b"Welcome!\n" + result.stdout)
    assert found is not None, result
    return found[0], (b"Welcome!\n" + result.stdout)[found[1] :], result.stderr.decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_starts_it(shell: str):
    assert answer(sys.executable, shell) == (bootstrap.READY, b"", "printed\n")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.9", "3.13"])
def test_every_python_starts_it_or_reports_that_it_is_too_old(version: str):
    found = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    word, _, stderr = answer(str(found[0]))
    if version in ("2.7", "3.6", "3.7"):
        assert word.startswith(f"too old {version}")
        assert f"is Python {version}" in bootstrap.explain(word, "python3")
    else:
        assert (word, stderr) == (bootstrap.READY, "printed\n")


def test_a_python_that_is_not_there():
    word, _, _ = answer("no-such-python")
    assert word == bootstrap.MISSING
    assert "there is no python3.99 there" in bootstrap.explain(word, "python3.99")


def test_a_first_line_that_the_start_up_files_have_read():
    data = bootstrap.startup(sys.executable, ENTRY, None)
    command = f"read line; {bootstrap.COMMAND}"
    result = subprocess.run(["sh", "-c", command], input=data, capture_output=True, timeout=60)
    found = bootstrap.find_mark(result.stdout)
    assert found is not None
    assert found[0] == bootstrap.EATEN
    assert "~/.bashrc" in bootstrap.explain(found[0], "python3")


def test_noise_without_a_mark():
    assert bootstrap.find_mark(b"motd\n" * 10) is None
    mark = b"\n<tf-launcher program: ready>\n"
    assert bootstrap.find_mark(b"x" * bootstrap.MAX_NOISE + mark) is None
    assert bootstrap.find_mark(b"x" + mark + b"rest") == ("ready", 1 + len(mark))


def test_the_path_of_a_python_is_one_line():
    with pytest.raises(TransportError):
        bootstrap.startup("a\nb", ENTRY, None)


@pytest.mark.parametrize(
    ("magic", "file"),
    [(MAGIC_NUMBER, text.__file__), (b"old\n", "launcher.text.py")],
    ids=["bytecode of this Python", "of another Python"],
)
def test_a_host_takes_compiled_code_that_fits_and_else_the_source(
    magic: bytes, file: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap, "MAGIC_NUMBER", magic)
    packed = bootstrap.packed.__wrapped__(("launcher.text",))
    program = (
        f"import sys\n{bootstrap.IMPORTER}\n"
        "sys.meta_path.insert(0, Importer(sys.stdin.buffer.read()))\n"
        "import launcher.text as m; print(m.printable.__code__.co_filename)\n"
        "import traceback\n"
        "try: m.printable(None)\n"
        "except AttributeError: traceback.print_exc()"
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    result = subprocess.run(argv, input=packed, capture_output=True, timeout=60)
    assert result.stdout.decode().strip() == file
    assert f'File "{file}", line' in result.stderr.decode()
    assert inspect.getsource(text.printable).splitlines()[2] in result.stderr.decode()
