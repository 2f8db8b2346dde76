"""Elements of an AnnData: get and check the matrix for a function, store results, subset."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks, columns
from scatlas._util.numbers import as_numbers, whole_number
from scatlas.arrays.kinds import is_dask, kind_of
from scatlas.columns import get_numbers, in_order
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    import scipy.sparse as sp
    from anndata import AnnData
    from numpy.typing import NDArray


# Up to this many genes scanpy takes distances in X itself, beyond in its components.
_MAX_GENES_WITHOUT_PCA = 50
# scikit-learn takes the NaN distances of larger values for zeros.
_HUGE = np.float64(1e15)
_MAKERS = {"X_pca": "sa.pp.pca", "X_umap": "sa.tl.umap"}


def check_not_backed(adata: AnnData) -> None:
    """Refuse an AnnData whose X is in an open h5ad file, and anything but an AnnData."""
    if not hasattr(adata, "isbacked"):
        msg = f"an AnnData is needed, not a {type(adata).__name__}: wrap it in anndata.AnnData"
        raise InputError(msg)
    if adata.isbacked:
        raise InputError("adata is backed by an h5ad file: open it with scatlas.read_lazy instead")


def get_table(adata: AnnData, axis: Literal["obs", "var"]) -> pd.DataFrame:
    """``obs`` or ``var``, which must be in memory."""
    import pandas as pd

    table = getattr(adata, axis)
    if not isinstance(table, pd.DataFrame):
        raise InputError(
            f"adata.{axis} is a {type(table).__name__} whose columns are on disk: open the "
            "file with scatlas.read_lazy instead, or load all of it with adata.to_memory()"
        )
    return table


def get_matrix(
    adata: AnnData,
    *,
    layer: str | None = None,
    obsm: str | None = None,
    use_raw: bool = False,
    all_floats: bool = False,
) -> Any:
    """The matrix [cells x genes] of `layer`, `obsm`, `use_raw` or X, checked; `all_floats`: also of
    float16 and longdouble.
    """
    if sum((layer is not None, obsm is not None, use_raw)) > 1:
        raise InputError(f"choose one of {layer=}, {obsm=} and {use_raw=}")
    check_not_backed(adata)
    if obsm is not None:
        return get_obsm(adata, obsm, all_floats=all_floats)
    if layer is not None:
        if layer not in adata.layers:
            there = [*named_layers(adata)]
            raise InputError(f"adata.layers has no {layer!r}; it has {there}: name one of these")
        x, name = adata.layers[layer], f"layers[{layer!r}]"
    else:
        if use_raw and adata.raw is None:
            raise InputError("use_raw=True, but adata.raw is empty")
        x, name = (adata.raw.X, "raw.X") if use_raw else (adata.X, "X")
    if x is None:
        raise InputError("adata.X is empty (None): put the counts there or name a layer")
    blocks.check(x, name)
    if hasattr(x, "dtype"):
        blocks.check_type(x, name, all_floats=all_floats)
    return blocks.sum_repeats(x)


def get_obsm(adata: AnnData, key: str, option: str = "obsm", *, all_floats: bool = False) -> Any:
    """An array of obsm [cells x dimensions], checked by :func:`check_array`; a table of numbers
    becomes one, with NaN for gaps.
    """
    import pandas as pd

    if key not in adata.obsm:
        maker = _MAKERS.get(key, "what computes it")
        msg = f"no {key!r} in obsm ({option}): run {maker} first, or name one of {[*adata.obsm]}"
        raise InputError(msg)
    x, name = adata.obsm[key], f"obsm[{key!r}]"
    if isinstance(x, pd.DataFrame):
        parts = (get_numbers(x, column, "column of a table", name) for column in x.columns)
        x = np.column_stack([*parts]) if x.shape[1] else np.empty(x.shape)
    return check_array(x, name, all_floats=all_floats)


def genes_of(adata: AnnData, *, use_raw: bool) -> tuple[pd.DataFrame, str]:
    """Table of the genes of X or of ``raw``, in the order of that matrix, and its name; if ``var``
    has all of raw's genes, its columns are added or take precedence.
    """
    var = get_table(adata, "var")
    if not use_raw:
        return var, "adata.var"
    table = adata.raw.var.copy()
    lacking = int((~table.index.isin(var.index)).sum())
    if lacking or not (var.index.equals(table.index) or var.index.is_unique):
        return table, f"adata.raw.var (adata.var has {table.index.size - lacking} of its genes)"
    for name in var.columns:
        table[name] = in_order(var[name], table.index, "adata.var")
    return table, "adata.raw.var"


def get_values(
    adata: AnnData, given: Any, option: str, axis: Literal["obs", "var"] = "obs"
) -> np.ndarray:
    """A number for each cell or gene: the column that `given` names, or `given` by its names."""
    if isinstance(given, str):
        return get_numbers(get_table(adata, axis), given, option, axis)
    return as_numbers(in_order(given, getattr(adata, f"{axis}_names"), option), option)


def get_mask(
    adata: AnnData | None, mask: Any, n: int, option: str, axis: Literal["obs", "var"]
) -> np.ndarray:
    """A mask with `n` entries, as :func:`get_values`; of an array without an AnnData, itself."""
    if adata is not None and not isinstance(mask, str):
        mask = in_order(mask, getattr(adata, f"{axis}_names"), option)
    table = get_table(adata, axis) if adata is not None and isinstance(mask, str) else None
    return columns.get_mask(mask, table, n, option, axis)


def set_matrix(
    adata: AnnData, x: Any, *, layer: str | None = None, obsm: str | None = None
) -> None:
    """Store `x` in the place of the matrix that :func:`get_matrix` returns."""
    if layer is not None:
        adata.layers[layer] = x
    elif obsm is not None:
        table = adata.obsm.get(obsm)
        if hasattr(table, "columns"):  # a table stays one
            x = type(table)(x, index=table.index, columns=table.columns)
        adata.obsm[obsm] = x
    elif adata.X is not x:  # anndata checks even its own array
        adata.X = x


def owns_matrix(adata: AnnData, *, layer: str | None = None, obsm: str | None = None) -> bool:
    """Whether a matrix in memory may be overwritten: nothing but `adata`, and not the caller either
    (call this before :func:`get_matrix`), refers to it.
    """

    def matrix() -> Any:
        if layer is not None:
            return adata.layers.get(layer)
        return adata.X if obsm is None else adata.obsm.get(obsm)

    kind = kind_of(matrix())
    if kind.gpu or kind.lazy or adata.is_view:
        return False

    def values() -> Any:
        return matrix().data if kind.sparse else matrix()

    def memory() -> Any:
        return values() if getattr(values(), "base", None) is None else values().base

    # Two references to an object with one owner: the owner's, and the argument. They are counted
    # of expressions, because versions of Python count variables differently.
    counts = [sys.getrefcount(found()) for found in (matrix, values, memory)]
    alone = max(counts) == 2 and type(memory()) is np.ndarray and memory().flags.owndata
    return alone and values().flags.writeable


def get_array(adata: AnnData, layer: str | None) -> Any:
    """``adata.X`` or a layer, checked to be an array that has row blocks."""
    name = "X" if layer is None else f"layers[{layer!r}]"
    if layer is not None and layer not in adata.layers:
        raise InputError(f"the AnnData has no {name}; its layers are {list(named_layers(adata))}")
    return check_array(adata.X if layer is None else adata.layers[layer], name)


def check_array(x: Any, name: str, *, all_floats: bool = False) -> Any:
    """Return the element ``name`` if it is an array [cells x genes], in memory or Dask, cut along
    the cells only, of a type that kernels support; `all_floats`: also of float16 and longdouble.
    """
    kind = kind_of(x)
    dense = isinstance(x, np.ndarray) or (kind.gpu and hasattr(x, "__cuda_array_interface__"))
    if kind.lazy:
        blocks.check(x, name)
    elif not (x.format in {"csr", "csc"} if kind.sparse else dense):
        raise InputError(
            f"{name} is {type(x).__name__}, but a NumPy array, a SciPy CSR or CSC matrix, the same "
            "of CuPy, or a Dask array is needed: open files with scatlas.read_lazy"
        )
    if x.ndim != 2:
        raise InputError(f"{name} has {x.ndim} dimensions, but cells x genes are needed")
    blocks.check_type(x, name, all_floats=all_floats)
    return blocks.sum_repeats(x)


def as_rows(x: Any) -> Any:
    """``x``, as CSR if it is a sparse matrix in memory."""
    kind = kind_of(x)
    if kind.sparse and not (kind.lazy or kind.gpu) and x.format == "csc":
        return blocks.to_csr(x)
    return x if kind.lazy else kind.arrays.as_rows(x)


def copy_if_view(adata: AnnData) -> None:
    """Copy a view, with anndata's warning, before results are written to it: assigning to its ``X``
    would write into the AnnData behind it.
    """
    if adata.is_view:
        from anndata import ImplicitModificationWarning

        message = "Received a view of an AnnData. Making a copy."
        warnings.warn(message, ImplicitModificationWarning, stacklevel=4)
        adata._init_as_actual(adata.copy())


def named_layers(adata: AnnData) -> dict[str, Any]:
    """Layers by name. Since anndata 0.13 ``adata.layers`` holds X, too, under the key None."""
    return {name: x for name, x in adata.layers.items() if name is not None}


def has_dask(adata: AnnData) -> bool:
    """Whether X, a layer, raw or an array of obsm or varm is a Dask array."""
    raw = [] if adata.raw is None else [adata.raw.X]
    elements = [
        *raw,
        adata.X,
        *named_layers(adata).values(),
        *adata.obsm.values(),
        *adata.varm.values(),
    ]
    return any(is_dask(x) for x in elements)


def subset(adata: AnnData, index: NDArray[Any], axis: Literal["obs", "var"]) -> None:
    """Keep the cells (``obs``) or genes (``var``) of a mask or of positions, in place (sorted for a
    Dask X).

    Dask elements keep their blocks, less the other cells or genes: anndata's indexing would read
    chunks on disk twice. Our kernels cut CSR on a GPU: CuPyX indexes no uint8 counts or uint16
    genes, and takes minutes for the genes of two thousand million values.
    """
    from anndata import AnnData

    get_table(adata, "obs"), get_table(adata, "var")
    copy_if_view(adata)
    positions = np.flatnonzero(index) if index.dtype == bool else index
    aligned = adata.obsm if axis == "obs" else adata.varm
    select = blocks.select_rows if axis == "obs" else blocks.select_genes
    # Select everything before removing anything: an error leaves adata as it was.
    x = select(adata.X, positions) if _is_cut_here(adata.X) else None
    if x is None and _is_sorted_selection(adata.X, positions, axis):
        x = blocks.select_sorted(adata.X, positions, 0 if axis == "obs" else 1)
    layers = {k: select(v, positions) for k, v in named_layers(adata).items() if _is_cut_here(v)}
    lazy = {k: blocks.select_rows(v, positions) for k, v in aligned.items() if _is_cut_here(v)}
    raw = adata.raw if axis == "obs" and adata.raw is not None else None
    raw = raw if raw is not None and _is_cut_here(raw.X) else None
    raw = raw and AnnData(select(raw.X, positions), var=raw.var, varm=dict(raw.varm))
    if x is not None:
        adata.X = None
    if raw is not None:
        del adata.raw
    for key in layers:
        del adata.layers[key]
    for key in lazy:
        del aligned[key]
    if axis == "obs":
        adata._inplace_subset_obs(index)
    else:
        adata._inplace_subset_var(index)
    if x is not None:
        adata.X = x
    if raw is not None:
        adata.raw = raw
    adata.layers.update(layers)
    (adata.obsm if axis == "obs" else adata.varm).update(lazy)


def _is_cut_here(x: Any) -> bool:
    """Whether ``x`` is a Dask array, or a CSR matrix in the memory of a GPU."""
    kind = kind_of(x)
    return kind.lazy or (kind.gpu and kind.sparse and x.format == "csr")


def _is_sorted_selection(x: Any, positions: NDArray[Any], axis: Literal["obs", "var"]) -> bool:
    """Whether ``x`` is dense, CSR or CSC in main memory, and the positions within it ascend."""
    kind = kind_of(x)
    dense = type(x) is np.ndarray and x.ndim == 2
    if kind.gpu or not (dense or (kind.sparse and x.format in {"csr", "csc"})):
        return False
    if positions.size == 0 or positions.dtype.kind != "i":
        return False
    within = positions[0] >= 0 and positions[-1] < x.shape[0 if axis == "obs" else 1]
    return bool(within and (np.diff(positions) > 0).all())


def subset_copy(adata: AnnData, index: NDArray[Any], axis: Literal["obs", "var"]) -> AnnData:
    """A new AnnData of the cells or genes of `index`; `adata` stays as it is."""
    get_table(adata, "obs"), get_table(adata, "var")
    if has_dask(adata):
        adata = adata.copy()
        subset(adata, index, axis)
        return adata
    return (adata[index] if axis == "obs" else adata[:, index]).copy()


def get_finite_representation(adata: AnnData, *, use_rep: str | None, n_pcs: int | None) -> Any:
    """The matrix for distances between cells, on the host or GPU, by the rules of
    :func:`scatlas.pp.neighbors`.
    """
    x = get_representation(adata, use_rep, n_pcs)
    check_finite_values(x, representation_name(adata, use_rep, n_pcs))
    return x


def is_on_gpu(adata: AnnData, *, use_rep: str | None, n_pcs: int | None) -> bool:
    """Whether the matrix for distances between cells is present and on the GPU."""
    name = representation_name(adata, use_rep, n_pcs)
    return kind_of(adata.X if name == "X" else adata.obsm.get(name)).gpu


def representation_name(adata: AnnData, use_rep: str | None, n_pcs: int | None) -> str:
    """Name of the matrix for distances between cells: ``"X"`` or a key of ``obsm``."""
    if use_rep is not None:
        return use_rep
    return "X" if n_pcs == 0 or adata.n_vars <= _MAX_GENES_WITHOUT_PCA else "X_pca"


def get_representation(adata: AnnData, use_rep: str | None, n_pcs: int | None) -> Any:
    """The matrix for distances, on the host or GPU; one pass over a Dask array joins its blocks."""
    name = representation_name(adata, use_rep, n_pcs)
    if name == "X":
        x = get_matrix(adata, all_floats=True)
    else:
        x = get_obsm(adata, name, "use_rep", all_floats=True)
    if n_pcs is not None and name != "X":
        n_pcs = whole_number(n_pcs, "n_pcs", least=1, most=x.shape[1])
        x = x[:, :n_pcs]
    if x.shape[1] == 0:
        raise InputError(f"{name!r} has no dimensions: choose another representation with use_rep")
    return blocks.to_memory(x)


def to_contiguous(x: Any) -> NDArray[Any] | sp.csr_matrix:
    """CSR matrix or C-contiguous array in the host's memory."""
    import scipy.sparse as sp

    x = blocks.on_host(x)
    return sp.csr_matrix(x) if sp.issparse(x) else np.ascontiguousarray(x)


def check_finite_values(x: Any, name: str, remedy: str = "remove those cells first") -> None:
    """Refuse NaN, infinite values, and those of which sums of squares overflow float32."""
    parts: Iterable[Any]
    if blocks.is_sparse(x):
        parts = [x.data]
    elif kind_of(x).gpu:
        parts = [x]
    else:  # a mask of all values would take a quarter of their memory
        parts = (x[rows] for rows in blocks.row_slices(x))
    # The smallest and largest of NaN are NaN, which is neither above nor below.
    if not all(part.min() > -_HUGE and part.max() < _HUGE for part in parts if part.size):
        raise InputError(f"{name!r} holds values that are not finite, or not within 1e15: {remedy}")
