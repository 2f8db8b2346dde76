"""Counts with cell types, for tests that rank genes."""

from __future__ import annotations

import numpy as np


def marked_counts(rng: np.random.Generator) -> np.ndarray:
    """400 cells x 600 genes, int64: markers of three types, genes of all means, 24 empty genes."""
    mean = rng.gamma(0.3, 3.0, size=600)
    types = rng.integers(0, 3, 400)
    effect = np.where(rng.random((3, 600)) < 0.1, rng.gamma(2.0, 2.0, (3, 600)), 1.0)
    counts = rng.poisson(mean * effect[types] * rng.gamma(5, 0.2, (400, 1)))
    counts[:, ::25] = 0
    return counts
