"""`Record`: named tuples like those of `typing`, made without compiling code for each class.

A launch defines about a hundred records, and so does the agent on each host: `typing.NamedTuple` would take a
fifth of the time until the first task starts. Type checkers see `typing.NamedTuple`. Hosts with Python 3.8
import this module.
"""

from operator import itemgetter

__all__ = ["Record", "replace"]

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from typing import Any, TypeVar
    from typing import NamedTuple as Record

    RecordT = TypeVar("RecordT", bound=tuple[Any, ...])

    def replace(record: RecordT, **changes: Any) -> RecordT:
        """Return a copy of a record with other values for these fields."""
else:

    class _RecordType(type):
        """Makes the fields of a record from its annotations; values in the class are defaults."""

        def __new__(cls, name, bases, body):
            record = super().__new__(cls, name, bases, {"__slots__": (), **body})
            record._fields = tuple(getattr(record, "__annotations__", ()))
            record._field_defaults = {field: body[field] for field in record._fields if field in body}
            for index, field in enumerate(record._fields):
                setattr(record, field, property(itemgetter(index)))
            return record

    class Record(tuple, metaclass=_RecordType):
        """A tuple whose fields have names; see `typing.NamedTuple`."""

        def __new__(cls, *values, **named):
            """Make a record from values in the order of the fields, or by their names."""
            if named or len(values) != len(cls._fields):
                given = dict(zip(cls._fields, values))
                found = {**cls._field_defaults, **given, **named}
                too_many = len(values) > len(given) or given.keys() & named.keys()
                if too_many or found.keys() != set(cls._fields):
                    expected = ", ".join(cls._fields)
                    raise TypeError(f"{cls.__name__} takes {expected}; got {values} and {named}")
                values = [found[field] for field in cls._fields]
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            """Make a record from values in the order of the fields."""
            return cls(*values)

        def _asdict(self):
            """The values by their names."""
            return dict(zip(self._fields, self))

        def __eq__(self, other):
            """Return whether the other is a record of the same class with the same values."""
            return type(other) is type(self) and tuple.__eq__(self, other)

        def __ne__(self, other):
            """See `__eq__`; a tuple has a method of its own for this."""
            return not self == other

        def __hash__(self):
            """Return a hash that differs between classes."""
            return hash((type(self), tuple.__hash__(self)))

        def __getnewargs__(self):
            """The values, for copies and pickles."""
            return tuple(self)

        def __repr__(self):
            """``Record(field=value, ...)``."""
            values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({values})"

    def replace(record, **changes):
        """Return a copy of a record with other values for these fields."""
        return type(record)(**{**record._asdict(), **changes})
