"""Scheduler: job and hosts -> plan. Pure: it does not look at the machine.

There are two steps: `placement.place` gives each task a host; when the agents hold a port for each task,
`plan.make_plan` makes the commands and environments.
"""
