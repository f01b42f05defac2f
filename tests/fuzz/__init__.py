"""Fuzzers: what programs of the project do with broken input, by command or, for a few seconds, in CI."""
