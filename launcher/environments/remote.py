"""Inspects a host, makes environments on it and removes them. `prepare` sends it to hosts: Python 3.8.

It sends lines of JSON, each an object with some of these fields:

    none                each second, so that the launcher knows that it runs
    stage               what it does, for the user
    python, platform    it asks for exact versions of the packages for these, see `choose`
    wheels              it asks for the wheels of these versions in this folder; the answer is where they are
    state, ...          the state of the environment, in the last line

If something fails, it exits, and the last line of its standard error is the reason. At the end of its
standard input it ends itself and all processes that it has started.

Scripts of an environment contain its path, so its folder is never renamed. It is made under a name of its
own, its manifest is written last, and the name of the environment becomes a link to it in one step. A lock
for each user and host, which pip inherits, shows whether a folder without a manifest is left over.
"""

import ast
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
import threading
import time
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from launcher.agent.lookup import prepared_environments
from launcher.common.text import byte_size, plural

MANIFEST = "environment.json"
ENVIRONMENTS_FOLDER = prepared_environments()
PROGRAM_TIMEOUT_SECONDS = 3600.0
#: The answers that the launcher has sent.
ANSWERS: "SimpleQueue[Any]" = SimpleQueue()
#: The Pythons for an environment, the newest first.
CANDIDATES = [*map("python3.{}".format, range(99, 7, -1)), "python3"]
#: Python code by which a candidate prints its version.
VERSION_CODE = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
#: Python code that fails without Debian's python3-venv. A candidate needs that unless there is uv.
ENSUREPIP_CODE = "import ensurepip; "
#: pip and uv try an index that does not answer twice, 15 s each, unless the user has set other numbers.
PATIENCE_VARIABLES = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
#: The variables of uv that name package indexes, by the settings of pip that mean the same. uv does not read
#: those of pip.
INDEX_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
}
#: The same for access to package indexes.
ACCESS_VARIABLES = {"trusted-host": "UV_INSECURE_HOST", "cert": "SSL_CERT_FILE"}
#: Other variables by which a user tells uv where packages are.
OLD_INDEX_VARIABLES = ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
#: TensorFlow among exact versions.
TENSORFLOW_PATTERN = re.compile(r"(?m)^tensorflow(?:-cpu|-gpu)?(?:==| @ )(\S+)")


def send(**fields: Any) -> None:
    """Send an object with these fields to the launcher. Any thread may call this."""
    os.write(1, json.dumps(fields).encode("ascii") + b"\n")


def say_alive(*_: Any) -> None:
    """Tell the launcher each second that this program runs. This is the handler of a timer's signal."""
    # If nobody reads the output, the standard input ends, too, and `read_answers` ends this program.
    with suppress(OSError):
        send()


def read_answers() -> None:
    """Put the answers of the launcher into `ANSWERS`, in a thread of its own.

    At the end of standard input, end this program and all that it has started.
    """
    with open(0, "rb", 0) as answers:
        for line in answers:
            ANSWERS.put(json.loads(line))
    os.killpg(0, signal.SIGTERM)


def ask(**fields: Any) -> Any:
    """Ask the launcher for something, and return its answer."""
    send(**fields)
    return ANSWERS.get()


