"""Clusters made of namespaces, which scripts beside this repository start; or those that are there."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Launch, Started, at_the_end
from tests.seeing import MARK, ROOT

#: Runs a command unless somebody else uses what it ends: by the lock files of its users and their turn, and
#: the command. Who had to wait for the turn of somebody who has ended it holds a lock of a file that is gone.
_LAST = """
    users=$0 turn=$1; shift; cd "$1"; shift
    exec 8>"$turn"; flock 8; [ /proc/self/fd/8 -ef "$turn" ] || exit 0
    exec 9>"$users"; ! flock -nx 9 || { "$@" && rm "$users" "$turn"; }
"""

#: Found out before a test has a home of its own.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tf-launcher-tests")


class Machines:
    """A cluster.

    Args:
        state: Its folder.
        environ: What reaches it has these variables.
        enter: The beginning of commands that reach it.
        script: The script and the name of a cluster of ours; ``None``: it is another one.
    """

    #: What the network namespace of a cluster of ours is called, before its name.
    kind: str
    #: Its commands.
    programs: Sequence[str]

    def __init__(
        self, state: Path, environ: dict[str, str], enter: Sequence[str], script: tuple[str, str] | None
    ) -> None:
        self.state, self.environ, self.enter, self._script = state, environ, list(enter), script
        #: What only its administrator has beside these variables.
        self._admin: dict[str, str] = {}

    def run(self, *argv: str, stdin: str = "", check: bool = True, timeout: float = 60) -> str:
        """Run a command that reaches it, as its administrator: what it prints."""
        done = subprocess.run(
            [*self.enter, *argv], env={**os.environ, **self.environ, **self._admin}, stdout=subprocess.PIPE,
            input=stdin, text=True, check=check, timeout=timeout,
        )  # fmt: skip
        return done.stdout.strip()

    def start(
        self, launch: Launch, *args: str | Path, before: Sequence[str] = (), env: Any = None, **more: Any
    ) -> Started:
        """Start launch where it reaches the cluster, perhaps with more words before it."""
        command = (*self.enter, *before, *COMMAND)
        return launch.start(*args, command=command, env={**self.environ, **(env or {})}, **more)

    def program(self, name: str) -> str:
        """The path of one of its commands."""
        return shutil.which(name, path=self.environ.get("PATH")) or name

    def commands(self, folder: Path) -> Path:
        """A folder with its commands, for a process that does not reach it otherwise."""
        made = folder / "commands"
        made.mkdir()
        for name in self.programs:
            file = made / name
            file.write_text(f'#!/bin/sh\nexec {shlex.join([*self.enter, self.program(name)])} "$@"\n')
            file.chmod(0o755)
        return made

    def pid(self, node: str) -> int:
        """Process 1 of a node of a cluster of ours."""
        return int((self.state / node / "pid").read_text().split()[0])

    @property
    def network(self) -> str:
        """The network namespace of a cluster of ours, which is the gateway of all its nodes."""
        assert self._script is not None, "expected a cluster of the tests"
        return f"{self.kind}-{self._script[1]}"

    def link(self, node: str, state: str) -> None:
        """Cut off a node of a cluster of ours (down), or join it again (up)."""
        subprocess.run(["ip", "-n", self.network, "link", "set", node, state], check=True, timeout=10)


def cache_folder() -> Path:
    """Where tests keep what takes long to get, and what those of a run share."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    return _CACHE


@contextmanager
def shared(name: str, *end: str) -> Iterator[AbstractContextManager[None]]:
    """Use something that the test processes of a run share: the turn of who may start it.

    Args:
        name: of what is shared.
        end: the command that ends it, after the last process that uses it, also when that was killed.
    """
    files = [str(cache_folder() / f"{name}.{lock}") for lock in ("users", "turn")]
    with at_the_end(_LAST, *files, str(ROOT), *end), open(files[0], "w") as users:

        @contextmanager
        def turn() -> Iterator[None]:
            with open(files[1], "w") as mine:
                fcntl.flock(mine, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_SH)
                yield

        yield turn()


def call(script: Path, *words: str, **environ: str) -> str:
    """Run a script that starts clusters: what it prints."""
    known = {name: value for name, value in os.environ.items() if name != MARK}
    done = subprocess.run(
        [script, *words], env={**known, **environ}, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        pytest.fail(f"no cluster: {script.name} {words[0]} fails: {done.stderr.strip()}", False)
    return done.stdout.strip()


def script_of(name: str) -> Path | None:
    """A script that starts clusters, of root's: in ``$LAUNCH_CLUSTERS``, else in shared/clusters above."""
    given = os.environ.get("LAUNCH_CLUSTERS")
    folders = [Path(given)] if given else [folder / "shared/clusters" for folder in ROOT.parents]
    found = (folder / name for folder in folders if (folder / name).is_file())
    return None if os.getuid() else next(found, None)


def watched(start: Callable[..., Started], name: str) -> str:
    """Watch a detached run of two workers, which end with 7 in their second attempt: what `attach` shows."""
    (row,) = json.loads(start("ps", "--json").wait(30).out)
    assert (row["run"], row["state"], row["tasks"]) == (name, "running", {"worker": 2})
    tasks = start("ps", name).wait(30).out
    assert re.findall(r"^(worker/\d) .* running .*  1  ", tasks, re.M) == ["worker/0", "worker/1"], tasks
    stacks = start("stacks", name).wait(90).out
    assert re.search(r"^    <module> \(train\.py:\d+\)|worker\[0-1\]: it is no Python", stacks, re.M), stacks
    attach = start("attach")
    assert "worker/1: attempt 2" in start("restart", name, "worker/1").wait(60, code=0).out
    ended = attach.wait(120, code=7)
    assert "first to fail: worker/1" in ended.out
    answer = start("stop", name).wait().out
    assert name in answer and answer.endswith("had already ended with exit code 7\n")
    return ended.out
