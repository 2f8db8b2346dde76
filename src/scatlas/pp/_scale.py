"""Scaling of genes to unit variance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from scatlas import blocks, elements
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import ArrayLike, NDArray

    Data = TypeVar("Data")


@blocks.passes(1, "mean and variance per gene; the scaled blocks are lazy")
def scale(
    data: AnnData | Data,
    *,
    zero_center: bool = True,
    max_value: float | None = None,
    copy: bool = False,
    layer: str | None = None,
    obsm: str | None = None,
    mask_obs: ArrayLike | str | None = None,
) -> AnnData | Data | None:
    """Scale genes to unit variance and, by default, zero mean.

    X is overwritten only if nothing but the AnnData refers to it. An array handed over as such, one
    that is held elsewhere too, and a block of a persisted Dask array stay as they were. Constant
    genes keep a standard deviation of 1.

    Parameters
    ----------
    data
        AnnData, or an array ``[n_cells, n_genes]``: NumPy, SciPy CSR or CSC, CuPy, CuPyX CSR or
        CSC, or Dask of these.
    zero_center
        Subtract the mean. This makes a sparse array dense (a Dask array stays lazy, its blocks
        become dense), with a warning. ``False`` keeps sparse data sparse.
    max_value
        Clip to this value after scaling; with `zero_center`, to its negative too.
    copy
        Return a changed copy of an AnnData instead of changing it.
    layer, obsm
        Element to scale instead of ``X``.
    mask_obs
        Cells (boolean ``[n_cells]``, or a column of ``obs``) that the mean and the variance come
        from and that are scaled; the others stay as they are.

    Returns
    -------
    For an array, the scaled array: float32 for float32, else float64. (scanpy turns centred sparse
    float32 into float64.) For an AnnData ``None``, or the copy, with the element replaced and

    ``var["mean"]``, ``var["std"]`` : float64
        Before scaling, std with n - 1 (1 for constant genes); with `mask_obs`,
        ``"mean of {mask_obs}"`` for a column, ``"mean with mask"`` for an array. Not written with
        `obsm`, whose columns are not genes.

    Raises
    ------
    InputError
        For elements or columns that are absent, a mask that is not boolean, of another length or
        empty, and values of the cells that the mean comes from that are not finite.

    References
    ----------
    Reference implementation: scanpy 1.11.5, ``preprocessing/_scale.py``.
    """
    from anndata import AnnData

    if not isinstance(data, AnnData):
        if layer is not None or obsm is not None:
            raise InputError("layer and obsm refer to an AnnData, not to an array: leave them out")
        x = elements.check_array(data, "the array")
        return _scale(x, zero_center, max_value, _mask(mask_obs, x), owned=False)[0]

    adata = data.copy() if copy else data
    if adata.is_view:  # a view would write through to its parent's X
        adata._init_as_actual(adata.copy())
    names = ("mean", "std")
    if isinstance(mask_obs, str):
        names = (f"mean of {mask_obs}", f"std of {mask_obs}")
    elif mask_obs is not None:
        names = ("mean with mask", "std with mask")
    if obsm is not None and layer is not None:
        raise InputError("scale takes a layer or an element of obsm, not both")
    owned = elements.owns_matrix(adata, layer=layer, obsm=obsm)
    x = elements.get_array(adata, layer) if obsm is None else elements.get_obsm(adata, obsm)
    scaled, mean, sd = _scale(x, zero_center, max_value, _mask(mask_obs, adata), owned=owned)
    if obsm is None:
        adata.var[names[0]] = mean
        adata.var[names[1]] = sd
    elements.set_matrix(adata, scaled, layer=layer, obsm=obsm)
    return adata if copy else None


def _mask(mask: ArrayLike | str | None, data: Any) -> NDArray[np.bool_] | None:
    if mask is None:
        return None
    adata = data if hasattr(data, "obs") else None
    mask = elements.get_mask(adata, mask, data.shape[0], "mask_obs", "obs")
    if not mask.any():
        raise InputError("mask_obs selects no cell")
    return mask


def _scale(
    x: Any,
    zero_center: bool,
    max_value: float | None,
    mask: NDArray[np.bool_] | None,
    *,
    owned: bool,
) -> tuple[Any, NDArray[np.float64], NDArray[np.float64]]:
    """Scaled array, which is `x` if `owned`, mean and standard deviation (1 of constant genes)."""
    from scatlas.matrix.gene_moments import gene_moments

    if x.shape[0] == 0:
        raise InputError("scale needs at least one cell, but there is none")
    if zero_center and blocks.is_sparse(x):
        warnings.warn("zero-centering a sparse array/matrix densifies it.", stacklevel=4)
    moments = gene_moments(x, None if mask is None else np.where(mask, 0, -1))
    mean, sd = moments.mean[0], np.sqrt(moments.var[0])
    unusable = ~(np.isfinite(mean) & np.isfinite(sd))
    if unusable.any():
        raise InputError(
            f"{unusable.sum():,} genes, the first at position {int(np.argmax(unusable))}, have NaN "
            "or infinite values (or squares that overflow), so that they have no mean and variance "
            "to scale by: remove these genes or their cells first"
        )
    sd[sd == 0] = 1.0
    dtype = x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    centre = mean if zero_center else None
    kind = kind_of(x)
    in_memory = not (kind.lazy or kind.gpu)
    if in_memory and kind.sparse:  # centred it is dense, and unsorted CSC goes by rows
        in_memory = not zero_center and (x.format == "csr" or x.has_sorted_indices)
    if in_memory:
        out = x if owned and x.dtype == dtype else None
        scaled = _scale_in_memory(x, centre, sd, max_value, mask, dtype, out)
    else:
        kernels = kernels_for("linalg.scale", x)

        def scale_block(block: Any, rows: NDArray[np.bool_] | None = None) -> Any:
            return kernels.scale(block, centre, sd, max_value, rows, dtype=dtype)

        rows = () if mask is None else (mask,)
        scaled = blocks.apply(scale_block, x, *rows, dtype=dtype, dense=zero_center)
        if getattr(x, "format", None) == "csc" and not zero_center:
            scaled = scaled.tocsc()
    return scaled, mean, sd


def _scale_in_memory(
    x: Any,
    mean: NDArray[np.float64] | None,
    sd: NDArray[np.float64],
    max_value: float | None,
    mask: NDArray[np.bool_] | None,
    dtype: np.dtype,
    out: Any,
) -> Any:
    """Scaled matrix, `out` if given, into which all threads write, as one is slow to join blocks;
    CSC gene after gene: to rows and back takes longer.
    """
    from scatlas.kernels.counts.normalize_cpu import with_data
    from scatlas.kernels.linalg import scale_cpu

    sparse = blocks.is_sparse(x)
    scaled = out
    if scaled is None and sparse:
        scaled = with_data(x, np.empty(x.nnz, dtype))
        scaled.indices, scaled.indptr = np.empty(x.nnz, x.indices.dtype), x.indptr.copy()
    elif scaled is None:
        scaled = np.empty(x.shape, dtype)
    if sparse and x.format == "csc":
        scale_cpu.scale_csc_into(x, sd, max_value, mask, scaled.data[: x.nnz])
        if scaled is not x:
            scaled.indices[:] = x.indices[: x.nnz]
        return scaled

    def scale_cells(cells: slice) -> None:
        rows = None if mask is None else mask[cells]
        if not sparse:
            scale_cpu.scale_dense_into(x[cells], mean, sd, max_value, rows, scaled[cells])
            return
        part = slice(x.indptr[cells.start], x.indptr[cells.stop])
        scale_cpu.scale_csr_into(blocks.view(x, cells), sd, max_value, rows, scaled.data[part])
        if scaled is not x:
            scaled.indices[part] = x.indices[part]

    blocks.for_each(scale_cells, blocks.row_slices(x))
    return scaled
