"""The raw-pointer kernels of csrc/cpu, called without torch's dispatcher in between."""
