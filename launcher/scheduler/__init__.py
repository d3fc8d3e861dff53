"""Scheduler: job and hosts in, plan out. Pure: nothing here asks the machine anything.

Two steps, because ports are reserved between them: `placement.place` gives each task a host, the agents then
hold a port for each task, and `plan.make_plan` makes the commands and environments that name those ports.

This module imports nothing, because agents import `cluster_spec` from this package.
"""
