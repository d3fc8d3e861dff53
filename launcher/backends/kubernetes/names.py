"""Names and labels of the objects of a launch; pure."""

from __future__ import annotations

import hashlib
import re

from launcher.backends.kubernetes.status import HOST_LABEL

#: Labels of all Jobs and pods: who made them, the run, the host. The annotation names the launcher process.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER_NAME = "tf-launcher"
RUN_LABEL = "tf-launcher/run"
OWNER_ANNOTATION = "tf-launcher/owner"
#: The label of a launcher's Job and pod, in place of `RUN_LABEL`: a launch removes all objects with its
#: `RUN_LABEL`.
LAUNCHER_LABEL = "tf-launcher/launcher"
#: The longest name of an object; how many of its characters are kept for the number of the Job.
_MAX_NAME_CHARACTERS = 63
_NUMBER_CHARACTERS = 4


def job_name(run: str, host: str, number: int) -> str:
    """The name of a Job, which is unique in its namespace.

    Args:
        run: the name of the launch.
        host: of the launch.
        number: of the Jobs of this host, from 1.
    """
    name = _short(f"launch-{run}-{host}".lower(), _MAX_NAME_CHARACTERS - _NUMBER_CHARACTERS)
    return name if number == 1 else f"{name}-{number}"


def _short(name: str, longest: int) -> str:
    """A name for an object; the end of one that is too long is a digest."""
    name = re.sub("[^a-z0-9-]", "-", name)
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name.strip("-")


def labels(run: str, host: str) -> dict[str, str]:
    """The labels of the objects of a host of a launch."""
    short_host = _short(host, _MAX_NAME_CHARACTERS)
    return {MANAGED_BY_LABEL: MANAGER_NAME, RUN_LABEL: run, HOST_LABEL: short_host}


def selector(run: str = "", label: str = RUN_LABEL) -> str:
    """Selects the objects of a launch, or of all launches; or those of launchers, by `LAUNCHER_LABEL`."""
    return f"{MANAGED_BY_LABEL}={MANAGER_NAME},{label}" + (f"={run}" if run else "")
