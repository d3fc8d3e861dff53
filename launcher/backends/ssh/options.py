"""Finds the options for connecting to a host, from ssh_config, the hostfile and the command line.

``ssh -G HOST`` prints the options of a host, with every ``Match`` and ``Include`` applied. All hosts that
match the same ``Host`` lines share one answer, because a query takes as long as a login. `connections` asks
this module for each host and gateway.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import pwd
import re
import shlex
import subprocess
import threading
import urllib.parse
from collections.abc import Iterable, Mapping

from launcher.backends.ssh_query import STDIN_PATH, USER_FILE, ask_ssh, is_home_elsewhere
from launcher.common.errors import TransportError
from launcher.common.record import Record
from launcher.common.text import NO_THREAD_REASON, sanitize_host_text, why_not_started
from launcher.common.trusted_io import read_regular
from launcher.job import Host
from launcher.threads import is_no_thread

#: The default port, which known_hosts and messages leave out.
SSH_PORT = 22
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_IDENTITIES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
#: The time limit of ``ssh -G``, which may run commands of ``Match exec``.
_QUERY_TIMEOUT_SECONDS = 30.0
#: The beginning of a line of ``ssh -v`` that names a file that ssh reads.
_READS_FILE_PREFIX = "debug1: Reading configuration data "
#: The beginnings of lines of ``ssh -v`` that report no error.
_NO_ERROR_PREFIXES = ("debug", "OpenSSH_", "Pseudo-terminal")
#: The values of an option that is off.
_OFF_VALUES = ("no", "false")
#: The values of StrictHostKeyChecking that accept a new key. A changed key is always refused.
_LENIENT_VALUES = ("accept-new", "no", "off", "false")
#: A name of which a shell interprets no character. Other names are refused in a ProxyCommand, as by OpenSSH.
_PLAIN_NAME = re.compile(r"[\w.:%@+,\[\]-]*")


#: The options of a host by their names in lower case, each with its values in order.
Values = dict[str, list[str]]


class SshError(TransportError):
    """The reason why one host cannot be connected to.

    Args:
        text: The message without the name of the host. Servers may have sent parts of it.
        may_pass: Whether another attempt may succeed.
    """

    def __init__(self, text: str, may_pass: bool = False) -> None:
        """Make the error. Control characters of a server are removed from its text."""
        super().__init__(sanitize_host_text(text))
        self.may_pass = may_pass


class HostOptions(Record):
    """The options for connecting to one host."""

    #: The name of the host, as the user wrote it.
    name: str
    address: str
    port: int
    user: str
    #: The gateways of ``ProxyJump``, in the order in which they are connected to.
    gateways: tuple[str, ...] = ()
    #: The ``ProxyCommand`` with its tokens replaced. Empty if there is none.
    proxy_command: str = ""
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    #: The path of the ssh-agent's socket. Empty if there is none.
    agent: str = ""
    #: ``inet`` or ``inet6``. Any other value means both.
    address_family: str = "any"
    #: The time limit in seconds. None means that of the launch.
    connect_timeout: float | None = None
    known_hosts: tuple[str, ...] = ()
    system_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    accept_new: bool = False
    hash_known_hosts: bool = False

    @property
    def place(self) -> str:
        """The address and port of the host's server, for messages: ``10.0.0.3:22``, ``[fe80::1]:22``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def account() -> pwd.struct_passwd:
    """Return the account of this process as ``ssh`` knows it, which ignores the environment.

    Raises:
        SshError: The user id has no name, as in a container that is started with any user id.
    """
    number = os.getuid()
    try:
        return pwd.getpwuid(number)
    except KeyError as error:
        line = f"me:x:{number}:{os.getgid()}::{os.path.expanduser('~')}:/bin/sh"
        raise SshError(
            f"the user id {number} of launch has no name on this machine, and ssh connects for named users "
            f"only (ssh: No user exists for uid {number}); add it to the users, as the image or the "
            f"entrypoint of a container can do, with: echo {line} >>/etc/passwd"
        ) from error


