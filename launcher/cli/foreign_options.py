"""Commands and options of other launchers, and what to type instead.

Users come from mpirun (Open MPI, MPICH), torchrun, horovodrun, deepspeed, Ray, Slurm, Docker and Kubernetes.
The parser asks this module about words that ``launch`` does not know. It never accepts such a word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from launcher.common.record import Record
from launcher.package_data import read_table

#: Commands of other launchers, and what to type instead of each. Names of programs that users launch, such as
#: ``hostname``, ``ls`` and ``env``, are not among them.
COMMANDS = {
    word: answer
    for words, answer in (
        ("status show list describe info get inspect job jobs runs queue monitor tasks top", "launch ps"),
        ("history", "launch ps --all"),
        ("cancel kill down delete terminate abort shutdown", "launch stop"),
        ("node nodes inventory", "launch hosts FILE_OR_LIST"),
        ("wait connect resume", "launch attach"),
        ("doctor validate verify", "launch check"),
        ("plan config", "launch --dry-run PROGRAM"),
        ("submit", "launch --detach PROGRAM"),
        ("sbatch", "launch --slurm --detach PROGRAM"),
        ("srun salloc", "launch --slurm PROGRAM"),
        ("scancel", "launch stop"),
        ("squeue sacct", "launch ps"),
        ("exec start init", "launch PROGRAM"),
        ("up apply create deploy", "launch JOB.yaml"),
        ("version", "launch --version"),
        ("prune cleanup", "launch clean"),
        ("usage", "launch help"),
        ("cp", "launch --sync DIR --collect PATH PROGRAM"),
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


#: The tables of the file. For each: how many values follow its options, and whether they are a variable.
_TABLES = {
    "no_value": (0, False),
    "one_value": (1, False),
    "two_values": (2, False),
    "one_variable": (1, True),
    "variable_and_value": (2, True),
}


@functools.cache
def options() -> Mapping[str, ForeignOption]:
    """Read and return the options of other launchers, by name."""
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
