"""Tests of the operators, the backends and the build."""
