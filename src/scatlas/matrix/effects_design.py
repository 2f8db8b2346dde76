"""Linear models of conditions and blocks, for many genes at once.

Columns of conditions are indicators, so conditions that lie in one block drop out as means of their
samples. Those of several blocks, and the control, link the blocks: of the two sides of this table,
conditions and blocks, the smaller remains, as a system of its size per gene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.intp]
    Floats = NDArray[np.float64]


class Solution(NamedTuple):
    """A fit of genes; a cell is what the samples of one condition in one block share.

    With equal weights all that depends on weights has one row for all genes.
    """

    weights: Floats  # [genes, cells]
    means: Floats  # [genes, cells]
    fitted: Floats  # [genes, cells]
    # Of the table of the linked cells: one side is kept, the other eliminated.
    kept: Floats  # [genes, kept]: effects, zero where pinned
    eliminated: Floats  # [genes, eliminated]
    inverse: Floats  # [genes, free, free]
    shares: Floats  # [genes, eliminated, kept]: of the weight of the eliminated
    totals: Floats  # [genes, eliminated]: weights


@dataclass(frozen=True)
class Design:
    """Samples sorted by condition and block, and what a fit of any gene needs to know of them."""

    samples: Ints  # [n]: numbers of the samples in the order of the fit
    sizes: Ints  # [cells]: samples of each
    conditions: Ints  # [cells]
    blocks: Ints  # [cells]
    control: int
    linked: Ints  # cells of the table
    at_kept: Ints  # [linked]
    at_eliminated: Ints  # [linked]
    keeps_blocks: bool
    linked_conditions: Ints  # the control first
    linked_blocks: Ints
    free: Ints  # of the kept side: not pinned at zero
    rank: int

    @classmethod
    def build(cls, samples: Ints, conditions: Ints, blocks: Ints, control: int) -> Design:
        """The design of some samples; ``conditions`` and ``blocks`` are those of all samples."""
        pairs, cell, sizes = np.unique(
            np.stack([conditions[samples], blocks[samples]]),
            axis=1,
            return_inverse=True,
            return_counts=True,
        )
        samples = samples[np.argsort(cell, kind="stable")]
        cell_conditions, cell_blocks = pairs
        names, n_cells = np.unique(cell_conditions, return_counts=True)
        linking = names[(n_cells > 1) | (names == control)]
        linking = np.r_[linking[linking == control], linking[linking != control]]
        linked = np.flatnonzero(np.isin(cell_conditions, linking))
        linked_blocks, block_at = np.unique(cell_blocks[linked], return_inverse=True)
        order = np.argsort(linking)
        condition_at = order[np.searchsorted(linking[order], cell_conditions[linked])]
        keeps_blocks = linked_blocks.size < linking.size
        kept, eliminated = (block_at, condition_at) if keeps_blocks else (condition_at, block_at)
        n_kept = linked_blocks.size if keeps_blocks else linking.size
        first, n_parts = _first_of_parts(kept, eliminated, n_kept)
        return cls(
            samples=samples,
            sizes=sizes,
            conditions=cell_conditions,
            blocks=cell_blocks,
            linked=linked,
            at_kept=kept,
            at_eliminated=eliminated,
            keeps_blocks=keeps_blocks,
            linked_conditions=linking,
            linked_blocks=linked_blocks,
            free=np.setdiff1d(np.arange(n_kept), first),
            rank=names.size + linked_blocks.size - n_parts,
            control=control,
        )

    @property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return self.samples.size - self.rank

    @property
    def values_per_gene(self) -> int:
        """Values that a fit holds at once for one gene."""
        n_kept, n_eliminated = self._sides()
        n_levels = self.linked_blocks.size + self.linked_conditions.size
        return max(self.samples.size, n_kept * n_eliminated, n_levels * self.free.size)

    def single(self) -> NDArray[np.bool_]:
        """Cells of one sample that alone is a condition: no residual depends on it."""
        cells = self.sizes == 1
        cells[self.linked] = False
        return cells

    def compared(self) -> Ints:
        """Conditions that share a block with the control."""
        there = self.blocks[self.conditions == self.control]
        cells = np.isin(self.blocks, there) & (self.conditions != self.control)
        return np.unique(self.conditions[cells])

    def solve(self, values: Floats, weights: Floats) -> Solution:
        """Least squares of ``values [genes, n]`` with ``weights [genes, n]``, or ``[1, n]``."""
        starts = np.cumsum(self.sizes) - self.sizes
        cell_weights = np.add.reduceat(weights, starts, axis=1)
        means = np.add.reduceat(weights * values, starts, axis=1) / cell_weights
        at = (slice(None), self.at_eliminated, self.at_kept)
        shape = self._sides()[::-1]
        table = np.zeros((len(weights), *shape))
        table[at] = cell_weights[:, self.linked]
        table_means = np.zeros((len(values), *shape))
        table_means[at] = means[:, self.linked]
        totals = table.sum(axis=2)
        shares = table / totals[:, :, None]
        centres = (shares * table_means).sum(axis=2)
        system = -np.matmul(table.swapaxes(1, 2), shares)
        diagonal = np.arange(shape[1])
        system[:, diagonal, diagonal] += table.sum(axis=1)
        right = (table * (table_means - centres[:, :, None])).sum(axis=1)
        system = _take(_take(system, self.free), self.free, 2)
        inverse = np.asarray(np.linalg.inv(system), np.float64)
        kept = np.zeros((len(values), shape[1]))
        kept[:, self.free] = np.matmul(inverse, _take(right, self.free)[:, :, None])[:, :, 0]
        eliminated = centres - (shares * kept[:, None]).sum(axis=2)
        fitted = means.copy()
        fitted[:, self.linked] = kept[:, self.at_kept] + eliminated[:, self.at_eliminated]
        return Solution(cell_weights, means, fitted, kept, eliminated, inverse, shares, totals)

    def residual_sum(self, values: Floats, weights: Floats, solution: Solution) -> Floats:
        """Weighted sum of squared residuals of each gene."""
        within = values - np.repeat(solution.means, self.sizes, axis=1)
        return (weights * within**2).sum(axis=1) + self._between(solution)

    def explained(self, solution: Solution) -> tuple[Floats, int]:
        """Sum of squares by which conditions and blocks explain more than blocks, and its df."""
        blocks, at = np.unique(self.blocks, return_inverse=True)
        order = np.argsort(at, kind="stable")
        starts = np.searchsorted(at[order], np.arange(blocks.size))
        weights, means = _take(solution.weights, order), _take(solution.means, order)
        centres = np.add.reduceat(weights * means, starts, axis=1)
        centres /= np.add.reduceat(weights, starts, axis=1)
        whole = (weights * (means - _take(centres, at[order])) ** 2).sum(axis=1)
        return whole - self._between(solution), self.rank - blocks.size

    def contrasts(
        self, solution: Solution, levels: Floats, variances: Floats, conditions: Ints
    ) -> tuple[Floats, Floats]:
        """Each condition less the control, ``[genes, conditions]``, and its variance in units of
        sigma squared; with what :meth:`levels` returns.
        """
        n = self.linked_blocks.size
        # A linked condition is compared by its effect; another by the control's level in its block.
        linked = np.isin(conditions, self.linked_conditions)
        order = np.argsort(self.conditions, kind="stable")
        cell = order[np.searchsorted(self.conditions[order], conditions)]
        level = np.searchsorted(self.linked_blocks, self.blocks[cell])
        position = np.argsort(self.linked_conditions)
        level[linked] = (
            n + position[np.searchsorted(self.linked_conditions[position], conditions[linked])]
        )
        difference = solution.means[:, cell] - levels[:, level]
        difference[:, linked] = levels[:, level[linked]]
        variance = 1 / solution.weights[:, cell]
        variance[:, linked] = 0
        variance += variances[:, level]
        return difference, variance

    def levels(self, solution: Solution) -> tuple[Floats, Floats]:
        """The control in each linked block, then each linked condition less the control: values
        and variances in units of sigma.
        """
        n_blocks, n_conditions = self.linked_blocks.size, self.linked_conditions.size
        n = n_blocks + n_conditions
        none = -1  # the zero behind the last
        of_block = np.r_[np.arange(n_blocks), np.full(n_conditions, none)]
        of_condition = np.r_[np.zeros(n_blocks, np.intp), np.arange(n_conditions)]
        of_control = np.r_[np.full(n_blocks, none), np.zeros(n_conditions, np.intp)]
        nothing = np.full(n, none)
        if self.keeps_blocks:
            (plus, minus), (kept_plus, kept_minus) = (of_condition, of_control), (of_block, nothing)
        else:
            (plus, minus), (kept_plus, kept_minus) = (of_block, nothing), (of_condition, of_control)
        eliminated = np.pad(solution.eliminated, ((0, 0), (0, 1)))
        kept = np.pad(solution.kept, ((0, 0), (0, 1)))
        values = eliminated[:, plus] - eliminated[:, minus] + kept[:, kept_plus]
        values -= kept[:, kept_minus]
        unit = np.zeros((n, kept.shape[1]))
        unit[np.arange(n), kept_plus] += 1
        unit[np.arange(n), kept_minus] -= 1
        shares = np.pad(solution.shares, ((0, 0), (0, 1), (0, 1)))
        direction = _take(unit - _take(shares, plus) + _take(shares, minus), self.free, 2)
        inverse_totals = np.pad(1 / solution.totals, ((0, 0), (0, 1)))
        variances = inverse_totals[:, plus] + inverse_totals[:, minus]
        variances[:, plus == minus] = 0
        variances += (np.matmul(direction, solution.inverse) * direction).sum(axis=2)
        return values, variances

    def _between(self, solution: Solution) -> Floats:
        """Weighted squares of the linked cells' means less what the model fits."""
        apart = _take(solution.means - solution.fitted, self.linked)
        return (_take(solution.weights, self.linked) * apart**2).sum(axis=1)

    def _sides(self) -> tuple[int, int]:
        """Sizes of the kept and of the eliminated side."""
        sides = self.linked_blocks.size, self.linked_conditions.size
        return sides if self.keeps_blocks else sides[::-1]


def _take(values: Floats, at: Ints, axis: int = 1) -> Floats:
    """As indexing, whose results have any order in memory, and sums of them other last bits."""
    return np.take(values, at, axis=axis)


def _first_of_parts(kept: Ints, eliminated: Ints, n_kept: int) -> tuple[Ints, int]:
    """The first of the kept side in each part of the table that no cell connects with others."""
    if not kept.size:
        return np.empty(0, np.intp), 0
    n = n_kept + int(eliminated.max()) + 1
    graph = sp.coo_array((np.ones(kept.size), (kept, n_kept + eliminated)), shape=(n, n))
    n_parts, part = connected_components(graph, directed=False)
    return np.unique(part[:n_kept], return_index=True)[1], n_parts
