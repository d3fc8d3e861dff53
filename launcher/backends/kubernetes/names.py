"""Names and labels of the objects of a launch; pure."""

from __future__ import annotations

import hashlib
import re

from launcher.backends.kubernetes.status import HOST

#: Labels of all Jobs and pods: who made them, the run, the host. The annotation names the launcher process.
MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "tf-launcher"
RUN = "tf-launcher/run"
OWNER = "tf-launcher/owner"
#: The label of a launcher's Job and pod, in place of `RUN`: a launch removes all objects with its `RUN`.
LAUNCHER = "tf-launcher/launcher"
#: The longest name of an object; how many of its characters are kept for the number of the Job.
_LONGEST = 63
_NUMBER = 4


def job_name(run: str, host: str, number: int) -> str:
    """The name of a Job, which is unique in its namespace.

    Args:
        run: the name of the launch.
        host: of the launch.
        number: of the Jobs of this host, from 1.
    """
    name = _short(f"launch-{run}-{host}".lower(), _LONGEST - _NUMBER)
    return name if number == 1 else f"{name}-{number}"


def _short(name: str, longest: int) -> str:
    """A name for an object; the end of one that is too long is a digest."""
    name = re.sub("[^a-z0-9-]", "-", name)
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name.strip("-")


def labels(run: str, host: str = "") -> dict[str, str]:
    """The labels of the objects of a launch, or of one of its hosts."""
    return {MANAGED_BY: NAME, RUN: run, **({HOST: _short(host, _LONGEST)} if host else {})}


def selector(run: str = "", label: str = RUN) -> str:
    """Selects the objects of a launch, or of all launches; or those of launchers, by `LAUNCHER`."""
    return f"{MANAGED_BY}={NAME},{label}={run}" if run else f"{MANAGED_BY}={NAME},{label}"
