"""The command line: one file a command, with ``SUMMARY``, ``EXAMPLES``, ``add_arguments`` and ``run``."""
