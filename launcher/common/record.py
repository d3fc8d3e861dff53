"""`Record`, the base class of all records: frozen dataclasses that cost no time when they are defined.

A launch defines about a hundred records, and so does the agent on each host. With `dataclasses.dataclass` or
`typing.NamedTuple`, that would take a fifth of the time until the first task starts. So a record is a tuple
at run time. Only `launcher.common.protocol` may rely on that, for speed. Type checkers see a frozen dataclass
and reject code that unpacks or indexes a record or compares it with a tuple. Hosts with Python 3.8 import
this module.
"""

from operator import itemgetter

__all__ = ["Record", "as_dict", "from_attributes", "replace"]

TYPE_CHECKING = False  # Type checkers assume that this name is true.

if TYPE_CHECKING:
    # Type checkers know which fields `dataclasses.replace` may change.
    from dataclasses import replace as replace
    from typing import Any, ClassVar, Dict, Tuple, Type, TypeVar

    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True)
    class Record:
        """The base class of records as type checkers see it. The class that runs is below."""

        _fields: ClassVar[Tuple[str, ...]]
        _field_defaults: ClassVar[Dict[str, Any]]

    _RecordT = TypeVar("_RecordT", bound=Record)

    def as_dict(record: Record) -> Dict[str, Any]: ...

    # The function that runs, with its docstring, is below.
    def from_attributes(kind: Type[_RecordT], /, *sources: object, **values: Any) -> _RecordT: ...

else:
    #: Stands for an attribute that an object does not have.
    _MISSING = object()

    class _RecordType(type):
        """The metaclass that turns the annotations of a record class into its fields.

        They follow the fields of the base class. Values in the class body are the defaults.
        """

        _fields, _field_defaults = (), {}

        def __new__(cls, name, bases, body):
            """Make a record class, with a property for each field that reads its item of the tuple."""
            record = super().__new__(cls, name, bases, {"__slots__": (), **body})
            # Before Python 3.10 these may be the annotations of the base, whose fields are there already.
            annotations = getattr(record, "__annotations__", ())
            record._fields = tuple(dict.fromkeys((*record._fields, *annotations)))
            defaults = {field: body[field] for field in annotations if field in body}
            record._field_defaults = {**record._field_defaults, **defaults}
            for index, field in enumerate(record._fields):
                setattr(record, field, property(itemgetter(index)))
            return record

    class Record(tuple, metaclass=_RecordType):
        """A class whose annotations are its fields, as in a frozen dataclass.

        A record cannot be changed, but `replace` makes a changed copy. Two records are equal if they belong
        to the same class and their values are equal.
        """

        def __new__(cls, *values, **named):
            """Make a record from values in the order of the fields, or by their names."""
            # Most records are made from all their values, which takes no time.
            if named or len(values) != len(cls._fields):
                values = (*values, *cls._other_values(len(values), named))
            return tuple.__new__(cls, values)

        @classmethod
        def _other_values(cls, count, named):
            """Return the values of the fields after the first ``count``, from names or defaults.

            Args:
                count: How many fields have a value by position.
                named: The values by name. Those of the fields are removed from it.

            Raises:
                TypeError: A field has no value, or there are too many values or unknown names.
            """
            defaults = cls._field_defaults
            try:
                values = [
                    named.pop(field) if field in named else defaults[field] for field in cls._fields[count:]
                ]
            except KeyError as error:
                raise TypeError(f"{cls.__name__} needs a value for {error}") from None
            # Names that are left are unknown, or those of fields that have a value by position.
            if named or count > len(cls._fields):
                surplus = f"{count} values and {', '.join(named) or 'no names'}"
                raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}, each once; got {surplus}")
            return values

        def __eq__(self, other):
            """Return whether the other object is a record of the same class with equal values."""
            return type(other) is type(self) and tuple.__eq__(self, other)

        def __ne__(self, other):
            """Return whether the records differ. Without this method, that of the tuple would be called."""
            return not self == other

        def __hash__(self):
            """Return a hash that differs between classes."""
            return hash((type(self), tuple.__hash__(self)))

        def __bool__(self):
            """Return True for a record without fields, too, although an empty tuple is false."""
            return True

        def __getnewargs__(self):
            """Return the values from which `copy` and `pickle` make the record again."""
            return tuple(self)

        def __repr__(self):
            """Return ``Record(field=value, ...)``."""
            values = ", ".join(f"{name}={value!r}" for name, value in as_dict(self).items())
            return f"{type(self).__name__}({values})"

    def as_dict(record):
        """Return the values of a record by the names of its fields."""
        return dict(zip(record._fields, record))

    def from_attributes(kind, /, *sources, **values):
        """Return a new record whose values are copied from the attributes of other objects.

        Args:
            kind: The class of the record.
            *sources: The objects. The first that has an attribute with the name of a field provides its
                value.
            **values: Values of fields that are not copied.

        Raises:
            AttributeError: No object has an attribute for a field.
            TypeError: The class has no such field.
        """
        copied = []
        for name in kind._fields:
            if name in values:
                copied.append(values.pop(name))
                continue
            for source in sources:
                value = getattr(source, name, _MISSING)
                if value is not _MISSING:
                    copied.append(value)
                    break
            else:
                raise AttributeError(f"no object has {name!r} for {kind.__name__}")
        if values:
            raise TypeError(f"{kind.__name__} has no fields {', '.join(values)}")
        return kind(*copied)

    def replace(record, /, **changes):
        """Return a copy of a record with new values for the named fields."""
        return type(record)(**{**as_dict(record), **changes})
