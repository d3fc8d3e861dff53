"""Runs an example whose clusters have settings of a job file: ``python with_job.py JOB SCRIPT WORDS``.

`TFParallel` has none: what the example runs with it runs on this machine.
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial

from launcher import TFCluster

job, script, *words = sys.argv[1:]
TFCluster.run = staticmethod(partial(TFCluster.run, job=job))  # type: ignore[method-assign]
sys.argv = [script, *words]
sys.path.insert(0, os.path.dirname(script))
runpy.run_path(script, run_name="__main__")
