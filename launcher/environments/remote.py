"""Looks at a host, makes environments there and removes them. It is sent to the host as one file.

Python 3.6 and the standard library only, so that an old Python can start newer ones. Each line of standard
input is a request in JSON; an empty line says that the launcher is there. Each answer is a line: ``stage``
while something is done, ``failed``, or ``answer``. The end of standard input ends all, with every process.
"""

import errno
import fcntl
import glob
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Set, Tuple

#: Names of folders of environments; those that this program may remove.
FOLDER = re.compile(r"[0-9a-f]{16}-py3\.[0-9]+\.[0-9a-z_]+")
MANIFEST = "environment.json"
#: Seconds: between two stages; without a word of the launcher; for a Python to say what it is.
BEAT, SILENCE, PROBE = 1.0, 120.0, 20.0
#: Bytes of the longest request, of a read, of the end of a program's output that is kept.
LONGEST, PIECE, KEPT = 1 << 22, 1 << 16, 1 << 14
MOST_PYTHONS = 20
DAY = 24 * 3600
#: What a candidate for an environment prints; a Debian without python3-venv has no ensurepip.
WHAT = "import sys, venv; print('%d.%d' % sys.version_info[:2]); import ensurepip"


class Failed(Exception):
    """A request can't be fulfilled; its text says why."""


class Launcher:
    """The connection to the launcher: requests, and the bytes of wheels."""

    def __init__(self) -> None:
        self.buffer = b""
        self.heard = time.time()

    def send(self, **fields: Any) -> None:
        data = (json.dumps(fields) + "\n").encode("ascii")
        while data:
            data = data[os.write(1, data) :]

    def listen(self, seconds: float) -> None:
        """Read what the launcher sends; raise EOFError if it is gone."""
        if select.select([0], [], [], seconds)[0]:
            data = os.read(0, PIECE)
            if not data:
                raise EOFError
            self.buffer += data
            self.heard = time.time()
        elif time.time() - self.heard > SILENCE:
            raise EOFError

    def request(self) -> Dict[str, Any]:
        while True:
            line, end, rest = self.buffer.partition(b"\n")
            if end:
                self.buffer = rest
                if line:
                    read: Dict[str, Any] = json.loads(line.decode("ascii"))
                    return read
            elif len(self.buffer) > LONGEST:
                raise Failed("a request is too long")
            else:
                self.listen(BEAT)

    def receive(self, path: str, size: int) -> None:
        """Write so many bytes of the launcher to a file."""
        with open(path, "wb") as file:
            while size:
                if not self.buffer:
                    self.listen(BEAT)
                data, self.buffer = self.buffer[:size], self.buffer[size:]
                file.write(data)
                size -= len(data)


launcher = Launcher()


# ---------------------------------------------------------------------- processes


