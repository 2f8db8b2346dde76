"""X, layers and obsm, row block by row block."""
