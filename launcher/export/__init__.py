"""``launch export``: a job as a file for Kubernetes, Slurm or Docker Compose, which need no launch there.

Each form is a module with a function from an `exported.Exported` to text. It reads no file and asks no
cluster.
"""
