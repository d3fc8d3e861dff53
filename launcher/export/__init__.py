"""Writes a job as a file for Kubernetes, Slurm or Docker Compose, which then run it without launch.

``launch export`` uses it. Each form is a module with a function that turns an `exported.ExportedJob` into
text; it reads no file and asks no cluster.
"""
