"""Text that users write -> records: hostfiles, host lists, job files, units.

`documents` reads YAML and TOML with the lines of all values, and `schema` reads mappings by tables of keys.
`hostfile` and `jobfile` have the tables and make the records; `tfjob` and `pod_template` turn a TFJob into
the nodes of a job file. `settings` says what a setting is, and `table` has a row for each.
All faults of an input are reported at once, as `file:line: problem; expected ...`.
"""
