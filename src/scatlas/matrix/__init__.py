"""Analyses of a matrix of cells by genes, without an AnnData: `sa.pp` wraps them, scripts call them."""
