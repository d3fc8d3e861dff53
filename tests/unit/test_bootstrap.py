"""How programs of ours start on a host: by any login shell, with any Python."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import MAGIC_NUMBER

import pytest

from launcher.backends import bootstrap
from launcher.common import text


@pytest.mark.parametrize(
    ("magic", "file"),
    [(MAGIC_NUMBER, text.__file__), (b"old\n", "launcher.common.text.py")],
    ids=["bytecode of this Python", "of another Python"],
)
def test_a_host_takes_compiled_code_that_fits_and_else_the_source(
    magic: bytes, file: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap, "MAGIC_NUMBER", magic)
    packed = bootstrap.packed.__wrapped__(("launcher.common.text",))
    program = (
        f"import sys\n{bootstrap.IMPORTER}\n"
        "sys.meta_path.insert(0, Importer(sys.stdin.buffer.read()))\n"
        "import launcher.common.text as m; print(m.escape_controls.__code__.co_filename)\n"
        "import traceback\n"
        "try: m.escape_controls(None)\n"
        "except AttributeError: traceback.print_exc()"
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    result = subprocess.run(argv, input=packed, capture_output=True, timeout=60)
    assert result.stdout.decode().strip() == file
    assert f'File "{file}", line' in result.stderr.decode()
    assert inspect.getsource(text.escape_controls).splitlines()[2] in result.stderr.decode()
