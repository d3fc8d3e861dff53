"""Code that the launcher shares with its programs on hosts.

These modules travel to hosts, so they must use nothing but Python 3.8 and its standard library.
"""
