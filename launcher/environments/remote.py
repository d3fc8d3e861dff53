"""Looks at a host, makes environments there and removes them. It travels to the host: Python 3.8.

It sends lines of JSON: ``alive`` each second, ``stage`` for the user, ``wheels`` when it needs these, and
``look`` at the end. A fault ends it: the last line of standard error is the reason. The end of standard input
ends all, with every process.
"""

import fcntl
import glob
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional

from launcher.agent.environments import prepared

#: Names of folders of environments; those that this program may remove.
FOLDER = re.compile(r"[0-9a-f]{16}-py3\.[0-9]+\.[0-9a-z_]+")
MANIFEST = "environment.json"
TOP = prepared()
#: Seconds for a Python to say what it is; for any other program.
PROBE, LIMIT = 20.0, 3600.0
#: Characters of the reason why a program failed.
REASON = 400
MOST_PYTHONS = 20
#: What a candidate for an environment prints; what it needs without uv, and lacks without python3-venv.
WHAT, ENSUREPIP = "import sys, venv; print('%d.%d' % sys.version_info[:2])", "import ensurepip; "
#: pip and uv wait half a minute for an index that does not answer, unless the user has set another time.
PATIENCE = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}


def send(kind: str, said: Any = "") -> None:
    """Tell the launcher; any thread may."""
    os.write(1, json.dumps({"kind": kind, "said": said}).encode("ascii") + b"\n")


def end_with_input() -> None:
    """At the end of standard input, or of standard output, end this program and all that it has started."""
    poll = select.poll()
    poll.register(0, select.POLLRDHUP)
    try:
        while not poll.poll(1000):
            send("alive")
    finally:
        os.killpg(0, signal.SIGTERM)


def run(argv: List[str], text: str = "") -> str:
    """Run a program, which inherits the lock.

    Args:
        text: its standard input: it may have passwords, and is in no file.

    Returns:
        Why it failed; empty if it did not.
    """
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, cwd="/",
        env={**PATIENCE, **os.environ}, encoding="utf-8", errors="replace", close_fds=False,
    )  # fmt: skip
    fault = " ".join(done.stdout.split())[:REASON] or f"exit code {done.returncode} of {argv[0]}"
    return fault if done.returncode else ""


