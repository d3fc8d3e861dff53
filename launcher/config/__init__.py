"""Turns what users write into records: hostfiles, host lists, job files, project files and options.

`documents` reads YAML and TOML with the lines of all values, and `schema` reads mappings by tables of keys.
`hostfile` and `jobfile` contain these tables and make the records. `tfjob` and `pod_template` turn a TFJob
into the nodes of a job file. `settings` defines what a setting is, and `table` contains a row for each.

No module here may start anything. All faults of an input are reported at once, as
``file:line: problem; expected ...``.
"""
