"""Rows from the driver to its tasks, and results back."""