def host_options(host: Host, queries: Queries | None = None) -> HostOptions:
    """Return the options of a host. Values of the hostfile override ssh_config.

    Args:
        host: The host, or a gateway.
        queries: The queries of this launch. None if ``ssh`` should be asked about this host alone.

    Raises:
        SshError: ssh_config cannot be read, or contains a wrong value.
    """
    try:
        return _options(host, (queries or Queries()).ask(host))
    except ValueError as error:
        raise SshError(f"{USER_FILE} has a wrong value: {error}") from error


def _options(host: Host, values: Mapping[str, list[str]]) -> HostOptions:
    """Return the options of a host, from what ``ssh -G`` printed and the host's own values.

    Args:
        host: The host. Its user and port, if they are set, override those of ssh_config.
        values: The values of each option in ssh_config, by its name in lower case.

    Raises:
        SshError: The ProxyCommand would make a shell interpret a name.
        ValueError: A value is not a number.
    """

    def value(key: str, default: str = "") -> str:
        """Return the first value of an option. The default replaces a missing one, and ``none``."""
        first = values.get(key, [default])[0]
        return default if first.lower() == "none" else first

    address = value("hostname", host.name)
    local_user = account().pw_name
    user, port = host.user or value("user") or local_user, host.port or int(value("port", str(SSH_PORT)))
    tokens = {"h": address, "n": host.name, "p": str(port), "r": user, "u": local_user, "%": "%"}
    tokens["d"] = os.path.expanduser("~")

    def path(text: str) -> str:
        """Return a path with its tokens and ``~`` replaced."""
        return os.path.expanduser(_replace_tokens(text, tokens))

    command = value("proxycommand")
    if command:
        _check_plain(address, host.name, user)
    identities = [file for file in values.get("identityfile", _IDENTITIES) if file.lower() != "none"]
    # Here "none" means no ssh-agent, not the default one. SSH_AUTH_SOCK means the value of that variable.
    agent = values.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    timeout = value("connecttimeout")
    return HostOptions(
        name=host.name,
        address=address,
        port=port,
        user=user,
        gateways=_gateways(host, address, value("proxyjump")),
        proxy_command=_replace_tokens(command, tokens),
        # A file of a public key stands for the private key beside it.
        identity_files=tuple(path(file).removesuffix(".pub") for file in identities),
        identities_only=value("identitiesonly").lower() == "yes",
        agent={"SSH_AUTH_SOCK": os.environ.get("SSH_AUTH_SOCK", ""), "none": ""}.get(agent, path(agent)),
        address_family=value("addressfamily", "any").lower(),
        connect_timeout=float(timeout) if timeout else None,
        known_hosts=_paths(values, "userknownhostsfile", _KNOWN_HOSTS),
        system_known_hosts=_paths(values, "globalknownhostsfile", _SYSTEM_KNOWN_HOSTS),
        host_key_alias=value("hostkeyalias"),
        accept_new=value("stricthostkeychecking").lower() in _LENIENT_VALUES,
        hash_known_hosts=value("hashknownhosts").lower() == "yes",
    )


def _replace_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Return the text with tokens such as ``%h`` replaced. Unknown tokens stay."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _check_plain(*names: str) -> None:
    """Refuse names that become part of a ProxyCommand if its shell would interpret a character in them.

    Raises:
        SshError: A name contains such a character.
    """
    if not all(map(_PLAIN_NAME.fullmatch, names)):
        problem = "the shell of its ProxyCommand would interpret characters in its name or user"
        raise SshError(f"{problem}: {', '.join(names)}")


def _paths(values: Mapping[str, list[str]], key: str, default: str) -> tuple[str, ...]:
    """Return the paths in the value of an option that lists files.

    Args:
        values: The values of each option in ssh_config, by its name in lower case.
        key: The name of the option.
        default: Its value if ssh_config does not set it.
    """
    paths = shlex.split(values.get(key, [default])[0])
    return tuple(os.path.expanduser(path) for path in paths if path.lower() != "none")


