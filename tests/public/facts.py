"""How `tests/test_public.py` writes down what is public: the shape of JSON, the names of a Python package."""

from __future__ import annotations

import builtins
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import launcher
from launcher import testing

# ---------------------------------------------------------------------- JSON


def shape(*values: object) -> Any:
    """Return the keys of JSON objects and the types of their values, of all these values together.

    A list of objects is a list with the shape of all of them. Of other lists only the type is returned,
    because what they contain may depend on the machine.
    """
    objects = [value for value in values if isinstance(value, dict)]
    items = [item for value in values if isinstance(value, list) for item in value]
    others = sorted({_kind(value) for value in values if not isinstance(value, dict)})
    if any(isinstance(item, dict) for item in items):
        return [shape(*items)]
    if not objects:
        return " or ".join(others)
    found: dict[str, Any] = {" or ": others} if others else {}
    for key in dict.fromkeys(key for each in objects for key in each):
        found[key] = shape(*(each[key] for each in objects if key in each))
    return found


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "number", float: "number", str: "text", list: "list"}
    return "null" if value is None else kinds[type(value)]


# ---------------------------------------------------------------------- Python


def names_of(module: ModuleType) -> dict[str, Any]:
    """Return the public names of a package, each with its signature and its members."""
    return {name: _described(getattr(module, name)) for name in module.__all__}


#: Classes whose objects users get, and do not make.
_MADE_BY_US = ("Cluster", "Job", "Task", "TFCluster")


def _described(value: Any) -> Any:
    if not isinstance(value, type):
        return _signature(value)
    if issubclass(value, enum.Enum):
        properties = {name: _member(each) for name, each in vars(value).items() if type(each) is property}
        return {name: member.value for name, member in value.__members__.items()} | properties
    found: dict[str, Any] = dict(_members(value))
    if value.__name__ in _MADE_BY_US:
        del found["__init__"]
    public = {*launcher.__all__, *testing.__all__, *dir(builtins)} - {"object"}
    if bases := [base.__name__ for base in value.__bases__ if base.__name__ in public]:
        found["bases"] = bases
    return found


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, with the fields of a record, and those of its own base classes."""
    for each in reversed([each for each in kind.__mro__ if each.__module__.startswith("launcher")]):
        fields = getattr(each, "__annotations__", {}) if issubclass(each, tuple) else {}
        for name, annotation in fields.items():
            default = getattr(each, "_field_defaults", {})
            written = f" = {_value(default[name])}" if name in default else ""
            yield name, f"{_type(annotation)}{written}"
        for name, value in vars(each).items():
            if name not in fields and (name == "__init__" or not name.startswith("_")):
                yield name, _member(value)
        yield from ((name, "attribute") for name in _attributes(each))


def _attributes(kind: type) -> Iterator[str]:
    """Yield the documented attributes of a class, and all of an exception."""
    if "__init__" not in vars(kind):
        return
    source = textwrap.dedent(inspect.getsource(kind))
    documented, every = r"#:.*\n +self\.([a-zA-Z]\w*)", r"^ +self\.([a-zA-Z]\w*)(?::.*)? = "
    yield from re.findall(every if issubclass(kind, Exception) else documented, source, re.M)
    section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    yield from re.findall(r"^    (\w+): ", section, re.M)


def _member(value: Any) -> Any:
    if isinstance(value, property):
        return f"property: {_signature(value.fget).rpartition(' -> ')[2]}"
    if isinstance(value, (staticmethod, classmethod)):
        return f"{type(value).__name__}: {_signature(value.__func__)}"
    return _signature(value) if callable(value) and not isinstance(value, type) else _value(value)


def _signature(call: Any) -> str:
    """Return the parameters of a function, also those of ``**options``, with their types."""
    signature = inspect.signature(call)
    shown: list[str] = []
    kinds = inspect.Parameter
    marks: Mapping[Any, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    for each in signature.parameters.values():
        if each.kind is kinds.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if each.kind is kinds.VAR_KEYWORD and "Unpack[" in str(each.annotation):
            options = inspect.getmodule(inspect.unwrap(call)).__dict__[str(each.annotation)[7:-1]]
            shown += (f"{name}: {_type(value)} = ..." for name, value in options.__annotations__.items())
            continue
        written = "" if each.default is kinds.empty else f" = {_value(each.default)}"
        annotated = "" if each.annotation is kinds.empty else f": {_type(each.annotation)}"
        shown.append(f"{marks.get(each.kind, '')}{each.name}{annotated}{written}")
    result = signature.return_annotation
    returned = "" if result is signature.empty else f" -> {_type(result)}"
    return f"({', '.join(shown)}){returned}"


def _value(value: object) -> str:
    """Return a default value without what differs between versions of Python, and between machines."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    return repr(value) if isinstance(value, (str, int, float, bool, tuple, type(None))) else "..."


def _type(annotation: Any) -> str:
    """Return a type in one form, ``int | None``, without modules."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+", "", text).replace("Tuple[", "tuple[")
    return re.sub(r"Optional\[(.*)\]", r"\1 | None", text)
