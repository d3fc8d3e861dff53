"""A job as a script for sbatch: one srun starts all tasks, which find out their addresses from Slurm."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from launcher.export.exported import Exported, filled, heading
from launcher.job import OnFailure, Role, TaskPlan
from launcher.record import Record
from launcher.scheduler.cluster_spec import JOB_PLACEHOLDERS, TASK_PLACEHOLDERS, TF_CONFIG_ROLES

#: What it says, by `launcher.export.exported.settings_of`.
SAID = ("on_failure: continue", "timeout", "grace")
#: Ports below those that Linux gives connections by default: of them each job has its own, by its number.
_FIRST_PORT, _PORTS = 20_000, 12_000
#: Placeholders whose values are known before.
_KNOWN = {"world_size", "job_name", "attempt", "tf_config"}
#: Other placeholder -> how bash finds its value.
_FOUND = {
    "task_host": "${hosts[rank]}",
    "task_port": "$((port + rank))",
    "first_host": "${hosts[0]}",
    "first_port": "$port",
    "first_address": "${hosts[0]}:$port",
    "local_rank": "$SLURM_LOCALID",
    "node_rank": "$SLURM_NODEID",
}
_SCRIPT = r"""
set -u
exec 2>&1
# Jobs on the same nodes at the same time have different ports, unless their numbers are far apart.
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


def batch_script(job: Exported, options: Sequence[str]) -> str:
    """The script.

    Args:
        job: its hosts and ports are not known, so those in its plan have no meaning.
        options: of sbatch.
    """
    ranges = _ranges(job)
    world_size = sum(last - first for role, _, first, last in ranges if not role.sidecar)
    roles = [_role(job, ranges, mine) for mine in ranges]
    words = [f"--job-name={job.name}", *options]
    if job.job.policy.timeout is not None and not any(re.match("--time$|--time=|-t", word) for word in words):
        words.append(f"--time={math.ceil(job.job.policy.timeout / 60)}")
    count, deciding = len(job.plan.tasks), job.deciding()
    tests = [
        f"rank >= {first} && rank < {first + decide}"
        for role, _, first, last in ranges
        if (decide := sum(task.role == role.name for task in deciding))
    ]
    script = _SCRIPT.format(
        first_port=_FIRST_PORT,
        blocks=max(1, _PORTS // count),
        count=count,
        variables="\n".join(f"  local {line}" for line in _variables(ranges, "".join(roles), world_size)),
        roles="\n  el".join(roles),
        waiting=len(deciding),
        grace=math.ceil(job.job.policy.grace),
        world_size=world_size,
        deciding=" || ".join(tests),
        on_failure="" if job.job.policy.on_failure is OnFailure.CONTINUE else "      over=yes\n",
    )
    needed = "".join(f': "${{{name}:?expected in the environment of sbatch}}"\n' for name in job.copied)
    top = f"#!/bin/bash\n{heading(job, 'slurm', _lines(job, ranges))}#SBATCH {shlex.join(words)}\n"
    return top + needed + script


class _Range(Record):
    """The ranks of a role."""

    role: Role
    #: Its first task.
    task: TaskPlan
    first: int
    #: The first rank after them.
    end: int


def _ranges(job: Exported) -> list[_Range]:
    found, first = [], 0
    for role, tasks in job.roles():
        found.append(_Range(role, tasks[0], first, first + len(tasks)))
        first += len(tasks)
    return found


def _lines(job: Exported, ranges: Sequence[_Range]) -> Iterator[str]:
    """How the file is used, and what it can't say."""
    yield "    sbatch FILE"
    ranks = [
        f"{first}{f'-{end - 1}' if end - first > 1 else ''} {role.name}" for role, _, first, end in ranges
    ]
    yield f"srun labels each line with the rank of its task: {', '.join(ranks)}."
    yield (
        "The exit code is that of the first task that fails. Then, or when the job is done, the other tasks "
        f"get SIGTERM, and SIGKILL after {math.ceil(job.job.policy.grace)} s. No task starts again. Ports "
        "are not held: a task fails if another program has taken its port. Each task but a ps sees all GPUs "
        "that Slurm gives it on its node."
    )
    yield "All nodes must have bash, and the folders and programs below."


def _variables(ranges: Sequence[_Range], used: str, world_size: int) -> Iterator[str]:
    """The variables of the function that starts a task.

    Args:
        ranges: of all roles.
        used: the text that may use them.
        world_size: the number of tasks that are no sidecars.
    """

    def cluster(names: Collection[str]) -> str:
        pairs = [
            f"{json.dumps(role.name)}:'$(list \"$(addresses {first} {end})\")'"
            for role, _, first, end in ranges
            if role.name in names
        ]
        return f"'{{{','.join(pairs)}}}'"

    yield "task_index task_address=${hosts[rank]}:$((port + rank))"
    yield f"cluster={cluster(TF_CONFIG_ROLES)}"
    yield f"cluster_spec={cluster([role.name for role, *_ in ranges])}"
    same = f'printf "%s\\n" "${{hosts[@]:0:{world_size}}}" | grep -cxF "$SLURMD_NODENAME"'
    found = {_hosts(role): f"$(addresses {first} {end})" for role, _, first, end in ranges}
    for name, value in {**_FOUND, "local_size": f"$({same})", **found}.items():
        if f"${name}" in used:
            yield f"{name}={value}"


def _hosts(role: Role) -> str:
    """The placeholder with the addresses of a role."""
    return re.sub(r"\W", "_", role.name) + "_hosts"


def _role(job: Exported, ranges: Sequence[_Range], mine: _Range) -> str:
    """The branch of a role."""
    later = {*TASK_PLACEHOLDERS, *JOB_PLACEHOLDERS, "cluster", *(_hosts(role) for role, *_ in ranges)}
    task = job.of_role(mine.task, later - _KNOWN)
    folder = task.workdir or "."
    at_home = folder == "~" or folder.startswith("~/")
    lines = [
        f"if ((rank < {mine.end})); then  # {mine.role.name}",
        f"task_index=$((rank - {mine.first}))",
        *(f"export {name}={_word(value)}" for name, value in task.env.items()),
        f"folder={'~/' + shlex.quote(folder[2:]) if at_home else shlex.quote(folder)}",
        f"set -- {' '.join(map(_word, task.argv))}",
    ]
    return "\n    ".join(lines)


def _word(text: str) -> str:
    """A word of bash."""
    return filled(text, lambda known: shlex.quote(known) if known else "", '"${}"'.format) or "''"