def _gateways(host: Host, address: str, proxy_jump: str) -> tuple[str, ...]:
    """Return the gateways of a ``ProxyJump``, in the order in which they are connected to.

    There are none if the last of them is the host itself: a ``Host *`` section sets ProxyJump for the
    gateway, too, which needs no gateway.

    Args:
        host: The host.
        address: The address of the host.
        proxy_jump: The value of ``ProxyJump``, with commas between gateways. Empty if there is none.
    """
    gateways = tuple(part.strip() for part in proxy_jump.split(",") if part.strip())
    if gateways and parse_gateway(gateways[-1]).name in (host.name, address):
        return ()
    return gateways


def parse_gateway(text: str) -> Host:
    """Parse a gateway in the form of ``ProxyJump``: ``[user@]host[:port]``, or ``ssh://...``.

    Raises:
        SshError: The text has another form.
    """
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"ssh://{text}")
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise SshError(f"{text!r} is not a gateway: {error}; expected [user@]host[:port]") from error
    if not name:
        raise SshError(f"{text!r} is not a gateway: it names no host; expected [user@]host[:port]")
    # urlsplit returns the name in lower case, except the zone of an IPv6 address, but ssh_config
    # distinguishes upper case. The user in front of the name may contain the same text, so the last
    # occurrence is the name.
    start = text.lower().rfind(name.lower())
    return Host(text[start : start + len(name)], user=parts.username, port=port)


class Queries:
    """Asks ``ssh -G`` about hosts, once for all that match the same ``Host`` lines. Any thread may use it."""

    def __init__(self) -> None:
        """Start without answers. ``ssh`` is asked when a host needs it."""
        #: Held during the first query, whose answer names the files of ssh_config.
        self._first_query = threading.Lock()
        #: The patterns of all ``Host`` lines in those files. None if a ``Match`` decides about options, too.
        self._patterns: list[str] | None = None
        #: The host that was asked about and the answer, by what decides about the options (see `_key`).
        self._answers: dict[object, tuple[str, Values]] = {}
        #: Held while ``ssh`` is asked about a host with that key.
        self._key_locks: dict[object, threading.Lock] = {}

    def ask(self, host: Host) -> Values:
        """Return the options of a host, each with its values in order. Any thread may call this.

        Asking ``ssh`` takes time, so hosts that the same lines of ssh_config are about share one answer.

        Raises:
            SshError: ``ssh`` fails.
        """
        # Only the first query shows which files ssh reads. Their ``Host`` lines decide which hosts share an
        # answer, so the other threads wait for it.
        with self._first_query:
            if not self._answers:
                values, files = _query(host)
                self._patterns = _host_patterns(files)
                self._answers[self._key(host)] = host.name, values
        key = self._key(host)
        with self._key_locks.setdefault(key, threading.Lock()):
            if key not in self._answers:
                values, _ = _query(host)
                self._answers[key] = host.name, values
        asked_name, values = self._answers[key]
        if asked_name == host.name:
            return values
        if _is_shared(asked_name, values):  # Then the hosts differ only in their addresses.
            return {**values, "hostname": [host.name]}
        values, _ = _query(host)  # The shared answer depends on the name of the other host.
        return values

    def _key(self, host: Host) -> object:
        """Return what decides about a host's options: user, port, and which patterns the name matches.

        If nobody knows the patterns, it is the name itself.
        """
        if self._patterns is None:
            return (host.user, host.port, host.name)
        matches = (fnmatch.fnmatchcase(host.name.lower(), pattern) for pattern in self._patterns)
        return (host.user, host.port, *matches)


