"""Kept cells and wanted genes of counts, log-normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.gene_moments import checked
from scatlas.matrix.size_factors import reciprocal

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def scales_of(size_factors: ArrayLike, n_cells: int) -> NDArray[np.float64]:
    """What to multiply each cell's counts by, float64 ``[n_cells]``; NaN for cells left out.

    Raises
    ------
    InputError
        When there is not one number a cell, or one is negative or infinite.
    """
    factors = np.asarray(size_factors, dtype=np.float64)
    if factors.shape != (n_cells,):
        msg = f"size_factors has shape {factors.shape}, but there are {n_cells} cells"
        raise InputError(msg)
    if np.isinf(factors).any() or (factors < 0).any():
        raise InputError("size_factors must be finite and not negative, or NaN to leave a cell out")
    return reciprocal(factors)


@blocks.passes(0, "lazy for a Dask array; blocks without a kept cell are never computed")
def select_and_log_normalize(x: Any, genes: ArrayLike, *, size_factors: ArrayLike) -> Any:
    """Log-normalised counts of some genes of some cells, in one sweep over the counts.

    The values have the bits that selecting the cells and genes, :func:`normalize_total` with
    ``target_sum=1`` and these factors as ``counts_per_cell``, and :func:`log1p` give one after
    another. Size factors come from all genes of a cell, so that cutting first changes nothing.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``: NumPy, SciPy CSR or CSC, or Dask of dense or CSR blocks. It
        stays as it is.
    genes
        Boolean mask ``[n_genes]``, or integer positions in the order wanted.
    size_factors
        One a cell (:func:`size_factors`), by which its counts are divided. NaN leaves the cell
        out; the counts of a cell with 0 (an empty one) stay as they are.

    Returns
    -------
    Array ``[cells kept, genes wanted]``, float32, but float64 for float64 counts: dense for dense,
    CSR for sparse counts, on the GPU where `x` is there, and lazy for Dask, with a block for each
    block of `x` that has a kept cell.

    Raises
    ------
    InputError
        When `size_factors` or `genes` do not fit `x`, a gene is wanted twice, or a size factor is
        negative or infinite.
    """
    from scatlas.kernels.counts.normalize_cpu import scaled_dtype
    from scatlas.kernels.counts.select_cpu import new_column_of_gene

    x = checked(x, "the array")
    n_cells, n_genes = x.shape
    scales = scales_of(size_factors, n_cells)
    genes = np.asarray(genes)
    if genes.dtype == bool:
        if genes.shape != (n_genes,):
            msg = f"genes is a mask of {genes.size}, but there are {n_genes} genes"
            raise InputError(msg)
        genes = np.flatnonzero(genes)
    try:
        place = new_column_of_gene(genes, n_genes)
    except ValueError as error:
        raise InputError(str(error)) from error

    kernels = kernels_for("counts.select_normalize", x)

    def of_block(block: blocks.Block, scales: NDArray[np.float64]) -> blocks.Block:
        return kernels.select_and_log_normalize(block, scales, place)

    if not blocks.is_dask(x):
        return blocks.join(list(blocks.stream(x, of_block, scales)))
    # Whole blocks with a kept cell, as they are; the kernel leaves out the other cells.
    kept = ~np.isnan(scales)
    for rows in blocks.row_slices(x):
        kept[rows] = kept[rows].any()
    x, scales = blocks.select_rows(x, kept), scales[kept]
    counts = [np.count_nonzero(~np.isnan(scales[rows])) for rows in blocks.row_slices(x)]
    return blocks.map_blocks(
        of_block,
        x,
        scales,
        dtype=scaled_dtype(x.dtype),
        n_vars=genes.size,
        row_chunks=tuple(map(int, counts)),
    )
