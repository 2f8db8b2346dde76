"""Decodes the chunks of one array to numbers; knows no AnnData.

zarrs does not replace it: with two threads it reads our stores and AnnData's at 0.76 to 0.85 of
this speed, with one at 0.85 to 1.5 (`bench/results/readers-zarrs-2026-11-24.txt`). HDF5 files need
the same decoders, and zarrs neither checks indices while it decodes nor shares a chunk between two
blocks.
"""
