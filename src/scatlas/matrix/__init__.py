"""Analyses of a matrix [cells x genes] without an AnnData, for `sa.pp` and the scripts."""
