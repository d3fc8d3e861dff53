"""``NamedTuple`` without the price of ``typing``.

Importing ``typing`` takes 12 ms and each of its named tuples 0.1 ms more than one of ``collections``:
together a quarter of the time in which sixteen tasks are started. A type checker sees the original here (it
takes ``TYPE_CHECKING`` for true), a running program a short one that does what the records need. For the
same reason names that only annotations use are imported for the type checker alone, everywhere on the path
of a launch.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
else:
    from _collections import _tuplegetter  # what collections.namedtuple uses: C, and as fast as a slot

    class Protocol:
        """What a type checker compares classes with; nothing at run time."""

    class _Maker(type):
        """Turns a class of annotated fields, defaults and methods into a tuple with names."""

        def __new__(cls, name, bases, body):
            fields = tuple(body.pop("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            body.update(__slots__=(), __match_args__=fields, _fields=fields, _field_defaults=defaults)
            body.update((field, _tuplegetter(index, None)) for index, field in enumerate(fields))
            return super().__new__(cls, name, bases or (tuple,), body)

    class NamedTuple(metaclass=_Maker):
        """See `typing.NamedTuple`. One constructor for all: `collections.namedtuple` compiles one each."""

        def __new__(cls, *args, **named):
            """A record of these values, by position or by name."""
            missing = cls._fields[len(args) :]
            try:
                values = args + tuple(
                    [named.pop(name) if name in named else cls._field_defaults[name] for name in missing]
                )
            except KeyError as error:
                raise TypeError(f"{cls.__name__}: no value for {error}") from None
            if named or len(values) != len(cls._fields):
                expected = ", ".join(cls._fields)
                raise TypeError(f"{cls.__name__} takes {expected}; got {values} and {named}")
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            """A record of these values, in order."""
            return cls(*values)

        def _asdict(self):
            """The values by name."""
            return dict(zip(self._fields, self))

        def _replace(self, **changed):
            """The same with other values for some fields."""
            return type(self)(**{**self._asdict(), **changed})

        def __eq__(self, other):
            """The same values, and a record of the same kind: an order to close is none to hang up."""
            return type(self) is type(other) and tuple.__eq__(self, other)

        def __ne__(self, other):
            return not self == other

        __hash__ = tuple.__hash__

        def __getnewargs__(self):
            """For copy and pickle."""
            return tuple(self)

        def __repr__(self):
            """``Name(field=value, ...)``."""
            values = ", ".join([f"{name}={value!r}" for name, value in self._asdict().items()])
            return f"{type(self).__name__}({values})"
