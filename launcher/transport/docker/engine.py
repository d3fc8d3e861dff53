"""The Docker engine: where it is, whether it answers, and what is wrong if it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException

from launcher.errors import TransportError
from launcher.model.records import NamedTuple

T = TypeVar("T")

#: What the SDK, and what is below it, raise.
FAULTS = (DockerException, requests.RequestException, OSError)

#: The oldest API with all that we ask for (mounts, the end of a container that is removed): Docker 17.06.
OLDEST_API = (1, 30)
#: Seconds for one answer of the engine; and connections to it that are kept.
_ANSWER = 60
_CONNECTIONS = 64
_DEFAULT = "unix:///var/run/docker.sock"


class Where(NamedTuple):
    """Where an engine is to be found, and who says so."""

    address: str
    source: str
    tls: object = None


class Engine:
    """An engine that has answered.

    Args:
        client: speaks to it.
        where: its address.
        info: as ``docker info`` has it.
    """

    def __init__(self, client: Any, where: Where, info: Mapping[str, Any]) -> None:
        self.client = client
        self.where = where
        self.info = info

    @property
    def is_here(self) -> bool:
        """Whether its containers share this machine's kernel, and so its clock."""
        return bool(self.info.get("Name") == os.uname().nodename)

    @property
    def is_rootless(self) -> bool:
        """Whether it runs as its user: then that user is root in its containers."""
        return "name=rootless" in (self.info.get("SecurityOptions") or ())

    def asked(self, what: str, request: Callable[[], T]) -> T:
        """The engine's answer.

        Args:
            what: was to be done, for messages: ``the network can't be made``.

        Raises:
            TransportError: it refused, or does not answer any more.
        """
        try:
            return request()
        except FAULTS as error:
            raise TransportError(f"{what}: {self.explain(error)}") from error

    def explain(self, error: BaseException) -> str:
        """What went wrong, in the engine's own words where it has some."""
        if isinstance(error, APIError):
            return str(error.explanation or error).strip()
        return explained(error, self.where)

    def close(self) -> None:
        """Let go of all connections that are not in use."""
        self.client.close()


def connect(environ: Mapping[str, str]) -> Engine:
    """Reach the engine that the ``docker`` command would.

    Raises:
        TransportError: there is none, it may not be used, or it is too old.
    """
    where = find(environ)
    try:
        client = docker.APIClient(
            base_url=where.address,
            tls=where.tls or False,
            version="auto",
            timeout=_ANSWER,
            max_pool_size=_CONNECTIONS,
        )
        info = client.info()
    except FAULTS as error:
        raise TransportError(explained(error, where)) from error
    _check(client.api_version, info, where)
    return Engine(client, where, info)


def find(environ: Mapping[str, str]) -> Where:
    """Where the engine is: ``DOCKER_HOST``, ``DOCKER_CONTEXT``, the chosen context, the usual place.

    Raises:
        TransportError: a context that is not there, or a kind of address that we do not know.
    """
    where = _by_variable(environ) if environ.get("DOCKER_HOST") else _by_context(environ)
    kind, tls = where.address.partition("://")[0], " with TLS" if where.tls else ""
    if kind not in ("unix", "tcp", "http") or where.tls:
        raise TransportError(
            f"{where.source} has the Docker engine at {where.address}{tls}: only unix:// and tcp:// without "
            "TLS are understood (`ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST` makes a unix socket of "
            "an engine elsewhere)"
        )
    return where


def _by_variable(environ: Mapping[str, str]) -> Where:
    try:
        found = docker.utils.kwargs_from_env(environment=dict(environ))
    except FAULTS as error:
        raise TransportError(f"DOCKER_HOST and DOCKER_CERT_PATH: {error}") from error
    return Where(environ["DOCKER_HOST"], "DOCKER_HOST", found.get("tls"))


def _by_context(environ: Mapping[str, str]) -> Where:
    """The SDK knows how to read contexts, but does not use them by itself."""
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name

    name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    if name == "default":
        return Where(_DEFAULT, "the usual place")
    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # noqa: BLE001 - the SDK raises a bare Exception for a damaged file
        raise TransportError(f"the Docker context {name!r} can't be read: {error}") from error
    if context is None or not context.Host:
        raise TransportError(f"there is no Docker context {name!r} (`docker context ls` lists them)")
    return Where(context.Host, f"the Docker context {name!r}", context.TLSConfig)


def _check(version: str, info: Mapping[str, Any], where: Where) -> None:
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_API:
        needed = ".".join(map(str, OLDEST_API))
        raise TransportError(
            f"the Docker engine at {where.address} is too old: its API is {version}, {needed} is needed "
            "(Docker 17.06 or newer)"
        )
    if info.get("OSType", "linux") != "linux":
        raise TransportError(
            f"the Docker engine at {where.address} runs {info['OSType']} containers, not Linux"
        )


def explained(error: BaseException, where: Where) -> str:
    """Why an engine can't be used, from what the SDK raised, and what to try."""
    causes = list(_causes(error))
    at = f"at {where.address}"
    if any(isinstance(cause, PermissionError) for cause in causes):
        return (
            f"this user may not use the Docker engine {at}: `sudo usermod -aG docker $USER` and a new login "
            "would allow it (it gives the rights of root), or use a rootless engine"
        )
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        return (
            f"there is no Docker engine {at} (from {where.source}): is Docker installed and running? "
            "DOCKER_HOST or `docker context use` say where else it is"
        )
    if any(isinstance(cause, (ConnectionError, requests.ConnectionError)) for cause in causes):
        return f"no Docker engine answers {at} (from {where.source}): is it running?"
    if any(isinstance(cause, (TimeoutError, requests.Timeout)) for cause in causes):
        return f"the Docker engine {at} does not answer within {_ANSWER} s"
    if "is not supported by this library" in str(error) or "client version" in str(error):
        return f"the Docker engine {at} is too old, or too new: {error}"
    return f"the Docker engine {at} can't be used: {error}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it stands for: the SDK and urllib3 keep them in different places."""
    seen: set[int] = set()
    queue: list[object] = [error]
    while queue:
        found = queue.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            queue += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