class IndexSettings:
    """The package indexes that uv uses, even if the user has told only pip about them.

    Args:
        python: A Python whose pip is asked for its settings. Without pip there are none.
        folder: The folder in which uv runs, which may contain settings of a project.
    """

    def __init__(self, python: str, folder: str) -> None:
        """Ask pip for its settings, and translate them to variables for uv."""
        #: Variables for uv. The settings are passed in variables because an address may contain a password.
        self.variables: Dict[str, str] = {}
        #: Whether pip uses no index at all.
        self.no_index = False
        #: The names of the settings of pip about indexes that uv uses.
        self._from_pip: List[str] = []
        #: Whether the user has told uv about indexes. Then those of pip are ignored.
        self._uv_has_own = uv_names_indexes(folder)
        printed = subprocess.run(
            [python, "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=PROGRAM_TIMEOUT_SECONDS,
            encoding="utf-8", errors="replace", cwd=folder,
        ).stdout  # fmt: skip
        # pip prints lines such as global.cert='/etc/ca.crt'. Those of variables begin with :env:, and pip
        # prefers them.
        for line in sorted(printed.splitlines()):
            name, _, value = line.partition("=")
            with suppress(SyntaxError, ValueError):
                self._add(name.rpartition(".")[2], str(ast.literal_eval(value)))

    def _add(self, name: str, value: str) -> None:
        """Use a setting of pip for uv, too, unless the user has told uv something of its own.

        If a setting occurs twice, the first one counts, as that of a variable comes before that of a file.

        Args:
            name: The name of the setting without its section, such as ``index-url``.
            value: Its value, of one word or several.
        """
        if name in ACCESS_VARIABLES:
            if ACCESS_VARIABLES[name] not in os.environ:
                self.variables.setdefault(ACCESS_VARIABLES[name], " ".join(value.split()))
        elif name == "no-index" and not self._uv_has_own:
            self.no_index = self.no_index or value.lower() in ("1", "true", "yes", "on")
            self._from_pip.append(name)
        elif name in INDEX_VARIABLES and not self._uv_has_own:
            separator = "," if name == "find-links" else " "
            self.variables.setdefault(INDEX_VARIABLES[name], separator.join(value.split()))
            if name == "extra-index-url":  # pip uses the best version of all its indexes.
                self.variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
            self._from_pip.append(name)

    def described(self) -> str:
        """Return which settings uv has used, for a message about packages that were not found."""
        if self._uv_has_own:
            return "uv's own settings of package indexes were used, not those of pip"
        if self._from_pip:
            names = ", ".join(dict.fromkeys(self._from_pip))
            return f"uv has no settings of package indexes, so those of pip were used: {names}"
        return "neither uv nor pip has settings of package indexes, so PyPI was asked"


def uv_names_indexes(folder: str) -> bool:
    """Return whether the user has told uv where packages are, by a variable or a file.

    Args:
        folder: The folder in which uv runs. It may contain settings of a project.
    """
    if any(map(os.environ.get, (*INDEX_VARIABLES.values(), *OLD_INDEX_VARIABLES))):
        return True
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    files = [f"{settings}/uv/uv.toml", "/etc/uv/uv.toml", f"{folder}/uv.toml"]
    files.append(os.environ.get("UV_CONFIG_FILE", ""))
    # Files are only searched for words, because Python 3.8 cannot parse TOML. If a word means something else
    # there, the only effect is that the settings of pip are not passed on.
    if any(re.search("index|find-links", content(path)) for path in files):
        return True
    project = content(os.path.join(folder, "pyproject.toml"))
    return "[tool.uv.pip]" in project or "tool.uv.index" in project


def run(
    argv: List[str], text: str = "", cwd: str = "/", variables: Mapping[str, str] = {}
) -> Tuple[int, str]:
    """Run a program, which inherits the lock.

    Args:
        argv: The command line.
        text: The standard input of the program. It may contain passwords, so it is in no file.
        cwd: The working folder of the program.
        variables: Further variables for the program.

    Returns:
        The exit code, and the first 400 characters of what the program printed, on one line.
    """
    result = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROGRAM_TIMEOUT_SECONDS,
        cwd=cwd, env={**PATIENCE_VARIABLES, **os.environ, **variables}, encoding="utf-8", errors="replace",
        close_fds=False,
    )  # fmt: skip
    # Addresses of indexes are shown as https://****@index/simple.
    printed = re.sub(r"(?<=://)\S+@", "****@", " ".join(result.stdout.split()))[:400]
    return result.returncode, printed or f"exit code {result.returncode} of {argv[0]}"


