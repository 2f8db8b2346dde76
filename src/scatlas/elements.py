"""Which matrix of an AnnData a function works on, and how the result gets back into it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import is_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import scipy.sparse as sp
    from anndata import AnnData

# scanpy takes X itself for distances up to this many genes, components beyond.
_MAX_GENES_WITHOUT_PCA = 50


def check_not_backed(adata: AnnData) -> None:
    """Raise an InputError when X is the open h5ad file's, or when there is no AnnData at all."""
    if not hasattr(adata, "isbacked"):
        msg = f"an AnnData is needed, not a {type(adata).__name__}: wrap it in anndata.AnnData"
        raise InputError(msg)
    if adata.isbacked:
        msg = "adata is backed by an h5ad file: open it with scatlas.read_lazy instead"
        raise InputError(msg)


def table(adata: AnnData, axis: Literal["obs", "var"]) -> pd.DataFrame:
    """``obs`` or ``var``, which must be in memory.

    Raises
    ------
    InputError
        Their columns are lazy, as ``anndata.experimental.read_lazy`` leaves them.
    """
    import pandas as pd

    found = getattr(adata, axis)
    if not isinstance(found, pd.DataFrame):
        msg = (
            f"adata.{axis} is a {type(found).__name__} with its columns left on disk: open the "
            "file with scatlas.read_lazy instead, or load all of it with adata.to_memory()"
        )
        raise InputError(msg)
    return found


def get_matrix(
    adata: AnnData,
    *,
    layer: str | None = None,
    obsm: str | None = None,
    use_raw: bool = False,
    all_floats: bool = False,
) -> Any:
    """The matrix [cells x genes] that `layer`, `obsm` or `use_raw` name; X when none does.

    Raises
    ------
    InputError
        When more than one is named, when it is not there, when it is backed by an open h5ad, when
        it is cut along the genes, or when its values are no numbers that the kernels take
        (`all_floats`: the caller takes float16 and longdouble, too).
    """
    if sum((layer is not None, obsm is not None, use_raw)) > 1:
        msg = f"choose one of {layer=}, {obsm=} and {use_raw=}"
        raise InputError(msg)
    check_not_backed(adata)
    for where, key, place in (("layers", layer, adata.layers), ("obsm", obsm, adata.obsm)):
        if key is not None:
            if key not in place:
                msg = f"adata.{where} has no {key!r}; it has {sorted(place.keys())}"
                raise InputError(msg)
            x, name = place[key], f"{where}[{key!r}]"
            break
    else:
        if use_raw and adata.raw is None:
            msg = "use_raw=True, but adata.raw is empty"
            raise InputError(msg)
        x, name = (adata.raw.X, "raw.X") if use_raw else (adata.X, "X")
    if x is None:
        msg = "adata.X is empty (None): put the counts there or name a layer"
        raise InputError(msg)
    blocks.check(x, name)
    if hasattr(x, "dtype"):
        blocks.check_type(x, name, all_floats=all_floats)
    return x


def set_matrix(
    adata: AnnData, x: Any, *, layer: str | None = None, obsm: str | None = None
) -> None:
    """Store `x` where :func:`get_matrix` found the matrix."""
    if layer is not None:
        adata.layers[layer] = x
    elif obsm is not None:
        adata.obsm[obsm] = x
    else:
        adata.X = x


def as_rows(x: Any) -> Any:
    """`x` with whole cells at hand: a sparse matrix in memory that is not CSR is converted once."""
    if hasattr(x, "tocsr") and x.format != "csr":
        return x.tocsr()
    return x if blocks.is_dask(x) or hasattr(x, "tocsr") or is_gpu(x) else np.asarray(x)


def dense_rows(x: Any, fn: Callable[..., Any], *rows: Any, dtype: Any) -> Any:
    """The dense ``fn(block, *row_parts)`` of all blocks of an `x` in memory, as one array.

    Made as by :func:`scatlas.blocks.stream`, on the GPU where `x` is, and copied once.
    """
    out = blocks.dense_like(x, x.shape, dtype)
    for cells, block in zip(blocks.row_slices(x), blocks.stream(x, fn, *rows), strict=True):
        out[cells] = block
    return out


def copy_if_view(adata: AnnData) -> None:
    """Turn a view into an AnnData of its own before it is written to, with anndata's warning.

    (Assigning to ``X`` of a view writes into the AnnData that it is a view of.)
    """
    if adata.is_view:
        from anndata import ImplicitModificationWarning

        message = "Received a view of an AnnData. Making a copy."
        warnings.warn(message, ImplicitModificationWarning, stacklevel=3)
        adata._init_as_actual(adata.copy())


def has_dask(adata: AnnData) -> bool:
    """Whether X or an element beside it is a Dask array."""
    elements = [adata.X, *adata.layers.values(), *adata.obsm.values(), *adata.varm.values()]
    return any(blocks.is_dask(x) for x in elements)


