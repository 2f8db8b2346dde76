"""Principal components of an array, in the way that costs least for its shape.

The Gram matrix of the genes takes one pass and memory for their square. In memory fewer cells than
genes have a Gram matrix of the cells, and many genes iterations on products with a few vectors.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.kinds import ArrayKind, kind_of
from scatlas.compute.threads import blas_on_one_thread, n_cores
from scatlas.errors import InputError
from scatlas.matrix.components import (
    Components,
    check_n_comps,
    components,
    eigh_top_in_threads,
    from_eigenpairs,
)
from scatlas.matrix.gene_moments import gene_moments
from scatlas.matrix.gram import check_size, gram_stats, means_to_subtract, subtract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Eigenpairs = tuple[NDArray[np.float64], NDArray[np.float64]]

# With so few genes a Gram matrix costs little.
_FEW_GENES = 1000
# A Gram matrix may take these bytes, or more if the values take as many.
_SMALL_GRAM, _BYTES_PER_VALUE = 100e6, 12
# Iterations need several vectors per component.
_GENES_PER_COMPONENT = 20
# Nanoseconds of one core, measured with 50 components: iterations per stored value; a Gram matrix
# per pair of values of a row; its eigenvectors by LAPACK per cubed row, or by iterations (more than
# 2,500 rows) per squared row.
_PRODUCTS_NS, _PAIR_NS, _LAPACK_NS, _LANCZOS_NS = 400, 0.3, 0.1, 80
# The Gram matrix of the cells takes more passes over them. Where that of the genes takes little
# more time it is preferred: its bits are those of a Dask array.
_PASSES_NS = 1e6


def array_components(x: Any, n_comps: int, *, zero_center: bool = True) -> Components:
    """Principal components of an array ``[n_cells, n_genes]``, in memory or Dask.

    The ways agree to 1e-9 in directions whose variance differs from others' by more than rounding.
    """
    n_cells, n_genes = x.shape
    n_comps = check_n_comps(n_comps, n_cells, n_genes)
    kind = kind_of(x)
    if kind.gpu or kind.lazy:
        return _from_genes(x, kind, n_comps, zero_center=zero_center)
    if _prefer_iterations(x, kind, n_comps):
        wide = _Wide(x, kind, n_comps, zero_center)
        found = _from_products(wide)
        if found is not None:
            return wide.components(*found)
    if _LAPACK_NS * (n_genes**3 - n_cells**3) > _PASSES_NS:
        wide = _Wide(x, kind, n_comps, zero_center)
        return wide.components(*_from_cells(wide))
    return _from_genes(x, kind, n_comps, zero_center=zero_center)


def _prefer_iterations(x: Any, kind: ArrayKind, n_comps: int) -> bool:
    """Whether iterations on products take less time than a Gram matrix, or fit the memory alone."""
    if x.shape[1] <= _FEW_GENES or min(x.shape) < n_comps * _GENES_PER_COMPONENT:
        return False
    n_values = x.nnz if kind.sparse else x.size
    larger, smaller = max(x.shape), min(x.shape)
    if 8 * smaller**2 > max(_SMALL_GRAM, _BYTES_PER_VALUE * n_values):
        return True
    by_lapack = _LAPACK_NS * smaller**3 if smaller <= 2500 else _LANCZOS_NS * smaller**2
    return _PRODUCTS_NS * n_values < _PAIR_NS * n_values**2 / larger + by_lapack


def _from_genes(x: Any, kind: ArrayKind, n_comps: int, *, zero_center: bool) -> Components:
    check_size(x.shape[1])
    stats, n = gram_stats(x), x.shape[0]
    shift = None
    if zero_center:
        squares = stats.gram.diagonal() / n
        shift = means_to_subtract(stats.sums / n, squares, n, sparse=kind.sparse)
    if shift is not None:
        stats = gram_stats(x, shift=shift)
    found = components(stats, n_comps, zero_center=zero_center, gpu=kind.gpu)
    return found if shift is None else found._replace(mean=found.mean + shift)


class _Wide:
    """An array in memory with many genes, less the means that would cost digits of products."""

    def __init__(self, x: Any, kind: ArrayKind, n_comps: int, zero_center: bool) -> None:
        if kind.sparse:
            x = x.tocsr()
            if not x.has_sorted_indices:
                x = x.sorted_indices()
        self.x, self.kind = x, kind
        self.n_comps, self.zero_center = n_comps, zero_center
        moments = gene_moments(self.x)
        self.mean, self.var = moments.mean[0], moments.var[0]
        if not (np.isfinite(self.mean).all() and np.isfinite(self.var).all()):
            raise InputError("PCA needs finite values, but X holds NaN or infinite ones")
        n_cells = x.shape[0]
        squares = self.var * ((n_cells - 1) / n_cells) + self.mean**2
        taken = means_to_subtract(self.mean, squares, n_cells, sparse=kind.sparse)
        # Mean of the genes of `self.x`.
        self.centre = self.mean
        if zero_center and taken is not None:
            self.x, self.centre = subtract(taken, self.x), self.mean - taken
        self.shift = self.centre if zero_center else np.zeros_like(self.mean)

    def components(self, values: NDArray[np.float64], PCs: NDArray[np.float64]) -> Components:
        """Components of the eigenpairs of the Gram matrix of the genes."""
        n_cells = self.x.shape[0]
        total = float(self.var.sum())
        squares = float((self.var + self.centre**2).sum())
        return from_eigenpairs(
            values / (n_cells - 1 if self.zero_center else n_cells),
            PCs,
            self.mean,
            zero_center=self.zero_center,
            total=total if self.zero_center else total * (n_cells - 1) / n_cells,
            noise=self.x.shape[1] * np.finfo(np.float64).eps * squares,
        )


def _from_products(wide: _Wide) -> Eigenpairs | None:
    """Eigenpairs of the Gram matrix of genes, by Lanczos iterations without it; None on failure."""
    from scatlas.kernels.linalg.eigh_cpu import centred_product, lanczos

    with blas_on_one_thread(), ThreadPoolExecutor(n_cores(), "scatlas-products") as pool:
        product = centred_product(wide.x, wide.shift, pool.map)
        return lanczos(product, wide.x.shape[1], wide.n_comps)


def _from_cells(wide: _Wide) -> Eigenpairs:
    """Eigenpairs of the Gram matrix of the genes, from that of the cells."""
    x = wide.x
    products = gram_stats(x.T.tocsr() if wide.kind.sparse else np.ascontiguousarray(x.T)).gram
    with blas_on_one_thread():
        shift = x @ wide.shift
        products += wide.shift @ wide.shift - shift - shift[:, None]
        values, vectors = eigh_top_in_threads(products, wide.n_comps)
        PCs = x.T @ vectors - wide.shift[:, None] * vectors.sum(axis=0)
        # Directions without variance are any that complete the others.
        scale = np.linalg.norm(PCs, axis=0)
        lost = scale <= 1e-10 * scale.max(initial=1e-300)
        PCs[:, lost] = np.random.default_rng(0).standard_normal((PCs.shape[0], int(lost.sum())))
        q, r = np.linalg.qr(PCs)
    return np.maximum(values, 0.0), q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
