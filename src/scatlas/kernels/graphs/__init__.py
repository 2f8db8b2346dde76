"""Kernels of neighbour graphs, their layout and their clusters."""
