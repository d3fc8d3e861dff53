"""Decides on which host each task of a job runs, and how it is started.

`placement.place` assigns a host to each task, by the rules of `assignment`. When the agents hold a port for
each task, `plan.make_plan` makes the commands and environments. The package is pure: it must not read a file
or ask the machine anything.
"""
