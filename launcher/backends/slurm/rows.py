"""Settings of allocations of Slurm: options, and the section ``slurm:`` of files."""

from __future__ import annotations

from launcher.backends.slurm import MAX_NODES, _options, time_limit
from launcher.config import values
from launcher.config.settings import EVERYWHERE, FILES, FileSection, Group, Need, Setting, switch

_SUBJECT = "an allocation of Slurm"
_EXPECTED = "expected --slurm, too"
ALLOCATION = Need(_SUBJECT, _EXPECTED)

SLURM = Setting("slurm", switch, "run on nodes that Slurm allocates", default=False, given_in=EVERYWHERE)
NO_SLURM = Setting(
    "no_slurm", switch, "do not use the nodes of the allocation around launch", default=False,
    excludes=("slurm",),
)  # fmt: skip
NODES: Setting[int | None] = Setting(
    "nodes", values.whole(1, MAX_NODES), "number of nodes", metavar="N", flags=("-N", "--nodes"),
    default=None, given_in=EVERYWHERE, needs=Need(_SUBJECT, f"{_EXPECTED}; or --hosts node1,node2"),
)  # fmt: skip
PARTITION: Setting[str | None] = Setting(
    "partition", values.one_line, "the partition", metavar="NAME", default=None, given_in=EVERYWHERE,
    needs=ALLOCATION,
)  # fmt: skip
TIME: Setting[str | None] = Setting(
    "time", time_limit, "time limit at Slurm: minutes, 36h, or 1-12:00:00", metavar="T", default=None,
    given_in=EVERYWHERE, needs=Need(_SUBJECT, f"{_EXPECTED}; or --timeout, the limit of launch"),
)  # fmt: skip
GPUS_PER_NODE: Setting[str | None] = Setting(
    "gpus_per_node", values.one_line, "GPUs of each node: 2, or a100:2", metavar="N", default=None,
    given_in=EVERYWHERE, needs=Need(_SUBJECT, f"{_EXPECTED}; or --gpus, for each task"),
)  # fmt: skip
ACCOUNT: Setting[str | None] = Setting(
    "account", values.one_line, "the account", metavar="NAME", default=None, given_in=EVERYWHERE,
    needs=ALLOCATION,
)  # fmt: skip
SLURM_OPTIONS = Setting(
    "slurm_options", _options, "more options, as salloc has them", metavar="'...'", key="options",
    default="", given_in=EVERYWHERE, join=lambda weaker, stronger: f"{weaker} {stronger}", needs=ALLOCATION,
)  # fmt: skip
#: Seconds before the time limit at which the tasks are stopped.
SLURM_NOTICE = Setting(
    "slurm_notice", values.duration, "Time from the stop of the tasks to the time limit.", key="notice",
    default=120.0, given_in=FILES,
)  # fmt: skip

GROUP = Group("Slurm", (SLURM, NO_SLURM, NODES, PARTITION, TIME, GPUS_PER_NODE, ACCOUNT, SLURM_OPTIONS))
SECTION = FileSection(
    "slurm", "Nodes that Slurm allocates.",
    head=SLURM, rows=(NODES, PARTITION, TIME, GPUS_PER_NODE, ACCOUNT, SLURM_OPTIONS, SLURM_NOTICE),
    expected="expected a mapping, as in nodes: 4",
)  # fmt: skip
