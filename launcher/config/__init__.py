"""Text that users write -> records: hostfiles, host lists, job files, units.

`keys` is the table of all keys, `schema` reads YAML by it, `hostfile` and `jobfile` make the records.
All faults of an input are reported at once, as `file:line: problem; expected ...`.
"""
