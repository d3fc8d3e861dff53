"""Checks and converts the arguments of the Python API before anything is opened or started.

A reader is a function that converts one value of any type to the type that our code uses (integers of NumPy
to ``int``, paths to texts), or raises ``ValueError("expected ...")``. The readers of texts in
`launcher.config.values` have the same form. `Arguments` collects the faults of a call, each with the name of
its argument. Tasks import this module, too, so it must run with Python 3.8.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
from contextlib import suppress
from typing import Any, Callable, Collection, Iterable, Mapping, Optional, Sequence, Tuple, TypeVar, cast

from launcher.common.errors import Fault, InputError
from launcher.common.text import did_you_mean, escape_controls, shortened

Reader = Callable[[Any], Any]
#: A function that is called with positional and named arguments that do not fit. It returns a problem and
#: what was expected, in better words than Python's, or None.
Advice = Callable[[Sequence[Any], Mapping[str, Any]], Optional[Tuple[str, str]]]
Function = TypeVar("Function", bound=Callable[..., Any])

#: The largest whole number that is accepted, because a C library may receive it.
_MAX_WHOLE = (1 << 63) - 1
#: How deep mappings and lists may be nested.
_MAX_DEPTH = 16
_SHOWN_CHARACTERS = 80


class Arguments:
    """The faults of the arguments in one call of a public function, collected so that all are reported.

    Args:
        caller: The name of the function as users write it: ``TFCluster.run``.
    """

    def __init__(self, caller: str) -> None:
        """Start to collect the faults of a call. There are none at first."""
        self._caller = caller
        #: The faults that were added so far.
        self.faults: list[Fault] = []

    def read(self, name: str, value: Any, reader: Reader) -> Any:
        """Convert one argument, or add a fault if its value is wrong.

        Args:
            name: The name of the argument.
            value: Its value in the call.
            reader: The function that converts it.

        Returns:
            The converted value, or None if a fault was added.
        """
        try:
            return reader(value)
        except ValueError as error:
            expected = str(error)
        except Exception as error:  # noqa: BLE001 - methods of the user's classes may raise anything
            expected = f"it raises {type(error).__name__}: {error}"
        self.add(f"{name}={shown(value)}", expected)
        return None

    def optional(self, name: str, value: Any, reader: Reader, default: Any = None) -> Any:
        """Convert one argument as `read` does. For the value None, return the default."""
        return default if value is None else self.read(name, value, reader)

    def add(self, problem: str, expected: str = "") -> None:
        """Add a fault: what is wrong, and what was expected instead."""
        self.faults.append(Fault(self._caller, problem, expected))

    def add_unknown(self, names: Iterable[str], known: Collection[str]) -> None:
        """Add a fault for each name of an argument that is not among the known ones."""
        for name in sorted(set(names) - set(known)):
            expected = f"expected one of {', '.join(known)}"
            if "options" in known:
                expected += f"; for an option of launch write options=['--{name.replace('_', '-')}', ...]"
            self.add(f"there is no argument {name!r}", did_you_mean(name, tuple(known), expected))

    def check(self) -> None:
        """Raise the faults that were added, if there are any.

        Raises:
            InputError: At least one fault was added. It contains all of them.
        """
        if self.faults:
            raise InputError(self.faults)


def named_arguments(
    caller: str,
    options: Iterable[str] = (),
    advice: Optional[Advice] = None,
) -> Callable[[Function], Function]:
    """Return a decorator for public functions that checks the names of their arguments.

    Where Python would raise a TypeError, the decorated function raises an `InputError` that says what to
    write. Its message lists all unknown names, each with a similar known one. Of other faults, such as a
    missing argument, it contains only the first, because Python reports no more.

    Args:
        caller: The name of the function as users write it, such as ``TFCluster.run``.
        options: The names that the ``**options`` of the function accept.
        advice: Finds a better message for arguments that do not fit, see `Advice`.
    """

    def decorate(call: Function) -> Function:
        """Return the function with the check before it."""
        signature = inspect.signature(call)
        parameters = signature.parameters.values()
        named = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        known = [name for name in (*named, *options) if name != "self"]

        @functools.wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            """Raise an `InputError` if the arguments do not fit the function, or else call it."""
            __tracebackhide__ = True  # pytest leaves this frame out of tracebacks.
            arguments = Arguments(caller)
            arguments.add_unknown(kwargs, known)
            try:
                # Unknown names have faults of their own, so Python must not complain about them.
                signature.bind(*args, **{name: value for name, value in kwargs.items() if name in known})
            except TypeError as error:
                # Another library may have a function of this name with other arguments. A message about that
                # replaces all others.
                better = advice and advice(args, kwargs)
                if better is not None:
                    raise InputError([Fault(caller, *better)]) from None
                arguments.add(str(error), f"expected {', '.join(known)}")
            arguments.check()
            return call(*args, **kwargs)

        return cast(Function, checked)

    return decorate


def shown(value: object, width: int = _SHOWN_CHARACTERS) -> str:
    """Return the ``repr`` of a value for a message: on one line, with at most ``width`` characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - methods of the user's classes may raise anything
        text = f"<{type(value).__name__}>"
    # The first cut is for speed: the text may have millions of characters.
    return shortened(escape_controls(text[: 2 * width]), width)


# ---------------------------------------------------------------------- readers


def text(value: Any) -> str:
    """Read a text that can become an argument or an environment variable of a program."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return _text_for_kernel(value)


def path(value: Any) -> str:
    """Read a path, which may be a text or an object of `pathlib`, and return it as a text."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("expected a text or a path")
    return _text_for_kernel(os.fsdecode(value))


