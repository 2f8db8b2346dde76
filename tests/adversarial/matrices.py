"""Matrices of users: values of any type with any storage and chunks.

:func:`values` draws the values, :func:`forms` their storage: ``form.adata(values)`` is the AnnData.
Every form of the same values must give the same result, or the same kind of error.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import sparse

from tests.conftest import annotate

Kind = Literal["counts", "huge", "negative", "reals", "nonfinite"]
ALL: tuple[Kind, ...] = ("counts", "huge", "negative", "reals", "nonfinite")
REALS: tuple[Kind, ...] = ("reals", "nonfinite")

INTEGERS = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
FLOATS = ("float16", "float32", "float64")
SIGNED = tuple(name for name in INTEGERS if name.startswith("int")) + FLOATS
DTYPES_OF: dict[Kind, tuple[str, ...]] = {
    "counts": INTEGERS + FLOATS,
    "huge": INTEGERS[1:] + FLOATS,
    "negative": SIGNED,
    "reals": FLOATS,
    "nonfinite": FLOATS,
}


@dataclass(frozen=True)
class Values:
    """Values of a matrix.

    ``counts`` are whole numbers below 10, ``huge`` those up to the largest of the type whose total
    int64 holds, ``negative`` ones with some below zero, ``reals`` fractions of either sign, and
    ``nonfinite`` these with NaN and infinite values.
    """

    kind: Kind
    dense: np.ndarray  # [n_cells, n_genes], in C order

    @property
    def shape(self) -> tuple[int, int]:
        return self.dense.shape

    @property
    def size(self) -> float:
        """The largest finite value, without its sign."""
        finite = self.dense[np.isfinite(self.dense)].astype(np.float64)
        return float(np.abs(finite).max(initial=0.0))

    @property
    def sums_may_overflow(self) -> bool:
        """Whether int64 might not hold a sum of as many values as there are in a row or column."""
        if self.dense.dtype.kind not in "iu":
            return False
        largest = max(map(abs, map(int, self.dense.ravel())), default=0)
        return largest * max(self.dense.shape) >= 2**63

    def __repr__(self) -> str:
        return f"Values({self.kind}, {self.dense.dtype}, {self.dense.tolist()})"


def filled(
    kind: Kind, dtype: str, shape: tuple[int, int], density: float, seed: int, *, top: int = 10
) -> Values:
    """Values drawn from a seed; a share of about ``density`` is not zero."""
    rng = np.random.default_rng(seed)
    numbers: Any = rng.integers(0, 2 if dtype == "bool" else top, shape)
    if kind == "huge":
        numbers = rng.integers(0, _largest(np.dtype(dtype), shape), shape, np.uint64, endpoint=True)
    elif kind == "negative":
        numbers = numbers - 4
    elif kind in REALS:
        numbers = rng.normal(size=shape) * 3
    if kind == "nonfinite":
        odd = rng.random(shape) < 0.2
        numbers[odd] = rng.choice([np.nan, np.inf, -np.inf], odd.sum())
    dense = np.where(rng.random(shape) < density, numbers, 0).astype(dtype)
    return Values(kind, dense)


def _largest(dtype: np.dtype, shape: tuple[int, int]) -> int:
    """Largest count of a type such that no sum of all counts loses a digit."""
    n = max(1, shape[0] * shape[1])
    if dtype.kind == "f":
        # 11 and 24 bits of float16 and float32 are exact; float64 sums to 2^53.
        return {2: 2**11, 4: 2**24, 8: 2**52 // n}[dtype.itemsize]
    return np.iinfo(dtype).max


def _typical() -> Values:
    """Counts with an empty cell and an empty gene: many faults that few random examples show."""
    found = filled("counts", "int32", (11, 7), 0.5, seed=1)
    found.dense[4], found.dense[:, 2] = 0, 0
    return found


TYPICAL = _typical()


@st.composite
def values(
    draw: st.DrawFn,
    *,
    kinds: tuple[Kind, ...] = ALL,
    dtypes: tuple[str, ...] | None = None,
    cells: tuple[int, int] = (0, 12),
    genes: tuple[int, int] = (0, 8),
    top: int = 10,
) -> Values:
    """Draw values: any shape, also with zero or one row or column, and all types of the kind."""
    kind = draw(st.sampled_from(kinds))
    of_kind = [name for name in DTYPES_OF[kind] if dtypes is None or name in dtypes]
    dtype = draw(st.sampled_from(of_kind))
    shape = draw(st.integers(*cells)), draw(st.integers(*genes))
    density = draw(st.sampled_from([0.6, 0.2, 1.0, 0.0]))
    return filled(kind, dtype, shape, density, draw(st.integers(0, 2**16)), top=top)


@dataclass(frozen=True)
class Form:
    """Storage and chunks of values, and their AnnData."""

    storage: Literal["c", "fortran", "csr", "csc"] = "csr"  # of the blocks, too, for Dask
    array: bool = False  # SciPy's sparse array instead of its matrix
    indices: str = "int32"  # types of these arrays, for sparse storage
    indptr: str = "int32"
    shuffled: bool = False  # genes of a cell (CSR), or cells of a gene (CSC), in any order
    zeros: bool = False  # some are stored
    repeats: bool = False  # every value is stored in two parts, of which it is the sum
    read_only: bool = False
    # None: in memory. Dask: one block, one for each row, or uneven ones, some of them empty.
    cut: Literal["whole", "rows", "uneven"] | None = None
    view: Literal["", "c", "g", "cg"] = ""  # axes along which it is a view of a larger AnnData
    seed: int = 0

    @property
    def is_sparse(self) -> bool:
        return self.storage in ("csr", "csc")

    def matrix(self, dense: np.ndarray) -> Any:
        """X of these values without an AnnData."""
        rng = np.random.default_rng(self.seed)
        # For all cells at once, so chunks change neither the stored zeros nor their order.
        stored = dense != 0
        if self.zeros:
            stored |= rng.random(dense.shape) < 0.2
        order = rng.random(dense.shape)
        if self.cut is None:
            return self._stored(dense, stored, order)
        sizes = self.chunks(dense.shape[0])
        ends = np.cumsum([0, *sizes])
        parts = [self._stored(dense[a:b], stored[a:b], order[a:b]) for a, b in pairwise(ends)]
        # The graph holds the block objects themselves, as for a persisted array.
        name = f"x-{id(parts)}-{self.seed}"
        graph = {(name, i, 0): part for i, part in enumerate(parts)}
        meta = self._stored(dense[:0], stored[:0], order[:0])
        return da.Array(graph, name, (sizes, (dense.shape[1],)), meta=meta, dtype=dense.dtype)

    def chunks(self, n_cells: int) -> tuple[int, ...]:
        """Rows of each block of a Dask X."""
        if self.cut == "whole" or n_cells == 0:
            return (n_cells,)
        if self.cut == "rows":
            return (1,) * n_cells
        rng = np.random.default_rng(self.seed)
        bounds = np.sort(rng.integers(0, n_cells + 1, 4))
        # Dask itself cannot index an array with more blocks than rows.
        sizes = np.diff([0, *(np.unique(bounds) if self.view else bounds), n_cells])
        return tuple(sizes[sizes > 0].tolist() if self.view else sizes.tolist())

    def adata(self, values: Values) -> ad.AnnData:
        """AnnData of these values with obs, var and a layer."""
        dense, rng = values.dense, np.random.default_rng(self.seed)
        plain = _annotated(dense)
        more = [3 if axis in self.view else 0 for axis in "cg"]
        lengths = np.add(dense.shape, more)
        at = [np.sort(rng.permutation(n)[: n - m]) for n, m in zip(lengths, more, strict=True)]
        larger = np.ones(lengths, dense.dtype)
        larger[np.ix_(*at)] = dense
        other = np.zeros(larger.shape)
        other[np.ix_(*at)] = plain.layers["other"]
        obs, var = (
            table.reindex(_names(table.index, here, n), fill_value=fill)
            for table, here, n, fill in (
                (plain.obs, at[0], larger.shape[0], None),
                (plain.var, at[1], larger.shape[1], False),
            )
        )
        adata = ad.AnnData(X=self.matrix(larger), obs=obs, var=var, layers={"other": other})
        return adata[at[0], at[1]] if self.view else adata

    def _stored(self, dense: np.ndarray, stored: np.ndarray, order: np.ndarray) -> Any:
        if not self.is_sparse:
            x = np.array(dense, order="C" if self.storage == "c" else "F")
            x.flags.writeable = not self.read_only
            return x
        rows = (dense, stored, order) if self.storage == "csr" else (dense.T, stored.T, order.T)
        data, indices, ends = [dense.ravel()[:0]], [np.zeros(0, int)], [0]
        for values, here, keys in zip(*rows, strict=True):
            at = np.flatnonzero(here)
            kept = values[at]
            if self.repeats:
                at, kept = np.repeat(at, 2), np.column_stack(_halves(kept)).ravel()
            if self.shuffled:
                shuffle = np.argsort(keys[at])
                at, kept = at[shuffle], kept[shuffle]
            data.append(kept)
            indices.append(at)
            ends.append(ends[-1] + at.size)
        kind = f"{self.storage}_{'array' if self.array else 'matrix'}"
        x = getattr(sparse, kind)(dense.shape, dtype=dense.dtype)
        # Set here, because the constructor would give both arrays one type.
        x.data, x.indices = np.concatenate(data), np.concatenate(indices).astype(self.indices)
        x.indptr = np.array(ends, self.indptr)
        if self.read_only:
            for part in (x.data, x.indices, x.indptr):
                part.flags.writeable = False
        return x


CANONICAL = Form()


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two parts of the same type whose sum is each value."""
    if values.dtype == bool:
        return values, values
    half = values // 2 if values.dtype.kind in "iu" else values / 2
    with np.errstate(invalid="ignore"):
        return half, np.where(np.isfinite(values), values - half, values)


