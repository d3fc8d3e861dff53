"""Looks at a host, makes environments there and removes them. It travels to the host: Python 3.8.

It sends lines of JSON, each an object with some of these fields:

    none          each second, so that the launcher knows that it runs
    stage         what it does, for the user
    wheels        the folder that waits for wheels; the answer is the path where they are
    state, ...    what the host has, see `look`

If something fails, it exits, and the last line of its standard error is the reason. At the end of its
standard input it and all processes that it has started are ended.
"""

import fcntl
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Dict, Iterator, List, Optional, Tuple

from launcher.agent.environments import prepared
from launcher.text import byte_size

#: Names of folders of environments; those that this program may remove.
FOLDER = re.compile(r"[0-9a-f]{16}-py3\.[0-9]+\.[0-9a-z_]+")
MANIFEST = "environment.json"
TOP = prepared()
#: Seconds for a Python to say what it is; for any other program.
PROBE, LIMIT = 20.0, 3600.0
#: What the launcher has asked for: JSON, a line each.
REQUESTS: "SimpleQueue[Any]" = SimpleQueue()
#: Characters of the reason why a program failed.
REASON = 400
#: What a candidate for an environment prints; what it needs without uv, and lacks without python3-venv.
WHAT, ENSUREPIP = "import sys, venv; print('%d.%d' % sys.version_info[:2])", "import ensurepip; "
#: pip and uv wait half a minute for an index that does not answer, unless the user has set another time.
PATIENCE = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
#: What programs print if a disk or a quota is full, and the reason then.
FULL, DISK = re.compile("No space left on device|Disk quota exceeded"), "its disk is full: "
#: TensorFlow among exact versions. Bytes on the disk for an environment: with it, without it.
TENSORFLOW = re.compile(r"(?m)^tensorflow(?:-cpu|-gpu)?(?:==| @ )(\S+)")
WITH_TENSORFLOW, OTHERS = 2_500_000_000, 50_000_000


def masked(text: str) -> str:
    """A text without the users and passwords in its addresses: ``https://****@index/simple``."""
    return re.sub(r"(?<=://)\S+@", "****@", text)


def send(**fields: Any) -> None:
    """Tell the launcher; any thread may."""
    os.write(1, json.dumps(fields).encode("ascii") + b"\n")


def read_requests() -> None:
    """Read requests; at the end of standard input, end this program and all processes that it has started."""
    with open(0, "rb", 0) as requests:
        for line in requests:
            REQUESTS.put(json.loads(line))
    os.killpg(0, signal.SIGTERM)


def run(argv: List[str], text: str = "", cwd: str = "/") -> Tuple[int, str]:
    """Run a program, which inherits the lock.

    Args:
        argv: its command line.
        text: its standard input: it may have passwords, and is in no file.
        cwd: its working folder.

    Returns:
        Its exit code, and what it printed.
    """
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, cwd=cwd,
        env={**PATIENCE, **os.environ}, encoding="utf-8", errors="replace", close_fds=False,
    )  # fmt: skip
    printed = masked(" ".join(done.stdout.split()))
    printed = (DISK * bool(FULL.search(printed)) + printed)[:REASON]
    return done.returncode, printed or f"exit code {done.returncode} of {argv[0]}"


def run_here(argv: List[str]) -> None:
    """On the machine of the user: run a program for text of standard input, and send how it ended."""
    threading.Thread(target=read_requests, daemon=True).start()
    code, printed = run(argv, REQUESTS.get(), ".")
    send(code=code, printed=printed)


def check(code: int, printed: str) -> None:
    """Exit if a program has failed; what it printed is the reason."""
    if code:
        sys.exit(printed)


def check_private() -> None:
    """Exit if other users can change environments: tasks would run their code."""
    with suppress(FileNotFoundError):
        found = os.stat(TOP)
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            sys.exit(f"other users can write to {TOP}: make it yours alone (chmod 700)")


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
    """The folders of environments, even of those that are not whole."""
    return [f"{TOP}/{name}" for name in sorted(os.listdir(TOP)) if FOLDER.fullmatch(name)]


def remove_incomplete() -> None:
    """Remove folders without a manifest. Only a holder of the lock may call this.

    An environment without its Python stays: another machine with this home folder may have it.
    """
    for folder in folders():
        if not content(f"{folder}/{MANIFEST}"):
            shutil.rmtree(folder, ignore_errors=True)


def manifest(folder: str) -> Dict[str, Any]:
    """What an environment has; empty: it is not whole, has lost its Python, or has other packages now."""
    with suppress(ValueError):
        made = dict(json.loads(content(f"{folder}/{MANIFEST}")))
        if os.access(f"{folder}/bin/python", os.X_OK) and made["packages"] == packages(folder):
            return made
    return {}


