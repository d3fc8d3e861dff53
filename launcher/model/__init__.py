"""What the rooms say to each other: immutable records, no behaviour beyond naming things.

Every record is a ``NamedTuple``: frozen, typed, cheap. (A frozen dataclass costs a
millisecond to *define* and its module 20 ms to import; with forty records that would be
most of the time it takes to start sixteen tasks.)

The agent imports this package on hosts with Python 3.8, so nothing here may need more.
"""