def subset(adata: AnnData, index: np.ndarray, axis: Literal["obs", "var"]) -> None:
    """Keep the cells (``obs``) or genes (``var``) of `index`, in place.

    Dask elements stay lazy and keep their blocks: each block is cut on its own, so that no source
    chunk is read twice. (anndata indexes them, which may cut them anew.)

    Parameters
    ----------
    index
        Boolean mask, or integer positions; sorted ones for the cells of a Dask X.
    """
    table(adata, "obs"), table(adata, "var")
    copy_if_view(adata)
    positions = np.flatnonzero(index) if index.dtype == bool else index
    side = adata.obsm if axis == "obs" else adata.varm
    cut = blocks.select_rows if axis == "obs" else blocks.select_genes
    # Everything is cut before anything is taken out: an error leaves adata as it was.
    x = cut(adata.X, positions) if blocks.is_dask(adata.X) else None
    layers = {k: cut(v, positions) for k, v in adata.layers.items() if blocks.is_dask(v)}
    sides = {k: blocks.select_rows(v, positions) for k, v in side.items() if blocks.is_dask(v)}
    if x is not None:
        adata.X = None
    for key in layers:
        del adata.layers[key]
    for key in sides:
        del side[key]
    if axis == "obs":
        adata._inplace_subset_obs(index)
    else:
        adata._inplace_subset_var(index)
    if x is not None:
        adata.X = x
    adata.layers.update(layers)
    (adata.obsm if axis == "obs" else adata.varm).update(sides)


def subset_copy(adata: AnnData, index: np.ndarray, axis: Literal["obs", "var"]) -> AnnData:
    """A new AnnData of the cells or genes of `index`; `adata` stays as it is."""
    table(adata, "obs"), table(adata, "var")
    if has_dask(adata):
        adata = adata.copy()
        subset(adata, index, axis)
        return adata
    return (adata[index] if axis == "obs" else adata[:, index]).copy()


def representation(
    adata: AnnData, *, use_rep: str | None, n_pcs: int | None
) -> np.ndarray | sp.csr_matrix:
    """The matrix that distances are taken in, in the main memory, chosen by scanpy's rules.

    Parameters
    ----------
    adata
        Annotated data [cells x genes].
    use_rep, n_pcs
        As in :func:`neighbors`.

    Raises
    ------
    InputError
        See :func:`neighbors`.
    """
    x = contiguous(representation_in_place(adata, use_rep, n_pcs))
    check_finite_values(x, representation_name(adata, use_rep, n_pcs))
    return x


def is_on_gpu(adata: AnnData, *, use_rep: str | None, n_pcs: int | None) -> bool:
    """Whether the matrix that distances are taken in is there, and lies on the GPU."""
    name = representation_name(adata, use_rep, n_pcs)
    return is_gpu(adata.X if name == "X" else adata.obsm.get(name))


def representation_name(adata: AnnData, use_rep: str | None, n_pcs: int | None) -> str:
    """``"X"``, or the key of ``obsm``."""
    if use_rep is not None:
        return use_rep
    return "X" if n_pcs == 0 or adata.n_vars <= _MAX_GENES_WITHOUT_PCA else "X_pca"


def representation_in_place(adata: AnnData, use_rep: str | None, n_pcs: int | None) -> Any:
    """The matrix that distances are taken in, where it lies; blocks of Dask joined in one pass."""
    name = representation_name(adata, use_rep, n_pcs)
    if name == "X":
        x = get_matrix(adata, all_floats=True)
    elif name in adata.obsm:
        x = adata.obsm[name]
    else:
        mend = "run sa.pp.pca first" if name == "X_pca" else f"there are {list(adata.obsm)}"
        msg = f"no {name!r} in obsm: {mend}, or pass use_rep='X' for the genes as they are"
        raise InputError(msg)
    if n_pcs is not None and name != "X":
        if n_pcs > x.shape[1]:
            msg = f"n_pcs is {n_pcs}, but {name!r} has {x.shape[1]} dimensions: lower n_pcs"
            raise InputError(msg)
        x = x[:, :n_pcs]
    blocks.check(x, name if name == "X" else f"obsm[{name!r}]")
    if x.shape[1] == 0:
        msg = f"{name!r} has no dimensions: name another representation with use_rep"
        raise InputError(msg)
    return blocks.join(list(blocks.stream(x))) if blocks.is_dask(x) else x


def contiguous(x: Any) -> np.ndarray | sp.csr_matrix:
    """CSR, or contiguous, in the main memory."""
    import scipy.sparse as sp

    x = blocks.on_host(x)
    return sp.csr_matrix(x) if sp.issparse(x) else np.ascontiguousarray(x)


def check_finite_values(x: Any, name: str) -> None:
    """Raise an InputError where a value is NaN or infinite."""
    values = x.data if blocks.is_sparse(x) else x
    if not np.isfinite(values).all():  # CuPy's own isfinite, for its arrays
        msg = f"{name!r} holds values that are not finite: remove those cells first"
        raise InputError(msg)