def die_with_parent() -> None:
    """Make a child end with this program, even if this program is killed (PR_SET_PDEATHSIG)."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):  # no such call here: the lock shows that the child lives
        pass


def run(
    argv: List[str],
    stage: str,
    seconds: float = 0.0,
    env: Optional[Dict[str, str]] = None,
    keep: Tuple[int, ...] = (),
    text: str = "",
) -> Tuple[int, str]:
    """Run a program in a group of its own, and tell its last line as a stage.

    Returns its exit code and the end of its output; at the end of standard input all its processes are
    killed. The descriptors of ``keep`` are inherited. ``text`` is its standard input: it may have passwords,
    and no other file has it.
    """
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        process = subprocess.Popen(
            argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd="/",
            start_new_session=True, preexec_fn=die_with_parent, pass_fds=keep,
        )  # fmt: skip
    pipe = process.stdout
    assert pipe is not None
    began, told, output, ended = time.time(), 0.0, b"", False
    try:
        while not ended:
            select.select([0, pipe.fileno()], [], [], BEAT)
            launcher.listen(0)
            if select.select([pipe], [], [], 0)[0]:
                data = os.read(pipe.fileno(), PIECE)
                output, ended = (output + data)[-KEPT:], not data
            if stage and time.time() - told > BEAT:
                told, lines = time.time(), output.decode("utf-8", "replace").split("\n")[:-1]
                launcher.send(stage=stage, detail=re.sub(r" \(from .*", "", lines[-1])[:80] if lines else "")
            if seconds and time.time() - began > seconds:
                raise Failed("it does not end")
        return process.wait(), output.decode("utf-8", "replace")
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.wait()
        pipe.close()


# ---------------------------------------------------------------------- the folder


def top() -> str:
    """The folder of all environments, which only this user can change."""
    data = os.environ.get("XDG_DATA_HOME", "")
    data = data if data.startswith("/") else os.path.expanduser("~/.local/share")
    return os.path.join(data, "tf-launcher", "environments")


def made_top() -> str:
    path = top()
    os.makedirs(path, 0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise Failed(f"{path} is not a folder of this user")
    os.chmod(path, 0o700)
    return path


def locked() -> int:
    """The file whose lock one prepare holds; programs that it starts inherit it."""
    file = os.open(os.path.join(made_top(), ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        launcher.send(stage="waiting for another prepare there")
        launcher.listen(BEAT)
        time.sleep(0.1)


def packages(folder: str) -> List[str]:
    """The packages of an environment, by the names of their folders: ``six-1.16.0``."""
    found = glob.glob(os.path.join(glob.escape(folder), "lib", "python3*", "site-packages", "*.dist-info"))
    return sorted(os.path.basename(path)[: -len(".dist-info")] for path in found)


def manifest(folder: str) -> Any:
    """What an environment has; ``None``: it is not whole."""
    try:
        with open(os.path.join(folder, MANIFEST)) as file:
            read = json.loads(file.read(1 << 20))
        runs = os.access(os.path.join(folder, "bin", "python"), os.X_OK)
        return read if runs and {"hash", "packages", "python"} <= set(read) else None
    except (OSError, ValueError, TypeError):
        return None


def has_its_packages(folder: str) -> bool:
    """Whether an environment is whole, and nobody has changed its packages."""
    return packages(folder) == (manifest(folder) or {}).get("packages")


def size_of(folder: str) -> int:
    total, seen = 0, set()  # type: Tuple[int, Set[int]]
    for place, _, names in os.walk(folder):
        for name in names:
            info = os.lstat(os.path.join(place, name))
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                total += info.st_blocks * 512
    return total


def folders() -> List[str]:
    try:
        return [name for name in sorted(os.listdir(top())) if FOLDER.fullmatch(name)]
    except OSError:
        return []


def link(name: str, folder: str) -> None:
    """Make the name of an environment lead to a folder, in one step."""
    temporary = os.path.join(top(), f".link-{os.getpid()}")
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(folder, temporary)
    os.replace(temporary, os.path.join(top(), name))


# ---------------------------------------------------------------------- requests


def look(name: str) -> Dict[str, Any]:
    """What the environment of this name is, and what wheels run here: quick."""
    path = os.path.join(top(), name)
    folder = os.path.realpath(path)
    found = manifest(folder) or {}
    state = "broken" if os.path.lexists(path) else "missing"
    if found:
        state = "ready" if has_its_packages(folder) else "changed"
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    driver = ""
    try:
        with open("/proc/driver/nvidia/version") as file:
            driver = (re.findall(r"(?<=\s)[0-9]+\.[0-9.]+(?=\s)", file.readline()) or [""])[0]
    except OSError:
        pass
    return {
        "state": state, "hash": found.get("hash", ""), "version": found.get("python", ""),
        "tensorflow": found.get("tensorflow", ""), "size": found.get("size", 0), "driver": driver,
        "machine": os.uname().machine, "libc": libc or "",
    }  # fmt: skip


def find_uv() -> str:
    return shutil.which("uv") or shutil.which(os.path.expanduser("~/.local/bin/uv")) or ""


def probe(python: str) -> Dict[str, Any]:
    """The Pythons here, free disk, CPU: takes a second.

    Args:
        python: the only candidate; empty: all of PATH.
    """
    wanted = re.compile(r"python3(\.[0-9]+)?")
    found = [os.path.expanduser(python)] if python else []
    places = [*os.get_exec_path(), "/usr/local/bin", os.path.expanduser("~/.local/bin")]
    for path in [] if python else places:
        try:
            names = sorted(filter(wanted.fullmatch, os.listdir(path)), reverse=True)
        except OSError:
            continue
        found += [os.path.join(path, name) for name in names]
    uv = find_uv()
    candidates: Dict[str, Dict[str, str]] = {}
    for path in list(dict.fromkeys(found))[:MOST_PYTHONS]:
        try:
            code, output = run([path, "-I", "-c", WHAT], "looking at its Pythons", PROBE)
        except (OSError, Failed) as error:
            code, output = 1, str(error)
        version = output.split("\n")[0].strip()
        problem = "it has no module ensurepip (Debian: python3-venv)" if code and not uv else ""
        known = candidates.get(version)
        if re.fullmatch(r"3\.[0-9]+", version) and (known is None or known["problem"]):
            candidates[version] = {"version": version, "path": path, "problem": problem}
    place = top()
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    try:
        with open("/proc/cpuinfo") as file:
            flags = (re.findall(r"(?m)^flags\s*:(.*)", file.read(1 << 16)) or ["avx"])[0].split()
    except OSError:
        flags = ["avx"]
    return {
        "candidates": list(candidates.values()), "free": disk.f_bavail * disk.f_frsize,
        "avx": "avx" in flags, "folder": top(),
    }  # fmt: skip


def install(asked: Dict[str, Any]) -> Dict[str, Any]:
    """Make an environment, unless there is one like it, and link its name to it.

    Args:
        asked: ``name``; ``hash`` of the packages and the Python; ``version`` and ``path`` of the Python;
            ``stage``: what is done; ``lines``: the requirements, with exact versions; ``shown``: the same
            without passwords; ``wheels``: how many follow, each after a request with its ``name`` and
            ``size``; ``None``: a package index has them.
    """
    lock = locked()
    try:
        for name in folders():  # half environments: whoever made them does not hold the lock
            if manifest(os.path.join(top(), name)) is None:
                shutil.rmtree(os.path.join(top(), name), ignore_errors=True)
        start = "{}-py{}.".format(asked["hash"], asked["version"])
        same = [name for name in folders() if name.startswith(start)]
        whole = [name for name in same if has_its_packages(os.path.join(top(), name))]
        if asked["wheels"] is not None:
            launcher.send(answer={"ready": not whole})
        link(asked["name"], whole[0] if whole else build(asked, start, lock))
    finally:
        os.close(lock)
    return look(asked["name"])


def build(asked: Dict[str, Any], start: str, lock: int) -> str:
    """Make an environment, and return the name of its folder, which begins with ``start``."""
    folder = tempfile.mkdtemp("", start, top())
    try:
        fill(asked, folder, lock)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return os.path.basename(folder)


def fill(asked: Dict[str, Any], folder: str, lock: int) -> None:
    """Make an environment in an empty folder."""
    uv, python = find_uv(), os.path.join(folder, "bin", "python")
    make = [uv, "venv", "--quiet", "--allow-existing", "--python"] if uv else []
    argv = make + [asked["path"], folder] if uv else [asked["path"], "-I", "-m", "venv", folder]
    check(run(argv, "making the environment", keep=(lock,)))
    wheels, env = os.path.join(folder, "wheels"), dict(os.environ)
    lines = asked["lines"]
    if uv:  # it takes this option from the command line or the environment only
        trusted = [line.split(None, 1)[1] for line in lines if line.startswith("--trusted-host")]
        lines = [line for line in lines if not line.startswith("--trusted-host")]
        env["UV_INSECURE_HOST"] = " ".join(trusted)
    env.update(PYTHONDONTWRITEBYTECODE="", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    options = []
    if asked["wheels"] is not None:
        os.mkdir(wheels)
        for _ in range(asked["wheels"]):
            wheel = launcher.request()
            launcher.receive(os.path.join(wheels, os.path.basename(wheel["name"])), wheel["size"])
        env.update(PIP_CONFIG_FILE=os.devnull, UV_NO_CONFIG="1")
        options = ["--no-index", "--find-links", wheels]
    pip = [uv, "pip", "install", "--python", python, "--compile-bytecode"] if uv else []
    pip = pip or [python, "-I", "-m", "pip", "install", "--progress-bar", "off", "--retries", "1"]
    argv = pip + ["--no-deps", "--only-binary", ":all:"] + options + ["-r", "/dev/stdin"]
    check(run(argv, asked["stage"], env=env, keep=(lock,), text="\n".join(lines) + "\n"))
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [uv, "pip", "check", "--python", python] if uv else [python, "-I", "-m", "pip", "check"]
    check(run(pip, "checking", env=env, keep=(lock,)))
    found = packages(folder)
    versions = [name.split("-", 1)[1] for name in found if re.match(r"tensorflow(_cpu|_gpu)?-[0-9]", name)]
    made = {
        "hash": asked["hash"], "python": asked["version"], "requirements": asked["shown"], "packages": found,
        "tensorflow": (versions or [""])[0], "size": size_of(folder), "made": time.time(),
    }  # fmt: skip
    temporary = os.path.join(folder, MANIFEST + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(made, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, MANIFEST))


def check(ended: Tuple[int, str]) -> None:
    """Raise Failed with the line that says why a program failed."""
    code, output = ended
    if code:
        lines = [line.strip() for line in output.split("\n") if line.strip()]
        why = re.compile(r"(?i)error\b|warning: retrying|.*No space left")
        first = next(filter(why.match, lines), (lines or [f"exit code {code}, without a message"])[-1])
        if first.startswith("error"):  # of uv: the causes are in the lines that follow
            first = " ".join(lines[lines.index(first) :])
        raise Failed(first[:400])


def clean(days: int) -> Dict[str, Any]:
    """Remove environments that no task has used for so many days, and those that are not whole."""
    lock, total = locked(), 0
    removed: List[str] = []
    limit = time.time() - days * DAY
    mapped = in_use()
    for name in folders():
        folder = os.path.join(top(), name)
        times = [os.path.getmtime(path) for path in glob.glob(os.path.join(glob.escape(folder), "used"))]
        if manifest(folder) is not None:
            times.append(os.path.getmtime(os.path.join(folder, MANIFEST)))
            if max(times) > limit or name in mapped:
                continue
        launcher.send(stage=f"removing {name}")
        size = size_of(folder)
        gone = os.path.join(top(), f"{name}.removed")
        os.rename(folder, gone)  # no half environment is seen under its name
        shutil.rmtree(gone, ignore_errors=True)
        total += size
        removed.append(name)
    for name in os.listdir(top()):
        path = os.path.join(top(), name)
        if os.path.islink(path) and not os.path.exists(path):
            os.unlink(path)
        elif name.endswith(".removed"):
            shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
    return {"names": removed, "size": total}


def in_use() -> Set[str]:
    """The names of folders from which a process of this user has loaded libraries."""
    found: Set[str] = set()
    for path in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(path, errors="replace") as file:
                found.update(FOLDER.findall(file.read()))
        except OSError:  # of another user, or it has ended
            continue
    return found


def main() -> int:
    os.umask(0o077)
    while True:
        try:
            asked = launcher.request()
            do = asked.pop("do")
            if do == "look":
                launcher.send(answer=look(asked["name"]))
            elif do == "probe":
                launcher.send(answer=probe(asked["python"]))
            elif do == "install":
                launcher.send(answer=install(asked))
            else:
                launcher.send(answer=clean(asked["days"]))
        except EOFError:
            return 0
        except (Failed, OSError) as error:
            if isinstance(error, BrokenPipeError):
                return 0
            launcher.send(failed=str(error))
            if asked.get("wheels"):  # more of them may be on the way
                return 0


os.write(1, b"\n<tf-launcher program: ready>\n")
sys.exit(main())
