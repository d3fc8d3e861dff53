"""Conda environments and names, as the agent finds them; tests/local/test_environments.py runs in some."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent.lookup import environment_variables
from launcher.common.errors import ProgramError


def environment(folder: Path) -> Path:
    """The least that is an environment."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


def test_one_of_condas_by_its_folder(home: Path):
    folder = environment(home / "my envs" / "tf")
    (folder / "conda-meta").mkdir()
    assert environment_variables({"PATH": "/bin"}, "~/my envs/tf") == {
        "PATH": f"{folder}/bin:/bin",
        "CONDA_PREFIX": str(folder),
        "CONDA_DEFAULT_ENV": "tf",
    }


def test_one_of_condas_by_its_name(home: Path):
    """Listed ones first, as they may lie anywhere; else those of the usual installations."""
    usual = environment(home / "miniconda3" / "envs" / "tf")
    assert environment_variables({}, "tf")["PATH"].startswith(f"{usual}/bin:")
    listed = environment(home / "elsewhere" / "tf")
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{home}/gone/tf\n{listed}\n")
    assert environment_variables({}, "tf")["PATH"].startswith(f"{listed}/bin:")


def test_one_of_launch_prepare_by_its_name(home: Path, monkeypatch: pytest.MonkeyPatch):
    """It comes before one of conda, and is the folder that the name means now."""
    environment(home / "miniconda3" / "envs" / "tf")
    for data in (home / ".local" / "share", home / "data"):
        folder = environment(data / "tf-launcher" / "environments" / "folder")
        (folder.parent / "tf").symlink_to("folder")
        assert environment_variables({}, "tf")["VIRTUAL_ENV"] == str(folder)
        monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))


@pytest.mark.parametrize("name", ["tf", "~/tf", "/nowhere/tf"])
def test_none(home: Path, name: str):
    with pytest.raises(ProgramError):
        environment_variables({}, name)
