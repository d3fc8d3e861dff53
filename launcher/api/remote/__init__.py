"""The part of the Python API that travels to tasks.

`launcher.api.tasks` sends it there. It uses only Python 3.8, the standard library and cloudpickle.
"""
