"""`Record`: frozen dataclasses, made without compiling code for each class.

A launch defines about a hundred records, and so does the agent on each host: `dataclasses.dataclass` or
`typing.NamedTuple` would take a fifth of the time until the first task starts. So a record is a tuple at run
time, which costs nothing. Only `launcher.common.protocol` makes use of that, for speed: type checkers see a
frozen dataclass, and reject every record that is unpacked, indexed or compared with a tuple. Hosts with
Python 3.8 import this module.
"""

from operator import itemgetter

__all__ = ["Record", "as_dict", "from_attributes", "replace"]

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    # Type checkers know which fields `dataclasses.replace` may change.
    from dataclasses import replace as replace
    from typing import Any, ClassVar, Dict, Tuple, Type, TypeVar

    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True)
    class Record:
        """What type checkers see of the class below."""

        _fields: ClassVar[Tuple[str, ...]]
        _field_defaults: ClassVar[Dict[str, Any]]

    _RecordT = TypeVar("_RecordT", bound=Record)

    def as_dict(record: Record) -> Dict[str, Any]:
        """See below."""

    def from_attributes(kind: Type[_RecordT], /, *sources: object, **values: Any) -> _RecordT:
        """See below."""

else:
    #: Stands for an attribute that an object does not have.
    _MISSING = object()

    class _RecordType(type):
        """Makes the fields of a record from its annotations, after those of the record that it extends.

        Values in the class are defaults.
        """

        _fields, _field_defaults = (), {}

        def __new__(cls, name, bases, body):
            record = super().__new__(cls, name, bases, {"__slots__": (), **body})
            own = getattr(record, "__annotations__", ())  # before Python 3.10 perhaps those of the base
            record._fields = tuple(dict.fromkeys((*record._fields, *own)))
            defaults = {field: body[field] for field in own if field in body}
            record._field_defaults = {**record._field_defaults, **defaults}
            for index, field in enumerate(record._fields):
                setattr(record, field, property(itemgetter(index)))
            return record

    class Record(tuple, metaclass=_RecordType):
        """A class whose annotations are its fields, as those of a frozen dataclass.

        A record cannot be changed; `replace` makes a changed copy. Records are equal if they are of the same
        class and have equal values.
        """

        def __new__(cls, *values, **named):
            """Make a record from values in the order of the fields, or by their names."""
            if named or len(values) != len(cls._fields):
                values = (*values, *cls._other_values(len(values), named))
            return tuple.__new__(cls, values)

        @classmethod
        def _other_values(cls, count, named):
            """Return the values of all fields but the first ``count``, and leave none in ``named``."""
            defaults = cls._field_defaults
            try:
                values = [
                    named.pop(field) if field in named else defaults[field] for field in cls._fields[count:]
                ]
            except KeyError as error:
                raise TypeError(f"{cls.__name__} needs a value for {error}") from None
            if named or count > len(cls._fields):
                given = f"{count} values and {', '.join(named) or 'no names'}"
                raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}, each once; got {given}")
            return values

        def __eq__(self, other):
            """Return whether the other is a record of the same class with the same values."""
            return type(other) is type(self) and tuple.__eq__(self, other)

        def __ne__(self, other):
            """Return whether it is not equal; a tuple has a method of its own for this."""
            return not self == other

        def __hash__(self):
            """Return a hash that differs between classes."""
            return hash((type(self), tuple.__hash__(self)))

        def __bool__(self):
            """Return True; an empty tuple is false."""
            return True

        def __getnewargs__(self):
            """Return the values, for copies and pickles."""
            return tuple(self)

        def __repr__(self):
            """Return ``Record(field=value, ...)``."""
            values = ", ".join(f"{name}={value!r}" for name, value in as_dict(self).items())
            return f"{type(self).__name__}({values})"

    def as_dict(record):
        """Return the values of a record by the names of its fields."""
        return dict(zip(record._fields, record))

    def from_attributes(kind, /, *sources, **values):
        """Return a record of this class whose other values are the attributes of objects, the first first."""

        def attribute(name):
            for source in sources:
                value = getattr(source, name, _MISSING)
                if value is not _MISSING:
                    return value
            raise AttributeError(f"no object has {name!r} for {kind.__name__}")

        for name in values:
            if name not in kind._fields:
                raise TypeError(f"{kind.__name__} has no field {name!r}")
        return kind(*[values[name] if name in values else attribute(name) for name in kind._fields])

    def replace(record, /, **changes):
        """Return a copy of a record with other values for these fields."""
        return type(record)(**{**as_dict(record), **changes})
