"""Measures the real launcher with simulated hosts, up to the size of a large cluster.

``python -m bench.scale`` runs it. Only the agents are simulated: the launcher and its protocol are the real
ones.
"""
