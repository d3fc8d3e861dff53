"""The tasks' side of the Python API: what travels to them. Python 3.8, standard library and cloudpickle."""
