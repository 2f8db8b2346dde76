"""Size factors, normalisation to a common total, and the logarithm."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.kernels.counts import lazy_normalized
from scatlas.matrix.size_factors import (
    cell_totals,
    check_target,
    check_totals,
    reciprocal,
    size_factors,
)

if TYPE_CHECKING:
    from types import ModuleType

    from anndata import AnnData
    from numpy.typing import ArrayLike

    from scatlas.arrays.kinds import ArrayKind

log = logging.getLogger(__name__)

# Values that a thread scales or logs at a time, a ms of work: to start threads takes as long.
_VALUES_PER_PART = 2**20


@blocks.passes(
    1,
    "0 with target_sum or counts_per_cell, unless key_added asks for the factors; "
    "1 more with exclude_highly_expressed",
)
def normalize_total(
    adata: AnnData,
    *,
    target_sum: float | None = None,
    exclude_highly_expressed: bool = False,
    max_fraction: float = 0.05,
    key_added: str | None = None,
    layer: str | None = None,
    inplace: bool = True,
    copy: bool = False,
    counts_per_cell: ArrayLike | str | None = None,
) -> AnnData | dict[str, Any] | None:
    """Scale the counts of each cell to a common total.

    As :func:`scanpy.pp.normalize_total`, with these differences. The median target leaves empty
    cells out on every path. Totals are exact and factors float64 (scanpy: the type of X). X is
    overwritten only if nothing but `adata` refers to it; an X that is held elsewhere, or a
    persisted Dask X, stays as it was (scanpy divides a floating-point X in its own buffer). CSC
    stays CSC. A Dask X stays lazy, and totals taken for the median are not taken again.

    Parameters
    ----------
    adata
        Annotated counts [cells x genes]; X in memory or Dask.
    target_sum
        The common total; None for the median over the cells that are not empty.
    exclude_highly_expressed
        Leave genes that hold more than `max_fraction` of the total of at least one cell out of
        the totals (Weinreb et al. 2017). They are scaled all the same.
    max_fraction
        See there; within 0 and 1.
    key_added
        Column of ``adata.obs`` that gets the size factors.
    layer
        Normalise ``adata.layers[layer]`` instead of X.
    inplace
        Write into `adata`, else return a dictionary.
    copy
        Normalise a copy and return it.
    counts_per_cell
        Totals that are known already, [cells] or the name of a column of ``adata.obs``: no pass
        over the counts is needed. Not in scanpy.

    Returns
    -------
    None when in place, the new AnnData when `copy`, else a dictionary:

    `X` : matrix of the kind of X, float64 for a float64 X, otherwise float32
        Normalised counts. Cells whose total is 0 stay as they are.
    `norm_factor` : float64 [cells]
        Total over target of each cell; a lazy Dask array where they have not been computed.

    Raises
    ------
    InputError
        When no cell has counts and no target is given; when totals are negative or not finite;
        when an argument is out of range or contradicts another.

    Warns
    -----
    UserWarning
        When there are cells whose total is 0 and the totals have been computed.
    """
    if copy and not inplace:
        raise InputError("copy=True cannot be used with inplace=False")
    if not 0 <= max_fraction <= 1:
        raise InputError(f"max_fraction must lie within 0 and 1, not {max_fraction}")
    if target_sum is not None:
        check_target(target_sum)
    if exclude_highly_expressed and counts_per_cell is not None:
        msg = "counts_per_cell fixes the totals: exclude_highly_expressed cannot change them"
        raise InputError(msg)
    adata, owned = _to_change(adata, layer=layer, copy=copy) if inplace else (adata, False)
    x = elements.get_matrix(adata, layer=layer)
    kind = kind_of(x)
    genes = _moderate_genes(adata, x, max_fraction) if exclude_highly_expressed else None
    totals = None
    if counts_per_cell is not None:
        totals = elements.get_values(adata, counts_per_cell, "counts_per_cell")
        if totals.shape != (adata.n_obs,):
            msg = f"counts_per_cell has shape {totals.shape}, but there are {adata.n_obs} cells"
            raise InputError(msg)
    elif target_sum is None or key_added is not None or not kind.lazy:
        totals = cell_totals(x, genes)
    if totals is None:
        normalised, factors = _normalised_lazily(x, kind, genes, target_sum)
    else:
        factors, target_sum = size_factors(totals, target_sum=target_sum)
        if (factors == 0).any():
            warnings.warn("Some cells have zero counts", UserWarning, stacklevel=3)
        normalised = _divide(x, kind, factors, owned=owned)
    log.debug("normalised to a total of %s", target_sum)
    if not inplace:
        return {"X": normalised, "norm_factor": factors}
    elements.set_matrix(adata, normalised, layer=layer)
    if key_added is not None:
        adata.obs[key_added] = factors
    return adata if copy else None


def _moderate_genes(adata: AnnData, x: Any, max_fraction: float) -> np.ndarray:
    """True for the genes that exceed `max_fraction` in no cell, in one pass; bool [genes]."""
    kernels = kernels_for("counts.qc", x)

    def dominant_genes(block: blocks.Block) -> np.ndarray:
        # No gene holds a fraction of a negative total.
        check_totals(kernels.row_sums(block))
        return kernels.dominant_genes(block, max_fraction)

    dominant = blocks.reduce(dominant_genes, np.logical_or.reduce, elements.as_rows(x))
    log.info("genes left out of the totals: %s", adata.var_names[dominant].tolist())
    return ~dominant


def _to_change(
    adata: AnnData, *, layer: str | None = None, obsm: str | None = None, copy: bool
) -> tuple[AnnData, bool]:
    """`adata`, or a copy of it, and whether its matrix may be overwritten."""
    elements.check_not_backed(adata)
    if copy:
        adata = adata.copy()
    else:
        elements.copy_if_view(adata)
    return adata, elements.owns_matrix(adata, layer=layer, obsm=obsm)


def _divide(x: Any, kind: ArrayKind, factors: np.ndarray, *, owned: bool) -> Any:
    from scatlas.kernels.counts.normalize_cpu import (
        scale_rows_into,
        scale_values_into,
        scaled_dtype,
    )

    scales, dtype = reciprocal(factors), scaled_dtype(x.dtype)
    scale_rows = _kernels(x, kind).scale_rows
    if kind.lazy:
        return blocks.map_blocks(scale_rows, x, scales, dtype=dtype)
    if kind.sparse and not kind.gpu and x.format not in {"csr", "csc"}:
        x = x.tocsr()
    if kind.gpu:
        return _detached(scale_rows(x, scales), owned=owned)
    values = x.data if kind.sparse else x
    out = values if owned and values.dtype == dtype else np.empty(values.shape, dtype)

    if kind.sparse and x.format == "csc":

        def scale_values(part: slice) -> None:
            scale_values_into(values[part], x.indices[part], scales, out[part])

        blocks.for_each(scale_values, _value_slices(values.size))
        return _with_values(x, out, owned=owned)

    def scale(cells: slice) -> None:
        part = slice(x.indptr[cells.start], x.indptr[cells.stop]) if kind.sparse else cells
        scale_rows_into(blocks.view(x, cells), scales[cells], out[part])

    blocks.for_each(scale, blocks.row_slices(x))
    return _with_values(x, out, owned=owned)


def _value_slices(n_values: int) -> list[slice]:
    """Parts of a flat array for the threads."""
    return [slice(i, i + _VALUES_PER_PART) for i in range(0, n_values, _VALUES_PER_PART)]


def _kernels(x: Any, kind: ArrayKind) -> ModuleType:
    """Kernels that scale and log: lazily within a pass over a Dask array on the CPU."""
    return lazy_normalized if kind.lazy and not kind.gpu else kernels_for("counts.normalize", x)


def _normalised_lazily(
    x: Any, kind: ArrayKind, genes: np.ndarray | None, target_sum: float | None
) -> tuple[Any, Any]:
    """Normalised Dask X and its size factors; the totals are taken inside each block."""
    from scatlas.kernels.counts.normalize_cpu import scaled_dtype

    scale_rows, row_sums = _kernels(x, kind).scale_rows, kernels_for("counts.qc", x).row_sums

    def factors(block: blocks.Block) -> np.ndarray:
        return size_factors(row_sums(elements.as_rows(block), genes), target_sum=target_sum)[0]

    normalised = blocks.map_blocks(
        lambda block: scale_rows(block, reciprocal(factors(block))),
        x,
        dtype=scaled_dtype(x.dtype),
    )
    lazy = x.map_blocks(factors, drop_axis=1, dtype=np.float64, meta=np.empty(0))
    return normalised, lazy


def _with_values(x: Any, values: np.ndarray, *, owned: bool) -> Any:
    """`x` with other values; `values` if it is dense."""
    from scatlas.kernels.counts.normalize_cpu import with_data

    return _detached(with_data(x, values), owned=owned) if hasattr(x, "indptr") else values


def _detached(x: Any, *, owned: bool) -> Any:
    """`x` with copies of its index arrays, which kernels share with their input: unless the AnnData
    alone holds that (`owned`), sorting one in place must not break the other.
    """
    if hasattr(x, "indptr") and not owned:
        x.indices, x.indptr = x.indices.copy(), x.indptr.copy()
    return x


@blocks.passes(0)
def log1p(
    data: AnnData | Any,
    *,
    base: float | None = None,
    copy: bool = False,
    layer: str | None = None,
    obsm: str | None = None,
) -> AnnData | Any | None:
    """log(1 + x) of every value.

    As :func:`scanpy.pp.log1p`, with these differences. X is overwritten only if nothing but the
    AnnData refers to it; a matrix given as such is returned logged and stays as it was (scanpy
    writes into a floating-point one unless `copy`). `chunked` and `chunk_size` are not here: they
    served backed files, and a Dask X is processed in blocks anyway. Values are computed in float64
    and rounded once, with the same bits on every processor; scanpy's float32 ones differ in the
    last bit.

    Parameters
    ----------
    data
        AnnData, or a matrix (NumPy, SciPy CSR or CSC, Dask).
    base
        Base of the logarithm; natural when None.
    copy
        Work on a copy of the AnnData and return it.
    layer, obsm
        Take this entry of ``adata.layers`` or ``adata.obsm`` instead of X.

    Returns
    -------
    None when in place, the new AnnData when `copy`, the logged matrix for a matrix: float32 for
    float32 values, otherwise float64. Sets ``adata.uns['log1p'] = {'base': base}``.

    Raises
    ------
    InputError
        When `base` is not a positive number other than 1, or the entry is missing.

    Warns
    -----
    UserWarning
        When ``uns['log1p']`` says that the values are logarithms already.
    """
    from anndata import AnnData

    if base is not None and not (0 < base < np.inf and base != 1):
        raise InputError(f"base must be a positive number other than 1, not {base}")
    if not isinstance(data, AnnData):
        if layer is not None or obsm is not None:
            raise InputError("layer and obsm need an AnnData, not a matrix")
        return _log(blocks.sum_repeats(data), base, owned=False)
    if "log1p" in data.uns:
        message = "adata.X seems to be already log-transformed."
        warnings.warn(message, UserWarning, stacklevel=3)
    adata, owned = _to_change(data, layer=layer, obsm=obsm, copy=copy)
    x = elements.get_matrix(adata, layer=layer, obsm=obsm)
    # First, so that a call after one that was interrupted warns.
    adata.uns["log1p"] = {"base": base}
    elements.set_matrix(adata, _log(x, base, owned=owned), layer=layer, obsm=obsm)
    return adata if copy else None


def _log(x: Any, base: float | None, *, owned: bool) -> Any:
    from scatlas.kernels.counts.normalize_cpu import log1p_into, logged_dtype

    if hasattr(x, "dtype"):
        blocks.check_type(x)
    kind = kind_of(x)
    log_of = _kernels(x, kind).log1p
    if kind.lazy:
        dtype = logged_dtype(x.dtype)
        return blocks.map_blocks(lambda block: log_of(block, base), x, dtype=dtype)
    if hasattr(x, "tocsr") and x.format not in {"csr", "csc"}:
        x = x.tocsr()
    if kind.gpu:
        return _detached(log_of(x, base), owned=owned)
    values = x.data if kind.sparse else np.ascontiguousarray(x)
    dtype = logged_dtype(values.dtype)
    out = values if owned and values.dtype == dtype else np.empty(values.shape, dtype)
    flat, logs = values.reshape(-1), out.reshape(-1)
    parts = _value_slices(flat.size)
    blocks.for_each(lambda part: log1p_into(flat[part], logs[part], base), parts)
    return _with_values(x, out, owned=owned)
