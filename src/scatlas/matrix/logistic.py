"""Multinomial logistic regression over all row blocks, by L-BFGS."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.arrays.kinds import kind_of
from scatlas.compute.memory import memory_budget
from scatlas.compute.threads import blas_on_one_thread, n_threads
from scatlas.kernels import kernels_for
from scatlas.kernels.counts.transpose_cpu import dense_to_csr
from scatlas.kernels.ranking import logreg_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from scatlas.kernels.ranking.logreg_cpu import LossAndGradient

logger = logging.getLogger(__name__)

# As scikit-learn sets them for L-BFGS.
_LINE_SEARCHES = 50
_MIN_GAIN = 64 * np.finfo(float).eps
# Values times classes for which another thread is worth its start in each evaluation.
_WORK_OF_ONE_THREAD = 2**20


class LogisticCells:
    """Cells with a class (codes from 0; -1 for none), to which logistic models are fitted.

    They are in blocks that are kept if they fit the memory and computed again if not.

    Kept ones are sparse in main memory: each evaluation would search dense ones for nonzero values.
    ``most`` [n_genes] is the largest magnitude of each gene, ``passes`` how often it read the
    matrix.
    """

    def __init__(self, x: Any, codes: NDArray[np.int64], genes: NDArray[np.int64] | None) -> None:
        if genes is not None:
            x = blocks.select_genes(x, genes)
        self._x, self._codes, self._kind = elements.as_rows(x), codes, kind_of(x)
        self.shape = int((codes >= 0).sum()), x.shape[1]
        self.passes = 0
        self.most = np.zeros(x.shape[1])
        self._held: list[tuple[Any, NDArray[np.int64]]] | None = None
        if not (self._kind.lazy or self._kind.gpu):
            self._hold_in_memory()
        # A cluster's blocks stay with its workers, and what is in memory is there already.
        elif self._kind.lazy and blocks.cluster_client(x) is None:
            try:
                self._held = self._look(memory_budget(x))
            except MemoryError as error:
                if not self._kind.gpu:
                    raise
                logger.warning("no memory to keep the cells, which are computed again: %s", error)
        if self.passes == 0:
            self._look(None)

    def _look(self, budget: int | None) -> list[tuple[Any, NDArray[np.int64]]] | None:
        """Find out about all cells, and keep those with a class if a budget has room for them."""
        work = partial(_looked_at, keep=budget is not None)
        held, left = [], budget or 0
        for most, kept in blocks.stream(self._x, work, self._codes, combine=_merge_halves):
            self.most = np.maximum(self.most, most)
            held += kept
            left -= sum(_n_bytes(block) for block, _ in kept)
            if left < 0:
                held.clear()
        self.passes += 1
        return held if budget is not None and left >= 0 else None

    def _hold_in_memory(self) -> None:
        """Keep cells in memory in one part per thread, as each part has its own gradient."""
        n_values = self._x.data.size if self._kind.sparse else self._x.size
        work = int(n_values) * (int(self._codes.max()) + 1)
        n_parts = max(1, min(n_threads(), work // _WORK_OF_ONE_THREAD, self._x.shape[0]))
        bounds = np.linspace(0, self._x.shape[0], n_parts + 1).astype(np.int64).tolist()

        def part(i: int) -> tuple[NDArray[np.float64], list[Any]]:
            rows = slice(*bounds[i : i + 2])
            codes = self._codes[rows]
            block = compressed(blocks.view(self._x, rows))
            return logreg_cpu.max_abs_per_gene(block, codes), [(block, codes)]

        parts = list(blocks.map_in_order(part, n_parts))
        self.most, self._held = _merge_halves(parts)
        self.passes = 1

    def evaluate(self, model: logreg_cpu.LogisticModel) -> LossAndGradient:
        """Loss and gradient of all cells."""
        kernels = kernels_for("ranking.logreg", self._x)
        work = partial(kernels.loss_and_gradient, model=model)
        if self._held is None:
            self.passes += 1
            return _folded(blocks.stream(self._x, work, self._codes, combine=logreg_cpu.merge))
        held, arrays = self._held, self._kind.arrays

        def evaluate_block(i: int) -> LossAndGradient:
            return work(*held[i])

        return _folded(
            blocks.map_in_order(
                arrays.on_own_stream(evaluate_block), len(held), arrays.wait_for_kernels
            )
        )


def fit(
    cells: LogisticCells,
    sizes: NDArray[np.int64],
    *,
    C: float = 1.0,
    balanced: bool = False,
    penalty: bool = True,
    fit_intercept: bool = True,
    tol: float = 1e-4,
    max_iter: int = 100,
    centre: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Coefficients ``[n_genes + 1, n_classes]``, the last row the intercepts, as scikit-learn's
    ``LogisticRegression`` defines them; of two classes one column, for the second.

    ``sizes`` are the cells per class; ``balanced`` weighs all classes alike. With ``centre``, means
    of the genes, the descent is that of centred values, which takes a tenth of the steps where
    means are large; the optimum is the same. ``start``: coefficients to begin with.
    """
    weights = int(sizes.sum()) / (sizes.size * sizes) if balanced else np.ones(sizes.size)
    strength = 1.0 / (C * float(weights @ sizes)) if penalty else 0.0
    loss = _Loss(cells, weights, sizes, strength, fit_intercept=fit_intercept, centre=centre)
    start = np.zeros(loss.shape) if start is None else loss.of_values(start, -1)
    coef = loss.of_values(_minimize(loss, start, tol, max_iter))
    logger.info("logreg: %d evaluations, %d passes over X", loss.evaluations, cells.passes)
    return coef


