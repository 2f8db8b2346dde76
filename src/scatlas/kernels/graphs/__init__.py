"""Kernels of neighbour graphs, their layout and their clusters.

Graphs are CSR ``[n, n]``: ``edges`` are ``indptr``, ``indices`` and weights. ``rows`` are the first
node and the one after the last, whose part of ``out`` a kernel overwrites; coordinates and vectors
are in C order.
"""
