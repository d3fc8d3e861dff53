"""What ``launch prepare`` takes as requirements, and the platforms of wheels."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from launcher.environments.requirements import masked, wanted
from launcher.environments.resolving import Target
from launcher.errors import InputError


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
        "--pre\n"
        "numpy>=1.26,<3 ; python_version < '3.13'  # why\n"
        "tensorflow[and-cuda]==2.20.*\n\n"
        "mine @ https://example.org/mine-1.0-py3-none-any.whl\n"
        "six==1.16.0 \\\n    --hash=sha256:00\n"
    )
    found = wanted(["needs.txt"], [], {"TOKEN": "secret"})
    assert found.lines == (
        "numpy>=1.26,<3 ; python_version < '3.13'",
        "tensorflow[and-cuda]==2.20.*",
        "mine @ https://example.org/mine-1.0-py3-none-any.whl",
        "six==1.16.0 --hash=sha256:00",
    )
    assert found.options == (
        "--index-url https://user:secret@index.example/simple", "-f http://wheels.example/", "--pre",
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "-e .", "-e.", "--editable=.", "-r other.txt", "-rother.txt", "--requirement other.txt",
        "-c limits.txt", "./x.whl", "../x", "/x.whl", "~/x", "x.whl", ".", "file:///x.whl",
        "x @ file:///x.whl", "x @ ./x.whl", "git+https://example.org/x", "x @ git+ssh://example.org/x.whl",
        "https://example.org/x.tar.gz", "--find-links /wheels", "-f wheels", "-i file:///simple",
        "--index-url=../simple", "--target=/etc", "--global-option=x", "--trusted-host a --target=/etc",
        "--config-settings x", "six; rm -rf", "$(touch x)", "six\x1b[31m", "--no-binary :all:",
        "six --target=/etc", "--pre --target=/etc",
    ],
)  # fmt: skip
def test_a_line_that_names_files_or_does_more_is_refused_with_its_place(line: str):
    message = faults(f"six\n\n{line}\n")
    assert message.startswith("needs.txt:3: ") and "expected" in message


def test_places_count_continued_lines_and_passwords_are_masked():
    message = faults(
        "six \\\n  ==1\n-i ftp://me:secret@example.org\nnumpy @ http://me:secret@example.org/x.zip\n"
    )
    assert [line.partition(": ")[0] for line in message.split("\n")] == ["needs.txt:3", "needs.txt:4"]
    assert "secret" not in message
    assert masked("x https://me:secret@h/p y http://token@h") == "x https://****@h/p y http://****@h"


def test_a_password_on_the_command_line_is_refused():
    with pytest.raises(InputError, match="expected no password") as caught:
        wanted([], ["x @ https://me:secret@example.org/x-1-py3-none-any.whl"], {})
    assert "secret" not in str(caught.value)


def test_a_variable_that_is_not_set():
    assert "the variable TOKEN is not set" in faults("-i https://${TOKEN}@example.org\n")


def test_without_packages(folder: Path):
    version = metadata.version("pytest")
    (folder / "pyproject.toml").write_text("[project]\nname='x'\ndependencies=['six', 'numpy>1']\n")
    assert wanted([], [], {}).lines == ("six", "numpy>1")
    (folder / "requirements.txt").write_text(f"pytest=={version}\n")
    assert wanted([], [], {}).lines == (f"pytest=={version}",)
    assert wanted([], ["six"], {}).lines == ("six",)
    (folder / "requirements.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match="no packages; expected at least one"):
        wanted([], [], {})


def test_wheels_for_a_host():
    old, new = Target("3.11", "x86_64", "glibc 2.17"), Target("3.11", "aarch64", "glibc 2.36")
    assert old.platforms()[0] == "manylinux_2_17_x86_64" and "manylinux2014_x86_64" in old.platforms()
    assert old.platforms()[-1] == "linux_x86_64" and "manylinux_2_18_x86_64" not in old.platforms()
    assert new.platforms()[0] == "manylinux_2_36_aarch64"
