"""Stands in for TensorBoard: starts at once, and needs no TensorFlow."""
