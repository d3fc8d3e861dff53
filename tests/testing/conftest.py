"""What tests of the pytest plug-in get: the plug-in, here and in the runs of pytest that they start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.testing import plugin

TOP = Path(__file__).resolve().parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """A checkout whose environment was made before there was a plug-in has it all the same."""
    if not config.pluginmanager.has_plugin("tf-launcher"):
        config.pluginmanager.register(plugin, "tf-launcher")


@pytest.fixture
def plugged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs pytest with the package installed: pip makes such a folder from ``pyproject.toml``."""
    packaging = (TOP / "pyproject.toml").read_text()
    ((name, module),) = re.findall(r'^\[project.entry-points.pytest11\]\n(\S+) = "(\S+)"$', packaging, re.M)
    info = pytester.path / "site" / "tf_launcher-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tf-launcher\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{TOP}")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    return pytester
