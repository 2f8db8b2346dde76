"""Matrices of an AnnData moved to the GPU and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import GpuError, InputError
from scatlas.kernels.dispatch import is_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def X_to_GPU(x: Any, *, exact: bool = False) -> Any:  # noqa: N802 - rapids-singlecell's name
    """A matrix on the current GPU.

    Parameters
    ----------
    x
        NumPy array, SciPy CSR or CSC matrix, or Dask array of dense or CSR blocks.
    exact
        Keep the types of values and indices (uint8 counts, uint16 genes), which our functions take
        and which is a fraction of the memory; CuPyX's own functions want floating-point values and
        int32 indices, which are made otherwise.

    Returns
    -------
    CuPy array, CuPyX CSR or CSC matrix, or lazy Dask array of these. What is on a GPU already is
    returned as it is.

    Raises
    ------
    GpuError
        There is no GPU that CuPy can use, or no CuPy.
    """
    if is_gpu(x):
        return x
    _check_gpu()
    if not blocks.is_dask(x):
        return _to_gpu(x, exact)
    from scatlas.arrays import cupy_arrays

    dtype = x.dtype if exact or not blocks.is_sparse(x) else _floating(x.dtype)
    meta = cupy_arrays.empty_like(_kind(blocks.is_sparse(x)), dtype)
    return blocks.map_blocks(lambda block: _to_gpu(block, exact), x, dtype=dtype, meta=meta)


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def X_to_CPU(x: Any) -> Any:  # noqa: N802 - rapids-singlecell's name
    """A matrix in the main memory: NumPy, SciPy, or a lazy Dask array of these."""
    if not is_gpu(x):
        return x
    if not blocks.is_dask(x):
        return blocks.on_host(x)
    import scipy.sparse as sp

    sparse = blocks.is_sparse(x)
    meta = sp.csr_matrix((0, 0), dtype=x.dtype) if sparse else np.empty((0, 0), x.dtype)
    return blocks.map_blocks(blocks.on_host, x, dtype=x.dtype, meta=meta)


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def anndata_to_GPU(  # noqa: N802 - rapids-singlecell's name
    adata: AnnData, *, layer: str | None = None, convert_all: bool = False, copy: bool = False
) -> AnnData | None:
    """Move X, a layer, or X and all layers to the current GPU.

    Parameters
    ----------
    adata
        Annotated counts; X and layers as in :func:`X_to_GPU`.
    layer
        Move ``adata.layers[layer]`` instead of X.
    convert_all
        Move X and every layer.
    copy
        Leave `adata` as it is and return a moved copy.

    Returns
    -------
    None, or the copy.

    Raises
    ------
    GpuError
        As :func:`X_to_GPU`.
    InputError
        The layer is not there.
    """
    return _moved(adata, X_to_GPU, layer=layer, convert_all=convert_all, copy=copy)


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def anndata_to_CPU(  # noqa: N802 - rapids-singlecell's name
    adata: AnnData, *, layer: str | None = None, convert_all: bool = False, copy: bool = False
) -> AnnData | None:
    """Move X, a layer, or X and all layers to the main memory; see :func:`anndata_to_GPU`.

    With `convert_all` entries of ``obsm`` (``X_pca``) are moved, too.
    """
    moved = _moved(adata, X_to_CPU, layer=layer, convert_all=convert_all, copy=copy)
    target = adata if moved is None else moved
    if convert_all:
        for key, value in target.obsm.items():
            if is_gpu(value):
                target.obsm[key] = X_to_CPU(value)
    return moved


def on_backend(x: Any) -> Any:
    """A matrix where the running step works: on the GPU if it has one (``backend``), exactly."""
    from scatlas.compute.backend import current

    return X_to_GPU(x, exact=True) if current() == "gpu" else x


def _moved(
    adata: AnnData,
    move: Callable[[Any], Any],
    *,
    layer: str | None,
    convert_all: bool,
    copy: bool,
) -> AnnData | None:
    from scatlas import elements

    if convert_all and layer is not None:
        raise InputError("convert_all moves every layer: leave out layer")
    if not convert_all:
        # Moved before anything is copied: an error leaves adata as it was.
        x = move(elements.get_matrix(adata, layer=layer, all_floats=True))
        adata = adata.copy() if copy else adata
        elements.copy_if_view(adata)
        elements.set_matrix(adata, x, layer=layer)
        return adata if copy else None
    layers = {key: move(value) for key, value in adata.layers.items()}
    x = None if adata.X is None else move(elements.get_matrix(adata, all_floats=True))
    adata = adata.copy() if copy else adata
    elements.copy_if_view(adata)
    adata.X = x
    adata.layers.update(layers)
    return adata if copy else None


def _check_gpu() -> None:
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        msg = f"CuPy cannot be loaded ({error}): install scatlas[gpu-cu12] or scatlas[gpu-cu13]"
        raise GpuError(msg) from error
    try:
        runtime.getDevice()
    except runtime.CUDARuntimeError as error:
        msg = f"there is no GPU that CuPy can use ({error}): leave the matrix on the CPU"
        raise GpuError(msg) from error


def _kind(sparse: bool) -> Any:
    import cupy as cp
    from cupyx.scipy import sparse as cupy_sparse

    return cupy_sparse.csr_matrix((0, 0), dtype=np.float32) if sparse else cp.empty((0, 0))


def _floating(dtype: np.dtype) -> np.dtype:
    """Type that CuPyX takes for such values: every count below 2**24 is exact in float32."""
    return np.dtype(np.float64 if dtype in (np.float64, np.int64, np.uint64) else np.float32)


def _to_gpu(x: Any, exact: bool) -> Any:
    from scatlas.arrays import cupy_arrays

    if not blocks.is_sparse(x):
        return cupy_arrays.on_gpu(np.asarray(x))
    if x.format == "csc":
        from cupyx.scipy import sparse as cupy_sparse

        return cupy_sparse.csc_matrix(x.astype(_floating(x.dtype)))
    if x.format != "csr":
        x = x.tocsr()
    moved = cupy_arrays.on_gpu(x)
    if exact:
        return moved
    # Widened on the GPU: fewer bytes cross the bus.
    narrow = x.indptr[-1] <= np.iinfo(np.int32).max
    index = np.int32 if narrow else np.int64
    return cupy_arrays.csr(
        moved.data.astype(_floating(x.dtype), copy=False),
        moved.indices.astype(index, copy=False),
        moved.indptr.astype(index, copy=False),
        x.shape[1],
    )
