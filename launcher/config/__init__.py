"""Text that users write -> records: hostfiles, host lists, job files, units.

`schema` reads YAML by tables of keys; `hostfile` and `jobfile` have the tables and make the records.
All faults of an input are reported at once, as `file:line: problem; expected ...`.
"""