def check(fault: str) -> None:
    """Exit with this fault on standard error, if there is one."""
    if fault:
        sys.exit(fault)


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock: one program makes or removes environments at a time. It leaves only whole ones."""
    os.makedirs(TOP, 0o700, exist_ok=True)
    with open(f"{TOP}/.lock", "a") as file:
        os.set_inheritable(file.fileno(), True)
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            remove_incomplete()
            yield
        finally:
            remove_incomplete()


def content(path: str) -> str:
    """The content of a file; empty if there is none."""
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def folders() -> List[str]:
    """The folders of environments, also of those that are not whole."""
    return [f"{TOP}/{name}" for name in sorted(os.listdir(TOP)) if FOLDER.fullmatch(name)]


def remove_incomplete() -> None:
    """Remove folders without a manifest. Only a holder of the lock may call this.

    An environment without its Python stays: another machine with this home folder may have it.
    """
    for folder in folders():
        if not content(f"{folder}/{MANIFEST}"):
            shutil.rmtree(folder, ignore_errors=True)


def manifest(folder: str) -> Dict[str, Any]:
    """What an environment has; empty: it is not whole, or has lost its Python."""
    runs = os.access(f"{folder}/bin/python", os.X_OK)
    with suppress(ValueError):
        return dict(json.loads(content(f"{folder}/{MANIFEST}"))) if runs else {}
    return {}


def packages(folder: str) -> List[str]:
    """The packages of an environment, by the names of their folders: ``six-1.16.0``."""
    found = glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages/*.dist-info")
    return sorted(os.path.basename(path)[: -len(".dist-info")] for path in found)


def look(name: str, known: Optional[List[str]] = None, python: str = "", days: int = 0) -> Dict[str, Any]:
    """What the environment of this name is, and if it is not ready, the Pythons for a new one.

    Args:
        name: of the environment.
        known: the hashes of environments that are wanted; ``None``: no new one is.
        python: the only candidate for an environment; empty: all of PATH.
        days: see `clean`, which does its work before; 0: it does not.
    """
    if days:
        clean(days)
    place, folder = TOP, os.path.realpath(f"{TOP}/{name}")
    found, state = manifest(folder), "broken" if os.path.lexists(f"{TOP}/{name}") else "missing"
    if found:
        state = "ready" if packages(folder) == found["packages"] else "changed"
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    if place == TOP and os.stat(TOP).st_uid != os.geteuid():
        sys.exit(f"{TOP} is not a folder of this user")
    cpu = content("/proc/cpuinfo")
    disk, (libc, version) = os.statvfs(place), platform.libc_ver()
    glibc = "manylinux_" + version.replace(".", "_") if libc == "glibc" else "other"
    tensorflow = re.search(r"(?m)^tensorflow(?:_cpu|_gpu)?-([0-9].*)", "\n".join(found.get("packages", ())))
    is_ready = known is None or (state == "ready" and found["hash"] in known)
    return {
        "state": state, "hash": found.get("hash", ""), "version": found.get("python", ""),
        "tensorflow": tensorflow[1] if tensorflow else "", "size": found.get("size", ""),
        "driver": content("/sys/module/nvidia/version").strip(),
        "platform": f"{os.uname().machine}-{glibc}",
        "avx": " avx " in cpu or os.uname().machine != "x86_64", "free": disk.f_bavail * disk.f_frsize,
        "pythons": {} if is_ready else pythons(python),
    }  # fmt: skip


def pythons(python: str) -> Dict[str, str]:
    """The Pythons here that can make environments, by version, the newest first: takes a second."""
    found = [os.path.expanduser(python)] if python else []
    for place in [] if python else os.get_exec_path():
        paths = sorted(glob.glob(f"{glob.escape(place)}/python3*"), reverse=True)
        found += [path for path in paths if re.fullmatch(r"python3(\.[0-9]+)?", os.path.basename(path))]
    versions: Dict[str, str] = {}
    code = WHAT if shutil.which("uv") else ENSUREPIP + WHAT
    for path in list(dict.fromkeys(found))[:MOST_PYTHONS]:
        with suppress(OSError, subprocess.SubprocessError):
            version = subprocess.check_output([path, "-I", "-c", code], timeout=PROBE).decode().strip()
            if re.fullmatch(r"3\.[0-9]+", version):
                versions.setdefault(version, path)
    return dict(sorted(versions.items(), key=lambda each: -int(each[0].partition(".")[2])))


def install(asked: Dict[str, Any]) -> None:
    """Make an environment, unless there is one like it, and link its name to it in one step.

    Args:
        asked: ``name``; ``hash`` of the packages and the Python; ``version`` and ``path`` of the Python;
            ``options`` about package indexes, and ``packages`` with exact versions, both as in a requirements
            file; ``offline``: use no package index.
    """
    with locked():
        for folder in folders():
            made = manifest(folder)
            if made.get("hash") == asked["hash"] and made["packages"] == packages(folder):
                break
        else:
            folder = tempfile.mkdtemp("", "{hash}-py{version}.".format(**asked), TOP)
            fill(asked, folder)
        link = f"{TOP}/.link"
        with suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(os.path.basename(folder), link)
        os.replace(link, "{}/{name}".format(TOP, **asked))


def fill(asked: Dict[str, Any], folder: str) -> None:
    """Make an environment in an empty folder."""
    uv, python, wheels = shutil.which("uv"), f"{folder}/bin/python", f"{folder}/wheels"
    if uv:
        make = [uv, "venv", "--quiet", "--allow-existing", "--python", asked["path"], folder]
        add = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    else:
        make = [asked["path"], "-I", "-m", "venv", folder]
        add = [python, "-I", "-m", "pip", "install", "--quiet", "--no-input"]
    add += ["--no-deps", "--only-binary", ":all:", "-r", "/dev/stdin"]
    check(run(make))
    fault = "--offline" if asked["offline"] else run(add, "{options}\n{packages}".format(**asked))
    if fault:
        os.mkdir(wheels)
        send("stage", f"no package index, so wheels are sent ({fault})")
        send("wheels", wheels)
        sys.stdin.readline()  # they have come
        add += ["--no-index", "--find-links", wheels]
        check(run(add, re.sub(r" *@ *\S+", "", asked["packages"])))
        shutil.rmtree(wheels)
    size = subprocess.check_output(["du", "-sh", folder]).split()[0].decode()
    made = {"hash": asked["hash"], "python": asked["version"], "packages": packages(folder), "size": size}
    with open(f"{folder}/{MANIFEST}", "w") as file:
        json.dump(made, file, indent=1)


def clean(days: int) -> None:
    """Remove environments that no task has used for so many days, and names of removed ones."""
    limit = time.time() - days * 24 * 3600
    with locked():
        for folder in folders():
            marks = [f"{folder}/{name}" for name in (MANIFEST, "used")]
            last = max(os.path.getmtime(path) for path in marks if os.path.exists(path))
            # A process that runs in it has loaded libraries from it.
            libraries = os.path.realpath(folder) + "/"
            is_used = any(libraries in content(path) for path in glob.glob("/proc/[0-9]*/maps"))
            if last < limit and not is_used:
                send("stage", f"removing {os.path.basename(folder)}")
                os.unlink(f"{folder}/{MANIFEST}")  # now it is not whole, so it is removed below
    for path in glob.glob(f"{glob.escape(TOP)}/*"):
        if not os.path.exists(path):
            os.unlink(path)


def main(asked: Dict[str, Any]) -> None:
    """Look, then make an environment if the launcher asks for that in a line of standard input.

    Args:
        asked: the arguments of `look`.
    """
    os.umask(0o077)
    os.environ["PATH"] += ":/usr/local/bin:" + os.path.expanduser("~/.local/bin")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=end_with_input, daemon=True).start()
    send("look", look(**asked))
    line = sys.stdin.readline()
    if line:
        install(json.loads(line))
        send("look", look(asked["name"]))