def run_here(request: Dict[str, Any]) -> None:
    """Run uv or pip on the machine of the user, and send the launcher why it failed, or an empty text.

    Args:
        request: ``argv`` and ``text``, see `run`.
    """
    # No answer is expected, but at the end of stdin the thread ends this process: the launcher is gone.
    threading.Thread(target=read_answers, daemon=True).start()
    argv, text = list(request["argv"]), request["text"]
    if "uv" not in argv[:4]:  # The command line is ``python -I -m uv ...``, or the same with pip.
        code, printed = run(argv, text, cwd=".")
    else:  # Only pip reads the user's settings of pip, so uv gets them as variables.
        settings = IndexSettings(argv[0], folder=".")
        code, printed = run([*argv, *["--no-index"] * settings.no_index], text, ".", settings.variables)
        # The requirements themselves name no index, so that settings of the user may explain the failure.
        if code and "index" not in text:
            printed += f" ({settings.described()})"
    send(fault=printed if code else "")


def check(code: int, printed: str) -> None:
    """Exit if a program has failed, with what it printed as the reason.

    Args:
        code: The exit code of the program.
        printed: What it printed.
    """
    if code:
        sys.exit(printed)


def check_private() -> None:
    """Exit if other users can change the environments, because tasks would run the code of these users."""
    with suppress(FileNotFoundError):
        status = os.stat(ENVIRONMENTS_FOLDER)
        if status.st_uid != os.getuid() or status.st_mode & 0o022:  # Its group, or anybody, may write to it.
            sys.exit(f"other users can write to {ENVIRONMENTS_FOLDER}: make it yours alone (chmod 700)")


@contextmanager
def locked() -> Iterator[None]:
    """Return a context that holds the lock, so that only this program makes or removes environments.

    Before and after its body, incomplete environments are removed.
    """
    os.makedirs(ENVIRONMENTS_FOLDER, 0o700, exist_ok=True)
    with open(f"{ENVIRONMENTS_FOLDER}/.lock", "a") as file:
        # The lock is held until pip, too, has exited, which may survive this program.
        os.set_inheritable(file.fileno(), True)
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            remove_incomplete()
            yield
        finally:
            # A signal that interrupted this would leave environments that are not removed yet.
            handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
            remove_incomplete()
            signal.signal(signal.SIGTERM, handler)


def content(path: str) -> str:
    """Return the content of a file. It is empty if the file cannot be read."""
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def folders() -> List[str]:
    """Return the folders of all environments, even of incomplete ones."""
    return sorted(glob.glob(f"{glob.escape(ENVIRONMENTS_FOLDER)}/{'[0-9a-f]' * 16}-py3.*"))


def remove_incomplete() -> None:
    """Remove the folders of environments without a manifest, which are incomplete.

    The caller must hold the lock (`locked`), because another program may be making one of them.

    An environment without its Python stays, because another machine with this home folder may have that
    Python.
    """
    for folder in folders():
        if not content(f"{folder}/{MANIFEST}"):
            shutil.rmtree(folder, ignore_errors=True)


def manifest(folder: str) -> Dict[str, Any]:
    """Return the manifest of an environment: what it was made of.

    Args:
        folder: The folder of the environment, which may not exist.

    Returns:
        The manifest. It is empty if the environment is incomplete, has lost its Python, or contains other
        packages now.
    """
    with suppress(ValueError):
        written = dict(json.loads(content(f"{folder}/{MANIFEST}")))
        if os.access(f"{folder}/bin/python", os.X_OK) and written["packages"] == packages(folder):
            return written
    return {}


