"""``--venv`` on hosts: environments that ``launch prepare`` has made there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.test_environments import SHOW, environment
from tests.ssh.host import LabHost
from tests.ssh.lab import ALL


@pytest.fixture
def prepared(hosts: list[LabHost]) -> list[Path]:
    """The environment ``lab`` on each host; its folder there."""
    for host in hosts:
        host.expected.append(".local")
    return [environment(host.home) for host in hosts]


@pytest.mark.promise("an environment missing or broken on hosts")
def test_all_hosts_that_lack_it_are_named_at_once(
    ssh_launch: Launch, hosts: list[LabHost], prepared: list[Path], tmp_path: Path
):
    for folder in prepared[1:3]:
        (folder.parent / "lab").unlink()
    words = [*ALL, "--venv", "lab", "-c", "print('started')"]
    ended = ssh_launch(*words, cwd="/")
    assert ended.code == 127 and "| started" not in ended.out
    assert "launch: there is no environment 'lab' on node2, node3\n" in ended.err
    assert "`launch prepare --hosts node1,node2,node3,node4 --name lab`" in ended.err
    (prepared[3] / "bin" / "python").unlink()
    (prepared[3] / "bin" / "python").symlink_to("gone")
    assert "launch: there is no environment 'lab' on node2, node3, node4\n" in ssh_launch(*words, cwd="/").err


def test_tasks_run_in_it_on_every_host(
    ssh_launch: Launch, hosts: list[LabHost], prepared: list[Path], tmp_path: Path
):
    other = environment(hosts[3].home / ".local" / "other")
    second, last = "{name: node2, python: /usr/bin/python3}", f"{{name: node4, venv: {other}}}"
    (tmp_path / "lab.yaml").write_text(f"hosts: [node1, {second}, node3, {last}]\n")
    words = ["--hosts", "lab.yaml", "--workers", "4", "--workdir", "/", "--venv", "lab"]
    ended = ssh_launch(*words, "-c", SHOW, cwd=tmp_path)
    for number, folder in enumerate([*prepared[:3], other]):
        assert f"worker/{number} | {folder} {folder} {folder}/bin\n" in ended.out, ended.out + ended.err
    used = [(folder / "environment.json").stat().st_mtime > 1e9 for folder in prepared]
    assert used == [True, True, True, False]
    found = json.loads(ssh_launch("check", "--json", "--venv", "lab", "node1").out)
    assert found["hosts"][0]["facts"]["task_python"]["asked"] == "python"
    ended = ssh_launch("--hosts", "node1", "--venv", "lab", "-c", "import no_such_module", cwd="/", code=1)
    assert "  hint: `launch prepare --hosts node1 --name lab PACKAGE...`" in ended.err


@pytest.mark.promise("hints of failed tasks: each fits its lines and no others, and those of real programs")
@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("-c", "import no_such_module"), 1, "-x PYTHONPATH"),
        (("-x", "PYTHONPATH", "-c", "import no_such_module"), 1, "prepare --hosts node1 --name NAME"),
        (("--", "conda", "run", "python", "train.py"), 127, "only login shells have conda"),
        (("--", "/no/such/program"), 127, "--sync DIR"),
    ],
)
def test_a_hint_names_what_is_missing_on_a_host(
    ssh_launch: Launch, words: tuple[str, ...], code: int, part: str
):
    ended = ssh_launch("--hosts", "node1", *words, env={"PYTHONPATH": "/lib/of/mine"}, cwd="/", code=code)
    (hint,) = [line for line in ended.err.splitlines() if line.startswith("  hint: ")]
    assert part in hint
