"""Selection of cells and genes of counts, log-normalised in the same pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import as_numbers
from scatlas.arrays.kinds import is_dask
from scatlas.elements import check_array
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.matrix.size_factors import reciprocal

if TYPE_CHECKING:
    import dask.array as da
    from numpy.typing import ArrayLike, NDArray


def scales_from_size_factors(size_factors: ArrayLike, n_cells: int) -> NDArray[np.float64]:
    """Factor for the counts of each cell, from checked size factors; NaN for cells left out."""
    factors = as_numbers(size_factors, "size_factors").astype(np.float64, copy=False)
    if factors.shape != (n_cells,):
        raise InputError(f"size_factors has shape {factors.shape}, but there are {n_cells} cells")
    if np.isinf(factors).any() or (factors < 0).any():
        raise InputError("size_factors must be finite and not negative, or NaN to leave a cell out")
    return reciprocal(factors)


def log_normalize(x: da.Array, size_factors: ArrayLike) -> da.Array:
    """Log-normalised counts of a Dask array, lazily: sums by group take the counts themselves. The
    values of cells whose size factor is NaN are NaN.
    """
    from scatlas.kernels.counts import lazy_normalized
    from scatlas.kernels.counts.normalize_cpu import scaled_dtype

    scales = scales_from_size_factors(size_factors, x.shape[0])
    scaled = blocks.map_blocks(lazy_normalized.scale_rows, x, scales, dtype=scaled_dtype(x.dtype))
    return blocks.map_blocks(lazy_normalized.log1p, scaled, dtype=scaled.dtype)


@blocks.passes(0, "lazy for a Dask array; blocks without a kept cell are never computed")
def select_and_log_normalize(x: Any, genes: ArrayLike, *, size_factors: ArrayLike) -> Any:
    """Log-normalised counts of selected genes and cells, in one pass over the counts.

    The values have the same bits as those of selecting the cells and genes, then
    :func:`normalize_total` with ``target_sum=1`` and these factors as ``counts_per_cell``, then
    :func:`log1p`. Size factors come from all genes of a cell, so selecting first changes nothing.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``: NumPy, SciPy CSR or CSC, or Dask with dense or CSR blocks. It
        does not change.
    genes
        Boolean mask ``[n_genes]``, or integer positions in the order of the result.
    size_factors
        One number per cell (:func:`size_factors`), by which its counts are divided. NaN leaves the
        cell out; with 0 (an empty cell) the counts stay as they are.

    Returns
    -------
    Array ``[selected cells, selected genes]``, float32, but float64 for float64 counts: dense for
    dense, CSR for sparse counts, on the GPU if `x` is there, and lazy for Dask, with one block for
    each block of `x` that has a selected cell.

    Raises
    ------
    InputError
        `size_factors` or `genes` do not fit `x`, a gene occurs twice, or a size factor is negative
        or infinite.
    """
    from scatlas.kernels.counts.normalize_cpu import scaled_dtype
    from scatlas.kernels.counts.select_cpu import new_column_of_gene

    x = check_array(x, "the array")
    n_cells, n_genes = x.shape
    scales = scales_from_size_factors(size_factors, n_cells)
    genes = np.asarray(genes)
    if genes.dtype == bool:
        if genes.shape != (n_genes,):
            raise InputError(f"genes is a mask of {genes.size}, but there are {n_genes} genes")
        genes = np.flatnonzero(genes)
    try:
        new_column = new_column_of_gene(genes, n_genes)
    except ValueError as error:
        raise InputError(str(error)) from error

    kernels = kernels_for("counts.normalize", x)
    normalize_block = partial(kernels.select_and_log_normalize, new_column=new_column)
    if not is_dask(x):
        return blocks.join(list(blocks.stream(x, normalize_block, scales)))
    # Select whole blocks that have a selected cell; the kernel leaves out the other cells.
    in_blocks = ~np.isnan(scales)
    for rows in blocks.row_slices(x):
        in_blocks[rows] = in_blocks[rows].any()
    x, scales = blocks.select_rows(x, in_blocks), scales[in_blocks]
    n_rows = [np.count_nonzero(~np.isnan(scales[rows])) for rows in blocks.row_slices(x)]
    return blocks.map_blocks(
        normalize_block,
        x,
        scales,
        dtype=scaled_dtype(x.dtype),
        n_vars=genes.size,
        row_chunks=tuple(map(int, n_rows)),
    )
