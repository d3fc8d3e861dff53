"""Containers as hosts: each host of the job is a container, and the agent is its main process.

Everything goes through the ``docker`` command, here and on the hosts of a hostfile. So contexts,
``DOCKER_HOST``, TLS, ``ssh://`` engines, rootless engines and Podman's ``docker`` work as for the user.

::

    here       orchestrator ══ pipe ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...

End-of-file on the container's stdin ends the agent, and with it the container: no container outlives its
launcher.
"""

from __future__ import annotations

from launcher.config.schema import Section
from launcher.transports.docker.options import add_options, faults, read_section, settings

__all__ = ["KEYS", "add_options", "settings", "faults"]

KEYS = {"docker": Section("An image, or a mapping: each task runs in a container.", read_section)}
