"""Looks at a host, makes environments there and removes them. It travels to the host: Python 3.8.

Each line of standard input is a request in JSON; none comes while another one is fulfilled. Each answer is a
line: ``stage`` while something is done, ``no index``,
``failed``, or ``answer``. The end of standard input ends all, with
every process.
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
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type

from launcher.agent.environments import prepared

#: Names of folders of environments; those that this program may remove.
FOLDER = re.compile(r"[0-9a-f]{16}-py3\.[0-9]+\.[0-9a-z_]+")
MANIFEST = "environment.json"
#: Seconds: between two stages; for a Python to say what it is; for any other program; for the next request.
BEAT, PROBE, LIMIT, SILENCE = 1.0, 20.0, 3600.0, 3600
#: Bytes of the longest request, of a read, of the end of a program's output that is kept.
LONGEST, PIECE, KEPT = 1 << 22, 1 << 16, 1 << 14
MOST_PYTHONS = 20
DAY = 24 * 3600
#: What a candidate for an environment prints; a Debian without python3-venv has no ensurepip.
WHAT = "import sys, venv; print('%d.%d' % sys.version_info[:2]); import ensurepip"
#: pip and uv wait half a minute for an index that does not answer, unless the user has set another time.
PATIENCE = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
#: The line of pip or uv that says why it failed.
WHY = re.compile(r"(?i)error\b|warning: retrying|.*No space left")


class Failed(Exception):
    """A request can't be fulfilled; its text says why."""


class NoIndex(Failed):
    """The packages can't be installed from a package index, but perhaps from wheels."""


def send(kind: str, text: str) -> None:
    """Tell the launcher; see `launcher.environments.prepare`."""
    print(json.dumps({"kind": kind, "text": text}), flush=True)


def answer(fields: Dict[str, Any]) -> None:
    """Answer to a request."""
    print(json.dumps({"answer": fields}), flush=True)


def request() -> Any:
    """The next request; this program is killed if none comes for long."""
    signal.alarm(SILENCE)
    line = sys.stdin.buffer.readline(LONGEST)
    signal.alarm(0)
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def run(
    argv: List[str], stage: str, seconds: float = LIMIT, keep: Tuple[int, ...] = (), text: str = "",
    env: Optional[Dict[str, str]] = None,
) -> Tuple[int, str]:  # fmt: skip
    """Run a program in a group of its own, all of which is killed at its end.

    Args:
        stage: what it does.
        keep: descriptors that it inherits.
        text: its standard input: it may have passwords, and no other file has it.

    Returns:
        Its exit code, and the end of its output.
    """
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        process = subprocess.Popen(
            argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd="/",
            start_new_session=True, pass_fds=keep,
        )  # fmt: skip
    assert process.stdout is not None
    pipe, output, told, until = process.stdout.fileno(), b"", 0.0, time.monotonic() + seconds
    try:
        while True:
            ready = select.select([0, pipe], [], [], BEAT)[0]
            if 0 in ready:
                raise EOFError
            if ready:
                data = os.read(pipe, PIECE)
                output = (output + data)[-KEPT:]
                if not data:
                    return process.wait(), output.decode("utf-8", "replace")
            if time.monotonic() > until:
                raise Failed(f"{argv[0]} does not end")
            if time.monotonic() - told > BEAT:
                told = time.monotonic()
                send("stage", stage)
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def check(ended: Tuple[int, str], fault: Type[Failed] = Failed) -> None:
    """Raise a fault with the line that says why a program failed."""
    code, output = ended
    if code:
        lines = [line.strip() for line in output.split("\n") if line.strip()]
        first = next(filter(WHY.match, lines), (lines or [f"exit code {code}, without a message"])[-1])
        if first.startswith("error"):  # of uv: the causes are in the lines that follow
            first = " ".join(lines[lines.index(first) :])
        raise fault(first[:400])


# ---------------------------------------------------------------------- the folder


def check_top() -> None:
    """Raise Failed if somebody else could have made the environments here."""
    with suppress(FileNotFoundError):
        info = os.lstat(prepared())
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise Failed(f"{prepared()} is not a folder of this user")


