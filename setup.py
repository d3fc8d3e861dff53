"""Packaging. Everything is said in ``pyproject.toml``; this file is for tools that ask for it."""

from setuptools import setup

setup()
