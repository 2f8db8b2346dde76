"""Principal components from the Gram matrix of the genes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import whole_number
from scatlas.compute.threads import blas_on_one_thread, n_cores
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.matrix.gram import check_size

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from scatlas.matrix.gram import GramStats


DEFAULT_N_COMPS = 50


class Components(NamedTuple):
    """Result of :func:`components`.

    Attributes
    ----------
    mean
        float64 ``[n_genes]``, mean per gene.
    PCs
        float64 ``[n_genes, n_comps]``, orthonormal loadings; in each component that of largest
        magnitude is positive.
    variance
        float64 ``[n_comps]``, variance along each component.
    variance_ratio
        float64 ``[n_comps]``, that variance as a share of the total over all genes.
    """

    mean: NDArray[np.float64]
    PCs: NDArray[np.float64]
    variance: NDArray[np.float64]
    variance_ratio: NDArray[np.float64]

    def offset(
        self, *, zero_center: bool, zeros: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """The projected mean, to subtract from projected cells, float64 ``[n_comps]``.

        Parameters
        ----------
        zero_center
            Whether the components are centred.
        zeros
            The row ``[n_genes]`` that was subtracted from all cells
            (:class:`scatlas.matrix.gene_scale.GeneScale`); None for cells as they are.
        """
        mean = self.mean if zero_center else np.zeros_like(self.mean)
        return _dot(mean if zeros is None else mean - zeros, self.PCs)

    def project(
        self,
        x: Any,
        *,
        zero_center: bool = True,
        zeros: NDArray[np.float64] | None = None,
        dtype: DTypeLike = np.float32,
    ) -> Any:
        """Project cells on the components.

        Parameters
        ----------
        x
            Array ``[n_cells, n_genes]``, in memory or Dask.
        zero_center, zeros
            As for :meth:`offset`.
        dtype
            Type of the result; the sums are float64.

        Returns
        -------
        ``[n_cells, n_comps]``: NumPy or CuPy, or a Dask array with the row blocks of ``x``.
        """
        offset = self.offset(zero_center=zero_center, zeros=zeros)
        return project(x, self.PCs, offset, dtype=dtype)


def project(
    x: Any,
    PCs: NDArray[np.float64],
    offset: NDArray[np.float64],
    *,
    dtype: DTypeLike = np.float32,
) -> Any:
    """Return ``x @ PCs - offset``, summed in float64; lazy with the row blocks of a Dask ``x``."""
    kernels = kernels_for("linalg.project", x)
    prepared = kernels.prepare_components(PCs)

    def project_block(block: Any) -> Any:
        return kernels.project(block, prepared, offset, dtype=dtype)

    return blocks.apply(project_block, x, dtype=dtype, n_vars=offset.size, dense=True)


def _dot(mean: NDArray[np.float64], PCs: NDArray[np.float64]) -> NDArray[np.float64]:
    with blas_on_one_thread():
        return mean @ PCs


def components(
    stats: GramStats, n_comps: int, *, zero_center: bool = True, gpu: bool = False
) -> Components:
    """Principal components from sums of genes and of their products.

    With centring, the eigenvectors of ``(G - n mu mu^T) / (n - 1)`` and their eigenvalues; without,
    those of ``G`` (the right singular vectors of X, as a truncated SVD gives them) and the variance
    (divided by n, as scikit-learn reports it) of the cells projected on them.

    All in float64, with LAPACK on one thread, so the result depends on `stats` alone. The
    subtraction multiplies the relative error of float64, 2**-53, by ``(mean / sd)**2``: a gene of
    mean 8 and standard deviation 0.05 keeps 11 digits. (Larger means come off before the sums:
    :func:`scatlas.matrix.gram.means_to_subtract`.) Variances below the rounding error of the
    sums are 0: beyond the rank of X the components are an orthonormal completion.

    Parameters
    ----------
    stats
        Sums over the cells.
    n_comps
        At most the number of cells and of genes.
    zero_center
        Centre the genes.
    gpu
        Decompose on the current GPU, with other rounding.

    Raises
    ------
    InputError
        Too many components or genes, fewer than two cells, or values that are not finite.
    """
    n, n_genes = stats.n_cells, stats.sums.size
    n_comps = check_n_comps(n_comps, n, n_genes)
    check_size(n_genes)
    if not (np.isfinite(stats.sums).all() and np.isfinite(stats.gram.diagonal()).all()):
        raise InputError("PCA needs finite values, but X holds NaN or infinite ones")
    mean = stats.sums / n
    squares = stats.gram.diagonal() / n
    matrix = stats.gram.copy()
    if zero_center:
        for gene in range(n_genes):  # row by row: np.outer would allocate a third matrix
            matrix[gene] -= mean[gene] * stats.sums
        matrix /= n - 1
    total = float(np.maximum(matrix.diagonal(), 0.0).sum())
    # Error of an eigenvalue due to rounding of the sums, or of LAPACK if there are few genes.
    noise = max(n_genes, 32) * np.finfo(np.float64).eps * float(squares.sum())
    if gpu:
        from scatlas.kernels.linalg.eigh_gpu import eigh_top

        with blas_on_one_thread():
            values, PCs = eigh_top(matrix, n_comps)
    else:
        values, PCs = eigh_top_in_threads(matrix, n_comps)
    if not zero_center:
        values = values / n
        total = float(np.maximum(squares - mean**2, 0.0).sum())
    return from_eigenpairs(values, PCs, mean, zero_center=zero_center, total=total, noise=noise)


def from_eigenpairs(
    values: NDArray[np.float64],
    PCs: NDArray[np.float64],
    mean: NDArray[np.float64],
    *,
    zero_center: bool,
    total: float,
    noise: float,
) -> Components:
    """Components of the eigenpairs of the covariance, or of the mean products of uncentred genes.

    ``total`` is the variance of all genes; variances up to ``noise`` are rounding errors.
    """
    largest = np.abs(PCs).argmax(axis=0)
    PCs = PCs * np.where(PCs[largest, np.arange(PCs.shape[1])] < 0, -1.0, 1.0)
    variance = values if zero_center else values - _dot(mean, PCs) ** 2
    variance = np.where(variance > noise, variance, 0.0)
    ratio = variance / total if total > noise else np.zeros(variance.size)
    return Components(mean, PCs, variance, ratio)


def eigh_top_in_threads(matrix: NDArray[np.float64], n: int) -> tuple[Any, Any]:
    """As :func:`scatlas.kernels.linalg.eigh_cpu.eigh_top`, with all threads: the same bits."""
    from scatlas.kernels.linalg.eigh_cpu import eigh_top

    with blas_on_one_thread(), ThreadPoolExecutor(n_cores(), "scatlas-eigh") as pool:
        return eigh_top(matrix, n, pool.map)


def check_n_comps(n_comps: int, n_cells: int, n_genes: int) -> int:
    """Return the number of components as an int; refuse too many or too few."""
    n = whole_number(n_comps, "n_comps")
    if n_cells < 2:
        raise InputError(f"PCA needs at least two cells, but there are {n_cells}")
    if not 1 <= n <= min(n_cells, n_genes):
        raise InputError(
            f"n_comps={n} is not possible for {n_cells} cells x {n_genes} genes: choose 1 to "
            f"{min(n_cells, n_genes)}"
        )
    return n
