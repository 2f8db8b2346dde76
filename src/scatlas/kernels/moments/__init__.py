"""Kernels of sums, means, variances and medians per gene and group of one block."""