def packages(folder: str) -> List[str]:
    """Return the packages that are installed in an environment, with their versions, as ``six-1.16.0``."""
    paths = glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages/*.dist-info")
    return sorted(os.path.basename(path)[: -len(".dist-info")] for path in paths)


def choose(python: str) -> Tuple[str, Dict[str, str]]:
    """Find the newest Python for which all packages exist in some version, by asking the launcher about each.

    Args:
        python: The only candidate. If it is empty, every Python along PATH is one.

    Returns:
        The path of the Python, and the answer of the launcher: ``packages``, which are exact versions, and
        ``options``, both as in a requirements file, and the ``hash`` of an environment that contains them.
        The version of the Python (``python``) and the ``platform`` are added. If there is no such Python,
        this program exits.
    """
    code = VERSION_CODE if shutil.which("uv") else ENSUREPIP_CODE + VERSION_CODE
    this_platform = f"{os.uname().machine}-manylinux_{platform.libc_ver()[1].replace('.', '_')}"
    names = [os.path.expanduser(python)] if python else CANDIDATES
    #: The newest Python with each fault, because many have the same one.
    faults: Dict[str, str] = {}
    for path in filter(None, map(shutil.which, names)):
        failed, version = run([path, "-I", "-c", code])
        if failed:  # This Python has no venv, or no ensurepip where that is needed.
            continue
        stage = f"finding versions for Python {version}"
        answer = ask(stage=stage, python=version, platform=this_platform)
        if "fault" not in answer:
            return path, {**answer, "python": version, "platform": this_platform}
        faults.setdefault(answer["fault"], version)
    missing = "no usable Python; expected one with ensurepip (Debian: python3-venv), or uv"
    sys.exit("; ".join(f"Python {version}: {fault}" for fault, version in faults.items()) or missing)


def install(name: str, path: str, wanted: Dict[str, str]) -> None:
    """Make an environment, unless one with the same packages exists, and link its name to it in one step.

    Args:
        name: The name of the environment.
        path: The path of the Python.
        wanted: The packages, as `choose` returns them.
    """
    # The lock keeps two launches from making the same environment. The name is linked last, so that a run
    # never sees an incomplete one.
    with locked():
        matching = [folder for folder in folders() if manifest(folder).get("hash") == wanted["hash"]]
        folder = matching[0] if matching else fill(path, wanted)
        # A link can be replaced in one step only by another link.
        link = f"{ENVIRONMENTS_FOLDER}/.{time.time_ns()}"
        os.symlink(os.path.basename(folder), link)
        os.replace(link, f"{ENVIRONMENTS_FOLDER}/{name}")


def check_capacity(*, has_tensorflow: bool) -> None:
    """Exit if the disk of this host has no room for an environment, or its CPU cannot run TensorFlow.

    Args:
        has_tensorflow: Whether the environment will contain TensorFlow.
    """
    free = shutil.disk_usage(ENVIRONMENTS_FOLDER).free
    # The sizes of an environment with TensorFlow and of one without large packages.
    needed = 2_500_000_000 if has_tensorflow else 50_000_000
    if free < needed:
        sys.exit(f"its disk is full: {byte_size(free)} free, about {byte_size(needed)} are needed")
    if has_tensorflow and os.uname().machine == "x86_64" and " avx " not in content("/proc/cpuinfo"):
        sys.exit("TensorFlow needs AVX, which the CPU of this host does not have")


def fill(path: str, wanted: Dict[str, str]) -> str:
    """Make an environment, and return its folder. Exit if that is not possible.

    The packages are installed by uv if the host has it, because it is faster, and by pip otherwise. If the
    host reaches no package index, the launcher sends it the wheels, and the same installer runs again. The
    manifest is written last, so that a folder without it counts as unfinished.

    Args:
        path: The path of the Python.
        wanted: The packages, as `choose` returns them.
    """
    tensorflow = TENSORFLOW_PATTERN.search(wanted["packages"])
    check_capacity(has_tensorflow=tensorflow is not None)
    folder = f"{ENVIRONMENTS_FOLDER}/{wanted['hash']}-py{wanted['python']}.{time.time_ns()}"
    # The list of packages begins with two lines of comment by uv.
    installing = f"installing {plural(len(wanted['packages'].splitlines()) - 2, 'package')}"
    send(stage=installing)
    uv, python, wheels = shutil.which("uv"), f"{folder}/bin/python", f"{folder}/wheels"
    check(*run([path, "-I", "-m", "venv", *(["--without-pip"] if uv else []), folder]))
    command = [python, "-I", "-m", "pip", "install", "--no-input"]
    if uv:
        command = [uv, "pip", "install", "--compile-bytecode", "--python", python]
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", "-r", "/dev/stdin"]
    # Only pip reads the user's settings of pip, so uv gets them as variables.
    settings = IndexSettings(path, folder="/") if uv else None
    variables = settings.variables if settings else {}
    no_index = "--no-index\n" if settings and settings.no_index else ""
    text = "{}{options}\n{packages}".format(no_index, **wanted)
    failed, reason = run(command, text, variables=variables)
    # Wheels do not help against a full disk. Every other failure may come from the package index.
    if failed and not re.search("No space left on device|Disk quota exceeded", reason):
        os.mkdir(wheels)
        stage = f"no package index, so wheels are sent ({reason})"
        wheels_at = ask(stage=stage, wheels=wheels, python=wanted["python"], platform=wanted["platform"])
        command += ["--no-index", "--find-links", wheels_at]
        send(stage=installing)
        # A package with an address, as in `NAME @ https://...whl`, is installed from its wheel, too.
        failed, reason = run(command, re.sub(r" *@ *\S+", "", wanted["packages"]))
        shutil.rmtree(wheels)
    check(failed, reason)
    contents = {
        "hash": wanted["hash"], "python": wanted["python"], "tensorflow": tensorflow[1] if tensorflow else "",
        "size": byte_size(1024 * int(subprocess.check_output(["du", "-sk", folder]).split()[0])),
        "packages": packages(folder),
    }  # fmt: skip
    with open(f"{folder}/{MANIFEST}", "w") as file:
        json.dump(contents, file, indent=1)
    return folder


def clean(days: int) -> None:
    """Remove environments that no task has used for this number of days."""
    with locked():
        for folder in folders():
            last_used = os.path.getmtime(f"{folder}/{MANIFEST}")
            # A process that runs in the environment has loaded libraries from it.
            libraries = os.path.realpath(folder) + "/"
            is_in_use = any(libraries in content(path) for path in glob.glob("/proc/[0-9]*/maps"))
            if last_used < time.time() - days * 24 * 3600 and not is_in_use:
                send(stage=f"removing {os.path.basename(folder)}")
                # Without its manifest the environment is incomplete, so `locked` removes it.
                os.unlink(f"{folder}/{MANIFEST}")


