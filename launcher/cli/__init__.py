"""The command line: a module for each command has ``SUMMARY``, ``EXAMPLES``, ``add_arguments``, ``run``."""