class _Loss:
    """Mean loss of the cells and half the squared coefficients, with the gradient."""

    def __init__(
        self,
        cells: LogisticCells,
        weights: NDArray[np.float64],
        sizes: NDArray[np.int64],
        strength: float,
        *,
        fit_intercept: bool,
        centre: NDArray[np.float64] | None = None,
    ) -> None:
        n_cells, n_genes = cells.shape
        self._cells, self._weights = cells, weights
        self._of_all = float((weights * sizes).sum())
        self._strength, self._fit_intercept = strength, fit_intercept
        self.shape = n_genes + 1, 1 if weights.size == 2 else weights.size
        self._scales = logreg_cpu.gradient_scales(cells.most, n_cells, float(weights.max()))
        self._centre = centre
        self.evaluations = 0

    def of_values(self, coef: NDArray[np.float64], sign: int = 1) -> NDArray[np.float64]:
        """Coefficients of values as they are, from those of centred values; with -1 back."""
        if self._centre is None:
            return coef
        return np.vstack([coef[:-1], coef[-1] - sign * (self._centre @ coef[:-1])])

    def __call__(self, flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Loss and gradient at the coefficients ``[n_genes + 1, n_columns]``, flattened."""
        self.evaluations += 1
        coef = self.of_values(flat.reshape(self.shape))
        model = logreg_cpu.LogisticModel(coef, self._scales, self._weights)
        total = self._cells.evaluate(model)
        gradient = blocks.on_host(total.gradient) / self._scales[:, None] / self._of_all
        slopes = coef[:-1]
        if self._centre is not None:
            gradient[:-1] -= np.outer(self._centre, gradient[-1])
        gradient[:-1] += self._strength * slopes
        if not self._fit_intercept:
            gradient[-1] = 0.0
        penalty = 0.5 * self._strength * float((slopes * slopes).sum())
        return total.loss / self._of_all + penalty, gradient.ravel()


def _minimize(
    loss: _Loss, start: NDArray[np.float64], tol: float, max_iter: int
) -> NDArray[np.float64]:
    """Coefficients ``[n_genes + 1, n_columns]`` of the least loss."""
    from scipy.optimize import minimize

    options = {"maxiter": max_iter, "maxls": _LINE_SEARCHES, "gtol": tol, "ftol": _MIN_GAIN}
    with blas_on_one_thread():
        optimum = minimize(loss, start.ravel(), method="L-BFGS-B", jac=True, options=options)
    if not optimum.success:
        msg = (
            f"logistic regression has not converged after {optimum.nit} iterations "
            f"({str(optimum.message).strip()}): raise max_iter={max_iter}, or tol={tol}"
        )
        warnings.warn(msg, stacklevel=3)
    return optimum.x.reshape(loss.shape)


def _looked_at(
    block: Any, codes: NDArray[np.int64], *, keep: bool
) -> tuple[NDArray[np.float64], list[tuple[Any, NDArray[np.int64]]]]:
    """Largest magnitudes of a block's genes, and its cells that have a class if they are kept."""
    most = kernels_for("ranking.logreg", block).max_abs_per_gene(block, codes)
    if not keep:
        return most, []
    chosen = codes >= 0
    if not chosen.all():
        block, codes = kernels_for("counts.select", block).select_rows(block, chosen), codes[chosen]
    return most, [(compressed(block), codes)]


def compressed(block: Any) -> Any:
    """CSR of a dense block in main memory, once for several models; other blocks as they are."""
    kind = kind_of(block)
    return block if kind.sparse or kind.gpu else dense_to_csr(np.asarray(block))


def _merge_halves(parts: list[tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
    most, kept = zip(*parts, strict=True)
    return np.maximum.reduce(most), [pair for half in kept for pair in half]


def _n_bytes(block: Any) -> int:
    arrays = (block.data, block.indices, block.indptr) if blocks.is_sparse(block) else (block,)
    return sum(array.nbytes for array in arrays)


def _folded(parts: Iterator[LossAndGradient]) -> LossAndGradient:
    total = next(parts)
    for part in parts:
        total = logreg_cpu.merge([total, part])
    return total
