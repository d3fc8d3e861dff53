"""Containers as hosts: one container is one host, its agent the first process in it.

::

    orchestrator ══ link ══ attached stdin, stdout ══ engine ══ agent (pid 1) ──> task, task, ...

The agent travels in over the attached stdin, as it does over SSH: an image needs a Python 3.8 and nothing of
ours. Its launcher's end is the end of its stdin, so that no container outlives its launcher.
"""
