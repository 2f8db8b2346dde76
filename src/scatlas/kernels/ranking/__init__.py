"""Kernels that compare groups of cells gene by gene."""
