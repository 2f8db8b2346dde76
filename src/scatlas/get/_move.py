"""Matrices of an AnnData moved to the GPU and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.arrays.kinds import kind_of
from scatlas.errors import GpuError, InputError

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
        Keep the types of values and indices (uint8 counts, uint16 genes), which scatlas supports
        and which need a fraction of the memory. By default they become floating-point values and
        int32 indices, which CuPyX's own functions need.

    Returns
    -------
    CuPy array, CuPyX CSR or CSC matrix, or lazy Dask array of these. An array on a GPU is returned
    as it is.

    Raises
    ------
    GpuError
        CuPy is not installed, or there is no GPU that it can use.
    """
    kind = kind_of(x)
    if kind.gpu:
        return x
    _check_gpu()
    if not kind.lazy:
        return _to_gpu(x, exact)
    import cupy as cp
    from cupyx.scipy import sparse as cupy_sparse

    from scatlas.arrays import cupy_arrays

    dtype = x.dtype if exact or not kind.sparse else _float_dtype(x.dtype)
    empty = cupy_sparse.csr_matrix((0, 0), dtype=np.float32) if kind.sparse else cp.empty((0, 0))
    meta = cupy_arrays.empty_like(empty, dtype)
    return blocks.map_blocks(lambda block: _to_gpu(block, exact), x, dtype=dtype, meta=meta)


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def X_to_CPU(x: Any) -> Any:  # noqa: N802 - rapids-singlecell's name
    """A matrix in the main memory: NumPy, SciPy, or a lazy Dask array of these."""
    kind = kind_of(x)
    if not kind.gpu:
        return x
    if not kind.lazy:
        return blocks.on_host(x)
    import scipy.sparse as sp

    meta = sp.csr_matrix((0, 0), dtype=x.dtype) if kind.sparse else np.empty((0, 0), x.dtype)
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
        Move X and all layers.
    copy
        Do not change `adata`; return a copy on the GPU.

    Returns
    -------
    None, or the copy.

    Raises
    ------
    GpuError
        As :func:`X_to_GPU`.
    InputError
        The layer does not exist.
    """
    return _move_elements(adata, X_to_GPU, layer=layer, convert_all=convert_all, copy=copy)


@blocks.passes(0, "lazy for a Dask array: blocks are moved when they are computed")
def anndata_to_CPU(  # noqa: N802 - rapids-singlecell's name
    adata: AnnData, *, layer: str | None = None, convert_all: bool = False, copy: bool = False
) -> AnnData | None:
    """Move X, a layer, or X and all layers to the main memory; see :func:`anndata_to_GPU`.

    `convert_all` also moves the arrays of ``obsm`` (``X_pca``).
    """
    copied = _move_elements(adata, X_to_CPU, layer=layer, convert_all=convert_all, copy=copy)
    target = adata if copied is None else copied
    if convert_all:
        for key, value in target.obsm.items():
            target.obsm[key] = X_to_CPU(value)
    return copied


def on_backend(x: Any) -> Any:
    """A matrix on the GPU, types kept, if that is the current backend; else as it is."""
    from scatlas.compute.backend import current_backend

    return X_to_GPU(x, exact=True) if current_backend() == "gpu" else x


def _move_elements(
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
        # Move before copying: an error leaves adata as it was.
        x = move(elements.get_matrix(adata, layer=layer, all_floats=True))
        adata = adata.copy() if copy else adata
        elements.copy_if_view(adata)
        elements.set_matrix(adata, x, layer=layer)
        return adata if copy else None
    layers = {key: move(value) for key, value in elements.named_layers(adata).items()}
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


def _float_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type of CuPyX for such values; float32 represents every count below 2**24 exactly."""
    return np.dtype(np.float64 if dtype in (np.float64, np.int64, np.uint64) else np.float32)


def _to_gpu(x: Any, exact: bool) -> Any:
    from scatlas.arrays import cupy_arrays

    if not blocks.is_sparse(x):
        return cupy_arrays.on_gpu(np.asarray(x))
    if x.format == "csc":
        from cupyx.scipy import sparse as cupy_sparse

        return cupy_sparse.csc_matrix(x.astype(_float_dtype(x.dtype)))
    if x.format != "csr":
        x = x.tocsr()
    moved = cupy_arrays.on_gpu(x)
    if exact:
        return moved
    # Convert on the GPU: fewer bytes cross the bus.
    index = cupy_arrays.index_dtype(int(x.indptr[-1]))
    return cupy_arrays.csr(
        moved.data.astype(_float_dtype(x.dtype), copy=False),
        moved.indices.astype(index, copy=False),
        moved.indptr.astype(index, copy=False),
        x.shape[1],
    )
