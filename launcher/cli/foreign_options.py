"""Commands and options of other launchers and shells, and what to type instead.

Users come from mpirun (Open MPI, MPICH), torchrun, horovodrun, deepspeed, Ray, Slurm, Docker and Kubernetes.
The parser asks this module about words that ``launch`` does not know. It never accepts such a word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from launcher.common.record import Record
from launcher.package_data import read_table

#: Commands of other launchers and shells, and what to type instead of each. The text is empty if launch can
#: do nothing of the kind. Names of programs that users launch, such as ``hostname``, ``sh`` and ``env``, are
#: not among them. This is no file, because many launches look up a word here, and a file takes milliseconds.
COMMANDS = {
    word: answer
    for words, answer in (
        ("status list ls get job jobs runs queue tasks", "launch ps"),
        ("monitor htop", "launch top"),
        ("show describe info inspect summary", "launch report"),
        ("history", "launch ps --all"),
        ("tail output", "launch logs"),
        ("cancel kill killall pkill down terminate abort shutdown quit", "launch stop"),
        ("host node nodes inventory", "launch hosts FILE_OR_LIST"),
        ("wait watch connect resume fg sattach", "launch attach"),
        ("doctor validate verify test", "launch check"),
        ("plan config preview", "launch --dry-run PROGRAM"),
        ("submit qsub bsub bg nohup", "launch --detach PROGRAM"),
        ("sbatch", "launch --slurm --detach PROGRAM"),
        ("srun salloc", "launch --slurm PROGRAM"),
        ("scancel qdel bkill", "launch stop"),
        ("squeue sacct scontrol qstat bjobs", "launch ps"),
        ("sinfo", "launch check --slurm"),
        ("exec start init", "launch PROGRAM"),
        ("mpirun mpiexec orterun torchrun horovodrun deepspeed", "launch --workers N PROGRAM"),
        ("ssh pdsh clush", "launch --hosts HOST,HOST PROGRAM"),
        ("docker podman", "launch --docker IMAGE PROGRAM"),
        ("kubectl", "launch --kubernetes IMAGE PROGRAM"),
        ("tensorboard board", "launch --tensorboard PROGRAM"),
        ("cd", "launch --workdir DIR PROGRAM"),
        ("source activate", "launch --venv NAME PROGRAM"),
        ("up apply create deploy", "launch JOB.yaml"),
        ("retry repeat", "launch rerun"),
        ("remove delete rmdir rmi unlink", "launch rm"),
        ("version", "launch --version"),
        ("install setup", "launch prepare"),
        ("prune cleanup gc", "launch clean"),
        ("usage man", "launch help"),
        ("cp scp rsync sync upload download", "launch --sync DIR --collect PATH PROGRAM"),
        ("diff mv build pull push login rename edit scale pause unpause suspend", ""),
    )
    for word in words.split()
}


class ForeignOption(Record):
    """An option of other launchers that users may try."""

    #: The number of values that follow the option.
    values: int
    #: What to type instead. In it ``{}`` stands for the user's value, ``{written}`` for the option with its
    #: value.
    answer: str
    #: Whether the values are a variable. It may be secret, so messages show only its name.
    secret: bool = False

    def fault(self, option: str, words: list[str]) -> str:
        """Return the message for a user who has typed this option.

        Args:
            option: The option as it is typed.
            words: The words after it, at most as many as the option has values.
        """
        shown = words
        if self.secret:
            # NAME=VALUE is shown as "NAME=...", and NAME VALUE as "NAME ...".
            names = [re.sub("=.*", "=...", word, flags=re.DOTALL) for word in words[:1]]
            shown = names + ["..."] * len(words[1:])
        written = " ".join([option, *shown])
        # The option may be the last word, without its values.
        return f"{written}: {self.answer.format(*shown or ['VALUE'], written=written)}"


#: The tables of ``foreign_options.toml``. For each: how many values follow its options, and whether they are
#: a variable.
_TABLES = {
    "no_value": (0, False),
    "one_value": (1, False),
    "two_values": (2, False),
    "one_variable": (1, True),
    "variable_and_value": (2, True),
}


@functools.cache
def options() -> Mapping[str, ForeignOption]:
    """Return the options of other launchers, by name.

    The table is read at the first call, because a command line without an unknown option does not need it.
    """
    tables = read_table("cli/foreign_options.toml")
    return {
        name: ForeignOption(values, answer, secret)
        for table, (values, secret) in _TABLES.items()
        for names, answer in tables[table].items()
        for name in names.split()
    }


def option(name: str) -> ForeignOption | None:
    """Return the option of another launcher with this name, or None if there is none.

    Underscores in the name count as dashes.
    """
    return options().get(name.replace("_", "-"))
