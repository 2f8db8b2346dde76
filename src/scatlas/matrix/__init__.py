"""Analyses of a matrix [cells x genes] without an AnnData: `sa.pp` wraps them, scripts call them."""