def packages(folder: str) -> List[str]:
    """The packages of an environment, by the names of their folders: ``six-1.16.0``."""
    found = glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages/*.dist-info")
    return sorted(os.path.basename(path)[: -len(".dist-info")] for path in found)


def look(name: str, known: Optional[List[str]], python: str = "") -> None:
    """Send what the environment of this name is, and the Pythons for a new one.

    Args:
        name: of the environment.
        known: the hashes of environments that are wanted; ``None``: no new one is.
        python: the only candidate for an environment; empty: all of PATH.
    """
    folder = os.path.realpath(f"{TOP}/{name}")
    made = manifest(folder)
    _, glibc = platform.libc_ver()
    send(
        **made,
        state="ready" if made else "changed" if os.path.exists(folder) else "missing",
        driver=content("/sys/module/nvidia/version").strip(),
        platform=f"{os.uname().machine}-manylinux_{glibc.replace('.', '_')}",
        pythons={} if known is None or made.get("hash") in known else pythons(python),
    )


def pythons(python: str) -> Dict[str, str]:
    """The Pythons here that can make environments, by version, the newest first: takes a second."""
    versions: Dict[str, str] = {}
    code = WHAT if shutil.which("uv") else ENSUREPIP + WHAT
    names = [os.path.expanduser(python)] if python else ["python3", *map("python3.{}".format, range(8, 100))]
    for path in filter(None, map(shutil.which, names)):
        with suppress(OSError, subprocess.SubprocessError):
            version = subprocess.check_output([path, "-I", "-c", code], timeout=PROBE).decode().strip()
            if re.fullmatch(r"3\.[0-9]+", version):
                versions.setdefault(version, path)
    return dict(sorted(versions.items(), key=lambda each: -int(each[0].partition(".")[2])))


def install(name: str, asked: Dict[str, Any]) -> None:
    """Make an environment, unless there is one like it, and link its name to it in one step.

    Args:
        name: of the environment.
        asked: ``hash`` of the packages and the Python; ``version`` and ``path`` of the Python;
            ``options`` about package indexes, and ``packages`` with exact versions, both as in a requirements
            file.
    """
    with locked():
        for folder in folders():
            if manifest(folder).get("hash") == asked["hash"]:
                break
        else:
            folder = tempfile.mkdtemp("", "{hash}-py{version}.".format(**asked), TOP)
            fill(asked, folder)
        link = f"{TOP}/.{time.time_ns()}"
        os.symlink(os.path.basename(folder), link)
        os.replace(link, f"{TOP}/{name}")


def fill(asked: Dict[str, Any], folder: str) -> None:
    """Make an environment in an empty folder."""
    tensorflow, free = TENSORFLOW.search(asked["packages"]), shutil.disk_usage(folder).free
    needed = WITH_TENSORFLOW if tensorflow else OTHERS
    if free < needed:
        sys.exit(f"{DISK}{byte_size(free)} free, about {byte_size(needed)} are needed")
    if tensorflow and os.uname().machine == "x86_64" and " avx " not in content("/proc/cpuinfo"):
        sys.exit("TensorFlow needs AVX, which the CPU of this host does not have")
    uv, python, wheels = shutil.which("uv"), f"{folder}/bin/python", f"{folder}/wheels"
    if uv:
        make = [uv, "venv", "--quiet", "--allow-existing", "--python", asked["path"], folder]
        add = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    else:
        make = [asked["path"], "-I", "-m", "venv", folder]
        add = [python, "-I", "-m", "pip", "install", "--quiet", "--no-input"]
    add += ["--no-deps", "--only-binary", ":all:", "-r", "/dev/stdin"]
    check(*run(make))
    failed, reason = run(add, "{options}\n{packages}".format(**asked))
    if failed and not reason.startswith(DISK):
        os.mkdir(wheels)
        send(stage=f"no package index, so wheels are sent ({reason})", wheels=wheels)
        add += ["--no-index", "--find-links", REQUESTS.get()]
        failed, reason = run(add, re.sub(r" *@ *\S+", "", asked["packages"]))
        shutil.rmtree(wheels)
    check(failed, reason)
    made = {
        "hash": asked["hash"], "python": asked["version"], "tensorflow": tensorflow[1] if tensorflow else "",
        "size": subprocess.check_output(["du", "-sh", folder]).split()[0].decode(),
        "packages": packages(folder),
    }  # fmt: skip
    with open(f"{folder}/{MANIFEST}", "w") as file:
        json.dump(made, file, indent=1)


def clean(days: int) -> None:
    """Remove environments that no task has used for so many days."""
    with locked():
        for folder in folders():
            used = os.path.getmtime(f"{folder}/{MANIFEST}")
            # A process that runs in it has loaded libraries from it.
            libraries = os.path.realpath(folder) + "/"
            runs = any(libraries in content(path) for path in glob.glob("/proc/[0-9]*/maps"))
            if used < time.time() - days * 24 * 3600 and not runs:
                send(stage=f"removing {os.path.basename(folder)}")
                os.unlink(f"{folder}/{MANIFEST}")  # now it is not whole, so it is removed at the end


def main(asked: Dict[str, Any]) -> None:
    """Look, then make an environment if the launcher asks for that in a line of standard input.

    Args:
        asked: ``name``, ``known`` and ``python``, see `look`; ``days``, see `clean`: 0: remove nothing.
    """
    os.environ["PATH"] += ":/usr/local/bin:" + os.path.expanduser("~/.local/bin")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGALRM, lambda *_: send())
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    threading.Thread(target=read_requests, daemon=True).start()
    check_private()
    if asked["days"]:
        clean(asked["days"])
    look(asked["name"], asked["known"], asked["python"])
    install(asked["name"], REQUESTS.get())
    look(asked["name"], None)