@contextmanager
def locked() -> Iterator[int]:
    """The file whose lock one prepare holds; programs that it starts inherit it."""
    os.makedirs(prepared(), 0o700, exist_ok=True)
    check_top()
    os.chmod(prepared(), 0o700)
    with open(os.path.join(prepared(), ".lock"), "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                send("stage", "waiting for another prepare there")
            if select.select([0], [], [], BEAT)[0]:
                raise EOFError
        yield file.fileno()


def packages(folder: str) -> List[str]:
    """The packages of an environment, by the names of their folders: ``six-1.16.0``."""
    found = glob.glob(os.path.join(glob.escape(folder), "lib", "python3*", "site-packages", "*.dist-info"))
    return sorted(os.path.basename(path)[: -len(".dist-info")] for path in found)


def manifest(folder: str) -> Dict[str, Any]:
    """What an environment has; empty: it is not whole."""
    try:
        with open(os.path.join(folder, MANIFEST)) as file:
            read = json.loads(file.read(1 << 20))
        runs = os.access(os.path.join(folder, "bin", "python"), os.X_OK)
        return dict(read) if runs and {"hash", "packages", "python"} <= set(read) else {}
    except (OSError, ValueError, TypeError):
        return {}


def folders() -> List[str]:
    """The folders of environments, also of those that are not whole."""
    top = prepared()
    return [os.path.join(top, name) for name in sorted(os.listdir(top)) if FOLDER.fullmatch(name)]


# ---------------------------------------------------------------------- requests


def look(name: str, known: Optional[List[str]], python: str = "") -> Dict[str, Any]:
    """What the environment of this name is, and if it is not ready, the Pythons for a new one.

    Args:
        name: of the environment.
        known: the hashes of environments that are wanted; ``None``: no new one is.
        python: the only candidate for an environment; empty: all of PATH.
    """
    check_top()
    path = os.path.join(prepared(), name)
    if os.path.lexists(path) and not os.path.islink(path):
        raise Failed(f"{path} is not of launch prepare; remove it, or choose another name with --name")
    folder = os.path.realpath(path)
    found = manifest(folder)
    state = "broken" if os.path.lexists(path) else "missing"
    if found:
        state = "ready" if packages(folder) == found["packages"] else "changed"
    driver, flags, libc = "", "avx", " ".join(platform.libc_ver())
    with suppress(OSError, AttributeError), open("/proc/driver/nvidia/version") as file:
        driver = re.search(r"\s([0-9]+\.[0-9.]+)\s", file.readline())[1]  # type: ignore[index]
    with suppress(OSError, AttributeError), open("/proc/cpuinfo") as file:
        flags = re.search(r"(?m)^flags\s*:(.*)", file.read(PIECE))[1]  # type: ignore[index]
    place = prepared()
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    is_ready = known is None or (state == "ready" and found["hash"] in known)
    return {
        "state": state, "hash": found.get("hash", ""), "version": found.get("python", ""),
        "tensorflow": found.get("tensorflow", ""), "size": found.get("size", 0), "driver": driver,
        "machine": os.uname().machine, "libc": libc if libc.startswith("glibc ") else "",
        "avx": "avx" in flags.split(), "free": disk.f_bavail * disk.f_frsize, "folder": prepared(),
        "pythons": [] if is_ready else pythons(python),
    }  # fmt: skip


def trusting(hosts: Sequence[str]) -> Dict[str, str]:
    """Variables for pip and uv: package indexes whose certificates they do not check."""
    return {"PIP_TRUSTED_HOST": " ".join(hosts), "UV_INSECURE_HOST": " ".join(hosts)} if hosts else {}


def find_uv() -> str:
    return shutil.which("uv") or shutil.which(os.path.expanduser("~/.local/bin/uv")) or ""


def pythons(python: str) -> List[Dict[str, str]]:
    """The Pythons here, one of each version: takes a second."""
    found = [os.path.expanduser(python)] if python else []
    places = [*os.get_exec_path(), "/usr/local/bin", os.path.expanduser("~/.local/bin")]
    for path in [] if python else places:
        with suppress(OSError):
            names = sorted(os.listdir(path), reverse=True)
            found += [os.path.join(path, name) for name in names if re.fullmatch(r"python3(\.[0-9]+)?", name)]
    candidates: Dict[str, Dict[str, str]] = {}
    for path in list(dict.fromkeys(found))[:MOST_PYTHONS]:
        with suppress(OSError, Failed):
            code, output = run([path, "-I", "-c", WHAT], "looking at its Pythons", PROBE)
            version = output.split("\n")[0].strip()
            problem = "it has no module ensurepip (Debian: python3-venv)" if code and not find_uv() else ""
            known = candidates.get(version)
            if re.fullmatch(r"3\.[0-9]+", version) and (known is None or known["problem"]):
                candidates[version] = {"version": version, "path": path, "problem": problem}
    return list(candidates.values())


def install(asked: Dict[str, Any]) -> None:
    """Make an environment, unless there is one like it, and link its name to it in one step.

    Args:
        asked: ``name``; ``hash`` of the packages and the Python; ``version`` and ``path`` of the Python;
            ``lines``: the requirements, with exact versions; ``trusted``: see `trusting`; ``stage``: what is
            done; ``offline``: whether the launcher sends wheels; else a package index has them.
    """
    with locked() as lock:
        for folder in folders():  # half environments: whoever made them does not hold the lock
            if not manifest(folder):
                shutil.rmtree(folder, ignore_errors=True)
        start = os.path.join(prepared(), "{}-py{}.".format(asked["hash"], asked["version"]))
        same = [folder for folder in folders() if folder.startswith(start)]
        whole = [folder for folder in same if packages(folder) == manifest(folder)["packages"]]
        target = whole[0] if whole else build(asked, start, lock)
        link = os.path.join(prepared(), ".link")
        with suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(os.path.basename(target), link)
        os.replace(link, os.path.join(prepared(), asked["name"]))


def build(asked: Dict[str, Any], start: str, lock: int) -> str:
    """Make an environment, and return its folder, whose path begins with ``start``."""
    folder = tempfile.mkdtemp("", *reversed(os.path.split(start)))
    try:
        fill(asked, folder, lock)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def fill(asked: Dict[str, Any], folder: str, lock: int) -> None:
    """Make an environment in an empty folder."""
    uv, python, wheels = find_uv(), os.path.join(folder, "bin", "python"), os.path.join(folder, "wheels")
    env = {**PATIENCE, **os.environ, **trusting(asked["trusted"])}
    env.update(PYTHONDONTWRITEBYTECODE="", PIP_NO_INPUT="1")
    if uv:
        make = [uv, "venv", "--quiet", "--allow-existing", "--python", asked["path"], folder]
        add = [uv, "pip", "install", "--python", python, "--compile-bytecode"]
    else:
        make = [asked["path"], "-I", "-m", "venv", folder]
        add = [python, "-I", "-m", "pip", "install", "--progress-bar", "off"]
    check(run(make, "making the environment", keep=(lock,)))
    add += ["--no-deps", "--only-binary", ":all:", "-r", "/dev/stdin"]
    if asked["offline"]:
        os.mkdir(wheels)
        send("wheels", wheels)
        request()  # they have come
        env.update(PIP_CONFIG_FILE=os.devnull, UV_NO_CONFIG="1")
        add += ["--no-index", "--find-links", wheels]
    ended = run(add, asked["stage"], keep=(lock,), text="\n".join([*asked["lines"], ""]), env=env)
    check(ended, Failed if asked["offline"] or "No space left" in ended[1] else NoIndex)
    shutil.rmtree(wheels, ignore_errors=True)
    found = packages(folder)
    versions = [name.split("-", 1)[1] for name in found if re.match(r"tensorflow(_cpu|_gpu)?-[0-9]", name)]
    made = {
        "hash": asked["hash"], "python": asked["version"], "packages": found,
        "tensorflow": (versions or [""])[0], "size": size_of(folder),
    }  # fmt: skip
    temporary = os.path.join(folder, MANIFEST + ".new")
    with open(temporary, "w") as file:
        json.dump(made, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, MANIFEST))


