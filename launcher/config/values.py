"""Readers of single values in files and on the command line.

Each reader converts one text, or raises ``ValueError("expected ...")``. The tables in `launcher.config` and
the backends use them. A reader must not look at the machine, because the text may be meant for another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from launcher.agent.lookup import ENVIRONMENT_NAME_PATTERN
from launcher.common.text import escape_controls, join_names, login_in
from launcher.job import CHIEF_ROLES, LATEST, RESERVED_VARIABLES, SERVICE_ROLES

MAX_GPUS = 256
MAX_SLOTS = 1_000_000
#: The longest duration. The timers of the system cannot count more than about 292 years.
MAX_DAYS = 10_000

#: The longest ``--note``, in characters.
MAX_NOTE_CHARACTERS = 200
_ROLE_PATTERN = "|".join((*CHIEF_ROLES, *SERVICE_ROLES, "workers?"))
#: Words that commands read as something else than the name that a user gave a run: `LATEST`; tasks, such as
#: ``worker-1`` or ``ps``; and the names that launch gives runs, such as ``20261121-070912-k3f9m``.
_RESERVED_RUN_NAME_PATTERN = rf"{LATEST}|({_ROLE_PATTERN})[-_.]?\d*|\d{{8}}-\d{{6}}-\w*"

#: The endings of job files, in upper or lower case.
JOB_FILE_ENDINGS = (".yaml", ".yml", ".json")
#: The endings of programs, which no image has.
_PROGRAM_ENDINGS = (".py", ".sh")

_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
#: Words of a command line that only a shell understands.
_SHELL_OPERATORS = frozenset({"&&", "||", "|", ";", ">", ">>", "<", "2>&1", "&>"})
_SECONDS_BY_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS_BY_UNIT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def matching(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a reader of texts that match a pattern as a whole.

    Args:
        pattern: The regular expression.
        expected: The message for any other text.
    """

    def read(text: str) -> str:
        """Return the text if the whole of it matches, or raise a ValueError."""
        if re.fullmatch(pattern, text):
            return text
        raise ValueError(expected)

    return read


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``low`` to ``high``.

    It refuses leading zeros, because YAML's parsers disagree about ``010``, which is 8 for some.
    """

    def read(text: str) -> int:
        """Convert a whole number within the limits, or raise a ValueError."""
        if re.fullmatch("0|[1-9][0-9]{0,17}", text) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"expected a whole number from {low} to {high}")

    return read


class OneOf:
    """A reader that accepts only one of the given texts."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        """Return the text if it is among the choices, or raise a ValueError."""
        if text in self.choices:
            return text
        raise ValueError(f"expected {', '.join(self.choices[:-1])} or {self.choices[-1]}")


label = matching(
    r"[A-Za-z0-9][A-Za-z0-9_./-]*(=[A-Za-z0-9_./:@+-]*)?", "expected a label, as in fast or zone=a"
)
role_name = matching(
    "[A-Za-z][A-Za-z0-9_-]{0,63}", "expected a role: a letter, then letters, digits, _ or -, at most 64"
)
gpu_id = matching(
    r"[0-9]{1,6}|(GPU|MIG)-[A-Za-z0-9/-]+", "expected how many, or their ids, as in 0,1 or GPU-8f3a"
)
user_name = matching(
    r"[A-Za-z0-9_.]([A-Za-z0-9_.+@\\-]{0,63}[A-Za-z0-9_.+@-])?",
    "expected a user's name: letters, digits and any of ._-+@\\, not beginning with -",
)
module = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*", "expected the name of a module, as in tensorflow or package.module"
)
_variable = matching(
    "[A-Za-z_][A-Za-z0-9_]*", "expected a variable's name: letters, digits and _, not beginning with a digit"
)


_well_formed_run_name = matching(
    "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "expected a name of letters, digits and any of _.-, beginning with a letter or digit, at most 64",
)


def run_name(text: str) -> str:
    """Read the name that a user gives a run.

    It refuses words that commands such as ``launch logs NAME`` read as something else: ``latest``, a task
    (``worker-1``), or the name that launch gives a run (``20261121-070912-k3f9m``).
    """
    if re.fullmatch(_RESERVED_RUN_NAME_PATTERN, text, re.IGNORECASE):
        raise ValueError("expected another name: in commands this one means a task, or another run")
    return _well_formed_run_name(text)


def note(text: str) -> str:
    """Read a note about a run, and return it as one line with escapes for control characters."""
    if not text or len(text) > MAX_NOTE_CHARACTERS:
        raise ValueError(f"expected a text of at most {MAX_NOTE_CHARACTERS} characters, not empty")
    return escape_controls(text)


def flag(text: str) -> bool:
    """Read ``true`` or ``false``, or another word of YAML for them, such as ``yes`` or ``off``."""
    if text.lower() not in _BOOLEANS:
        raise ValueError("expected true or false")
    return _BOOLEANS[text.lower()]


def not_empty(text: str) -> str:
    """Read a text of any characters that is not empty, such as a path."""
    if not text:
        raise ValueError("expected text that is not empty")
    return text


def one_line(text: str) -> str:
    """Read a text of one line that is not empty and contains no control characters, such as a path."""
    # Python reads bytes that are not UTF-8 as surrogates (U+D800 to U+DFFF), which cannot be written later.
    if not text or re.search("[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise ValueError("expected text of one line, not empty")
    return text


def names_job_file(text: str) -> bool:
    """Return whether a word in place of the program is the name of a job file, which may not exist."""
    return text.lower().endswith(JOB_FILE_ENDINGS)


def program_path(text: str) -> str:
    """Read the name or path of a program, which cannot begin with ``-``, because that would be an option."""
    if one_line(text).startswith("-"):
        raise ValueError('expected the name or path of a program, not beginning with "-"')
    return text


_environment_name = matching(
    ENVIRONMENT_NAME_PATTERN,
    "expected the name of an environment (letters, digits and _.-, not beginning with . or -, at most 64), "
    "or its folder with a /",
)


def environment(text: str) -> str:
    """Read the name or the folder of a Python environment."""
    return one_line(text) if "/" in text else _environment_name(text)


def image(text: str) -> str:
    """Read the name of a container image, and refuse names of programs and job files."""
    # In a file, ``image: true`` is a mistake, although an image could have this name.
    if not text or one_line(text).startswith("-") or " " in text or text.lower() in _BOOLEANS:
        raise ValueError("expected the name of an image")
    # In ``--docker job.yaml`` and ``--docker train.py`` the option takes the word after it as the image.
    if names_job_file(text):
        raise ValueError(f"expected an image; that of its roles: {text} --docker")
    if text.endswith(_PROGRAM_ENDINGS):
        raise ValueError(f"expected an image before the program: IMAGE {text}")
    return text


def env_name(text: str) -> str:
    """Read the name of an environment variable, and refuse those that launch sets for each task."""
    if _variable(text) in RESERVED_VARIABLES:
        raise ValueError("expected another name: launch sets this variable for each task")
    return text


def slots(text: str) -> int:
    """Read the number of tasks that a host accepts."""
    if text == "0":
        raise ValueError("expected 1 or more; leave out a host that should run no task")
    return whole(1, MAX_SLOTS)(text)


def duration(text: str) -> float:
    """Read a duration such as ``90``, ``10s``, ``1.5m``, ``2h`` or ``1d``, and return its seconds.

    The form is that of ``timeout`` in coreutils.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    if match is None:
        raise ValueError("expected seconds, or a number and s, m, h or d, as in 90 or 5m")
    seconds = float(match[1]) * _SECONDS_BY_UNIT[match[2]]
    if seconds > MAX_DAYS * _SECONDS_BY_UNIT["d"]:
        raise ValueError(f"expected at most {MAX_DAYS}d")
    return seconds