def _annotated(x: Any) -> ad.AnnData:
    """Batches, groups and numbers by position of the cell, mitochondrial genes, a layer."""
    n_cells, n_genes = x.shape
    adata = annotate(x, mt=1, n_batches=2)
    at = np.arange(n_cells)
    adata.obs["group"] = pd.Categorical(np.array(["u", "v", "w"])[at // 2 % 3])
    adata.obs["number"] = (at * 7 % 5).astype(float)
    adata.var["mask"] = np.arange(n_genes) % 3 != 1
    adata.layers["other"] = np.arange(n_cells * n_genes, dtype=float).reshape(n_cells, n_genes)
    return adata


def _names(index: pd.Index, at: np.ndarray, n: int) -> pd.Index:
    """Names of a larger table with these names at the given positions."""
    names = np.array([f"more{i}" for i in range(n)], dtype=object)
    names[at] = index
    return pd.Index(names)


def buffers(x: Any) -> list[np.ndarray]:
    """All arrays of a matrix, or of all blocks of a Dask array."""
    if hasattr(x, "__dask_graph__"):
        parts = dict(x.__dask_graph__()).values()
        return [array for part in parts for array in buffers(getattr(part, "value", part))]
    if sparse.issparse(x):
        return [x.data, x.indices, x.indptr]
    return [x] if isinstance(x, np.ndarray) else []


@st.composite
def forms(draw: st.DrawFn, *, views: bool = True, lazy: bool = True) -> Form:
    """Draw the storage of a matrix."""
    storage = draw(st.sampled_from(["csr", "c", "csc", "fortran"]))
    cut = draw(st.sampled_from([None, "uneven", "rows", "whole"])) if lazy else None
    view = draw(st.sampled_from(["", "", "c", "g", "cg"])) if views else ""
    options: dict[str, Any] = {}
    if storage in ("csr", "csc"):
        widths = [("int32", "int32"), ("int64", "int64")]
        if not view:  # SciPy's indexing needs equal types
            widths += [("int32", "int64")]
        options["indices"], options["indptr"] = draw(st.sampled_from(widths))
        for name in ("shuffled", "zeros", "repeats", "array"):
            options[name] = draw(st.booleans())
    read_only = draw(st.booleans())
    seed = draw(st.integers(0, 2**16))
    return Form(storage=storage, cut=cut, view=view, read_only=read_only, seed=seed, **options)
