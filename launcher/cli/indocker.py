"""A launch in containers: a network of the job's own, a container for each task, and nothing of it left."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher import runs
from launcher.cli import launching
from launcher.cli.containers import job_in_image, with_outputs
from launcher.cli.dockeroptions import on_machines
from launcher.cli.request import Request, this_machine
from launcher.cli.telling import tell
from launcher.cli.voice import Voice
from launcher.job import Placement
from launcher.scheduler.placement import place
from launcher.transports.docker import engine
from launcher.transports.docker.container import JOB, Container, container_name, labels
from launcher.transports.docker.here import Containers, ready
from launcher.transports.docker.options import DockerOptions, containers, folders_of, own_hosts

if TYPE_CHECKING:
    from types import FrameType

    from launcher.output.selection import Selection

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
    docker = args.containers
    if on_machines(args, wanted.hosts):
        from launcher.cli import dockerhosts

        return dockerhosts.launch(wanted, args, selection)
    wanted = wanted._replace(job=job_in_image(wanted, docker))
    hosts, gpus = own_hosts(wanted.job, this_machine(os.environ).gpus or ())
    placement = place(wanted.job, hosts)
    folders = [] if docker.no_mount else folders_of(wanted.job)
    made = containers(docker, wanted.job, placement, gpus, folders, here=True)
    if args.dry_run:
        from launcher.cli import dryrun

        return dryrun.show(wanted.job, placement, as_json=args.json)
    return _launch(wanted, args, docker, placement, made, selection(args.show, placement))


def _launch(
    wanted: Request,
    args: argparse.Namespace,
    docker: DockerOptions,
    placement: Placement,
    made: Sequence[Container],
    show: Selection | None,
) -> int:
    job = runs.new_job_id()
    with Voice() as voice, _Signals() as signals:
        tell = _Teller()
        made, same_clock = ready(made, docker, tell)
        paths = None
        if wanted.job.output_dirs:
            paths = runs.create(wanted.run_dir, job)
            placement, made = with_outputs(placement, made, paths, for_all=docker.user is not None)
        marks = labels(job, docker.keep)
        with Containers(engine.run_here, job, made, marks, same_clock, tell) as fleet, signals:
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
        if docker.keep:
            _tell_kept(job, [container_name(job, container.host) for container in made], tell)
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


def _tell_kept(job: str, names: Sequence[str], tell: _Teller) -> None:
    tell(f"kept, as --keep asks: docker ps -a --filter label={JOB}={job}")
    tell(f"look at one:          docker diff {names[0]}; docker cp {names[0]}:/PATH .")
    tell(f"a shell in it:        docker commit {names[0]} look && docker run -it --rm --entrypoint sh look")
    tell("remove them:          launch clean")
