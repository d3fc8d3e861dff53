"""Commands and options of other launchers, and what to type instead.

They are mpirun (Open MPI, MPICH), torchrun, horovodrun, deepspeed, Ray, Slurm, Docker and Kubernetes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from launcher.common.record import Record
from launcher.package_data import read_table

#: A first word that other launchers have as a command -> what to type. Programs that users launch
#: (``hostname``, ``ls``, ``env``) are not here.
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
    """An option of other launchers."""

    #: Number of values after the option.
    values: int
    #: What to type; ``{}`` is the user's value, ``{written}`` the option with it.
    answer: str
    #: Whether the values are a variable, which may be secret: only its name is shown.
    secret: bool = False

    def fault(self, option: str, given: list[str]) -> str:
        """The message for this option with these values."""
        if self.secret:
            names = [re.sub("=.*", "=...", value, flags=re.DOTALL) for value in given[:1]]
            given = names + ["..."] * len(given[1:])
        written = " ".join([option, *given])
        return f"{written}: {self.answer.format(*given or ['VALUE'], written=written)}"


#: The tables of the file: the number of values after their options, and whether those are a variable.
_TABLES = {
    "no_value": (0, False),
    "one_value": (1, False),
    "two_values": (2, False),
    "one_variable": (1, True),
    "variable_and_value": (2, True),
}


@functools.cache
def options() -> Mapping[str, ForeignOption]:
    """Return the options of other launchers, by name."""
    tables = read_table("cli/foreign_options.toml")
    return {
        name: ForeignOption(values, answer, secret)
        for table, (values, secret) in _TABLES.items()
        for names, answer in tables[table].items()
        for name in names.split()
    }


def option(name: str) -> ForeignOption | None:
    """Return the option of another launcher with this name; underscores count as dashes."""
    return options().get(name.replace("_", "-"))
