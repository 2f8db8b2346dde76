"""The rounds of Harmony 2 over cells that need not fit the memory: tables and sweeps.

After Korsunsky et al. (Nature Methods 2019) and Patikas et al. (bioRxiv 2026). No share of a cell
in a cluster is kept. A pass visits the cells block by block, and needs of the shares before it only
their sums over each of its blocks, which the pass before it has added up, for it knows the next
blocks; the sweep that corrects computes the last shares again from the penalties of the last pass.
All sums are exact (``kernels.linalg.harmony``), so that no bit depends on tasks or threads.

Rows on a GPU stay there: one thread starts kernels for many cells at a time. ``xp`` is CuPy there,
and NumPy on the CPU.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread, n_cores
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.kernels.linalg.harmony_cpu import grid_of
from scatlas.matrix.harmony_tables import Mixed, ridge_terms, unit_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from scatlas.matrix.harmony_rows import Rows
    from scatlas.matrix.harmony_tables import Batches, Options

    Floats = NDArray[np.float64]
    Float32s = NDArray[np.float32]
    Ints = NDArray[np.int64]

logger = logging.getLogger(__name__)
# Most runs of neighbouring cells, of which blocks are drawn: up to as many cells, cell by cell. Of
# 100,000 cells, sorted by batch and type, the correction differs from that of single cells by 1e-4
# of it, less than with another seed; a file is read in pieces of a few thousand bytes.
_MAX_RUNS = 2**14
# Cells of a task: of a pass, whose logits stay in the L2 cache, and of a sweep in the order of the
# cells, where more of them share their batches.
_CELLS_PER_PASS_TASK, _CELLS_PER_TASK = 1024, 2048
_GPU_SHARES = 2**25  # of a task on a GPU: 0.1 GB, and 0.3 of float64
_BYTES_OF_SUMS = 2**29  # of all threads together
# Passes whose mean is compared with the one before it.
_WINDOW = 3
# Components beyond these have squares that single precision cannot hold.
LARGEST, SMALLEST = 1e30, 1e-30
# Cells by which harmonypy tells the objective.
_OBJECTIVE_CELLS = 2000.0


class _Own(NamedTuple):
    """Sums and memory of one thread."""

    later: Floats  # [blocks, batches, clusters]: shares, by the cells' blocks of the next pass
    products: Floats  # [combinations, clusters, components + 1]: shares times components and 1
    scratch: Float32s  # [cells of a task * clusters]


class Rounds:
    """Rounds of clustering and correction; ``moved`` holds the unit rows of the present round."""

    def __init__(
        self,
        original: Rows,
        moved: Rows,
        batches: Batches,
        options: Options,
        order: Callable[[int], Ints] | None,
        seed: int,
    ) -> None:
        """``order(number)`` gives the order of the runs of cells in a pass, the seed's if None."""
        self.original, self.moved, self.batches, self.options = original, moved, batches, options
        self.n_cells, self.n_comps = original.shape
        self.kernels = kernels_for("linalg.harmony", original)
        xp = self.xp = self.kernels.xp
        self.on_gpu = xp is not np
        self.n_blocks = math.ceil(1 / options.block_proportion)
        self.run = math.ceil(self.n_cells / _MAX_RUNS)
        self.n_runs = math.ceil(self.n_cells / self.run)
        self._order = order or (
            lambda number: np.random.default_rng([seed, number]).permutation(self.n_runs)
        )
        n_batches, k = batches.sizes.size, options.n_clusters
        self.grid = grid_of(1.0, self.n_cells)
        self.grids = np.ones(self.n_comps + 1)
        n_products = len(batches.levels) * k * (self.n_comps + 1)
        n_bytes = 8 * (self.n_blocks * n_batches * k + n_products)
        self.workers = max(1, min(n_cores(), _BYTES_OF_SUMS // n_bytes))
        self.per_pass_task, self.per_task = _CELLS_PER_PASS_TASK, _CELLS_PER_TASK
        if self.on_gpu:
            self.workers, self.per_pass_task = 1, _GPU_SHARES // k
            self.per_task = self.per_pass_task
        n_scratch = k * max(self.per_task, self.run)
        self.owned = [
            _Own(
                later=xp.zeros((self.n_blocks, n_batches, k)),
                products=xp.zeros((len(batches.levels), k, self.n_comps + 1)),
                scratch=xp.empty(n_scratch, np.float32),
            )
            for _ in range(self.workers)
        ]
        self.free: SimpleQueue[_Own] = SimpleQueue()
        for own in self.owned:
            self.free.put(own)
        self.codes, self.levels = xp.asarray(batches.codes), xp.asarray(batches.levels)
        # The cells in the order of sweeps on a GPU, which takes time for each change of the code.
        changes = np.count_nonzero(batches.codes[1:] != batches.codes[:-1]) if self.on_gpu else 0
        few = len(batches.levels) + self.n_cells // self.per_task
        self.in_order = xp.argsort(self.codes).astype(np.int32) if changes > few else None
        # Shares by batch and cluster, and those of the cells of each block of the next pass.
        self.observed = np.zeros((n_batches, k))
        self.waiting = np.zeros((self.n_blocks, n_batches, k))
        # Penalties of each block in the last pass, and the block of each run of cells in it.
        self.penalties = np.zeros((self.n_blocks, n_batches, k), np.float32)
        self.block_of_run = np.zeros(self.n_runs, np.uint16)
        self.number = 0  # of the next pass
        self.centroids = np.zeros((k, self.n_comps), np.float32)
        self.terms = np.zeros((len(batches.levels), k, self.n_comps), np.float32)

    def mix(self, start: Callable[[Rows], Float32s]) -> Mixed:
        """All rounds; ``start`` gives the first centroids of the unit rows."""
        pool = ThreadPoolExecutor(self.workers, "scatlas-harmony")
        with blas_on_one_thread(), pool as self.pool:
            self._scale()
            self.centroids = start(self.moved)
            objectives = [self._begin(corrects=False, last=False)]
            passes = objectives[:]
            for number in range(1, self.options.max_iter_harmony + 1):
                passes += self._cluster()
                objectives.append(passes[-1])
                before, after = objectives[-2:]
                logger.info("Harmony: round %d, objective %.6g", number, after)
                # A rise does not end it, as in harmonypy.
                steady = 0 <= before - after < self.options.tol_harmony * abs(before)
                last = steady or number == self.options.max_iter_harmony
                old = self.centroids
                self._regress()
                self._begin(corrects=True, last=last, old=old)
                if last:
                    break
        sums = self._take("products").sum(axis=0)
        return Mixed(
            *(objectives, passes, self.centroids, self.terms, sums), sigma=self.options.sigma
        )

    def _each(self, work: Callable[[_Own, int], Any], n: int) -> list[Any]:
        """Call ``work(what the thread owns, i)`` for n tasks."""

        def task(i: int) -> Any:
            own = self.free.get()
            try:
                return work(own, i)
            finally:
                self.free.put(own)

        if self.on_gpu:  # CUDA's device is the thread's
            return [task(i) for i in range(n)]
        pool = self.pool if self.workers > 1 else None
        return list(blocks.map_in_order(task, n, workers=self.workers, pool=pool))

    def _sweep(self, work: Callable[[_Own, Any, Any], Any]) -> list[Any]:
        """Call ``work(own, rows, their blocks in the last pass)`` for all cells: a slice of them,
        or their numbers.
        """
        block_of_run = self.xp.asarray(self.block_of_run)

        def task(own: _Own, i: int) -> Any:
            first = i * self.per_task
            rows = slice(first, min(first + self.per_task, self.n_cells))
            cells = rows if self.in_order is None else self.in_order[rows]
            return work(own, cells, self._of_cells(block_of_run, cells))

        return self._each(task, math.ceil(self.n_cells / self.per_task))

    def _of_cells(self, of_runs: Any, rows: Any) -> Any:
        if isinstance(rows, slice):
            rows = self.xp.arange(rows.start, rows.stop)
        return of_runs[rows // self.run]

    def _scale(self) -> None:
        """Unit rows of all cells, the largest of each component, and a check of both."""

        def work(_: _Own, rows: Any, __: Any) -> Floats:
            values = self.original[rows]
            largest, fits = abs(values).max(axis=0), (abs(values) <= LARGEST).all(axis=1)
            if not fits.all():
                at = int(fits.argmin())
                cell = rows.start + at if isinstance(rows, slice) else int(rows[at])
                raise InputError(
                    f"the components of cell {cell:,} (counted from 0) are not finite, or beyond "
                    f"{LARGEST}: remove those cells, or change the scale"
                )
            unit = self.xp.array(values, np.float32, order="C")
            self.kernels.unit_rows(unit)
            self.moved[rows] = unit
            return np.asarray(blocks.on_host(largest))

        largest = np.max(self._sweep(work), axis=0)
        if 0 < largest.max() < SMALLEST:
            raise InputError(f"all components are below {SMALLEST}: change their scale")
        self.grids[:-1] = [grid_of(float(v), self.n_cells) for v in largest]
        self.grids[-1] = self.grid

    def _shares(
        self, own: _Own, cells: tuple[Float32s, Any, Any], centroids: Float32s, penalties: Any
    ) -> tuple[Float32s, float]:
        """Shares [cells, clusters], until the thread's next call, of unit rows, their blocks among
        the penalties and codes; the sum of the logarithms of the totals.
        """
        unit, blocks_of, codes = cells
        shares = own.scratch[: len(unit) * len(centroids)].reshape(len(unit), len(centroids))
        directions = self.xp.asarray(centroids.T * np.float32(2 / self.options.sigma))
        self.xp.matmul(unit, directions, out=shares)
        return shares, self.kernels.soft_clusters(shares, penalties, blocks_of, codes, self.levels)

    def _add(self, shares: Float32s, codes: Any, blocks_of: Any, sums: Floats) -> None:
        self.kernels.add_shares(shares, codes, self.levels, blocks_of, self.grid, sums)

    def _begin(self, *, corrects: bool, last: bool, old: Float32s | None = None) -> float:
        """Correct the cells by the terms, and share them between the centroids without penalty;
        the objective.
        """
        xp = self.xp
        next_block = xp.asarray(self._blocks_of(self._order(self.number))[0])
        penalties, terms = xp.asarray(self.penalties), xp.asarray(self.terms)
        none = xp.zeros((1, *self.observed.shape), np.float32)

        def work(own: _Own, rows: Any, blocks_of: Any) -> float:
            unit, codes = xp.asarray(self.moved[rows]), self.codes[rows]
            if corrects:
                assert old is not None
                shares, _ = self._shares(own, (unit, blocks_of, codes), old, penalties)
                unit = xp.array(self.original[rows], np.float32, order="C")
                self.kernels.subtract_terms(unit, shares, codes, terms)
                if not last:
                    self.kernels.unit_rows(unit)
                self.moved[rows] = unit
                if last:
                    z = xp.ones((len(unit), self.n_comps + 1))
                    z[:, :-1] = unit
                    self.kernels.add_products(shares, z, codes, self.grids, own.products)
                    return 0.0
            cells = (unit, xp.zeros_like(blocks_of), codes)
            shares, total = self._shares(own, cells, self.centroids, none)
            self._add(shares, codes, self._of_cells(next_block, rows), own.later)
            return total

        total = math.fsum(self._sweep(work))
        if last:
            return 0.0
        self.waiting = self._take("later")
        self.observed = self.waiting.sum(axis=0)
        return self._objective(total, 0.0)

    def _take(self, name: str) -> Floats:
        """Sum over the threads, which begin again at zero."""
        arrays: list[Any] = [getattr(own, name) for own in self.owned]
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        for array in arrays:
            array[:] = 0.0
        return np.asarray(blocks.on_host(total))

    def _expected(self) -> Floats:
        of_first = self.observed[self.batches.column == 0].sum(axis=0)
        return np.outer(self.batches.shares, of_first)

    def _objective(self, log_totals: float, penalised: float) -> float:
        """Objective of the shares of all cells, per 2,000 cells.

        The distances and the entropy of a cell, ``sum(R * D + sigma * R * log R)``, are sigma times
        the sum of R times its penalties less the logarithm of the softmax's total.
        """
        sigma, theta = self.options.sigma, self.options.theta[:, None]
        observed, expected = self.observed, self._expected()
        cells = sigma * (penalised - log_totals) + 2 * self.n_cells
        diversity = theta * observed * np.log((observed + expected + 1) / (2 * expected + 1))
        return float(_OBJECTIVE_CELLS / self.n_cells * (cells + sigma * diversity.sum()))

    def _blocks_of(self, order: Ints) -> tuple[NDArray[np.uint16], list[Ints]]:
        """Block of each run in a pass, and the runs of each block; the last takes the rest."""
        size = int(self.options.block_proportion * order.size)
        numbers = np.minimum(np.arange(order.size) // max(size, 1), self.n_blocks - 1)
        block_of_run = np.empty(order.size, np.uint16)
        block_of_run[order] = numbers
        cuts = np.searchsorted(numbers, np.arange(1, self.n_blocks))
        return block_of_run, [np.sort(part) for part in np.split(order, cuts)]

    def _cluster(self) -> list[float]:
        """Passes of a round; the objective after each."""
        objectives: list[float] = []
        while len(objectives) < self.options.max_iter_clustering:
            objectives.append(self._pass())
            if len(objectives) > _WINDOW + 1:
                before, after = sum(objectives[-1 - _WINDOW : -1]), sum(objectives[-_WINDOW:])
                if abs(before - after) < self.options.tol_clustering * abs(before):
                    break
        return objectives

    def _pass(self) -> float:
        """Share the cells between the clusters again, block by block; the objective."""
        self.block_of_run, parts = self._blocks_of(self._order(self.number))
        self.number += 1
        next_block = self.xp.asarray(self._blocks_of(self._order(self.number))[0])
        theta = self.options.theta[:, None]
        log_totals, penalised, seen = [], [], np.zeros_like(self.observed)
        for number, runs in enumerate(parts):
            self.observed -= self.waiting[number]
            expected = self._expected()
            penalty = theta * (np.log(2 * expected + 1) - np.log(self.observed + expected + 1))
            self.penalties[number] = penalty
            log_totals += self._share_block(number, runs, next_block)
            parts_of_total = [blocks.on_host(own.later.sum(axis=0)) for own in self.owned]
            total = np.sum(parts_of_total, axis=0)
            added, seen = total - seen, total
            self.observed += added
            penalised.append(float((added * penalty).sum()))
        self.waiting = self._take("later")
        return self._objective(math.fsum(log_totals), math.fsum(penalised))

    def _share_block(self, number: int, runs: Ints, next_block: Any) -> list[float]:
        xp, runs_per_task = self.xp, max(1, self.per_pass_task // self.run)
        penalties = xp.asarray(self.penalties[number : number + 1])

        def task(own: _Own, i: int) -> float:
            part = runs[i * runs_per_task : (i + 1) * runs_per_task]
            cells = (xp.asarray(part)[:, None] * self.run + xp.arange(self.run)).ravel()
            n_beyond = max(0, (int(part[-1]) + 1) * self.run - self.n_cells)
            cells = cells[: cells.size - n_beyond]
            codes, later = self.codes[cells], next_block[cells // self.run]
            here = xp.zeros_like(later)
            unit = self.moved.take(cells, 0)
            shares, total = self._shares(own, (unit, here, codes), self.centroids, penalties)
            self._add(shares, codes, later, own.later)
            return total

        return self._each(task, math.ceil(runs.size / runs_per_task))

    def _regress(self) -> None:
        """Centroids and terms of the batches by a ridge regression in each cluster."""

        penalties = self.xp.asarray(self.penalties)

        def work(own: _Own, rows: Any, blocks_of: Any) -> None:
            cells = (self.xp.asarray(self.moved[rows]), blocks_of, self.codes[rows])
            shares, _ = self._shares(own, cells, self.centroids, penalties)
            z = self.xp.ones((len(shares), self.n_comps + 1))
            z[:, :-1] = self.original[rows]
            self.kernels.add_products(shares, z, cells[2], self.grids, own.products)

        self._sweep(work)
        products = self._take("products")
        kept = self.observed > self.options.batch_prune_threshold * self.batches.sizes[:, None]
        ridge = self.options.alpha * self._expected()
        if self.options.ridge_lambda is not None:
            ridge[:] = self.options.ridge_lambda
        centroids = self.centroids.astype(np.float64)
        self.terms[:] = 0.0
        for k in range(self.options.n_clusters):
            coefficients = ridge_terms(self.batches, products[:, k], kept[:, k], ridge[:, k])
            if coefficients is not None:
                centroids[k] = coefficients[-1]
                self.terms[:, k] = coefficients[self.batches.levels].sum(axis=1)
        self.centroids = unit_length(centroids)
