"""Benchmarks of the operators against named peers: ``python -m benchmarks --help``, or ``pytest benchmarks``."""
