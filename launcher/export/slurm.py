"""Writes a job as a script for sbatch: one srun starts all tasks, which find out their addresses.

``launch export slurm`` calls `batch_script` with an `ExportedJob`. The module turns it into text: it reads no
file and asks no cluster. The bash code of the script finds out what is known only when it runs, such as the
nodes of its tasks.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from launcher.common.cluster import JOB_PLACEHOLDERS, TASK_PLACEHOLDERS, TF_CONFIG_ROLES
from launcher.export.exported import ExportedJob, ExportedRole, fill_marks, heading
from launcher.job import OnFailure, Role

#: What this script cannot do, though other forms can.
_LEFT_OUT_NOTE = "--restarts, shares of GPUs, "
#: The ports of tasks lie below those that Linux uses for outgoing connections by default. Each job uses a
#: block of them that follows from its number, so that two jobs on a node rarely want the same port.
_FIRST_PORT = 20_000
_PORT_COUNT = 12_000
#: Placeholders whose values are known when the script is written. The script computes all others.
_KNOWN_PLACEHOLDERS = {"world_size", "job_name", "attempt", "tf_config"}
_SCRIPT = r"""
set -u
exec 2>&1
# Jobs on the same nodes have different ports, unless their numbers differ by a multiple of {blocks}.
port=$(({first_port} + SLURM_JOB_ID % {blocks} * {count}))
# An even number of tasks on each node, whatever was asked of sbatch.
unset SLURM_NTASKS_PER_NODE
export SLURM_DISTRIBUTION=${{SLURM_DISTRIBUTION:-cyclic}}
srun=(srun --ntasks={count} --cpu-bind=none --export=ALL --wait=0 --kill-on-bad-exit=1
  ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}})
