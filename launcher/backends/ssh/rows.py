"""The settings of connections over SSH, which the option table of the launcher includes."""

from __future__ import annotations

from launcher.config.settings import Group, Setting, switch
from launcher.config.table import OTHER_MACHINES

ACCEPT_NEW_HOST_KEYS = Setting(
    "accept_new_host_keys", switch, "add keys of unknown hosts to known_hosts", default=False,
    needs=OTHER_MACHINES,
)  # fmt: skip
GROUP = Group("SSH", (ACCEPT_NEW_HOST_KEYS,))