def size_of(folder: str) -> int:
    return int(run(["du", "-sk", folder], "looking at its size")[1].split("\t")[0]) * 1024


def clean(days: int) -> None:
    """Remove environments that no task has used for so many days, and those that are not whole."""
    limit = time.time() - days * DAY
    with locked():
        for folder in folders():
            marks = [os.path.join(folder, name) for name in (MANIFEST, "used")]
            last = max((os.path.getmtime(path) for path in marks if os.path.exists(path)), default=0.0)
            if manifest(folder) and (last > limit or is_in_use(folder)):
                continue
            send("stage", f"removing {os.path.basename(folder)} ({size_of(folder) >> 20} MiB)")
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, MANIFEST))  # from here on it is half an environment
            shutil.rmtree(folder, ignore_errors=True)
        for path in glob.glob(os.path.join(glob.escape(prepared()), "*")):
            if not os.path.exists(path):
                os.unlink(path)


def is_in_use(folder: str) -> bool:
    """Whether a process of this user has loaded libraries from a folder."""
    for path in glob.glob("/proc/[0-9]*/maps"):
        with suppress(OSError), open(path, errors="replace") as file:  # else of another user, or it has ended
            if folder in file.read():
                return True
    return False


def main(first: Dict[str, Any]) -> int:
    """Answer to requests until the end of standard input.

    Args:
        first: the arguments of `look`; with ``days``, `clean` does its work before.
    """
    os.umask(0o077)
    try:
        days = first.pop("days")
        if days:
            clean(days)
        answer(look(**first))
        while True:
            asked = request()
            try:
                install(asked)
                answer(look(asked["name"], None))
            except NoIndex as error:
                send("no index", str(error))
    except (EOFError, BrokenPipeError):
        pass
    except (Failed, OSError) as error:
        send("failed", str(error))
    return 0
