"""``launch prepare`` on this machine: checks the packages, finds versions, and prepares hosts side by side.

The packages are checked before anything is done with them. uv finds exact versions for any Python and
platform, once on this machine. pip downloads their wheels, which uv cannot do. The versions are kept as a
text for ``pip install -r``, whose hash is the name of the environments that contain these packages.

A line that names a file of this machine must never reach a host. Passwords in the addresses of package
indexes must never be in a file or on a command line.
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

#: An option about package indexes.
_OPTION_PATTERN = (
    r"(-i|--(extra-)?index-url|-f|--find-links)[ =]https?://[^\s$]+|--trusted-host[ =][\w.:\[\]-]+"
)
#: A package by its name, or with the address of its wheel, but without a path, an option or a password.
_REQUIREMENT_PATTERN = r"(?!.*\s-)\w([^/\\\n]*(?<!\.whl)|[^/@\n]*@ *https?://[^@\s]+\.whl(#\S+)?( *;.*)?)"
#: A user and a password in a wrong line, even in an address without a scheme, or with spaces.
_SECRET_PATTERN = r"(?<=://).+@|(?<![^\s=:])[^\s=:]+:(?!//).*@"
_EXPECTED = (
    "expected NAME, NAME==VERSION or NAME @ https://...whl, as hosts have no files of this machine; "
    "-i, --extra-index-url or -f with http(s)://... and variables that are set; or --trusted-host HOST"
)
_PROJECT_FILE = "pyproject.toml"
#: The names under which TensorFlow is distributed.
_TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: The content of the requirements files, with all options, or of the file of a project.
    text: str = ""
    #: The name of the file that uv reads. ``-`` means `text`.
    source: str = "-"
    #: The options about package indexes, one on each line.
    options: str = ""


def wanted(files: Sequence[str], packages: Sequence[str], environ: Mapping[str, str]) -> Requirements:
    """Return the packages that files and the command line name.

    If both name none, these are tried, and the first that exists decides:

    - ``requirements.txt`` in the current folder.
    - ``pyproject.toml`` in the current folder, if it has ``dependencies``. It is returned as it is, for uv.
    - TensorFlow in the version that is installed on this machine.

    Args:
        files: The paths of requirements files.
        packages: The packages on the command line.
        environ: The environment, for ``${NAME}`` in the files.

    Raises:
        InputError: The input contains faults. The error lists all of them.
    """
    if not files and not packages:
        has_project = os.path.isfile(_PROJECT_FILE)
        project = read_text(_PROJECT_FILE, "project file", InputError) if has_project else ""
        if os.path.isfile("requirements.txt"):
            files = ["requirements.txt"]
        elif re.search(r"(?m)^dependencies\s*=", project):
            return Requirements(project, _PROJECT_FILE)
        else:
            from importlib import metadata  # noqa: PLC0415 - 18 ms, without requirements only

            names = _TENSORFLOW_DISTRIBUTIONS
            installed = [package for name in names for package in metadata.distributions(name=name)]
            packages = [f"{package.metadata['Name']}=={package.version}" for package in installed[:1]]
        if not files and not packages:
            expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
            raise InputError([Fault("", "no packages are named", expected)])
    # Each line with its place for messages, because all faults are reported together.
    written = [("PACKAGE", package) for package in packages]
    for path in files:
        lines = read_text(path, "requirements file", InputError).splitlines()
        written += [(f"{escape_controls(path)}:{number}", line) for number, line in enumerate(lines, 1)]
    faults, completed_lines = [], []
    for place, line in written:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        # A variable that is not set stays as it is.
        completed = Template(text).safe_substitute(environ)
        if completed and not re.fullmatch(f"{_REQUIREMENT_PATTERN}|{_OPTION_PATTERN}", completed):
            # The message shows the line as it is written, because values of variables may be secret.
            faults.append(Fault(place, f'"{re.sub(_SECRET_PATTERN, "****@", text)}"', _EXPECTED))
        completed_lines.append(completed)
    if faults:
        raise InputError(faults)
    # The options are kept apart, too, for the hosts: these install the packages from the same indexes.
    options = [line for line in completed_lines if re.fullmatch(_OPTION_PATTERN, line)]
    return Requirements("\n".join(completed_lines), "-", "\n".join(options))


#: The time limit for uv or pip, which may download gigabytes.
_UV_TIMEOUT_SECONDS = 3600.0
#: The Python of a host, and the platform of its wheels. They become words of command lines, so they are
#: checked.
_TARGET_PATTERN = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")


def hash_of(text: str) -> str:
    """Return the hash of a text with versions, which names an environment that contains them."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare`` for all its hosts. Any thread may use it.

    Args:
        wanted: The requirements.
        folder: An empty folder for wheels.
        upgrade: Whether to find the newest versions, even if earlier ones are known.
        offline: Whether the hosts use no package index.
    """

    def __init__(self, wanted: Requirements, folder: str, *, upgrade: bool, offline: bool) -> None:
        """Look for versions that were found for these requirements before. Nothing is resolved yet."""
        #: `_folder` receives the wheels, in a folder for each Python and platform.
        self._wanted, self._upgrade, self._folder = wanted, upgrade, folder
        #: Guards `_faults`, and lets one thread at a time run uv or pip.
        self._lock = threading.Lock()
        #: Why uv or pip has failed, by its arguments. The text is empty if it has succeeded.
        self._faults: dict[tuple[str, ...], str] = {}
        #: The options about package indexes with which the hosts install the packages.
        self._options = "--no-index" if offline else wanted.options
        #: The beginning of the paths of files with the versions that were found for these requirements. The
        #: Python and the platform follow in the names.
        self._cache = os.path.join(cache_folder(), "resolved", hash_of(repr(wanted)))
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.txt")
        #: The hashes of all environments that contain the versions of an earlier ``launch prepare``.
        self.known = [hash_of(read_regular(path).decode()) for path in paths]

    def resolve(self, python: str, platform: str) -> dict[str, str]:
        """Return what a host needs to install the packages.

        Args:
            python: The version of the host's Python, as in ``3.11``.
            platform: The platform of the host, as in ``x86_64-manylinux_2_36``.

        Returns:
            A mapping with ``packages``, which are exact versions, ``options``, as in a requirements file, and
            ``hash``.

        Raises:
            LaunchError: No wheels exist for the platform, or uv cannot find versions.
        """
        path = f"{self._cache}-{python}-{platform}.txt"
        target = _TARGET_PATTERN.fullmatch(f"{python} {platform}")
        if target is None:
            raise LaunchError(f"there are no wheels for {platform}, only for Linux with glibc")
        # The file contains the versions that uv has found before. uv writes it (-o).
        if self._upgrade or not os.path.exists(path):
            argv = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--upgrade", "-o", path]
            argv += ["--custom-compile-command", f"launch prepare, for Python {python}"]
            argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
            # Of the platforms that uv knows, these are the usual ones, which newer versions of glibc can use.
            glibc = 28 if int(target[2]) >= 28 else 17
            argv += ["--python-platform", f"{target[1]}-manylinux_2_{glibc}"]
            self._run(self._wanted.text, *argv)
        packages = read_regular(path).decode()
        return {"hash": hash_of(packages), "packages": packages, "options": self._options}

    def download(self, python: str, platform: str) -> str:
        """Download the wheels of all packages, and return the folder that contains them.

        Args:
            python: The version of the host's Python, see `resolve`.
            platform: The platform of the host, see `resolve`.

        Raises:
            LaunchError: The wheels cannot be downloaded.
        """
        versions = self.resolve(python, platform)["packages"]
        folder = os.path.join(self._folder, f"{python}-{platform}")
        machine, _, newest = platform.partition("-manylinux_2_")
        # pip downloads wheels for the named platforms only: one for each version of glibc, from 2.5.
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), 4, -1)]
        argv = ["pip", "download", "--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
        argv += ["-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, "manylinux2014", "linux")]
        self._run(f"{self._wanted.options}\n{versions}", *argv)
        return folder

    def _run(self, text: str, *argv: str) -> None:
        """Run uv or pip, but only once with the same arguments. The program is killed when this process ends.

        Args:
            text: The input of the program. It may contain passwords, so it is in no file.
            argv: The arguments of Python that run uv or pip as a module.

        Raises:
            LaunchError: The program failed. The message gives its reason.
        """
        with self._lock:  # Other threads wait for the same result.
            if argv not in self._faults:
                request = {"argv": (sys.executable, "-I", "-m", *argv), "text": text}
                # A child runs uv or pip, and reads its input to notice the end of this process.
                program = run_here("this machine", "launcher.environments.remote:run_here", request)
                with closing(program):
                    self._faults[argv] = JsonClient(program).receive(_UV_TIMEOUT_SECONDS)["fault"]
        if self._faults[argv]:
            raise LaunchError(f"on this machine: {self._faults[argv]}")


#: A host that has sent nothing for this time counts as lost.
_SILENCE_SECONDS = 300.0
_SEND_TIMEOUT_SECONDS = 120.0
#: The largest number of lines from a host, which sends about one each second.
_MAX_LINES = 20_000


class EnvironmentStatus(Record):
    """What a host reports: at last the state of its environment, and before that what it does or needs."""

    #: The version of Python. Like the next two, it is empty if there is none.
    python: str = ""
    #: The version of TensorFlow.
    tensorflow: str = ""
    #: The version of the GPU driver.
    driver: str = ""
    #: The size of the environment on disk, as in ``2.3 GB``.
    size: str = ""
    #: The last answer of a host: ``ready``, ``missing``, ``other packages``, ``changed`` if something has
    #: changed or damaged the environment, or ``clean``. This module adds ``failed: ...``. It is empty until
    #: the last answer.
    state: str = ""
    #: What the host does now, for the user.
    stage: str = ""
    #: The platform for which a host asks for versions, as in ``x86_64-manylinux_2_36``. It is empty if the
    #: host asks for none.
    platform: str = ""
    #: The folder of the host in which it needs the wheels of these versions. It is empty if the host only
    #: needs versions.
    wheels: str = ""


class Preparer:
    """Prepares, compares or cleans hosts, each in a thread. It prints a line for each stage of a host.

    Args:
        hosts: The hosts.
        request: What is to be done on each host: the arguments of `launcher.environments.remote.main`.
        resolver: What finds versions and wheels for the hosts.
        programs: What runs programs on the hosts.
    """

    def __init__(
        self, hosts: Sequence[Host], request: Mapping[str, object], resolver: Resolver, programs: HostPrograms
    ) -> None:
        """Prepare to work on hosts. `prepare` asks them."""
        self._request, self._resolver, self._programs = request, resolver, programs
        self._hosts = {host.name: host for host in hosts}
        #: Whether `prepare` has returned or was interrupted. Threads that still run then print nothing.
        self._is_over = False
        #: What each host does now, by its name.
        self._stages = dict.fromkeys(self._hosts, "asking what it has")
        #: The last answers of the hosts that are done.
        self._results: dict[str, EnvironmentStatus] = {}

    def prepare(self, fanout: int) -> dict[str, EnvironmentStatus]:
        """Prepare, compare or clean all hosts.

        Args:
            fanout: How many hosts are prepared at the same time.

        Returns:
            The last answer of each host, in the order of the hosts.

        Raises:
            SystemExit: The user pressed Ctrl-C, or SIGTERM came. When this process has ended, the hosts
                remove what they began.
        """
        try:
            statuses, _ = for_each(self._hosts, self._run, self._stages_under_way, fanout)
            return statuses
        finally:
            self._is_over = True

    def _stages_under_way(self) -> str:
        """Return what the hosts are doing that are not done yet, for the line about slow hosts."""
        stages = {stage for name, stage in self._stages.items() if name not in self._results}
        return join_names(sorted(stages), 3)

    def _set_stage(self, name: str, stage: str) -> None:
        """Note and print what a host does now, or its last answer, with the number of hosts that are done.

        Nothing is printed if the stage is an empty text, or is the one that was printed last.
        """
        if stage not in ("", self._stages[name]):
            self._stages[name] = stage
            # After Ctrl-C the threads of hosts go on for a while, and must not print into the user's shell.
            if not self._is_over:
                say(f"[{len(self._results)}/{len(self._hosts)}] {name}: {stage}")

    def _run(self, name: str) -> EnvironmentStatus:
        """Prepare, compare or clean one host.

        Returns:
            The last answer of the host. If something failed, its state contains the reason.
        """
        request = {**self._request, "known": self._resolver.known, "python": self._hosts[name].python or ""}
        try:
            with closing(self._programs.run(name, "launcher.environments.remote:main", request)) as program:
                status = self._converse(name, JsonClient(program))
        except (LaunchError, OSError) as error:
            text = str(error).removeprefix(f"{name}: ").removeprefix("the program there failed: ")
            status = EnvironmentStatus(state=f"failed: {text}")
        self._results[name] = status
        self._set_stage(name, status.state)
        return status

    def _converse(self, name: str, client: JsonClient) -> EnvironmentStatus:
        """Answer a host what it asks for, until it sends its last answer, and return that.

        Args:
            name: The name of the host.
            client: Exchanges lines of JSON with the program on the host.

        Raises:
            LaunchError: The host cannot do its work, or the connection broke.
        """
        for _ in range(_MAX_LINES):
            status = read(EnvironmentStatus, client.receive(_SILENCE_SECONDS))
            if status.state:
                return status
            self._set_stage(name, status.stage)
            if status.platform:  # The host asks for versions or wheels. Other lines only tell its stage.
                client.send(self._answer(name, status), _SILENCE_SECONDS)
        raise TransportError(f"the program there sent {_MAX_LINES} lines")

    def _answer(self, name: str, status: EnvironmentStatus) -> object:
        """Return what a host asks for: the folder of its wheels, or exact versions for one of its Pythons.

        Args:
            name: The name of the host.
            status: What the host has sent, with the Python and the platform for which it asks.

        Returns:
            The answer. If no versions exist for that Python, it contains the fault, and the host tries its
            next Python.

        Raises:
            LaunchError: The wheels cannot be downloaded, or cannot be sent.
        """
        if status.wheels:
            self._set_stage(name, "downloading wheels here")
            folder = self._resolver.download(status.python, status.platform)
            # If the host is this machine, it finds the wheels where they are.
            return folder if name in self._programs.local else self._send(name, folder, status.wheels)
        try:
            return self._resolver.resolve(status.python, status.platform)
        except LaunchError as error:
            return {"fault": str(error)}

    def _send(self, name: str, folder: str, folder_there: str) -> str:
        """Copy wheels to a folder of a host, and return that folder.

        fabric copies them over the connection of launch, because fabric's own connection would accept any
        host key and log in with any key.

        Args:
            name: The name of the host.
            folder: The folder of this machine with the wheels.
            folder_there: The folder of the host, which exists.

        Raises:
            TransportError: The wheels cannot be sent.
        """
        from fabric import Config, Connection  # noqa: PLC0415 - imports paramiko, to send wheels only
        from paramiko import SSHException  # noqa: PLC0415 - imports paramiko, to send wheels only

        names, connections = os.listdir(folder), self._programs.connections
        # `launch prepare` reaches other machines over SSH only.
        assert isinstance(connections, SshConnections)
        self._set_stage(name, f"sending {plural(len(names), 'wheel')}")
        transport = connections.connection(name).transport
        sender = Connection(name, config=Config(lazy=True))  # Lazy: it reads no configuration files.
        sender.transport = transport
        # This is all that fabric needs of a client to send files.
        sender.client = SimpleNamespace(open_sftp=transport.open_sftp_client)
        try:
            sender.sftp().get_channel().settimeout(_SEND_TIMEOUT_SECONDS)
            for wheel in names:
                sender.put(f"{folder}/{wheel}", f"{folder_there}/{wheel}")
        except (SSHException, EOFError, OSError) as error:
            connections.connection(name)  # If the connection broke, this raises an error that says so.
            raise TransportError(f"wheels cannot be sent: {reason_of(error)}") from error
        return folder_there
