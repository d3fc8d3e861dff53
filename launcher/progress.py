"""Reads from the lines that programs print how far they are: steps, their total, and metrics."""