def main(request: Dict[str, Any]) -> None:
    """Make, compare or remove environments, then send the state of the named one.

    Args:
        request: ``name``: the name of the environment. ``known``: the hashes of environments that would do.
            ``makes``: whether to make the environment if it is missing or another one. ``python``: the Python
            for that, see `choose`. ``days``: what to remove, see `clean`, or 0 to remove nothing.
    """
    # A program that is started over SSH has a short PATH, on which uv and other Pythons may be missing.
    os.environ["PATH"] += ":/usr/local/bin:" + os.path.expanduser("~/.local/bin")
    # An exit by an exception removes what is unfinished.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Installing may be silent for minutes, and the launcher gives a silent host up.
    signal.signal(signal.SIGALRM, say_alive)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    # The thread reads the answers of the launcher. At the end of stdin the launcher is gone, and the thread
    # ends this process, even while uv or pip runs.
    threading.Thread(target=read_answers, daemon=True).start()
    check_private()
    folder, makes = f"{ENVIRONMENTS_FOLDER}/{request['name']}", request["makes"]
    present = manifest(folder)
    state = "ready" if present else "changed" if os.path.exists(folder) else "missing"
    if request["days"]:
        clean(request["days"])
        present, state = {}, "clean"
    # A known hash needs no question to the launcher. Without an environment there is nothing to compare. A
    # comparison uses the Python of the environment, because other Pythons need other packages.
    elif (makes or present) and present.get("hash") not in request["known"]:
        path, wanted = choose(request["python"] if makes else f"{folder}/bin/python")
        if present.get("hash") != wanted["hash"]:
            state = "other packages"
            if makes:
                install(request["name"], path, wanted)
                present, state = manifest(folder), "ready"
    shown = {name: present.get(name, "") for name in ("python", "tensorflow", "size")}
    send(state=state, driver=content("/sys/module/nvidia/version").strip(), **shown)
