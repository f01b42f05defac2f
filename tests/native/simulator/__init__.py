"""A CUDA simulator: see README.md."""
