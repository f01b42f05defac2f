"""Tests of the Triton kernels without a GPU: interpreted on guarded memory in several orders."""
