"""How an errand comes up: run by the shells and Pythons of this machine, as a login shell would."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import TransportError
from launcher.transport import bootstrap
from launcher.transport.bundle import bundle
from tests.ssh.errand_stubs import StubBundle

SHELLS = ["sh", "bash", "dash", "zsh", "ksh", "mksh", "busybox", "csh", "tcsh", "fish"]
PYTHONS = [
    str(path)
    for pattern in (".pyenv/versions/*/bin/python", "/usr/bin/python[23].*[0-9]")
    for path in sorted((Path("/") if pattern.startswith("/") else Path.home()).glob(pattern.lstrip("/")))
]


def run(data: bytes, shell: str = "sh") -> subprocess.CompletedProcess[bytes]:
    """The command, as this login shell runs it."""
    argv = [shell, "sh", "-c"] if shell == "busybox" else [shell, "-c"]
    return subprocess.run(
        [*argv, bootstrap.COMMAND], input=data, capture_output=True, timeout=50, check=False
    )


def started(function: str, arguments: object = None, python: str = sys.executable) -> bytes:
    """What is sent to start a stub."""
    return bootstrap.startup(python, StubBundle().compiled, f"errands:{function}", arguments)


def test_the_command_has_nothing_that_a_shell_could_misread():
    inside = bootstrap.COMMAND.removeprefix("exec /bin/sh -c '").removesuffix("'")
    assert f"exec /bin/sh -c '{inside}'" == bootstrap.COMMAND
    assert not set(inside) & set("'!\\\n\0")
    assert inside.isascii()
    loader = bootstrap.LOADER
    assert not set(loader) & set("\"'$`!\\\n")
    assert bootstrap.FIRST_CODE.isascii()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_byte_after_it_is_the_errands(shell: str):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} on this machine")
    data = bytes(range(256)) * 1000
    ended = run(started("echo") + data, shell)
    assert ended.stderr == b""
    found = bootstrap.find_mark(ended.stdout)
    assert found is not None and found[0] == bootstrap.READY
    assert ended.stdout[found[1] :] == data
    assert ended.returncode == 0


def test_it_takes_no_byte_too_much_however_they_come():
    process = subprocess.Popen(
        ["sh", "-c", bootstrap.COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None and process.stdout is not None
    data = started("echo")
    for at in range(0, len(data), 7):
        process.stdin.write(data[at : at + 7])
    process.stdin.write(b"after")
    process.stdin.close()
    out = process.stdout.read() or b""
    process.stdout.close()
    assert process.wait(50) == 0
    assert out.endswith(b"after")


def test_a_program_that_is_never_told_its_arguments_ends(monkeypatch: pytest.MonkeyPatch):
    """The launcher was killed while the network was down: nothing says so, on this side or that."""
    soon = bootstrap.FIRST_CODE.replace(b"alarm(600)", b"alarm(1)")
    assert soon != bootstrap.FIRST_CODE
    monkeypatch.setattr(bootstrap, "FIRST_CODE", soon)
    told = bootstrap.prelude(sys.executable, StubBundle().compiled, "errands:echo")
    argv = ["sh", "-c", bootstrap.COMMAND]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as waits:
        assert waits.stdin is not None
        waits.stdin.write(told)
        assert waits.wait(50) == -signal.SIGALRM


def test_one_that_was_told_them_goes_on():
    ended = run(started("alarmed"))
    assert (ended.returncode, ended.stdout[-4:]) == (0, b">\n0."), "its alarm would have rung"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_of_this_machine_runs_it_or_says_its_version(python: str):
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:3])"], capture_output=True, text=True
    )
    if version.returncode:
        pytest.skip(f"{python} does not run")
    numbers = eval(version.stdout)
    foreign = StubBundle(b"xx\r\n")
    data = bootstrap.startup(python, foreign.compiled, "errands:echo", None)
    ended = run(data + bootstrap.frame(foreign.source()) + b"data")
    found = bootstrap.find_mark(ended.stdout)
    assert found is not None, ended
    if numbers < (3, 8):
        assert found[0] == f"too old {'.'.join(map(str, numbers))}"
        return
    assert found[0] == bootstrap.NEEDS_SOURCE
    found = bootstrap.find_mark(rest := ended.stdout[found[1] :])
    assert found is not None and found[0] == bootstrap.READY, ended.stderr
    assert rest[found[1] :] == b"data"


def test_the_source_may_come_first():
    data = bootstrap.startup(sys.executable, StubBundle().source(), "errands:shown", 1)
    found = bootstrap.find_mark(out := run(data).stdout)
    assert found is not None and found[0] == bootstrap.READY
    assert out[found[1] :] == b"1"


def test_our_own_errands_start():
    entry = "launcher.model.watermark:agent_number"
    ended = run(bootstrap.startup(sys.executable, bundle(entry).compiled, entry, 7))
    found = bootstrap.find_mark(ended.stdout)
    assert found is not None and found[0] == bootstrap.READY, ended.stderr


def test_a_python_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    odd = tmp_path / "it's $odd"
    odd.mkdir()
    (odd / "python").symlink_to(sys.executable)
    ended = run(started("shown", 1, "~/it's $odd/python"))
    assert ended.stdout.endswith(b"1"), ended


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", "~/no", "/", "-x"])
def test_no_such_python(python: str):
    ended = run(started("shown", 1, python))
    found = bootstrap.find_mark(ended.stdout)
    assert (found is not None and found[0] == bootstrap.MISSING) or ended.returncode in (126, 127), ended


def test_a_launcher_that_leaves_in_the_middle_leaves_nothing():
    data = started("echo")
    for size in (0, 3, len(data) // 2, len(data) - 1):
        assert run(data[:size]).returncode != 0


def test_names_that_can_not_be():
    for name in ("", "a\nb", "a\0b"):
        with pytest.raises(TransportError, match="can't be the path of a Python"):
            bootstrap.startup(name, b"", "x:y", None)


def test_marks_are_found_in_noise():
    assert bootstrap.find_mark(b"welcome\n\n<tf-launcher errand 1: re") is None
    assert bootstrap.find_mark(b"x\n<tf-launcher errand 1: too old 3.6.1>\nrest") == ("too old 3.6.1", 40)
    assert bootstrap.find_mark(b"\n<tf-launcher errand 2: ready>\n") is None
    mark = b"\n<tf-launcher errand 1: ready>\n"
    quiet = bootstrap.MAX_NOISE - len(mark)
    assert bootstrap.find_mark(b"#" * quiet + mark) == ("ready", bootstrap.MAX_NOISE)
    assert bootstrap.find_mark(b"#" * (quiet + 1) + mark) is None
