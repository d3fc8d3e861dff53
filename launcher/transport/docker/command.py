"""A container as a ``docker run`` command line, for engines that are reached by that command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.transport.docker.arrival import WORDS
from launcher.transport.docker.options import as_words
from launcher.transport.docker.settings import Container, Mount


def run_command(container: Container, name: str, labels: Mapping[str, str], keep: bool) -> list[str]:
    """The words that start it, with the pipes of its agent as stdin, stdout and stderr.

    Nothing of the user's environment is on it: that travels to the agent.

    Args:
        container: what it is to be like; the host's own network is its network.
        name: what it is called at the engine.
        labels: whose it is.
        keep: leave it for a look when it has ended.
    """
    words = ["docker", "run", "--interactive", "--name", name, "--network", "host", "--log-driver", "none"]
    words += [] if keep else ["--rm"]
    for label, value in labels.items():
        words += ["--label", f"{label}={value}"]
    words += _limits(container)
    for mount in container.mounts:
        words += ["--mount", _mount(mount)]
    words += as_words(container.options)
    return [*words, "--entrypoint", container.python, container.image, *WORDS]


def _limits(container: Container) -> Iterator[str]:
    if container.user:
        yield from ("--user", container.user)
    if container.memory is not None:
        yield from ("--memory", str(container.memory), "--memory-swap", str(container.memory))
    if container.cpus is not None:
        yield from ("--cpus", f"{container.cpus:g}")
    if container.gpus:
        yield from ("--gpus", _quoted(f"device={','.join(container.gpus)}"))


def _mount(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return ",".join(_quoted(field) for field in [*fields, *(["readonly"] if mount.read_only else [])])


def _quoted(field: str) -> str:
    """One field of a line of CSV, which is what these options are."""
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field
