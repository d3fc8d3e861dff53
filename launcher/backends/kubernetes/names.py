"""The names and labels of the objects of a launch. Nothing here asks the cluster."""

from __future__ import annotations

import hashlib
import re

from launcher.backends.kubernetes.status import HOST_LABEL

#: The label of all Jobs and pods that says who made them.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER_NAME = "tf-launcher"
#: The label of all Jobs and pods of tasks that names the run.
RUN_LABEL = "tf-launcher/run"
#: The annotation of a Job that names the launcher process.
OWNER_ANNOTATION = "tf-launcher/owner"
#: The label of a launcher's Job and pod that names the run. They lack `RUN_LABEL`, because a launch removes
#: all objects with its `RUN_LABEL`.
LAUNCHER_LABEL = "tf-launcher/launcher"
#: The length of the longest name of an object.
_MAX_NAME_CHARACTERS = 63
#: The characters of a name that are kept free for the number of the Job.
_NUMBER_CHARACTERS = 4


def job_name(run: str, host: str, number: int) -> str:
    """Return the name of a Job, which is unique in its namespace.

    Args:
        run: The name of the run.
        host: The name of the host.
        number: The number of the Job among those of this host, from 1.
    """
    name = _short(f"launch-{run}-{host}".lower(), _MAX_NAME_CHARACTERS - _NUMBER_CHARACTERS)
    return name if number == 1 else f"{name}-{number}"


def _short(name: str, longest: int) -> str:
    """Return a valid name for an object of Kubernetes, with at most ``longest`` characters.

    The end of a name that would be too long is replaced by a digest of the name, so that it stays unique.
    """
    name = re.sub("[^a-z0-9-]", "-", name)
    if len(name) > longest:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: longest - len(digest) - 1]}-{digest}"
    return name.strip("-")


def labels(run: str, host: str) -> dict[str, str]:
    """Return the labels of the Jobs and pods of a host of a run, by which launch finds them."""
    short_host = _short(host, _MAX_NAME_CHARACTERS)
    return {MANAGED_BY_LABEL: MANAGER_NAME, RUN_LABEL: run, HOST_LABEL: short_host}


def selector(run: str = "", label: str = RUN_LABEL) -> str:
    """Return a label selector, as kubectl's ``--selector`` expects it, of the objects of runs.

    Args:
        run: The name of the run. Empty to select the objects of all runs.
        label: The label that contains the name of the run: `RUN_LABEL` on the objects of tasks,
            `LAUNCHER_LABEL` on those of launchers.
    """
    return f"{MANAGED_BY_LABEL}={MANAGER_NAME},{label}" + (f"={run}" if run else "")
