"""The main process of a Slurm step: it reports about its node, then becomes the agent of the node.

The launcher starts one step on each node, with `serve` as its entry. The environment of the tasks must
contain nothing of the step except what describes the job.
"""

import json
import os
import signal
import sys
import zlib
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence

from launcher.agent import main
from launcher.agent.processes import write_all

#: The names of all variables that Slurm sets begin with one of these.
_SLURM_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "PALS_")
#: The variables of the step that a task keeps: the name of the node, and where Slurm's commands find the
#: cluster.
_NODE_VARIABLES = ("SLURMD_NODENAME", "SLURM_CONF")
#: The variables that describe the job. All others describe a step of one task. With them, a library that
#: looks for Slurm would treat each task as a job of its own, and the user's srun would bind its tasks to one
#: core.
_JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS",
    "SLURM_JOB_RESERVATION", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST",
    "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
)  # fmt: skip
# The launcher places the tasks between the report about the node and the start of the agent.
_ARGUMENTS_TIMEOUT_SECONDS = 600
# Only the beginning of a file is compared.
_COMPARED_BYTES = 1 << 20


def job_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that describe the Slurm job, out of an environment that may have others."""
    return {name: environ[name] for name in _JOB_VARIABLES if name in environ}


def without_step(environ: Mapping[str, str], job: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment for tasks: that of the step, but with the job's Slurm variables.

    Args:
        environ: The environment of the step. Of its variables that Slurm has set, few are kept.
        job: The variables that describe the job. They replace those of the step that have the same names.
    """
    variables = {name: value for name, value in environ.items() if not name.startswith(_SLURM_PREFIXES)}
    variables.update((name, environ[name]) for name in _NODE_VARIABLES if name in environ)
    variables.update(job)
    return variables


def serve(arguments: Mapping[str, Any]) -> NoReturn:
    """Report about this node, wait until the launcher wants an agent here, and become the agent.

    The report is a line of JSON on stdout. It contains the number of CPUs, the GPUs that Slurm has granted,
    and whether this node shares files with the machine of the launcher. The launcher answers with a line of
    JSON on stdin, which empty lines may precede: the arguments of `launcher.agent.main.serve`, and
    ``variables`` that describe the job. If stdin is closed before, the launcher does not need the node, and
    this process exits with 0.

    Args:
        arguments: The mapping ``files``, with the `fingerprint` that each path has on the machine of the
            launcher.
    """
    files: Mapping[str, Optional[List[Any]]] = arguments["files"]
    cpus = os.environ.get("SLURM_CPUS_ON_NODE", "")
    # A path that the launcher could not read proves nothing.
    shares_files = all(there is not None and fingerprint(path) == there for path, there in files.items())
    report = {
        "cpus": int(cpus) if cpus.isdecimal() else 1,
        # None if Slurm has set no such variable, so nothing is known about GPUs.
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "same": shares_files,
    }
    # If srun is killed, stdin is not closed. Then the alarm kills this process.
    signal.alarm(_ARGUMENTS_TIMEOUT_SECONDS)
    write_all(1, json.dumps(report).encode("ascii") + b"\n")
    # The modules of the agent are imported while the launcher places the tasks.
    import launcher.agent.agent  # noqa: F401, PLC0415 - imported while the node waits

    line = b""
    while not line.endswith(b"\n"):
        # Bytes after the line are messages for the agent, so they are not read here.
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        # This drops the empty lines before the arguments.
        line = (line + byte).lstrip()
    # The launcher is there, so the alarm is switched off.
    signal.alarm(0)
    arguments = json.loads(line)
    # This process runs in a step of the Slurm job (srun), whose variables must not reach the tasks.
    environ = without_step(os.environ, arguments["variables"])
    os.environ.clear()
    os.environ.update(environ)
    main.serve(arguments)


def fingerprint(path: str) -> Optional[Sequence[Any]]:
    """Return what shows whether a path leads to the same file or folder on two machines.

    A file system that machines share shows the same inodes on all of them.

    Args:
        path: The path of a file or folder.

    Returns:
        The inode and, of a file, a checksum of its beginning. None if it cannot be read.
    """
    try:
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            return [inode]
        with open(path, "rb") as file:
            return [inode, zlib.crc32(file.read(_COMPARED_BYTES))]
    except OSError:
        return None
