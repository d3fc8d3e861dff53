"""Measures launch beside its peers: ``make bench``, or ``python -m bench.run --help``."""
