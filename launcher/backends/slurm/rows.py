"""The settings of allocations of Slurm: options, and the section ``slurm:`` of files."""

from __future__ import annotations

import math
import operator
import re
import shlex

from launcher.config import values
from launcher.config.settings import EVERYWHERE, FILES, FileSection, Group, Need, Setting, switch

#: The largest number of nodes of a job.
MOST_NODES = 10_000
_PROBLEM = "the option is about an allocation of Slurm"
_EXPECTED = "expected --slurm, too"
ALLOCATION = Need(_PROBLEM, _EXPECTED)


def _options(text: str) -> str:
    """Return the text as it is, if it contains options of salloc.

    Raises:
        ValueError: It does not. The message says what was expected.
    """
    try:
        words = shlex.split(text)
    except ValueError:  # A quote is not closed.
        words = []
    if not words or not words[0].startswith("-"):
        raise ValueError("expected options of salloc, as in '--qos=short --exclusive'")
    return text


def time_limit(text: str) -> str:
    """Return a time limit in a form that Slurm accepts.

    ``5m`` and ``36h`` mean the same as for --timeout. They become ``DAYS-HH:MM:SS``. What is in a form of
    Slurm already is returned as it is.

    Raises:
        ValueError: The text is not a time limit. The message says what was expected.
    """
    if re.fullmatch(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|-1|unlimited|infinite", text, re.I):
        return text
    try:
        seconds = math.ceil(values.duration(text))
    except ValueError:
        forms = "minutes, 5m, 36h, 2d, hours:minutes:seconds, or days-hours:minutes:seconds"
        raise ValueError(f"expected a time limit: {forms}") from None
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


SLURM = Setting(
    "slurm", switch, "run on nodes that Slurm allocates", default=False, given_in=EVERYWHERE,
    join=operator.or_,
)  # fmt: skip
NO_SLURM = Setting(
    "no_slurm", switch, "do not use the nodes of the allocation around launch", default=False,
    excludes=("slurm",),
)  # fmt: skip
NODES: Setting[int | None] = Setting(
    "nodes", values.whole(1, MOST_NODES), "number of nodes", metavar="N", flags=("-N", "--nodes"),
    default=None, given_in=EVERYWHERE, needs=Need(_PROBLEM, f"{_EXPECTED}; or --hosts node1,node2"),
)  # fmt: skip
PARTITION: Setting[str | None] = Setting(
    "partition", values.one_line, "the partition", metavar="NAME", default=None, given_in=EVERYWHERE,
    needs=ALLOCATION,
)  # fmt: skip
TIME: Setting[str | None] = Setting(
    "time", time_limit, "time limit at Slurm: minutes, 36h, or 1-12:00:00", metavar="T", default=None,
    given_in=EVERYWHERE, needs=Need(_PROBLEM, f"{_EXPECTED}; or --timeout, the limit of launch"),
)  # fmt: skip
GPUS_PER_NODE: Setting[str | None] = Setting(
    "gpus_per_node", values.one_line, "GPUs of each node: 2, or a100:2", metavar="N", default=None,
    given_in=EVERYWHERE, needs=Need(_PROBLEM, f"{_EXPECTED}; or --gpus, for each task"),
)  # fmt: skip
ACCOUNT: Setting[str | None] = Setting(
    "account", values.one_line, "the account", metavar="NAME", default=None, given_in=EVERYWHERE,
    needs=ALLOCATION,
)  # fmt: skip
SLURM_OPTIONS = Setting(
    "slurm_options", _options, "more options, as salloc has them", metavar="'...'", key="options",
    default="", given_in=EVERYWHERE, join=lambda weaker, stronger: f"{weaker} {stronger}", needs=ALLOCATION,
)  # fmt: skip
#: The tasks are stopped this many seconds before the time limit.
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
