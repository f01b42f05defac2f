"""GPU kernels without a GPU: what they compile to (``python -m benchmarks.gpu``) and what they should take."""
