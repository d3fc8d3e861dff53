"""Reads the arguments of the Python API, in programs and in tasks, before anything is opened or started.

A reader is a function that converts one value of any type to the type that our code uses (integers of NumPy
to ``int``, paths to texts), or raises ``ValueError("expected ...")``, as the readers of texts in
`launcher.config.values` do. `Arguments` collects the faults of a call, each with the name of its argument.
Tasks import this module: Python 3.8.
"""

import functools
import inspect
import math
import operator
import os
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    cast,
)

from launcher.common.errors import Fault, InputError
from launcher.common.text import did_you_mean, escape_controls, shortened

Reader = Callable[[Any], Any]
#: Returns, for arguments that do not fit, a better problem and what is expected; or None.
Advice = Callable[[Sequence[Any], Mapping[str, Any]], Optional[Tuple[str, str]]]
Function = TypeVar("Function", bound=Callable[..., Any])

#: The largest whole number that is read: a C library may get it.
_MAX_WHOLE = (1 << 63) - 1
#: Levels of mappings and lists in each other.
_MAX_DEPTH = 16
_SHOWN_CHARACTERS = 80


class Arguments:
    """The arguments of one call.

    Args:
        caller: The name of the function as users write it: ``TFCluster.run``.
    """

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self.faults: List[Fault] = []

    def read(self, name: str, value: Any, reader: Reader) -> Any:
        """Convert one argument.

        Returns:
            What the reader returns. If the value is wrong, a fault is added, and the result is None.
        """
        try:
            return reader(value)
        except ValueError as error:
            expected = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises there
            expected = f"it raises {type(error).__name__}: {error}"
        self.add(f"{name}={shown(value)}", expected)
        return None

    def optional(self, name: str, value: Any, reader: Reader, default: Any = None) -> Any:
        """Convert one argument for which None stands for the default."""
        return default if value is None else self.read(name, value, reader)

    def add(self, problem: str, expected: str = "") -> None:
        """Add a fault."""
        self.faults.append(Fault(self._caller, problem, expected))

    def add_unknown(self, names: Iterable[str], known: Collection[str]) -> None:
        """Add a fault for each name that is none of the known ones."""
        for name in sorted(set(names) - set(known)):
            self.add(f"there is no argument {name!r}", did_you_mean(name, tuple(known)))

    def check(self) -> None:
        """Raise all faults, if there are any.

        Raises:
            InputError: There are faults.
        """
        if self.faults:
            raise InputError(self.faults)


def named_arguments(
    caller: str,
    options: Iterable[str] = (),
    advice: Optional[Advice] = None,
) -> Callable[[Function], Function]:
    """Make a public function report arguments that do not fit its parameters as an `InputError`.

    Args:
        caller: The name of the function as users write it.
        options: The names that its ``**options`` accept.
        advice: See `Advice`.
    """

    def decorate(call: Function) -> Function:
        signature = inspect.signature(call)
        parameters = signature.parameters.values()
        of_its_own = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        known = [name for name in (*of_its_own, *options) if name != "self"]

        @functools.wraps(call)
        def checked(*given: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            found = Arguments(caller)
            found.add_unknown(named, known)
            try:
                signature.bind(*given, **{name: value for name, value in named.items() if name in known})
            except TypeError as error:
                better = advice and advice(given, named)
                if better is not None:
                    raise InputError([Fault(caller, *better)]) from None
                found.add(str(error), f"expected {', '.join(known)}")
            found.check()
            return call(*given, **named)

        return cast(Function, checked)

    return decorate


def shown(value: object, width: int = _SHOWN_CHARACTERS) -> str:
    """Return a value on one line, shortened to a number of characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises there
        text = f"<{type(value).__name__}>"
    return shortened(escape_controls(text[: 2 * width]), width)


# ---------------------------------------------------------------------- readers


def text(value: Any) -> str:
    """Read a text that can be an argument or a variable of a program."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return _fit(value)


def path(value: Any) -> str:
    """Read a text, or a path of `pathlib`."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("expected a text or a path")
    return _fit(os.fsdecode(value))


def _fit(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected a text without NUL characters")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("expected a text that can be encoded") from None
    return str(value)


def flag(value: Any) -> bool:
    """Read True or False, also those of NumPy, or 1 or 0."""
    if isinstance(value, bool):
        return value
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") == "b" and getattr(value, "shape", None) == ():
        return bool(value)
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError("expected True or False")


def whole(low: int = 0, high: int = _MAX_WHOLE) -> Reader:
    """Return a reader of whole numbers, also those of NumPy."""
    limit = f", {low} or more" if high == _MAX_WHOLE else f" from {low} to {high}"

    def read(value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"expected a whole number{limit}")
        return number

    return read


def number(low: float = -math.inf, high: float = math.inf) -> Reader:
    """Return a reader of numbers, also those of NumPy. It refuses NaN."""
    expected = "expected a number"
    if low > -math.inf:
        expected += f", {low:g} or more" if high == math.inf else f" from {low:g} to {high:g}"

    def read(value: Any) -> float:
        if isinstance(value, (bool, str, bytes, bytearray)):
            raise ValueError(expected)
        try:
            found = float(value)
        except (TypeError, OverflowError):
            raise ValueError(expected) from None
        if not low <= found <= high:
            raise ValueError(expected)
        return found

    return read


def choice(*choices: str) -> Reader:
    """Return a reader of one of several texts."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(f"expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")

    return read


def several(reader: Reader, of: str = "texts") -> Reader:
    """Return a reader of lists, tuples and sets. It refuses a text, which would be a list of its letters."""

    def read(value: Any) -> List[Any]:
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_part(item, item, reader) for item in value]
        example = f", as in [{shown(value)}]" if isinstance(value, str) else ""
        raise ValueError(f"expected a list of {of}{example}")

    return read


def one_or_several(reader: Reader, of: str = "texts") -> Reader:
    """Return a reader of one value or of a list of values. It makes a list of both."""

    def read(value: Any) -> List[Any]:
        if isinstance(value, (list, tuple, set, frozenset)):
            found: List[Any] = several(reader, of)(value)
            return found
        return [reader(value)]

    return read


def mapping(key: Reader, value: Reader, expected: str) -> Reader:
    """Return a reader of dicts. Its faults name the key."""

    def read(given: Any) -> Dict[Any, Any]:
        if not isinstance(given, Mapping):
            raise ValueError(expected)
        return {_part(name, name, key): _part(name, given[name], value) for name in given}

    return read


def plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Read a value that JSON can have: texts, numbers, None, and lists and dicts of them.

    Paths become texts.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, os.PathLike)):
        return path(value)
    if not depth:
        raise ValueError(f"expected at most {_MAX_DEPTH} dicts and lists in each other")

    def inner(item: Any) -> Any:
        return plain(item, depth - 1)

    if isinstance(value, Mapping):
        return mapping(text, inner, "")(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return several(inner)(value)
    for reader in (whole(-_MAX_WHOLE), flag, number()):
        with suppress(ValueError):
            return reader(value)
    raise ValueError("expected texts, numbers, and lists and dicts of them")


def _part(name: Any, value: Any, reader: Reader) -> Any:
    """Convert a part of a value; the fault names it.

    Raises:
        ValueError: It is wrong.
    """
    try:
        return reader(value)
    except ValueError as error:
        at = shown(value) if name is value else f"{shown(name)}: {shown(value)}"
        raise ValueError(f"{at}: {error}") from None
