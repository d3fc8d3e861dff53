"""The runs of this machine: the folder each leaves, and which launcher owns it.

A launch needs these three and nothing else, so only they are imported here.
``registry`` finds runs, ``run`` says what became of one, ``pruning`` forgets old ones: whoever needs them
imports them.
"""

from __future__ import annotations

from launcher.runs.folder import create, new_job_id, unfinished

__all__ = ["create", "new_job_id", "unfinished"]