def _host_patterns(paths: Iterable[str]) -> list[str] | None:
    """Return the patterns of all ``Host`` lines in files of ssh_config.

    None if a ``Match`` line decides about options, too, or a file cannot be read.
    """
    patterns: list[str] = []
    for path in paths:
        try:
            text = read_regular(path).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        for keyword, rest in re.findall(r"(?im)^[ \t]*(host|match)\b[ \t=]*(.*)", text):
            words = rest.replace('"', " ").split()
            if keyword.lower() == "host":
                patterns += (word.lstrip("!") for word in words)
            elif words not in (["all"], ["final", "all"]):  # These match every host.
                return None
    return patterns


def _is_shared(name: str, values: Values) -> bool:
    """Return whether hosts that match the same ``Host`` lines as this one have the same options.

    The name of the host may occur only as its ``HostName``, which each of the others replaces by its own.

    Args:
        name: The name of the host that ``ssh`` was asked about.
        values: The answer.
    """
    is_canonicalized = values.get("canonicalizehostname", ["no"])[0] not in _OFF_VALUES
    if values.get("hostname") != [name] or is_canonicalized:
        return False
    others = (text for key, texts in values.items() if key not in ("host", "hostname") for text in texts)
    return not any(name in text for text in others)


def _query(host: Host) -> tuple[Values, list[str]]:
    """Return the options that ``ssh -G`` prints, and the paths of the files that it has read.

    Both are empty if neither the ``ssh`` command nor the user's ssh_config exists, because then the defaults
    hold. The caller reads the ``Host`` lines of these files, which tell for which hosts the options differ.

    Raises:
        SshError: ``ssh`` fails, or does not exist although ssh_config does.
    """
    file, home = os.path.expanduser(USER_FILE), account().pw_dir
    # With -v, ssh also writes to its stderr which files it reads.
    arguments = ["-v"]
    arguments += ["-l", host.user] if host.user else []
    arguments += ["-p", str(host.port)] if host.port else []
    try:
        done = ask_ssh([*arguments, "--", host.name], home, _QUERY_TIMEOUT_SECONDS)
    except FileNotFoundError as error:
        if os.path.exists(file):
            raise SshError(f"the `ssh` command, which reads {USER_FILE}, is missing here") from error
        return {}, []
    except OSError as error:
        raise SshError(f"ssh -G {host.name} cannot be started: {why_not_started(error)}") from error
    except subprocess.TimeoutExpired as error:
        raise SshError(f"ssh -G {host.name} failed: {error}") from error
    lines = done.stderr.decode("utf-8", "surrogateescape").splitlines()
    if done.returncode:
        errors = [line for line in lines if not line.startswith(_NO_ERROR_PREFIXES)]
        reason = errors[0] if errors else "it failed without a message"
        raise SshError(f"{USER_FILE} cannot be understood: {reason}")
    values: Values = {}
    for line in done.stdout.decode("utf-8", "surrogateescape").splitlines():
        key, _, text = line.partition(" ")
        # These are the only paths in which ssh has expanded the home, which is that of the account. If HOME
        # names another folder, `~` stands for that one.
        if is_home_elsewhere(home) and key == "userknownhostsfile":
            text = text.replace(f"{home}/", "~/")
        values.setdefault(key, []).append(text)
    reads = [line for line in lines if line.startswith(_READS_FILE_PREFIX)]
    paths = [line.removeprefix(_READS_FILE_PREFIX).rstrip() for line in reads]
    return values, [path for path in paths if path != STDIN_PATH]


def unexpected(error: Exception) -> str:
    """Return a message for an error while connecting that is not about SSH.

    Mostly a limit of this machine is the cause.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no connection can be made here: {reason_of(error)} (`ulimit -n` is the limit)"
    if is_no_thread(error):
        return f"no connection can be made here: {NO_THREAD_REASON}"
    return f"no connection can be made: {type(error).__name__}: {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """Return the text of an exception on one line, or the name of its class if it has no text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = str(error).removeprefix("Error reading SSH protocol banner")  # paramiko writes this.
    return sanitize_host_text(" ".join(text.split())) or type(error).__name__