def _text_for_kernel(value: str) -> str:
    """Return a text as it is, unless the kernel would refuse it as an argument, a variable or a path.

    Raises:
        ValueError: The text contains a NUL, or characters that cannot be encoded.
    """
    if "\0" in value:
        raise ValueError("expected a text without NUL characters")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("expected a text that can be encoded") from None
    return str(value)


def flag(value: Any) -> bool:
    """Read True or False, which may also be a bool of NumPy, or 1 or 0."""
    if isinstance(value, bool):
        return value
    # A scalar of NumPy is recognized without an import of NumPy. "b" stands for booleans.
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") == "b" and getattr(value, "shape", None) == ():
        return bool(value)
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError("expected True or False")


def whole(low: int = 0, high: int = _MAX_WHOLE) -> Reader:
    """Return a reader of whole numbers, including those of NumPy, from ``low`` to ``high``.

    A reader is a function that converts an argument of the user, or raises a ValueError with the text of what
    was expected.
    """
    # No user reaches the largest number that is accepted at all, so no message names it.
    limit = f", {low} or more" if high == _MAX_WHOLE else f" from {low} to {high}"

    def read(value: Any) -> int:
        """Convert a whole number within the limits, or raise a ValueError."""
        try:
            # A bool would count as 0 or 1.
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"expected a whole number{limit}")
        return number

    return read


def number(low: float = -math.inf, high: float = math.inf) -> Reader:
    """Return a reader of numbers, including those of NumPy, from ``low`` to ``high``. It refuses NaN.

    A reader is a function that converts an argument of the user, or raises a ValueError with the text of what
    was expected.
    """
    expected = "expected a number"
    if low > -math.inf:
        expected += f", {low:g} or more" if high == math.inf else f" from {low:g} to {high:g}"

    def read(value: Any) -> float:
        """Convert a number within the limits, or raise a ValueError."""
        # float() would convert these, too.
        if isinstance(value, (bool, str, bytes, bytearray)):
            raise ValueError(expected)
        try:
            converted = float(value)
        except (TypeError, OverflowError):
            raise ValueError(expected) from None
        # NaN is not within any limits.
        if not low <= converted <= high:
            raise ValueError(expected)
        return converted

    return read


def choice(*choices: str) -> Reader:
    """Return a reader that accepts only the given texts."""

    def read(value: Any) -> str:
        """Return the text if it is among the choices, or raise a ValueError."""
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(f"expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")

    return read


def several(reader: Reader, plural: str = "texts") -> Reader:
    """Return a reader of lists, tuples and sets, which returns a list.

    It refuses a text, which Python would treat as a sequence of letters.

    Args:
        reader: The reader of each item.
        plural: What the items are, for messages.
    """

    def read(value: Any) -> list[Any]:
        """Convert each item of a list, or raise a ValueError."""
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_part(item, item, reader) for item in value]  # An item of a list has no other name.
        example = f", as in [{shown(value)}]" if isinstance(value, str) else ""
        raise ValueError(f"expected a list of {plural}{example}")

    return read


def one_or_several(reader: Reader, plural: str = "texts") -> Reader:
    """Return a reader of one value, or of a list of values. Its result is a list in both cases.

    Args:
        reader: The reader of each value.
        plural: What the values are, for messages.
    """
    read_list = several(reader, plural)

    def read(value: Any) -> list[Any]:
        """Convert a value or each item of a list, or raise a ValueError."""
        is_list = isinstance(value, (list, tuple, set, frozenset))
        return list(read_list(value)) if is_list else [reader(value)]

    return read


def mapping(key: Reader, value: Reader, expected: str) -> Reader:
    """Return a reader of dicts, whose faults name the key.

    Args:
        key: The reader of each key.
        value: The reader of each value.
        expected: The message for a value that is no dict.
    """

    def read(items: Any) -> dict[Any, Any]:
        """Convert the keys and values of a dict, or raise a ValueError."""
        if not isinstance(items, Mapping):
            raise ValueError(expected)
        return {_part(name, name, key): _part(name, items[name], value) for name in items}

    return read


def plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Read a value that JSON can contain: texts, numbers, None, and lists and dicts of them.

    Args:
        value: The value. Paths in it become texts, and tuples and sets become lists.
        depth: How deep lists and dicts in it may be nested.

    Raises:
        ValueError: JSON cannot contain the value, or it is nested deeper.
    """
    # None, bools, texts and paths contain no other values, so their depth does not matter.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, os.PathLike)):
        return path(value)
    if not depth:
        raise ValueError(f"expected at most {_MAX_DEPTH} dicts and lists in each other")

    def inner(item: Any) -> Any:
        """Read a value in the list or dict, which may be nested one level less."""
        return plain(item, depth - 1)

    if isinstance(value, Mapping):
        return mapping(text, inner, "")(value)  # No message is needed for a value that is no dict.
    if isinstance(value, (list, tuple, set, frozenset)):
        return several(inner)(value)
    # The value may be a number or a bool of NumPy. `number` makes a float of it, so it comes last.
    for reader in (whole(-_MAX_WHOLE), flag, number()):
        with suppress(ValueError):
            return reader(value)
    raise ValueError("expected texts, numbers, and lists and dicts of them")


def _part(name: Any, value: Any, reader: Reader) -> Any:
    """Convert an item of a list, or a key or value of a dict.

    Args:
        name: The item itself, or the key in the dict.
        value: The value to convert.
        reader: The reader of the value.

    Raises:
        ValueError: The value is wrong. The message names it, or its key.
    """
    try:
        return reader(value)
    except ValueError as error:
        place = shown(value) if name is value else f"{shown(name)}: {shown(value)}"
        raise ValueError(f"{place}: {error}") from None
