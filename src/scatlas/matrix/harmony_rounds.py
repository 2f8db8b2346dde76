"""The rounds of Harmony 2 over cells that need not fit the memory: tables and sweeps.

After Korsunsky et al. (Nature Methods 2019) and Patikas et al. (bioRxiv 2026). No share of a cell
in a cluster is kept. A pass visits the cells block by block, and needs of the shares before it only
their sums over each of its blocks, which the pass before it has added up, for it knows the next
blocks; the sweep that corrects computes the last shares again from the penalties of the last pass.
All sums are exact (``kernels.linalg.harmony``), so that no bit depends on tasks or threads.
"""

from __future__ import annotations

import logging
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from scatlas import blocks
from scatlas.compute.memory import HARMONY_CELLS_IN_MEMORY
from scatlas.compute.threads import blas_on_one_thread, n_cores
from scatlas.errors import InputError
from scatlas.kernels.linalg import harmony_cpu
from scatlas.matrix.harmony_tables import Mixed, ridge_terms, unit_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

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
_BYTES_OF_SUMS = 2**29  # of all threads together
# Passes whose mean is compared with the one before it.
_WINDOW = 3
# Components beyond these have squares that single precision cannot hold.
LARGEST, SMALLEST = 1e30, 1e-30
# Cells by which harmonypy tells the objective.
_OBJECTIVE_CELLS = 2000.0


class Rows(Protocol):
    """Rows of numbers [cells, components], an array or in a file."""

    shape: tuple[int, ...]

    def __getitem__(self, rows: slice, /) -> Any: ...
    def __setitem__(self, rows: slice, values: Any, /) -> None: ...
    def take(self, rows: Any, axis: int) -> Any: ...


