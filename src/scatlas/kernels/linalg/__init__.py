"""Kernels of matrix products, eigenvectors, scaling and regression of one block."""