# The node of each rank, as Slurm places them.
where='echo "$SLURM_PROCID $SLURMD_NODENAME"'
hosts=($("${{srun[@]}}" bash -c "$where" </dev/null | sort -n | cut -d ' ' -f 2))
((${{#hosts[@]}} == {count})) || {{ echo "srun has started ${{#hosts[@]}} of {count} tasks"; exit 125; }}

# The addresses of the ranks from $1 to before $2, with commas; as a list in JSON.
addresses() {{
  local rank text=
  for ((rank = $1; rank < $2; rank++)); do text+=",${{hosts[rank]}}:$((port + rank))"; done
  echo "${{text#,}}"
}}
list() {{
  local between='","'
  echo "[\"${{1//,/$between}}\"]"
}}

# Runs on the nodes: the task with the rank $SLURM_PROCID. Output goes to stderr, its exit code to stdout.
task() {{
  local rank=$SLURM_PROCID folder
  [[ ${{hosts[rank]}} == "$SLURMD_NODENAME" ]] || exit 125  # Slurm has placed it elsewhere this time
  local local_rank=$SLURM_LOCALID node_rank=$SLURM_NODEID local_size=0 other
  local task_index task_host=${{hosts[rank]}} task_port=$((port + rank))
  local first_host=${{hosts[0]}} first_port=$port
  local task_address=$task_host:$task_port first_address=$first_host:$first_port
  for other in "${{hosts[@]:0:{world_size}}}"; do [[ $other != "$task_host" ]] || ((local_size += 1)); done
{variables}
  {roles}
  fi
  trap : TERM  # wait for the program, which gets it, too
  cd -- "$folder" && "$@" </dev/null >&2
  echo "$rank $SLURM_STEP_ID $?"
}}

# Reads how tasks have ended. When the job is done or has failed, ends all other tasks.
ends() {{
  local rank step code first=0 waiting={waiting} over=
  while read -r _ rank step code; do
    [[ -z $over ]] || continue
    if ((code && rank < {world_size})); then
      ((first)) || {{ first=$code; echo "first to fail: rank $rank, exit code $code"; }}
{on_failure}    fi
    if (({deciding})); then ((waiting -= 1)); fi
    ((waiting)) || over=yes
    if [[ -n $over ]]; then  # scancel has errors on nodes whose tasks have ended
      scancel --signal=TERM "$SLURM_JOB_ID.$step" 2>/dev/null
      {{ sleep {grace} && scancel "$SLURM_JOB_ID.$step" 2>/dev/null; }} &
    fi
  done
  [[ -n $over ]] || {{ echo "Slurm has ended the tasks"; return 125; }}
  return "$first"
}}

"${{srun[@]}}" --label bash -c "$(declare -p hosts port); $(declare -f); task" </dev/null | ends
exit "${{PIPESTATUS[1]}}"
"""


def batch_script(job: ExportedJob, options: Sequence[str]) -> str:
    """Return the script for sbatch that runs a job.

    Args:
        job: The job. Its nodes are unknown until Slurm starts it, so the hosts and ports in its plan are only
            stand-ins.
        options: Options of sbatch for the top of the script.
    """
    parts, policy, count, deciding = job.roles(), job.spec.policy, len(job.plan.tasks), job.deciding_tasks()
    words = [f"--job-name={job.name}", *options]
    # An option of the user has precedence. sbatch counts in minutes.
    if policy.timeout is not None and not any(re.match("--time$|--time=|-t", word) for word in words):
        words.append(f"--time={math.ceil(policy.timeout / 60)}")
    # The first rank of each role, and how many of its tasks decide when the job is done.
    numbers = [(part.first, sum(task.role == part.role.name for task in deciding)) for part in parts]
    # The conditions of bash for a rank of such a task.
    conditions = [f"rank >= {first} && rank < {first + number}" for first, number in numbers if number]
    script = _SCRIPT.format(
        first_port=_FIRST_PORT,
        blocks=max(1, _PORT_COUNT // count),
        count=count,
        variables="\n".join(f"  local {line}" for line in _variables(parts)),
        # The `if` of each branch but the first becomes an `elif`.
        roles="\n  el".join(_role(job, part) for part in parts),
        waiting=len(deciding),
        grace=math.ceil(policy.grace),
        world_size=sum(len(part.tasks) for part in parts if not part.role.sidecar),
        deciding=" || ".join(conditions),
        on_failure="" if policy.on_failure is OnFailure.CONTINUE else "      over=yes\n",
    )
    # bash ends the script with this message if a variable is not set whose value launch takes from its
    # environment.
    required = "".join(f': "${{{name}:?expected in the environment of sbatch}}"\n' for name in job.copied_env)
    top = f"#!/bin/bash\n{heading(job, 'slurm', _LEFT_OUT_NOTE, _usage(job))}#SBATCH {shlex.join(words)}\n"
    return top + required + script


def _usage(job: ExportedJob) -> Iterator[str]:
    """Yield lines for the comment of the script: how to start it, and how it ends."""
    ranks = ", ".join(f"{part.role.name} from {part.first}" for part in job.roles())
    yield "    sbatch FILE"
    yield f"srun labels each line with the rank of its task: {ranks}."
    yield (
        "The exit code is that of the first task that fails. Then, or when the job is done, the other tasks "
        f"get SIGTERM, and SIGKILL after {math.ceil(job.spec.policy.grace)} s. Each task but a ps sees all "
        "GPUs that Slurm gives it on its node. All nodes need bash, and the folders and programs below."
    )


def _variables(parts: Sequence[ExportedRole]) -> Iterator[str]:
    """Yield assignments of bash for the addresses: ``ROLE_hosts`` of each role, and two clusters as JSON.

    The variable ``cluster`` is for ``TF_CONFIG``, so it contains only the roles that TensorFlow knows. The
    variable ``cluster_spec`` contains all roles.
    """

    def cluster(names: Collection[str]) -> str:
        """Return bash code for the JSON of a cluster with these roles, whose addresses bash inserts.

        The JSON is in single quotes, which end before each command and begin again after it.
        """
        lists = [
            f"{json.dumps(part.role.name)}:'$(list \"$(addresses {part.first} {part.end})\")'"
            for part in parts
            if part.role.name in names
        ]
        return f"'{{{','.join(lists)}}}'"

    for part in parts:
        yield f"{_hosts(part.role)}=$(addresses {part.first} {part.end})"
    yield f"cluster={cluster(TF_CONFIG_ROLES)}"
    yield f"cluster_spec={cluster([part.role.name for part in parts])}"


def _hosts(role: Role) -> str:
    """Return the name of the placeholder, and of the variable, with the addresses of a role."""
    return re.sub(r"\W", "_", role.name) + "_hosts"


def _role(job: ExportedJob, part: ExportedRole) -> str:
    """Return the branch of bash code for the tasks of one role: an ``if`` whose end the caller adds.

    It comes after the branches of all roles with lower ranks. It sets the variables of the task, its working
    folder, and its command line as ``$@``.
    """
    of_addresses = {"cluster", *(_hosts(role) for role in job.spec.roles)}
    known_later = {*TASK_PLACEHOLDERS, *JOB_PLACEHOLDERS, *of_addresses} - _KNOWN_PLACEHOLDERS
    task = job.role_template(part.tasks[0], known_later)
    folder = task.workdir or "."
    at_home = folder == "~" or folder.startswith("~/")  # In quotes bash would not replace the ~.
    lines = [
        f"if ((rank < {part.end})); then  # {part.role.name}",
        f"task_index=$((rank - {part.first}))",
        *(f"export {name}={_word(value)}" for name, value in task.env.items()),
        f"folder={'~/' + _quoted(folder[2:]) if at_home else _quoted(folder)}",
        f"set -- {' '.join(map(_word, task.argv))}",
    ]
    return "\n    ".join(lines)


def _word(text: str) -> str:
    """Return a text as one word of bash, in which marked names become variables of the script."""
    # Nothing between two names needs no quotes, but an empty word does.
    return fill_marks(text, lambda known: _quoted(known) if known else "", '"${}"'.format) or "''"


def _quoted(text: str) -> str:
    """Return a text without marked names as one word of bash.

    A carriage return is written as an escape, because sbatch refuses a script that contains CR LF.
    """
    return shlex.quote(text).replace("\r", "'$'\\r''")