class FileRows:
    """float32 rows in a temporary file, of which memory holds what is read."""

    shape: tuple[int, ...]

    def __init__(self, fd: int, shape: tuple[int, int]) -> None:
        self.shape, self._fd, self._row = shape, fd, 4 * shape[1]
        os.ftruncate(fd, shape[0] * self._row)

    def __getitem__(self, rows: slice) -> Float32s:
        return self._read([(rows.start, min(rows.stop, self.shape[0]))])

    def take(self, rows: Ints, axis: int) -> Float32s:  # noqa: ARG002
        """Rows of ascending numbers, read in runs of neighbours."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts, lasts = rows[np.r_[0, cuts]], rows[np.r_[cuts, rows.size] - 1]
        return self._read(list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)))

    def _read(self, runs: list[tuple[int, int]]) -> Float32s:
        out = np.empty((sum(stop - first for first, stop in runs), self.shape[1]), np.float32)
        view, at = out.reshape(-1).view(np.uint8).data, 0
        for first, stop in runs:
            end = at + (stop - first) * self._row
            offset = first * self._row - at
            while at < end:
                n_read = os.preadv(self._fd, [view[at:end]], offset + at)
                if not n_read:
                    raise OSError("the temporary file of Harmony ends too early")
                at += n_read
        return out

    def __setitem__(self, rows: slice, values: Float32s) -> None:
        view = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8).data
        at, offset = 0, rows.start * self._row
        while at < len(view):
            at += os.pwrite(self._fd, view[at:], offset + at)


@contextmanager
def scratch_rows(n_cells: int, n_comps: int, folder: Path) -> Iterator[Rows]:
    """Rows to write and read again: in memory for few cells, else in a file in ``folder``."""
    with ExitStack() as stack:
        if n_cells <= HARMONY_CELLS_IN_MEMORY:
            yield np.empty((n_cells, n_comps), np.float32)
        else:
            file = stack.enter_context(TemporaryFile(dir=folder))
            yield FileRows(file.fileno(), (n_cells, n_comps))


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
        self.kernels = harmony_cpu
        self.n_blocks = math.ceil(1 / options.block_proportion)
        self.run = math.ceil(self.n_cells / _MAX_RUNS)
        self.n_runs = math.ceil(self.n_cells / self.run)
        self._order = order or (
            lambda number: np.random.default_rng([seed, number]).permutation(self.n_runs)
        )
        n_batches, k = batches.sizes.size, options.n_clusters
        self.grid = self.kernels.grid_of(1.0, self.n_cells)
        self.grids = np.ones(self.n_comps + 1)
        n_products = len(batches.levels) * k * (self.n_comps + 1)
        n_bytes = 8 * (self.n_blocks * n_batches * k + n_products)
        self.workers = max(1, min(n_cores(), _BYTES_OF_SUMS // n_bytes))
        n_scratch = k * max(_CELLS_PER_TASK, self.run)
        self.owned = [
            _Own(
                later=np.zeros((self.n_blocks, n_batches, k)),
                products=np.zeros((len(batches.levels), k, self.n_comps + 1)),
                scratch=np.empty(n_scratch, np.float32),
            )
            for _ in range(self.workers)
        ]
        self.free: SimpleQueue[_Own] = SimpleQueue()
        for own in self.owned:
            self.free.put(own)
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

        pool = self.pool if self.workers > 1 else None
        return list(blocks.map_in_order(task, n, workers=self.workers, pool=pool))

    def _sweep(self, work: Callable[[_Own, slice, Any], Any]) -> list[Any]:
        """Call ``work(own, rows, their blocks in the last pass)`` for all cells in their order."""

        def task(own: _Own, i: int) -> Any:
            first = i * _CELLS_PER_TASK
            rows = slice(first, min(first + _CELLS_PER_TASK, self.n_cells))
            return work(own, rows, self._of_cells(self.block_of_run, rows))

        return self._each(task, math.ceil(self.n_cells / _CELLS_PER_TASK))

    def _of_cells(self, of_runs: NDArray[np.uint16], rows: slice) -> NDArray[np.uint16]:
        return of_runs[np.arange(rows.start, rows.stop) // self.run]

    def _scale(self) -> None:
        """Unit rows of all cells, the largest of each component, and a check of both."""

        def work(_: _Own, rows: slice, __: Any) -> Float32s:
            values = self.original[rows]
            largest = np.abs(values).max(axis=0)
            if not (np.abs(values) <= LARGEST).all():
                cell = rows.start + int(np.argmin((np.abs(values) <= LARGEST).all(axis=1)))
                raise InputError(
                    f"the components of cell {cell:,} (counted from 0) are not finite, or beyond "
                    f"{LARGEST}: remove those cells, or change the scale"
                )
            unit = np.array(values, np.float32, order="C")
            self.kernels.unit_rows(unit)
            self.moved[rows] = unit
            return largest

        largest = np.max(self._sweep(work), axis=0)
        if 0 < largest.max() < SMALLEST:
            raise InputError(f"all components are below {SMALLEST}: change their scale")
        self.grids[:-1] = [self.kernels.grid_of(float(v), self.n_cells) for v in largest]
        self.grids[-1] = self.grid

    def _shares(
        self, own: _Own, cells: tuple[Float32s, Any, Any], centroids: Float32s, penalties: Float32s
    ) -> tuple[Float32s, float]:
        """Shares [cells, clusters], until the thread's next call, of unit rows, their blocks among
        the penalties and codes; the sum of the logarithms of the totals.
        """
        unit, blocks_of, codes = cells
        shares = own.scratch[: len(unit) * len(centroids)].reshape(len(unit), len(centroids))
        np.matmul(unit, centroids.T * np.float32(2 / self.options.sigma), out=shares)
        levels = self.batches.levels
        return shares, self.kernels.soft_clusters(shares, penalties, blocks_of, codes, levels)

    def _add(self, shares: Float32s, codes: Any, blocks_of: Any, sums: Floats) -> None:
        self.kernels.add_shares(shares, codes, self.batches.levels, blocks_of, self.grid, sums)

    def _begin(self, *, corrects: bool, last: bool, old: Float32s | None = None) -> float:
        """Correct the cells by the terms, and share them between the centroids without penalty;
        the objective.
        """
        next_block = self._blocks_of(self._order(self.number))[0]
        none = np.zeros((1, *self.observed.shape), np.float32)

        def work(own: _Own, rows: slice, blocks_of: Any) -> float:
            unit, codes = np.asarray(self.moved[rows]), self.batches.codes[rows]
            if corrects:
                assert old is not None
                shares, _ = self._shares(own, (unit, blocks_of, codes), old, self.penalties)
                unit = np.array(self.original[rows], np.float32, order="C")
                self.kernels.subtract_terms(unit, shares, codes, self.terms)
                if not last:
                    self.kernels.unit_rows(unit)
                self.moved[rows] = unit
                if last:
                    z = np.c_[unit, np.ones(len(unit))].astype(np.float64)
                    self.kernels.add_products(shares, z, codes, self.grids, own.products)
                    return 0.0
            cells = (unit, np.zeros_like(blocks_of), codes)
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
        arrays: list[Floats] = [getattr(own, name) for own in self.owned]
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        for array in arrays:
            array[:] = 0.0
        return total

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
        next_block = self._blocks_of(self._order(self.number))[0]
        theta = self.options.theta[:, None]
        log_totals, penalised, seen = [], [], np.zeros_like(self.observed)
        for number, runs in enumerate(parts):
            self.observed -= self.waiting[number]
            expected = self._expected()
            penalty = theta * (np.log(2 * expected + 1) - np.log(self.observed + expected + 1))
            self.penalties[number] = penalty
            log_totals += self._share_block(number, runs, next_block)
            total = np.sum([own.later.sum(axis=0) for own in self.owned], axis=0)
            added, seen = total - seen, total
            self.observed += added
            penalised.append(float((added * penalty).sum()))
        self.waiting = self._take("later")
        return self._objective(math.fsum(log_totals), math.fsum(penalised))

    def _share_block(self, number: int, runs: Ints, next_block: Any) -> list[float]:
        runs_per_task = max(1, _CELLS_PER_PASS_TASK // self.run)
        penalties = self.penalties[number : number + 1]

        def task(own: _Own, i: int) -> float:
            part = runs[i * runs_per_task : (i + 1) * runs_per_task]
            cells = (part[:, None] * self.run + np.arange(self.run)).ravel()
            cells = cells[: np.searchsorted(cells, self.n_cells)]
            codes, later = self.batches.codes[cells], next_block[cells // self.run]
            here = np.zeros_like(later)
            unit = self.moved.take(cells, 0)
            shares, total = self._shares(own, (unit, here, codes), self.centroids, penalties)
            self._add(shares, codes, later, own.later)
            return total

        return self._each(task, math.ceil(runs.size / runs_per_task))

    def _regress(self) -> None:
        """Centroids and terms of the batches by a ridge regression in each cluster."""

        def work(own: _Own, rows: slice, blocks_of: Any) -> None:
            cells = (np.asarray(self.moved[rows]), blocks_of, self.batches.codes[rows])
            shares, _ = self._shares(own, cells, self.centroids, self.penalties)
            z = np.ones((len(shares), self.n_comps + 1))
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
