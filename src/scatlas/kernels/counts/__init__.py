"""Kernels that check, choose, scale and count the values of one block of counts."""
