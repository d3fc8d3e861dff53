"""A node of Slurm: the main process of a step reports about the node, then becomes its agent.

The launcher names `serve` as the entry of each step. Nothing of the step is left in the environment of the
tasks but what describes the job.
"""

import json
import os
import signal
import sys
import zlib
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence

from launcher.agent import main
from launcher.agent.processes import write_all

#: Beginnings of variables that Slurm sets.
_SLURM_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "PALS_")
#: Those that a task keeps of its step: the name of the node, and where Slurm's commands find the cluster.
_NODE_VARIABLES = ("SLURMD_NODENAME", "SLURM_CONF")
#: Those that describe the job. All others describe a step of one task: with them, a library that looks for
#: Slurm takes each task for a job of its own, and an srun of the user's binds its tasks to one core.
_JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS",
    "SLURM_JOB_RESERVATION", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST",
    "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
)  # fmt: skip
#: Seconds from the look at the node to the start of its agent: tasks are placed meanwhile.
_ARGUMENTS_TIMEOUT_SECONDS = 600
#: Bytes of a file that are compared.
_COMPARED_BYTES = 1 << 20


def job_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that describe the job."""
    return {name: environ[name] for name in _JOB_VARIABLES if name in environ}


def without_step(environ: Mapping[str, str], job: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of tasks: that of the step, with what describes the job, not the step.

    Args:
        environ: Of the step.
        job: Variables that describe the job; the step has others of the same names.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(_SLURM_PREFIXES)}
    kept.update((name, environ[name]) for name in _NODE_VARIABLES if name in environ)
    kept.update(job)
    return kept


def serve(arguments: Mapping[str, Any]) -> NoReturn:
    """Write a line of JSON about this node; a line of JSON on stdin makes this process the agent.

    The line has the arguments of `launcher.agent.main.serve`, and ``variables`` that describe the job. Empty
    lines may precede it. If stdin ends before this line, the launcher does not need the node.

    Args:
        arguments: ``files``: paths, and what `fingerprint` says about them on the machine of launch.
    """
    files: Mapping[str, Optional[List[Any]]] = arguments["files"]
    cpus = os.environ.get("SLURM_CPUS_ON_NODE", "")
    found = {
        "cpus": int(cpus) if cpus.isdecimal() else 1,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "same": all(told is not None and fingerprint(path) == told for path, told in files.items()),
    }
    signal.alarm(_ARGUMENTS_TIMEOUT_SECONDS)  # if srun is killed, stdin does not end
    write_all(1, json.dumps(found).encode("ascii") + b"\n")
    _import_the_agent()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)  # no more: what follows is the agent's
        if not piece:
            sys.exit(0)
        line = (line + piece).lstrip()
    signal.alarm(0)
    arguments = json.loads(line)
    environ = without_step(os.environ, arguments["variables"])
    os.environ.clear()
    os.environ.update(environ)
    main.serve(arguments)


def _import_the_agent() -> None:
    """Import the modules of the agent while the launcher places the tasks."""
    import launcher.agent.agent  # noqa: F401, PLC0415 - imported while the node waits


def fingerprint(path: str) -> Optional[Sequence[Any]]:
    """Return the inode of a file or folder, and the content of a file, or None if it cannot be read.

    File systems that machines share have the same inodes on all of them.
    """
    try:
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            return [inode]
        with open(path, "rb") as file:
            return [inode, zlib.crc32(file.read(_COMPARED_BYTES))]
    except OSError:
        return None
