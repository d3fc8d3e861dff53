"""Whose a container is: labels that name the launcher's process for ever, and the proof that it is over."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.runs.owner import Owner, is_alive, is_elsewhere, this_process
from launcher.transport.docker.settings import MACHINE, OWNER


def labels() -> dict[str, str]:
    """The labels of what this process makes: ``pid:start:boot:uid``, and where that pid means something."""
    me = this_process()
    return {
        OWNER: f"{me.pid}:{me.start_ticks}:{me.boot_id}:{os.getuid()}",
        MACHINE: f"{me.machine} {me.pid_namespace}",
    }


def is_dead(found: Mapping[str, str]) -> bool:
    """Whether these labels name a process of this user on this machine that is over beyond doubt."""
    machine, _, namespace = found.get(MACHINE, "").rpartition(" ")
    try:
        pid, start, boot, uid = found.get(OWNER, "").split(":")
        owner = Owner(int(pid), int(start), boot, machine, namespace)
        mine = int(uid) == os.getuid()
    except ValueError:
        return False
    return mine and bool(machine) and not is_elsewhere(owner) and not is_alive(owner)
