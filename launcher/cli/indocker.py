"""A launch in containers: a network of the job's own, a container for each task, and nothing of it left."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher import runs
from launcher.cli import launching
from launcher.cli.containers import containers, folders_of, job_in_image, with_outputs
from launcher.cli.dockeroptions import on_machines
from launcher.cli.dockerowner import is_dead, labels
from launcher.cli.request import Request, this_machine
from launcher.cli.telling import tell
from launcher.cli.voice import Voice
from launcher.errors import Fault, JobError, PlacementError
from launcher.job import Host, JobSpec, Placement, Role
from launcher.scheduler.placement import place
from launcher.text import counted
from launcher.transport.docker.settings import JOB, KEPT, Container

if TYPE_CHECKING:
    from types import FrameType

    from launcher.output.selection import Selection
    from launcher.transport.docker.engine import Engine

#: Signals that end us, while there is no job yet that would be told of them.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(
    wanted: Request,
    args: argparse.Namespace,
    selection: Callable[[str | None, Placement], Selection | None],
) -> int:
    """Run a job in containers.

    Args:
        wanted: the job; its hosts, if any were named, are containers, or machines that have one each.
        args: the options.
        selection: reads ``--show``.

    Returns:
        The job's exit code.

    Raises:
        LaunchError: it could not be started; nothing is left then.
    """
    if on_machines(args, wanted.hosts):
        from launcher.cli import dockerhosts

        return dockerhosts.launch(wanted, args, selection)
    wanted = wanted._replace(job=job_in_image(wanted, args))
    hosts, gpus = _hosts(wanted, args)
    placement = place(wanted.job, hosts)
    folders = [] if args.no_mount else folders_of(wanted.job)
    made = containers(wanted, args, placement, gpus, folders)
    if args.dry_run:
        from launcher.cli import dryrun

        return dryrun.show(wanted.job, placement, as_json=args.json)
    return _launch(wanted, args, placement, made, selection(args.show, placement))


def _launch(
    wanted: Request,
    args: argparse.Namespace,
    placement: Placement,
    made: Sequence[Container],
    show: Selection | None,
) -> int:
    from launcher.transport.docker import lean

    lean.fetch()
    from launcher.transport.docker import images
    from launcher.transport.docker.engine import connect
    from launcher.transport.docker.faults import mismatch
    from launcher.transport.docker.fleet import Fleet

    job = runs.new_job_id()
    with Voice() as voice, _Signals() as signals:
        tell = _Teller()
        engine = connect(os.environ, tell)
        _sweep(engine, tell)
        image = images.provide(engine, args.docker, args.pull or images.MISSING, tell)
        odd = mismatch(image, str(engine.info.get("Architecture", "")))
        made = [_as_user(one._replace(architecture=odd), args, engine) for one in made]
        paths = None
        if wanted.job.output_dirs:
            paths = runs.create(wanted.run_dir, job)
            placement, made = with_outputs(placement, made, paths, for_all=args.user is not None)
        with Fleet(engine, job, made, labels(), tell, args.keep) as fleet, signals:
            fleet.start()
            tell.voice = voice
            try:
                code = launching.launch(
                    wanted, placement, args, show, lambda _: fleet, job=job, voice=voice, paths=paths
                )
            finally:
                tell.voice = None
                for remark in voice.take():
                    tell(remark)
        engine.close()
        if args.keep:
            _tell_kept(job, [fleet.name(container.host) for container in made], tell)
        return code


class _Teller:
    """Says it to the user: through the job's own console, while there is one."""

    def __init__(self) -> None:
        self.voice: Voice | None = None

    def __call__(self, text: str) -> None:
        if self.voice is not None:
            self.voice.tell(text)
        else:
            tell(text)


