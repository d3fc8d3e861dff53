"""Measures launch beside its peers: ``make bench``, or ``python -m bench.run --help``.

Each module measures one thing and prints tables. The bench uses launch only as a user does, by its command
line, except where a module says so. Nothing in `launcher` may import it.
"""
