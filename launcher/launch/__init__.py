"""Runs one job from its options to its exit code: connect, stage files, orchestrate, collect, report."""