class _Signals:
    """Before and after the job itself: the first signal ends us in good order, the others change nothing.

    A context twice: around all, and around what is to be removed. Once the inner one is left, we are
    removing, and a signal would only leave more behind.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._ending = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        self._depth += 1
        if self._depth == 1:
            heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._old = {number: signal.signal(number, self._came) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._ending = True
        signal.setitimer(signal.ITIMER_REAL, 0)  # also the one that Python has dropped a moment ago
        if self._depth == 0:
            for number, handler in self._old.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what it was before

    def _came(self, number: int, _: FrameType | None) -> None:
        if self._ending:
            return
        self._ending = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


# ---------------------------------------------------------------------- what is wanted


def _hosts(wanted: Request, args: argparse.Namespace) -> tuple[tuple[Host, ...], dict[str, tuple[str, ...]]]:
    """The containers as hosts, and the GPUs of each.

    Raises:
        JobError: options that can't be followed.
        PlacementError: there are not so many GPUs.
    """
    faults = list(_twin_faults(wanted.job))
    if faults:
        raise JobError(faults)
    if args.hosts is not None:
        return tuple(host._replace(address=host.name) for host in wanted.hosts), {}
    return _own_hosts(wanted.job)


def _twin_faults(job: JobSpec) -> Iterator[Fault]:
    """Roles whose containers would have the same names."""
    seen: dict[str, str] = {}
    for role in job.roles:
        other = seen.setdefault(_host_name(role, 0), role.name)
        if other != role.name:
            yield Fault(
                role.source, f"the containers of {other!r} and {role.name!r} would have the same names"
            )


def _own_hosts(job: JobSpec) -> tuple[tuple[Host, ...], dict[str, tuple[str, ...]]]:
    """A host for each task, of its name."""
    free = list(this_machine(os.environ).gpus or ())
    asked = sum((role.gpus or 0) * role.count for role in job.roles)
    if asked > len(free):
        what = f"the tasks ask for {counted(asked, 'GPU')}, this machine has {len(free)}"
        raise PlacementError([Fault("", what, "ask for fewer with --gpus")])
    hosts: list[Host] = []
    given: dict[str, tuple[str, ...]] = {}
    for role in job.roles:
        for index in range(role.count):
            name = _host_name(role, index)
            given[name], free = tuple(free[: role.gpus or 0]), free[role.gpus or 0 :]
            # In the container they have numbers of their own.
            seen = tuple(map(str, range(role.gpus))) if role.gpus else None
            hosts.append(Host(name, slots=1, roles=(role.name,), gpus=seen, source=role.source))
    return tuple(hosts), given


def _host_name(role: Role, index: int) -> str:
    """``worker-0``; underscores are for names of services, not of hosts."""
    return f"{role.name.lower().replace('_', '-')}-{index}"


def _as_user(container: Container, args: argparse.Namespace, engine: Engine) -> Container:
    """Files that a task writes to a mount are to belong to who called us."""
    mine = "0:0" if engine.is_rootless else f"{os.getuid()}:{os.getgid()}"
    return container._replace(user=args.user or mine)


# ---------------------------------------------------------------------- before and after


def _sweep(engine: Engine, tell: _Teller) -> None:
    """Remove what launches of this user have left that were killed; what --keep left stays."""
    from launcher.transport.docker import leftovers

    found = [
        thing for thing in leftovers.things(engine) if KEPT not in thing.labels and is_dead(thing.labels)
    ]
    if found:
        left = leftovers.remove(engine, found)
        names = ", ".join(thing.name for thing in found)
        tell(f"removed what a killed launch had left: {names}" if not left else "; ".join(left))


def _tell_kept(job: str, names: Sequence[str], tell: _Teller) -> None:
    tell(f"kept, as --keep asks: docker ps -a --filter label={JOB}={job}")
    tell(f"look at one:          docker diff {names[0]}; docker cp {names[0]}:/PATH .")
    tell(f"a shell in it:        docker commit {names[0]} look && docker run -it --rm --entrypoint sh look")
    tell("remove them:          launch clean")
