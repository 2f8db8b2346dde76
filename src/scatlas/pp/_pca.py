"""Principal components: of Dask arrays in one pass over X, then a lazy projection."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.matrix.array_components import array_components
from scatlas.matrix.components import DEFAULT_N_COMPS, check_n_comps

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import ArrayLike, DTypeLike, NDArray


# scanpy's solvers, all of which approximate or equal what the eigen-decomposition gives.
SOLVERS = ("arpack", "auto", "covariance_eigh", "full", "randomized", "tsqr")


class _Unset:
    """Marks a mask that was not given, as `None` means no mask."""

    def __repr__(self) -> str:
        return "var['highly_variable'] if there"


_UNSET = _Unset()


@blocks.passes(
    1,
    "the Gram matrix, 1 more where means are 200 times the standard deviations; the projection is "
    "lazy and takes one more when computed",
)
def pca(
    data: AnnData | Any,
    n_comps: int | None = None,
    *,
    layer: str | None = None,
    zero_center: bool = True,
    svd_solver: str | None = None,
    chunked: bool = False,
    chunk_size: int | None = None,
    random_state: Any = 0,  # noqa: ARG001
    return_info: bool = False,
    mask_var: ArrayLike | str | _Unset | None = _UNSET,
    use_highly_variable: bool | None = None,
    dtype: DTypeLike = "float32",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | Any | None:
    """Principal component analysis, exact and deterministic.

    ``X.T @ X`` is summed in float64 over row blocks, its eigenvectors are the components (see
    :func:`components`), and the cells are projected block by block. An X in memory may have a
    shorter way: with fewer cells than genes the smaller ``X @ X.T``, or, with more than 1,000 genes
    and where they cost less time or memory, iterations on products of X with a few vectors
    (:mod:`scatlas.matrix.array_components`). All ways agree to 1e-9, whatever the means: those
    above 200 standard deviations come off before the products are summed, which takes a second
    pass. (Without centring they stay, and cost a part in 10^16 of their square.) Components equal
    scanpy's up to sign; here the loading of largest magnitude is positive in each component.

    Parameters
    ----------
    data
        AnnData, or an array ``[n_cells, n_genes]``: NumPy, SciPy CSR or CSC, their like of CuPy, or
        Dask of these.
    n_comps
        Number of components: 50 by default, or one less than the smaller dimension where that is
        at most 50.
    layer
        Layer to use instead of ``X``.
    zero_center
        Centre the genes (sparse data stay sparse). ``False``: a truncated SVD.
    svd_solver
        scanpy's solvers are accepted and give the same, exact result.
    chunked, chunk_size
        Not supported, as scanpy's chunked (incremental) PCA is an approximation. Memory is bounded
        by the blocks of X anyhow.
    random_state
        Accepted as in scanpy; nothing here is random.
    return_info
        For an array: also return components ``[n_comps, n_genes]``, variance ratio and variance.
    mask_var
        Genes to use: boolean ``[n_genes]``, a column of ``var``, or ``None`` for all. By default
        ``var["highly_variable"]`` if it exists.
    use_highly_variable
        Deprecated in scanpy: ``True`` is ``mask_var="highly_variable"``, ``False`` is
        ``mask_var=None``.
    dtype
        Type of the projected cells, float32 or float64.
    key_added
        Key in ``obsm``, ``varm`` and ``uns`` instead of ``"X_pca"``, ``"PCs"`` and ``"pca"``.
    copy
        Return a changed copy of an AnnData instead of changing it.

    Returns
    -------
    For an array, the projected cells, or with `return_info` a tuple. For an AnnData ``None``, or
    the copy, with

    ``obsm["X_pca"]`` : `dtype` ``[n_cells, n_comps]``
        NumPy, or CuPy for an X on the GPU; for a Dask X a lazy Dask array with X's row blocks.
    ``varm["PCs"]`` : float64 ``[n_genes, n_comps]``
        Loadings, 0 for genes outside the mask.
    ``uns["pca"]`` : dict
        ``params``, ``variance`` and ``variance_ratio`` (float64 ``[n_comps]``). The variance is
        divided by n - 1 (scanpy on Dask: n); without centring it is that of the projected cells,
        divided by n, as scikit-learn's ``TruncatedSVD`` has it.

    Raises
    ------
    InputError
        For more components than cells or genes, fewer than two cells, NaN or infinite values, more
        than 30,000 genes of a Dask array or of one on the GPU, an unknown solver, or a mask that
        does not fit.

    References
    ----------
    Reference implementation: scanpy 1.11.5, ``preprocessing/_pca`` (scikit-learn's ``PCA`` and
    ``TruncatedSVD``).
    """
    from anndata import AnnData

    if chunked or chunk_size is not None:
        raise InputError(
            "chunked PCA is an approximation that scatlas does not offer: leave out chunked and "
            "chunk_size, memory is bounded by the blocks of X"
        )
    if svd_solver is not None and svd_solver not in SOLVERS:
        msg = f"svd_solver={svd_solver!r} is unknown: leave it out, or name one of {SOLVERS}"
        raise InputError(msg)
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise InputError(f"dtype={dtype} is not supported: choose float32 or float64")
    is_adata = isinstance(data, AnnData)
    adata = data.copy() if is_adata and copy else data
    x = elements.get_array(adata, layer) if is_adata else elements.check_array(data, "the array")
    if not is_adata and layer is not None:
        raise InputError("layer refers to an AnnData, not to an array")
    mask_param, mask = _mask_var(
        adata if is_adata else None, mask_var, use_highly_variable, x.shape[1]
    )
    n_genes = x.shape[1]
    if mask is not None:
        x = blocks.select_genes(x, np.flatnonzero(mask))
    if n_comps is None:
        smaller = min(x.shape)
        n_comps = smaller - 1 if smaller <= DEFAULT_N_COMPS else DEFAULT_N_COMPS
    n_comps = check_n_comps(n_comps, *x.shape)
    principal = array_components(x, n_comps, zero_center=zero_center)
    x_pca = principal.project(x, zero_center=zero_center, dtype=dtype)
    if not is_adata:
        if return_info:
            return x_pca, principal.PCs.T, principal.variance_ratio, principal.variance
        return x_pca

    key_obsm, key_varm, key_uns = (key_added,) * 3 if key_added else ("X_pca", "PCs", "pca")
    loadings = principal.PCs
    if mask is not None:
        loadings = np.zeros((n_genes, n_comps))
        loadings[mask] = principal.PCs
    params = {
        "zero_center": zero_center,
        "use_highly_variable": isinstance(mask_param, str) and mask_param == "highly_variable",
        "mask_var": mask_param,
    }
    if layer is not None:
        params["layer"] = layer
    adata.obsm[key_obsm] = x_pca
    adata.varm[key_varm] = loadings
    adata.uns[key_uns] = {
        "params": params,
        "variance": principal.variance,
        "variance_ratio": principal.variance_ratio,
    }
    return adata if copy else None


def _mask_var(
    adata: AnnData | None,
    mask: ArrayLike | str | _Unset | None,
    use_highly_variable: bool | None,
    n_genes: int,
) -> tuple[str | NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
    """The mask as given (for ``uns``) and as a boolean array; both `None` for all genes."""
    if use_highly_variable is not None:
        if not isinstance(mask, _Unset):
            raise InputError("give mask_var or use_highly_variable, not both")
        warnings.warn(
            "`use_highly_variable` is deprecated: use mask_var='highly_variable' or mask_var=None",
            FutureWarning,
            stacklevel=4,
        )
        mask = "highly_variable" if use_highly_variable else None
    if isinstance(mask, _Unset):
        mask = "highly_variable" if adata is not None and "highly_variable" in adata.var else None
    if mask is None:
        return None, None
    genes = elements.get_mask(adata, mask, n_genes, "mask_var", "var")
    return (mask if isinstance(mask, str) else genes), genes
