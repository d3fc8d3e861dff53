"""The Docker engine: where it is, whether it answers, and what is wrong if it does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException

from launcher.errors import TransportError

T = TypeVar("T")

#: What the SDK, and what is below it, raise.
FAULTS = (DockerException, requests.RequestException, OSError)

#: The oldest API with all that we ask for (mounts, the end of a container that is removed): Docker 17.06.
OLDEST_API = (1, 30)
#: Seconds for one answer of the engine: while it makes things, and once they are made; and connections to it
#: that are kept.
_ANSWER, _SOON = 60, 15
_CONNECTIONS = 64
_DEFAULT = "unix:///var/run/docker.sock"
#: Seconds without an answer before the user is told who is awaited.
_PATIENCE = 2.0


class Where(NamedTuple):
    """Where an engine is to be found, and who says so."""

    address: str
    source: str
    tls: object = None

    @property
    def is_socket(self) -> bool:
        """Whether a plain socket reaches it."""
        return self.address.startswith(("unix://", "tcp://", "http://")) and not self.tls

    def late_words(self) -> str:
        """What is said when its answer takes long."""
        return f"waiting for the Docker engine at {self.address} to answer"


class _Client(docker.APIClient):  # type: ignore[misc]  # the SDK has no types
    """One that, once it has had no answer in time, does not ask for more, if it was told so.

    A job that ends has many questions, for each container several: an engine that hangs would have it wait
    for each.
    """

    asks_once = False
    gave_up = False
    #: Told when an answer takes long.
    late: Callable[[], None] | None = None

    def send(self, *args: Any, **more: Any) -> Any:
        """See `requests.Session.send`."""
        if self.gave_up:
            raise requests.Timeout("it has not answered before")
        try:
            with _patience(self.late):
                return super().send(*args, **more)
        except requests.Timeout:
            self.gave_up = self.asks_once
            raise

    def ping(self, seconds: float) -> None:
        """Ask for nothing at all, whatever was asked before; raises as `send` does."""
        request = self.prepare_request(requests.Request("GET", self._url("/_ping", versioned_api=False)))
        super().send(request, timeout=seconds)


@contextmanager
def _patience(late: Callable[[], None] | None) -> Iterator[None]:
    """Have this called when what is done within takes long."""
    timer = None if late is None else threading.Timer(_PATIENCE, late)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


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
        #: It does not answer just now, see `launcher.transport.docker.pulse`.
        self.stuck = False

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
        return explained(error, self.where, self.client.timeout)

    def hurry(self) -> None:
        """All is made: what is asked from now on is soon done, or the engine hangs and is not asked again."""
        self.client.timeout = _SOON
        self.client.asks_once = True

    def attend(self, tell: Callable[[str], None] | None) -> None:
        """Have the user told when an answer takes long; ``None``: somebody else sees to that."""
        late = self.where.late_words()
        self.client.late = None if tell is None else lambda: tell(late)

    def is_silent(self, seconds: float) -> bool:
        """Whether there is no answer within so many seconds; one that refuses is not silent."""
        try:
            self.client.ping(seconds)
        except (TimeoutError, requests.Timeout):
            return True
        except FAULTS:  # it has gone: whoever listens to it hears that
            return False
        return False

    def give_up(self) -> None:
        """It has not answered for so long that it is not asked any more."""
        self.client.gave_up = True

    @property
    def hangs(self) -> bool:
        """Whether it does not answer just now, or has not answered in time since `hurry`."""
        return self.stuck or bool(self.client.gave_up)

    def close(self) -> None:
        """Let go of all connections that are not in use."""
        self.client.close()


def connect(environ: Mapping[str, str], tell: Callable[[str], None] | None = None) -> Engine:
    """Reach the engine that the ``docker`` command would.

    Args:
        environ: says where it is.
        tell: gets a line for the user when an answer takes long, now and later.

    Raises:
        TransportError: there is none, it may not be used, or it is too old.
    """
    where = find(environ)
    with _patience(None if tell is None else lambda: tell(where.late_words())):
        if where.is_socket:
            client = _met(where, lambda: _client(where.address, "auto"))
        else:
            client = _dialled(environ, where)
        info = _met(where, client.info)
    _check(client.api_version, info, where)
    engine = Engine(client, where, info)
    engine.attend(tell)
    return engine


def _client(address: str, version: str) -> _Client:
    return _Client(base_url=address, version=version, timeout=_ANSWER, max_pool_size=_CONNECTIONS)


def _met(where: Where, request: Callable[[], T], said: Callable[[], str] = str) -> T:
    """What an engine answers that has not answered before.

    Args:
        where: it is.
        request: what to ask.
        said: what the command says that passes on the question, if there is one.

    Raises:
        TransportError: it does not answer.
    """
    try:
        return request()
    except FAULTS as error:
        words = said()
        at = f"the Docker engine at {where.address} (from {where.source})"
        told = f"{at} can't be reached by the docker command: {words}" if words else explained(error, where)
        raise TransportError(told) from error


def _dialled(environ: Mapping[str, str], where: Where) -> _Client:
    """A client whose connections the ``docker`` command makes."""
    from launcher.transport.docker.dialled import Adapter, Dialler

    dialler = Dialler(environ, f"the Docker engine at {where.address} (from {where.source})")
    adapter = Adapter(dialler, _ANSWER, _CONNECTIONS)
    try:
        found: dict[str, str] = _met(
            where, lambda: _through(adapter, "1.30").version(api_version=False), dialler.said
        )
        return _through(adapter, found["ApiVersion"])
    except TransportError:
        adapter.close()
        raise


def _through(adapter: Any, version: str) -> _Client:
    """A client that speaks through this adapter, whatever it takes its address for."""
    client = _client(_DEFAULT, version)
    client.mount("http+docker://", adapter)
    return client


def find(environ: Mapping[str, str]) -> Where:
    """Where the engine is: ``DOCKER_HOST``, ``DOCKER_CONTEXT``, the chosen context, the usual place.

    Raises:
        TransportError: a context that is not there, or a kind of address that we do not know.
    """
    where = _by_variable(environ) if environ.get("DOCKER_HOST") else _by_context(environ)
    if where.address.partition("://")[0] not in ("unix", "tcp", "http", "https", "ssh"):
        raise TransportError(
            f"{where.source} has the Docker engine at {where.address}: only unix://, tcp:// and ssh:// are "
            "understood"
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


def explained(error: BaseException, where: Where, seconds: float = _ANSWER) -> str:
    """Why an engine can't be used, from what the SDK raised, and what to try.

    Args:
        error: what was raised.
        where: the engine.
        seconds: that it was given for its answer.
    """
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
        return f"the Docker engine {at} does not answer within {seconds:g} s"
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
