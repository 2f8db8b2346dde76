"""Kernel of UMAP's rounds against plain NumPy, random numbers included."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas.kernels.graphs import layout_cpu

STEP, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def split_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def plain_round(
    y: np.ndarray, others: np.ndarray, edges: tuple[np.ndarray, ...], keys: np.ndarray, **how: Any
) -> np.ndarray:
    """In float64, one pair of cells after the other."""
    indptr, indices, weights = edges
    (a, b), number = how["curve"], how["number"]
    out = y.astype(np.float64)
    for i in range(len(y)):
        used = [
            edge
            for edge in range(indptr[i], indptr[i + 1])
            if np.int32(np.float32(number) * weights[edge])
            > np.int32(np.float32(max(number - 1, 0)) * weights[edge])
        ]
        stream = split_mix(
            split_mix(how["seed"] + number * STEP & MASK) + int(keys[i]) * STEP & MASK
        )
        force, stiffness = np.zeros(y.shape[1]), 0.0
        for edge in used:
            apart = (y[i] - others[indices[edge]]).astype(np.float64)
            d2 = max(apart @ apart, 1e-12)
            factor = how["pulls"] * 2 * a * b * d2 ** (b - 1) / (1 + a * d2**b)
            force, stiffness = force - factor * apart, stiffness + factor
        for _ in range(how["negative_sample_rate"] * len(used)):
            stream = (stream + STEP) & MASK
            apart = (y[i] - others[(split_mix(stream) >> 32) * len(others) >> 32]).astype(
                np.float64
            )
            d2 = max(apart @ apart, 1e-12)
            factor = 2 * how["gamma"] * b / ((0.001 + d2) * (1 + a * d2**b))
            force += apart * np.clip(factor, -4 / np.sqrt(d2), 4 / np.sqrt(d2))
        out[i] += how["rate"] / (1 + how["damping"] * how["rate"] * stiffness) * force
    return out


@settings(max_examples=25)
@given(
    n_cells=st.sampled_from([0, 1, 2, 17, 40]),
    n_components=st.sampled_from([1, 2, 3, 5]),
    index=st.sampled_from([np.int32, np.int64]),
    stands=st.booleans(),
    a=st.floats(0.2, 3),
    b=st.floats(0.4, 1.5),
    how=st.fixed_dictionaries(
        {
            "number": st.integers(0, 300),
            "rate": st.floats(0.01, 1.5),
            "damping": st.sampled_from([0.0, 0.3, 1.0]),
            "pulls": st.sampled_from([1, 2]),
            "gamma": st.sampled_from([-0.5, 0.0, 1.0]),
            "negative_sample_rate": st.sampled_from([0, 1, 5]),
            "seed": st.integers(0, MASK),
        }
    ),
)
def test_a_round_is_that_of_plain_numpy(
    n_cells: int, n_components: int, index: type, stands: bool, a: float, b: float, how: dict
) -> None:
    rng = np.random.default_rng(how["seed"] % 1000)
    y = rng.normal(size=(n_cells, n_components)).astype(np.float32) * 3
    y[3:6] = y[3:4]
    others = rng.normal(size=(9, n_components)).astype(np.float32) if stands else y
    sizes = rng.integers(0, 12, n_cells) * (rng.random(n_cells) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    indices = rng.integers(0, max(1, len(others)), indptr[-1]).astype(index)
    weights = rng.random(indptr[-1]).astype(np.float32)
    weights[::3] = 1
    keys = rng.integers(0, 2**64, n_cells, dtype=np.uint64)
    edges, out = (indptr, indices, weights), np.full_like(y, np.nan)
    known = plain_round(y, others, edges, keys, curve=(a, b), **how)
    middle = n_cells // 3
    for rows in ((0, middle), (middle, n_cells)):
        layout_cpu.run_round(y, out, others, edges, keys, (a, b), rows, **how)
    # Forces nearly cancel in some rows: the errors are those of the sum of their sizes.
    np.testing.assert_allclose(out, known, rtol=1e-4, atol=1e-4)
