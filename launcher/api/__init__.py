"""The Python API: a program starts a launch, and runs programs or its own functions in the tasks.

User programs reach it by the public names of `launcher`. `launcher.api.remote` is the part that travels to
the tasks. Importing the API must start nothing.
"""
