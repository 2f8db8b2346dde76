"""Linear models of many genes, block by block: variances first, then moderated contrasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from scatlas.blocks.streaming import map_in_order
from scatlas.errors import InputError
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_moderation import Moderation, f_pvalues

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.intp]
    Floats = NDArray[np.float64]

# Values that a thread processes at once; samples of which it does, within a core's cache.
BLOCK_VALUES, ROWS_AT_ONCE = 2**20, 64


class Values(Protocol):
    """Logarithms of the counts of some genes, and how sure they are."""

    def of_design(self, design: Design, genes: Ints) -> tuple[Floats, Floats]:
        """Values ``[genes, samples]`` and their weights, or ``[1, samples]``."""

    def of_singles(self, samples: Ints, genes: Ints) -> tuple[Floats, Floats | float]:
        """Values ``[samples, genes]`` of conditions with one sample, and 1 / weights."""


class Part(NamedTuple):
    """Genes that the same samples measure."""

    genes: Ints
    design: Design
    informative: Design  # without the samples that alone are a condition: no residual has them
    # Of the cells that informative leaves out: sample, condition, block.
    singles: tuple[Ints, Ints, Ints]

    @classmethod
    def build(
        cls, genes: Ints, samples: Ints, conditions: Ints, blocks: Ints, control: int
    ) -> Part:
        design = Design.build(samples, conditions, blocks, control)
        alone = design.single()
        others = design.samples[~np.repeat(alone, design.sizes)]
        singles = design.samples[np.repeat(alone, design.sizes)]
        return cls(
            *(genes, design, Design.build(others, conditions, blocks, control)),
            (singles, conditions[singles], blocks[singles]),
        )


class EffectsBlock(NamedTuple):
    """Results of some genes; NaN where the samples with a value do not tell."""

    genes: Ints
    log2_fold_change: Floats  # [conditions, genes]
    t: Floats  # [conditions, genes], moderated


@dataclass(frozen=True)
class LinearModel:
    """Fits of all genes; contrasts of a block of genes are computed when they are read."""

    parts: Sequence[Part]
    values: Values
    conditions: Ints  # compared with the control
    moderation: Moderation

    @classmethod
    def fit(
        cls,
        parts: Sequence[Part],
        values: Values,
        conditions: Ints,
        level: Floats | None = None,
        *,
        robust: bool = False,
    ) -> LinearModel:
        """Fit the variances; with ``level [n_genes]`` their prior follows it."""
        s2, df = variances(parts, values)
        if not (df > 0).any():
            raise InputError(
                "no condition has two pseudobulks in one block, so that nothing tells how much "
                "replicates differ: add replicates of the control, or name fewer blocks"
            )
        return cls(parts, values, conditions, Moderation.fit(s2, df, level, robust=robust))

    def blocks(self) -> Iterator[EffectsBlock]:
        """Results, a block of genes after the other, by several threads."""
        tasks = gene_tasks(self.parts)
        return map_in_order(lambda i: self._contrasts(*tasks[i]), len(tasks))

    def _contrasts(self, part: Part, genes: Ints) -> EffectsBlock:
        difference, t = np.full((2, self.conditions.size, genes.size), np.nan)
        scale = np.sqrt(self.moderation.s2_post[genes])
        compared = part.design.compared()
        design, (samples, conditions, blocks) = part.informative, part.singles
        solution = design.solve(*self.values.of_design(design, genes))
        levels, variances = design.levels(solution)
        at = np.flatnonzero(np.isin(self.conditions, np.setdiff1d(compared, conditions)))
        own, v = design.contrasts(solution, levels, variances, self.conditions[at])
        difference[at] = own.T
        t[at] = (own / (np.sqrt(v) * scale[:, None])).T
        # Conditions of one sample are most of a screen: rows as they lie in memory.
        rows = np.flatnonzero(np.isin(conditions, compared))
        levels, variances = np.ascontiguousarray(levels.T), np.ascontiguousarray(variances.T)
        at = np.searchsorted(self.conditions, conditions[rows])
        level = np.searchsorted(design.linked_blocks, blocks[rows])
        for first in range(0, rows.size, ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            e, inverse_weights = self.values.of_singles(samples[rows[some]], genes)
            e -= levels[level[some]]
            difference[at[some]] = e
            e /= np.sqrt(inverse_weights + variances[level[some]]) * scale
            t[at[some]] = e
        return EffectsBlock(genes, difference, t)

    def f_statistics(self) -> tuple[Floats, Floats]:
        """F of all conditions together, and its p-values, ``[n_genes]``, in one more pass."""
        f, df = np.full((2, self.moderation.s2.size), np.nan)
        tasks = gene_tasks(self.parts)

        def compute(i: int) -> tuple[Floats, int]:
            design, genes = tasks[i][0].design, tasks[i][1]
            return design.explained(design.solve(*self.values.of_design(design, genes)))

        for (_, genes), own in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
            f[genes], df[genes] = own
        f[df == 0] = np.nan
        f /= df * self.moderation.s2_post
        return f, f_pvalues(f, df, self.moderation.df_total)


def variances(parts: Sequence[Part], values: Values) -> tuple[Floats, Floats]:
    """Residual variance, NaN without degrees of freedom, and these, ``[n_genes]``."""
    n_genes = sum(part.genes.size for part in parts)
    s2, df = np.full(n_genes, np.nan), np.zeros(n_genes)
    tasks = gene_tasks([part for part in parts if part.informative.df])

    def compute(i: int) -> Floats:
        design, genes = tasks[i][0].informative, tasks[i][1]
        e, w = values.of_design(design, genes)
        return design.residual_sum(e, w, design.solve(e, w)) / design.df

    for (part, genes), own in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
        s2[genes], df[genes] = own, part.informative.df
    return s2, df


def split_by_missing(
    missing: NDArray[np.bool_] | None, n_genes: int, conditions: Ints, blocks: Ints, control: int
) -> list[Part]:
    """Genes by their samples with a value, of ``missing [n_samples, n_genes]``."""
    samples = np.arange(conditions.size)
    groups = [(np.arange(n_genes), samples)]
    if missing is not None:
        packed = np.ascontiguousarray(np.packbits(missing, axis=0).T)
        _, first, group = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        sets = np.split(order, np.cumsum(np.bincount(group))[:-1])
        groups = [(own, samples[~missing[:, i]]) for own, i in zip(sets, first, strict=True)]
    return [Part.build(genes, own, conditions, blocks, control) for genes, own in groups]


def gene_tasks(parts: Sequence[Part]) -> list[tuple[Part, Ints]]:
    """Blocks of genes to process at once."""
    tasks = []
    for part in parts:
        step = max(1, BLOCK_VALUES // max(1, part.design.values_per_gene))
        n = part.genes.size if part.design.samples.size else 0
        tasks += [(part, part.genes[first : first + step]) for first in range(0, n, step)]
    return tasks
