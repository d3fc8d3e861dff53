"""Decides where tasks run and how they are started. Pure: it does not look at the machine.

`placement.place` gives each task a host, by the rules of `assignment`. When the agents hold a port for each
task, `plan.make_plan` makes the commands and environments.
"""
