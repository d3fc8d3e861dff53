"""The Python API: a program drives a ``launch``, and runs functions of its own in the tasks."""
