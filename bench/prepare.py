"""Measures ``launch prepare`` on eight hosts that are ready, beside a launch of ``true`` on them.

`bench.run` calls `measure`. The hosts are network namespaces of this machine, which only root can make.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from bench import tables
from bench.setting import Setting
from tests.ssh.lab import Lab
from tests.ssh.package_index import PackageIndex

_HOSTS = 8
#: The time limit for one run.
_TIME_LIMIT = 120.0
_PREPARE, _TRUE = "launch prepare", "launch true"


def measure(setting: Setting) -> None:
    """Run ``launch prepare`` and a launch of ``true`` in turn, and print a table."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if os.geteuid() != 0 or uv is None:
        print("\nprepare: MISSING: its hosts are network namespaces, which only root can make; it needs uv")
        return
    folder = setting.folder("prepare")
    with (
        Lab(_HOSTS) as lab,
        PackageIndex(folder / "wheels", lab.address) as index,
    ):
        index.add("tiny")
        (folder / "requirements.txt").write_text(f"{index.options}tiny\n")
        for host in lab.hosts:
            host.program("uv", f'#!/bin/sh\nexec {uv} "$@"\n')
        environ = {**os.environ, **lab.environment()}
        names = ",".join(host.name for host in lab.hosts)
        commands = {
            _PREPARE: [setting.launch, "prepare", "--hosts", names, "-r", str(folder / "requirements.txt")],
            _TRUE: [setting.launch, "--hosts", names, "--workers", str(_HOSTS), "--", "true"],
        }
        first = _seconds(commands[_PREPARE], environ)
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(setting.rounds):
            for name, command in commands.items():
                taken[name].append(_seconds(command, environ))
    rows = [[name, tables.times(taken[name]), tables.ratio(taken[name], taken[_TRUE])] for name in commands]
    title = f"{_HOSTS} hosts over SSH that are ready; the first prepare took {first:.1f} s"
    tables.show(title, ["", "seconds", "of launch true"], rows)


def _seconds(command: list[str], environ: dict[str, str]) -> float:
    """Run a command, which must succeed, and return how many seconds it took."""
    began = time.monotonic()
    subprocess.run(command, cwd="/", env=environ, capture_output=True, timeout=_TIME_LIMIT, check=True)
    return time.monotonic() - began