def positive_duration(text: str) -> float:
    """Read a duration above 0 and return its seconds."""
    seconds = duration(text)
    if not seconds:
        raise ValueError("expected a duration above 0")
    return seconds


def memory(text: str) -> int:
    """Read the memory of a container, such as ``512m``, ``2g`` or ``1.5GiB``, and return its bytes.

    The form is that of ``docker run --memory``.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(?:i?b)?", text, re.IGNORECASE)
    if match is None:
        raise ValueError("expected one size such as 512m or 2g")
    size = int(float(match[1]) * (1 << _POWERS_BY_UNIT[match[2].lower()]))
    if not 6 << 20 <= size < 1 << 63:
        raise ValueError("expected from 6m to 8388607t: container engines accept no other size")
    return size


def cpus(text: str) -> float:
    """Read a number of CPUs, such as ``2`` or ``0.5``."""
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    # Docker accepts no less than 0.01. No machine has 10,000 CPUs.
    if not 0.01 <= count <= 10_000:
        raise ValueError("expected a number of CPUs such as 2 or 0.5")
    return count


def cpu_quantity(text: str) -> float:
    """Read a number of CPUs in the form of Kubernetes, such as ``2``, ``0.5`` or ``500m`` (thousandths)."""
    in_thousandths = re.fullmatch("[0-9]{1,9}m", text)
    return cpus(str(int(text[:-1]) / 1000) if in_thousandths else text)


def memory_quantity(text: str) -> int:
    """Read a size of memory in the form of Kubernetes, such as ``512Mi`` or ``2G``, and return its bytes.

    It refuses ``512m``, which is half a byte in Kubernetes.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(k|[MGT]|[KMGT]i)?", text)
    if match is None:
        raise ValueError("expected a quantity of Kubernetes, as in 512Mi or 2Gi")
    unit = match[2] or ""
    base = 1024 if unit.endswith("i") else 1000
    power = ["", "K", "M", "G", "T"].index(unit[:1].upper())
    return memory(str(int(float(match[1]) * base**power)))


