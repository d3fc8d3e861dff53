"""What ``launch prepare`` takes as requirements, and what it removes."""

from __future__ import annotations

import mmap
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from launcher.common.errors import InputError
from launcher.environments import remote
from launcher.environments.prepare import wanted


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def faults(text: str) -> str:
    """The message about a requirements file."""
    Path("needs.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        wanted(["needs.txt"], [], {})
    return str(caught.value)


def test_a_file_with_all_that_is_supported(folder: Path):
    Path("needs.txt").write_text(
        "# comment\n"
        "--index-url https://user:${TOKEN}@index.example/simple\n"
        "-f http://wheels.example/\n"
        "--trusted-host wheels.example\n"
        "numpy>=1.26,<3 ; python_version < '3.13'  # why\n"
        "tensorflow[and-cuda]==2.20.*\n\n"
        "mine @ https://example.org/mine-1.0-py3-none-any.whl\n"
    )
    found = wanted(["needs.txt"], [], {"TOKEN": "secret"})
    assert found.text.split("\n")[4:] == [
        "numpy>=1.26,<3 ; python_version < '3.13'",
        "tensorflow[and-cuda]==2.20.*",
        "",
        "mine @ https://example.org/mine-1.0-py3-none-any.whl",
    ]
    assert found.options.split("\n") == [
        "--index-url https://user:secret@index.example/simple",
        "-f http://wheels.example/",
        "--trusted-host wheels.example",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "-e .", "-e.", "--editable=.", "-r other.txt", "-rother.txt", "--requirement other.txt",
        "-c limits.txt", "./x.whl", "../x", "/x.whl", "~/x", "x.whl", ".", "file:///x.whl",
        "x @ file:///x.whl", "x @ ./x.whl", "git+https://example.org/x", "x @ git+ssh://example.org/x.whl",
        "https://example.org/x.tar.gz", "--find-links /wheels", "-f wheels", "-i file:///simple",
        "--index-url=../simple", "--target=/etc", "--global-option=x", "--trusted-host a --target=/etc",
        "--config-settings x", "$(touch x)", "--no-binary :all:", "six --target=/etc", "--pre --target=/etc",
        "six==1.16.0 \\", "--hash=sha256:00", "six==1.16.0 --hash=sha256:00",
        "x @ https://example.org/x-1-py3-none-any.whl --hash=sha256:00", "six\t--target=/etc",
        "x @ https://example.org/x-1-py3-none-any.whl ; python_version > '3' --hash=sha256:00",
    ],
)  # fmt: skip
def test_a_line_that_names_files_or_does_more_is_refused_with_its_place(line: str):
    message = faults(f"six\n\n{line}\n")
    assert message.startswith("needs.txt:3: ") and "expected" in message


def test_a_package_of_two_lines_is_refused():
    with pytest.raises(InputError, match=r"^PACKAGE: "):
        wanted([], ["x.whl\nsix"], {})


def test_passwords_are_masked():
    assert "secret" not in faults(
        "-i ftp://me:secret@example.org\nx @ http://me:secret@h/x-1-py3-none-any.whl\n"
        "--index-url me:secret@h/simple\n-f https:/me:secret@h\n-i https://me:a secret@h\n"
    )
    printed = remote.run(["echo", "x https://me:secret@h/p y http://token@h"])[1]
    assert printed == "x https://****@h/p y http://****@h"


def test_a_variable_that_is_not_set():
    assert '"-i https://****@example.org"; expected ' in faults("-i https://${TOKEN}@example.org\n")


def test_without_packages(folder: Path):
    version = metadata.version("pytest")
    (folder / "pyproject.toml").write_text("[project]\nname='x'\ndependencies=['six', 'numpy>1']\n")
    assert wanted([], [], {}).source == "pyproject.toml"
    (folder / "requirements.txt").write_text(f"pytest=={version}\n")
    found = wanted([], [], {})
    assert (found.text, found.source) == (f"pytest=={version}", "-")
    assert wanted([], ["six"], {}).text == "six"


def test_an_environment_that_a_process_uses_stays_even_behind_a_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    environment = folder / "real" / f"{'0' * 16}-py3.11.a"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(sys.executable)
    manifest, library = environment / "environment.json", environment / "library.so"
    manifest.write_text('{"packages": []}')
    os.utime(manifest, (0, 0))
    library.write_bytes(b"code")
    (folder / "home").symlink_to("real")  # as a home folder often is
    monkeypatch.setattr(remote, "ENVIRONMENTS_FOLDER", str(folder / "home"))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        remote.clean(30)
        assert environment.exists()
    remote.clean(30)
    assert not environment.exists()


def test_an_environment_whose_python_only_another_machine_has_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "ENVIRONMENTS_FOLDER", str(folder))
    whole, half = (folder / f"{number:016}-py3.11.a" for number in range(2))
    for environment in (whole, half):
        (environment / "bin").mkdir(parents=True)
        (environment / "bin/python").symlink_to("/opt/there/python3")
    (whole / "environment.json").write_text('{"packages": []}')
    with remote.locked():
        pass
    assert whole.exists() and not half.exists()
    assert remote.manifest(str(whole)) == {}
