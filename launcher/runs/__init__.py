"""The runs of this machine: the folder of each, and the launcher process that owns it.

`folder` makes and prunes folders, `run` reads one, `registry` finds them, `owner` identifies the launcher
process, `orphans` ends the processes of a run whose launcher and agent were killed, `logs` reads logs while
they grow.
"""

from __future__ import annotations

from launcher.runs.folder import create, new_job_id, unfinished

__all__ = ["create", "new_job_id", "unfinished"]