#: What Kubernetes calls the number of GPUs.
GPU_RESOURCE = "nvidia.com/gpu"
#: The resources of Kubernetes that launch knows, with the readers of their quantities.
QUANTITIES: Mapping[str, Callable[[str], float]] = {
    "cpu": cpu_quantity,
    "memory": memory_quantity,
    GPU_RESOURCE: whole(0, MAX_GPUS),
}


def exit_codes(text: str) -> range:
    """Read an exit code, or a range of exit codes such as ``128-255``."""
    first, dash, last = text.partition("-")
    exit_code = whole(1, 255)
    with suppress(ValueError):
        # A range that goes down, such as 9-1, is empty, and gets the same error.
        if codes := range(exit_code(first), exit_code(last if dash else first) + 1):
            return codes
    raise ValueError("expected exit codes from 1 to 255, as in [1, 128-255]")


def shell_syntax(args: Sequence[str]) -> str:
    """Return what only a shell would understand in the arguments of a program: an operator, or ``$NAME``.

    Returns:
        The first of it. Empty if there is none, or if the arguments contain text for an interpreter.
    """
    if "-c" in args:
        return ""
    # After an option an operator is its value, as in ``--separator '|'``.
    for before, word in zip(("", *args), args, strict=False):
        if word in _SHELL_OPERATORS and before[:1] != "-":
            return word
    variable = re.search(r"\$(\w+|\{\w+\})", " ".join(args), re.ASCII)
    return variable[0] if variable else ""


def comma_separated(text: str) -> Sequence[str]:
    """Split a text at its commas, without the blanks around them."""
    return [part.strip() for part in text.split(",")]


def modules(text: str) -> Sequence[str]:
    """Read the names of modules, with commas between them."""
    return tuple(map(module, comma_separated(text)))


def gpu_ids(text: str) -> Sequence[str]:
    """Read the ids of GPUs, such as ``0,2`` or ``GPU-8f3a``.

    A single number such as ``4`` is how many GPUs there are, and means the ids 0 to 3.
    """
    if not text.isdecimal():
        return comma_separated(text)
    try:
        return [str(index) for index in range(whole(0, MAX_GPUS)(text))]
    except ValueError:
        raise ValueError(f"expected how many, from 0 to {MAX_GPUS}, or their ids, as in 0,1") from None


def url(text: str) -> str:
    """Read a URL without a password."""
    from launcher.storage.urls import is_url, url_fault  # noqa: PLC0415 - takes 4 ms, and few launches need it

    if not is_url(text):
        raise ValueError("expected a URL, as in hdfs://namenode:8020/data")
    if login_in(text):
        raise ValueError("expected a URL without a password, which other users could read")
    if fault := url_fault(text):
        raise ValueError(fault)
    return text


def target_url(text: str) -> str:
    """Read a URL that files are written to."""
    from launcher.storage.urls import WRITABLE, scheme_of  # noqa: PLC0415 - as above

    if scheme_of(text) not in WRITABLE:
        schemes = join_names([f"{scheme}://" for scheme in WRITABLE], len(WRITABLE))
        raise ValueError(f"expected a URL that begins with one of {schemes}")
    return url(text)


def target(text: str) -> str:
    """Read the path of a file of this machine, or a URL that files are written to."""
    return target_url(text) if "://" in text else text


def path_to_target(text: str) -> str:
    """Read ``PATH``, ``PATH:FOLDER`` or ``PATH:URL`` of ``--collect``. A URL must be one to write to."""
    if "://" in text:
        from launcher.storage.urls import split_target  # noqa: PLC0415 - few launches need it

        _, folder = split_target(text)
        if not folder:
            raise ValueError("expected PATH:URL, as in model:hdfs://namenode/folder")
        target_url(folder)
    return text
