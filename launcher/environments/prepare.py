"""``launch prepare`` on this machine: checks the packages, finds versions, and prepares hosts side by side.

The packages are checked before anything is done with them. uv finds exact versions for any Python and
platform, here and once; pip downloads their wheels, which uv cannot do. The versions are kept as a text for
``pip install -r``, whose hash is the name of the environments with these packages.

Hosts get no line that names a file of this machine. Passwords in the addresses of package indexes are in no
file and on no command line.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from string import Template
from types import SimpleNamespace

from launcher.agent.files import cache_folder
from launcher.backends.connections import for_each
from launcher.backends.fleet import HostPrograms
from launcher.backends.json_client import JsonClient, read
from launcher.backends.programs import run_here
from launcher.backends.ssh.connections import SshConnections
from launcher.backends.ssh.options import reason_of
from launcher.common.errors import Fault, InputError, LaunchError, TransportError
from launcher.common.record import Record
from launcher.common.text import escape_controls, join_names, plural
from launcher.common.trusted_io import read_regular
from launcher.config.documents import read_text
from launcher.job import Host
from launcher.messages import say

#: Options about package indexes.
_OPTION_PATTERN = (
    r"(-i|--(extra-)?index-url|-f|--find-links)[ =]https?://[^\s$]+|--trusted-host[ =][\w.:\[\]-]+"
)
#: A package by its name, or with the address of its wheel; no path, option or password.
_REQUIREMENT_PATTERN = r"(?!.*\s-)\w([^/\\\n]*(?<!\.whl)|[^/@\n]*@ *https?://[^@\s]+\.whl(#\S+)?( *;.*)?)"
#: A user and a password in a wrong line: also in an address without a scheme, or with spaces.
_SECRET_PATTERN = r"(?<=://).+@|(?<![^\s=:])[^\s=:]+:(?!//).*@"
_EXPECTED = (
    "expected NAME, NAME==VERSION or NAME @ https://...whl, as hosts have no files of this machine; "
    "-i, --extra-index-url or -f with http(s)://... and variables that are set; or --trusted-host HOST"
)
#: The file of a project, and the distributions of TensorFlow.
_PROJECT_FILE = "pyproject.toml"
_TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: The content of requirements files, with all options; of a project: that of its file.
    text: str = ""
    #: What uv reads: ``-`` for `text`.
    source: str = "-"
    #: Options about package indexes, a line each.
    options: str = ""


def wanted(files: Sequence[str], packages: Sequence[str], environ: Mapping[str, str]) -> Requirements:
    """Return the packages of files and of the command line.

    Without both: those of ``requirements.txt``, else of ``pyproject.toml`` in the current folder, else
    TensorFlow in the version that is installed here.

    Args:
        files: Requirements files.
        packages: Of the command line.
        environ: For ``${NAME}`` in the files.

    Raises:
        InputError: With all faults.
    """
    if not files and not packages:
        project = (
            read_text(_PROJECT_FILE, "project file", InputError) if os.path.isfile(_PROJECT_FILE) else ""
        )
        if os.path.isfile("requirements.txt"):
            files = ["requirements.txt"]
        elif re.search(r"(?m)^dependencies\s*=", project):
            return Requirements(project, _PROJECT_FILE)
        else:
            from importlib import metadata  # noqa: PLC0415 - 18 ms, without requirements only

            here = [
                found for name in _TENSORFLOW_DISTRIBUTIONS for found in metadata.distributions(name=name)
            ]
            packages = [f"{found.metadata['Name']}=={found.version}" for found in here[:1]]
        if not files and not packages:
            expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
            raise InputError([Fault("", "no packages are named", expected)])
    written = [("PACKAGE", package) for package in packages]
    for path in files:
        lines = read_text(path, "requirements file", InputError).splitlines()
        written += [(f"{escape_controls(path)}:{number}", line) for number, line in enumerate(lines, 1)]
    faults, found = [], []
    for place, line in written:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        full = Template(text).safe_substitute(environ)
        if full and not re.fullmatch(f"{_REQUIREMENT_PATTERN}|{_OPTION_PATTERN}", full):
            faults.append(Fault(place, f'"{re.sub(_SECRET_PATTERN, "****@", text)}"', _EXPECTED))
        found.append(full)
    if faults:
        raise InputError(faults)
    options = [line for line in found if re.fullmatch(_OPTION_PATTERN, line)]
    return Requirements("\n".join(found), "-", "\n".join(options))


_UV_TIMEOUT_SECONDS = 3600.0
#: Texts of a host that become words of command lines: its Python, and the platform of its wheels.
_TARGET_PATTERN = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")


def hash_of(text: str) -> str:
    """Return the hash of a text with versions: the name of an environment that has them."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, for all its hosts. Any thread may use it.

    Args:
        wanted: The requirements.
        folder: An empty folder for wheels.
        upgrade: Whether to find the newest versions, even if earlier ones are known.
        offline: Whether the hosts use no package index.
    """

    def __init__(self, wanted: Requirements, folder: str, *, upgrade: bool, offline: bool) -> None:
        self._wanted, self._upgrade, self._folder = wanted, upgrade, folder
        self._lock = threading.Lock()
        #: Why uv or pip has failed, by its arguments. The text is empty if it has not.
        self._faults: dict[tuple[str, ...], str] = {}
        self._options = "--no-index" if offline else wanted.options
        self._cache = os.path.join(cache_folder(), "resolved", hash_of(repr(wanted)))
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.txt")
        #: The hashes of all environments with the versions that an earlier ``launch prepare`` has found.
        self.known = [hash_of(read_regular(path).decode()) for path in paths]

    def resolve(self, python: str, platform: str) -> dict[str, str]:
        """Return what a host needs to install the packages.

        Args:
            python: ``3.11``
            platform: ``x86_64-manylinux_2_36``

        Returns:
            ``packages``, with exact versions, and ``options``, as in a requirements file; and ``hash``.

        Raises:
            LaunchError: There are none, or uv cannot find them.
        """
        path = f"{self._cache}-{python}-{platform}.txt"
        target = _TARGET_PATTERN.fullmatch(f"{python} {platform}")
        if target is None:
            raise LaunchError(f"there are no wheels for {platform}, only for Linux with glibc")
        if self._upgrade or not os.path.exists(path):
            argv = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--upgrade", "-o", path]
            argv += ["--custom-compile-command", f"launch prepare, for Python {python}"]
            argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
            argv += ["--python-platform", f"{target[1]}-manylinux_2_{28 if int(target[2]) >= 28 else 17}"]
            self._run(self._wanted.text, *argv)
        packages = read_regular(path).decode()
        return {"hash": hash_of(packages), "packages": packages, "options": self._options}

    def download(self, python: str, platform: str) -> str:
        """Download the wheels of all packages, and return their folder.

        Args:
            python, platform: See `resolve`.

        Raises:
            LaunchError: They cannot be downloaded.
        """
        versions = self.resolve(python, platform)["packages"]
        folder = os.path.join(self._folder, f"{python}-{platform}")
        machine, _, newest = platform.partition("-manylinux_2_")
        # pip takes wheels for platforms that it is given: one for each version of glibc, the first is 2.5.
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), 4, -1)]
        argv = ["pip", "download", "--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
        argv += ["-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, "manylinux2014", "linux")]
        self._run(f"{self._wanted.options}\n{versions}", *argv)
        return folder

    def _run(self, text: str, *argv: str) -> None:
        """Run uv or pip, once for the same arguments; it ends with this process.

        Args:
            text: Its input, which may have passwords, and is in no file.
            argv: Its arguments.

        Raises:
            LaunchError: It failed; with its reason.
        """
        with self._lock:  # other threads wait for the same result
            if argv not in self._faults:
                asked = {"argv": (sys.executable, "-I", "-m", *argv), "text": text}
                program = run_here("this machine", "launcher.environments.remote:run_here", asked)
                with closing(program):
                    self._faults[argv] = JsonClient(program).receive(_UV_TIMEOUT_SECONDS)["fault"]
        if self._faults[argv]:
            raise LaunchError(f"on this machine: {self._faults[argv]}")


# A host may say nothing for so long.
_SILENCE_SECONDS = 300.0
_SEND_TIMEOUT_SECONDS = 120.0
# A host may send so many lines: about one comes each second.
_MAX_LINES = 20_000


class EnvironmentStatus(Record):
    """What a host says at the end about itself and an environment; before that, what it does or needs."""

    #: Of Python, TensorFlow and the GPU driver: the version; empty: there is none.
    python: str = ""
    tensorflow: str = ""
    driver: str = ""
    #: ``2.1G``
    size: str = ""
    #: A host answers ``ready``, ``missing``, ``other packages``, or ``changed`` if something else has changed
    #: or damaged it; or ``clean``. `prepare` adds ``failed: ...``. Empty: the host has not answered yet.
    state: str = ""
    #: What the host does, for the user.
    stage: str = ""
    #: It asks for versions for its Python and this platform, ``x86_64-manylinux_2_36``; or for the wheels of
    #: them in this folder.
    platform: str = ""
    wheels: str = ""


class Preparer:
    """Prepares, compares or cleans hosts, each in a thread. It prints a line for each stage of a host.

    Args:
        hosts: The hosts.
        asked: What is done there: the arguments of `launcher.environments.remote.main`.
        resolver: Finds versions and wheels for the hosts.
        programs: Runs programs on the hosts.
    """

    def __init__(
        self, hosts: Sequence[Host], asked: Mapping[str, object], resolver: Resolver, programs: HostPrograms
    ) -> None:
        self._asked, self._resolver, self._programs = asked, resolver, programs
        self._hosts = {host.name: host for host in hosts}
        self._is_interrupted = False
        #: What each host does now.
        self._stages = dict.fromkeys(self._hosts, "asking what it has")
        #: What the hosts have at the end that are done.
        self._results: dict[str, EnvironmentStatus] = {}

    def prepare(self, fanout: int) -> dict[str, EnvironmentStatus]:
        """Prepare, compare or clean all hosts.

        Args:
            fanout: How many hosts are prepared at the same time.

        Returns:
            What each host has at the end, in the order of the hosts.

        Raises:
            SystemExit: Ctrl-C or SIGTERM. When this process has ended, the hosts remove what they began.
        """
        try:
            return for_each(self._hosts, self._run, self._doing, fanout)[0]
        finally:
            self._is_interrupted = True

    def _doing(self) -> str:
        """Return what the hosts do that have not answered yet."""
        return join_names(
            sorted({stage for name, stage in self._stages.items() if name not in self._results}), 3
        )

    def _begin(self, name: str, stage: str) -> None:
        """Note that a host has begun a stage, or is done. Print that, and how many hosts are done."""
        if stage not in ("", self._stages[name]):
            self._stages[name] = stage
            if not self._is_interrupted:
                say(f"[{len(self._results)}/{len(self._hosts)}] {name}: {stage}")

    def _run(self, name: str) -> EnvironmentStatus:
        """Prepare, compare or clean one host.

        Returns:
            What it has at the end; its state has the reason if that failed.
        """
        asked = {**self._asked, "known": self._resolver.known, "python": self._hosts[name].python or ""}
        try:
            with closing(self._programs.run(name, "launcher.environments.remote:main", asked)) as program:
                status = self._converse(name, JsonClient(program))
        except (LaunchError, OSError) as error:
            text = str(error).removeprefix(f"{name}: ").removeprefix("the program there failed: ")
            status = EnvironmentStatus(state=f"failed: {text}")
        self._results[name] = status
        self._begin(name, status.state)
        return status

    def _converse(self, name: str, client: JsonClient) -> EnvironmentStatus:
        """Give a host what it asks for, until it says what it has.

        Raises:
            LaunchError: It cannot do its work, or the connection broke.
        """
        for _ in range(_MAX_LINES):
            status = read(EnvironmentStatus, client.receive(_SILENCE_SECONDS))
            if status.state:
                return status
            self._begin(name, status.stage)
            if status.platform:
                client.send(self._answer(name, status), _SILENCE_SECONDS)
        raise TransportError(f"the program there sent {_MAX_LINES} lines")

    def _answer(self, name: str, status: EnvironmentStatus) -> object:
        """Return what a host asks for: where wheels are, or versions for its `choose`.

        Raises:
            LaunchError: No wheels can be downloaded, or the wheels cannot be sent.
        """
        if status.wheels:
            self._begin(name, "downloading wheels here")
            folder = self._resolver.download(status.python, status.platform)
            return folder if name in self._programs.local else self._send(name, folder, status.wheels)
        try:
            return self._resolver.resolve(status.python, status.platform)
        except LaunchError as error:
            return {"fault": str(error)}

    def _send(self, name: str, folder: str, there: str) -> str:
        """Copy wheels to a folder of a host, by fabric over the connection of launch, and return it.

        By itself fabric accepts any host key and logs in with any key.
        """
        from fabric import Config, Connection  # noqa: PLC0415 - with paramiko, to send wheels only
        from paramiko import SSHException  # noqa: PLC0415 - with paramiko, to send wheels only

        names, connections = os.listdir(folder), self._programs.connections
        assert isinstance(connections, SshConnections)
        self._begin(name, f"sending {plural(len(names), 'wheel')}")
        transport = connections.connection(name).transport
        sender = Connection(name, config=Config(lazy=True))
        sender.transport = transport
        sender.client = SimpleNamespace(open_sftp=transport.open_sftp_client)
        try:
            sender.sftp().get_channel().settimeout(_SEND_TIMEOUT_SECONDS)
            for wheel in names:
                sender.put(f"{folder}/{wheel}", f"{there}/{wheel}")
        except (SSHException, EOFError, OSError) as error:
            connections.connection(name)  # raises an error of its own, if that broke
            raise TransportError(f"wheels cannot be sent: {reason_of(error)}") from error
        return there
