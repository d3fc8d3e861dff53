"""The process that owns a run: never another one with the same pid, and dead only if that is proven."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.agent import identity
from launcher.agent.identity import (
    Fate,
    ProcessIdentity,
    fate_of,
    is_alive,
    owner_text,
    read_owner,
    start_ticks,
    this_process,
)
from launcher.agent.processes import FIRST_PID_NAMESPACE, children_of
from launcher.common.record import replace
from launcher.runs.run import open_pidfd
from tests.seeing import command_line, soon
from tests.unit.runs.conftest import Sleeper, owner_of

pytestmark = pytest.mark.promise("a launcher is dead only if that is proven")

#: A process of this machine and boot that has ended.
_GONE = 2**22 - 1


class Machine:
    """Other names for this machine, as another one, a clone of it, or it after a reboot has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self.is_like(folder=folder)

    def is_like(self, **names: object) -> None:
        """Change ``boot``, ``namespace``, ``id`` or the ``folder`` that stands for ``/var/tmp``."""
        functions = {"boot": "_boot_id", "namespace": "_pid_namespace", "id": "machine_id"}
        for name, value in names.items():
            if name == "folder":
                self._monkeypatch.setattr(identity, "_BOOTS_FOLDER_FORMAT", f"{value}/tf-launcher-%d")
            else:
                self._monkeypatch.setattr(identity, functions[name], lambda value=value: value)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """This machine, whose ``/var/tmp`` is empty."""
    return Machine(monkeypatch, tmp_path)


def _is_first() -> bool:
    return os.readlink("/proc/self/ns/pid") == FIRST_PID_NAMESPACE


def gone() -> ProcessIdentity:
    """A process of this machine that has ended."""
    return replace(this_process(), pid=_GONE)


def test_the_same_pid_at_another_time_is_another_process(sleeper: Sleeper):
    process = sleeper()
    owner = owner_of(process)
    others = {
        replace(owner, start_ticks=owner.start_ticks - 1): Fate.DEAD,
        replace(owner, boot_id="another boot"): Fate.UNKNOWN,
        replace(owner, boot_id="another boot", machine="another machine"): Fate.UNKNOWN,
    }
    if not _is_first() or os.geteuid() == 0:
        # In the first namespace root sees that no process is in this one. For an ordinary user that depends
        # on whether processes of other users are in any other namespace.
        fate = Fate.DEAD if _is_first() else Fate.UNKNOWN
        others[replace(owner, pid_namespace="pid:[1]")] = fate
    for other, fate in others.items():
        assert not is_alive(other)
        assert open_pidfd(other) is None
        assert fate_of(other) is fate
    assert process.poll() is None
    assert fate_of(replace(owner, machine="renamed")) is Fate.ALIVE


def test_a_zombie_is_over(sleeper: Sleeper):
    process = sleeper()
    owner = owner_of(process)
    process.kill()
    while start_ticks(process.pid) is not None:
        pass
    assert fate_of(owner) is Fate.DEAD


@pytest.mark.parametrize(
    ("written", "fate"),
    [
        ({}, Fate.DEAD),
        ({"machine": "renamed"}, Fate.DEAD),
        ({"machine_id": ""}, Fate.DEAD),  # by an earlier version
        ({"machine_id": "", "machine": "another machine"}, Fate.UNKNOWN),
        ({"machine_id": "a clone with another id"}, Fate.UNKNOWN),
        ({"machine_id": "", "boot_id": "another boot"}, Fate.UNKNOWN),
    ],
)
def test_a_process_that_is_not_there_is_dead_where_it_would_be(
    machine: Machine, written: dict[str, Any], fate: Fate
):
    assert fate_of(replace(gone(), **written)) is fate


def test_a_reboot_is_proven_by_the_boots_of_this_machine(machine: Machine, tmp_path: Path):
    before = gone()
    machine.is_like(boot="the next boot")
    assert fate_of(before) is Fate.DEAD
    this_process()
    machine.is_like(boot="the boot after that")
    assert fate_of(before) is Fate.DEAD
    for field in ("boot_id", "machine", "machine_id", "pid_namespace"):
        assert fate_of(replace(before, **cast(Any, {field: "another"}))) is Fate.UNKNOWN
    machine.is_like(folder=tmp_path / "of a clone")
    assert fate_of(before) is Fate.UNKNOWN


def test_clones_of_a_machine_that_launched_are_other_machines(machine: Machine, tmp_path: Path):
    """All names but the boot are the same, and the clone has a copy of ``/var/tmp``."""
    template = gone()
    machine.is_like(boot="of the first clone")
    for name in ("one", "two"):
        shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{name}"))
    machine.is_like(folder=tmp_path.with_name(f"{tmp_path.name}-one"))
    on_first = gone()
    machine.is_like(boot="of the second clone", folder=tmp_path.with_name(f"{tmp_path.name}-two"))
    assert fate_of(on_first) is Fate.UNKNOWN
    assert fate_of(template) is Fate.DEAD


@pytest.mark.parametrize("how", ["writable by all", "a link", "a file", "too large"])
def test_boots_that_anybody_may_have_written_prove_nothing(machine: Machine, tmp_path: Path, how: str):
    folder = tmp_path / f"tf-launcher-{os.geteuid()}"
    if how == "writable by all":
        folder.mkdir()
        folder.chmod(0o777)
    elif how == "a link":
        (tmp_path / "other").mkdir()
        folder.symlink_to("other")
    elif how == "a file":
        folder.touch()
    else:
        folder.mkdir()
        (folder / "boots").write_bytes(bytes(1 << 20))
    before = gone()
    machine.is_like(boot="the next boot")
    assert (fate_of(before) is Fate.DEAD) == (how == "too large")  # it is made anew


def test_boots_are_bounded(machine: Machine, tmp_path: Path):
    for number in range(1100):
        machine.is_like(boot=f"boot {number}")
        this_process()
    (boots,) = tmp_path.glob("*/*")
    assert len(boots.read_text().splitlines()) == 1000


def test_a_file_system_of_several_machines_proves_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    before = gone()
    machine.is_like(boot="the next boot")
    monkeypatch.setattr(identity, "_LOCAL_FILE_SYSTEMS", frozenset())
    assert fate_of(before) is Fate.UNKNOWN


def test_a_process_as_a_text():
    me = this_process()
    text = owner_text(me)
    assert read_owner(text) == (me, os.getuid())
    old = text.rpartition(":")[0]
    assert read_owner(old) == (replace(me, machine_id=""), os.getuid())
    for other in ("", "no owner", text.replace("pid:[", "pid["), old.rpartition(":")[0], f"x{text}"):
        assert read_owner(other) is None


@pytest.mark.skipif(not _is_first() or os.geteuid() != 0, reason="needs root of the first pid namespace")
def test_a_process_of_a_container_that_has_ended_is_dead():
    inside = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]
    with subprocess.Popen(inside) as container:
        # From then on it dies with its parent.
        child = soon(lambda: [pid for pid in children_of(container.pid) if command_line(pid) == "sleep 60"])
        namespace = os.readlink(f"/proc/{child[0]}/ns/pid")
        there = replace(this_process(), pid=1, pid_namespace=namespace, machine_id="its own")
        assert fate_of(there) is Fate.UNKNOWN
        container.kill()
        container.wait()
    soon(lambda: fate_of(there) is not Fate.UNKNOWN)
    assert fate_of(there) is Fate.DEAD
