"""Effects of conditions on genes: one linear model of pseudobulks, its contrasts with a control.

As limma's voom or limma-trend, with the contrasts fitted exactly. All sums are of one gene, so no
bit depends on the blocks of genes or the threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from scatlas.blocks.streaming import map_in_order
from scatlas.errors import InputError
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_moderation import Moderation, TrendLine, f_pvalues, lowess
from scatlas.matrix.effects_scaling import (
    LogScale,
    Scaling,
    filter_by_expr,
    gene_blocks,
    library_sizes,
    scale_libraries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.intp]
    Floats = NDArray[np.float64]
    # Values [genes, samples of the design], and weights of the same shape or [1, samples].
    Values = Callable[[Design, Ints], tuple[Floats, Floats]]

Method = Literal["voom", "trend"]
METHODS = get_args(Method)
_MAX_NAMED = 5


class Part(NamedTuple):
    """Genes that the same samples measure."""

    genes: Ints
    design: Design
    informative: Design  # without the samples that residuals do not depend on


class EffectsBlock(NamedTuple):
    """Results of some genes; NaN where the samples with a value do not tell."""

    genes: Ints
    log2_fold_change: Floats  # [genes, conditions]
    t: Floats  # [genes, conditions], moderated


@dataclass(frozen=True)
class LinearModel:
    """Fits of all genes; contrasts of a block of genes are computed when they are read."""

    parts: Sequence[Part]
    values: Values
    conditions: Ints  # compared with the control
    moderation: Moderation

    @classmethod
    def fit(
        cls, parts: Sequence[Part], values: Values, conditions: Ints, level: Floats | None = None
    ) -> LinearModel:
        """Fit the variances; with ``level [n_genes]`` their prior follows it."""
        s2, df = variances(parts, values)
        if not (df > 0).any():
            raise InputError(
                "no condition has two pseudobulks in one block, so that nothing tells how much "
                "replicates differ: add replicates of the control, or name fewer blocks"
            )
        return cls(parts, values, conditions, Moderation.fit(s2, df, level))

    def blocks(self) -> Iterator[EffectsBlock]:
        """Results, a block of genes after the other, by several threads."""
        tasks = _blocks(self.parts)

        def compute(i: int) -> EffectsBlock:
            part, genes = tasks[i]
            there = np.isin(self.conditions, part.design.compared())
            solution = part.design.solve(*self.values(part.design, genes))
            own, deviation = part.design.contrasts(solution, self.conditions[there])
            deviation = deviation * np.sqrt(self.moderation.s2_post[genes])[:, None]
            t = np.divide(own, deviation, out=deviation)
            return EffectsBlock(genes, _spread(own, there), _spread(t, there))

        return map_in_order(compute, len(tasks))

    def f_statistics(self) -> tuple[Floats, Floats]:
        """F of all conditions together, and its p-values, ``[n_genes]``, in one more pass."""
        f, df = np.full((2, self.moderation.s2.size), np.nan)
        tasks = _blocks(self.parts)

        def compute(i: int) -> tuple[Floats, int]:
            part, genes = tasks[i]
            return part.design.explained(part.design.solve(*self.values(part.design, genes)))

        for (_, genes), own in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
            f[genes], df[genes] = own
        f[df == 0] = np.nan
        f /= df * self.moderation.s2_post
        return f, f_pvalues(f, df, self.moderation.df_total)


def _spread(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """Columns among those of conditions without a value, which have NaN."""
    if there.all():
        return values
    out = np.full((len(values), there.size), np.nan)
    out[:, there] = values
    return out


@dataclass(frozen=True)
class Effects:
    """Effects of conditions on genes, in one group of cells."""

    conditions: pd.DataFrame
    """By condition: ``n_replicates``, ``n_controls`` (control samples in its blocks)."""
    genes: pd.DataFrame
    """By tested gene: ``mean_expression`` (log2 counts per million), ``df_residual``, ``df`` (that
    p-values rest on), ``s2`` (variance of residuals), ``s2_post`` (moderated)."""
    samples: pd.DataFrame
    """By pseudobulk used: ``condition``, ``library_size``, ``scaling_factor``."""
    left_out: pd.DataFrame
    """``condition``, ``sample`` (empty: all of the condition) and ``reason``."""
    df_prior: float
    log2_fold_change: NDArray[Any]  # [n_conditions, n_genes]
    t: NDArray[Any]  # [n_conditions, n_genes]


@dataclass(frozen=True)
class EffectsFit:
    """A fitted model of pseudobulks, whose effects are yet to be read."""

    model: LinearModel
    conditions: pd.DataFrame
    genes: pd.DataFrame
    samples: pd.DataFrame
    left_out: pd.DataFrame

    def to_memory(self, dtype: Any = np.float32) -> Effects:
        """All effects; the arrays take twice the bytes of ``dtype`` per condition and gene."""
        shape = len(self.conditions), len(self.genes)
        difference, t = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
        for block in self.model.blocks():
            difference[:, block.genes], t[:, block.genes] = block.log2_fold_change.T, block.t.T
        df_prior = self.model.moderation.df_prior
        return Effects(
            *(self.conditions, self.genes, self.samples, self.left_out, df_prior, difference, t)
        )


def fit_effects(
    counts: NDArray[Any],
    samples: pd.DataFrame,
    genes: pd.Index,
    *,
    control: str,
    method: Method = "voom",
    scaling: Scaling = "tmm",
    min_count: float = 10.0,
    min_total_count: float = 15.0,
) -> EffectsFit:
    """Fit the pseudobulks of one group of cells.

    Parameters
    ----------
    counts
        Sums of counts ``[n_samples, n_genes]``; NaN where a sample does not measure a gene.
    samples
        Table of the pseudobulks: categorical ``condition``, and ``block`` if there are blocks.
    genes
        Names of the genes.
    control
        Condition that the others are compared with.
    method, scaling, min_count, min_total_count
        As for :func:`scatlas.tl.effects`.

    Raises
    ------
    InputError
        No control, replicate, gene or comparison remains.
    """
    counts, samples, left_out = _drop_empty(counts, samples)
    at = _tested(counts, samples["condition"], min_count, min_total_count)
    counts, samples, more = _drop_empty(counts, samples, at)
    left_out += more
    libraries = scale_libraries(counts, at, scaling)
    names = samples["condition"].cat.categories
    codes = samples["condition"].cat.codes.to_numpy(np.intp)
    blocks = np.zeros(codes.size, np.intp)
    if "block" in samples:
        blocks = pd.factorize(samples["block"])[0].astype(np.intp)
    number = int(names.get_indexer([control])[0])
    compared = Design.build(np.arange(codes.size), codes, blocks, number).compared()
    left_out += _without_control(samples, codes, compared, number)
    if not compared.size:
        raise InputError(
            f"no condition has a pseudobulk in a block with the control {control!r} that has "
            "counts, too: name another block or control"
        )
    parts = split_by_missing(_missing(counts, at), at.size, codes, blocks, number)
    make = _voom if method == "voom" else _trend
    values, mean, level = make(counts, at, parts, libraries.effective)
    model = LinearModel.fit(parts, values, compared, level)
    table = pd.DataFrame({"mean_expression": mean, **model.moderation.by_gene()}, index=genes[at])
    return EffectsFit(
        model,
        _replicates(codes, blocks, compared, number).set_axis(names[compared]),
        table,
        samples.assign(library_size=libraries.sizes, scaling_factor=libraries.factors),
        pd.DataFrame(left_out, columns=["condition", "sample", "reason"]),
    )


def _tested(
    counts: NDArray[Any], conditions: pd.Series, min_count: float, min_total_count: float
) -> Ints:
    """Genes with enough counts."""
    at = np.empty(0, np.intp)
    if len(conditions):
        n_samples = conditions.value_counts()
        smallest = float(n_samples[n_samples > 0].min())
        sizes = library_sizes(counts)
        at = np.flatnonzero(
            filter_by_expr(
                counts, sizes, smallest, min_count=min_count, min_total_count=min_total_count
            )
        )
    if not at.size:
        raise InputError(
            f"no gene has {min_count:g} counts in enough of {len(conditions):,} pseudobulks: sum "
            "more cells, or set a lower min_count"
        )
    return at


def _replicates(codes: Ints, blocks: Ints, compared: Ints, control: int) -> pd.DataFrame:
    """Samples of each condition that is compared, and those of the control in its blocks."""
    controls = np.bincount(blocks[codes == control], minlength=int(blocks.max()) + 1)
    own = np.unique(np.stack([codes, blocks]), axis=1)
    n_controls = np.bincount(own[0], weights=controls[own[1]], minlength=int(codes.max()) + 1)
    return pd.DataFrame(
        {
            "n_replicates": np.bincount(codes)[compared],
            "n_controls": n_controls[compared].astype(np.int64),
        }
    )


def variances(parts: Sequence[Part], values: Values) -> tuple[Floats, Floats]:
    """Residual variance, NaN without degrees of freedom, and these, ``[n_genes]``."""
    n_genes = sum(part.genes.size for part in parts)
    s2, df = np.full(n_genes, np.nan), np.zeros(n_genes)
    tasks = _blocks([part for part in parts if part.design.df])

    def compute(i: int) -> Floats:
        part, genes = tasks[i]
        e, w = values(part.informative, genes)
        return part.informative.residual_sum(e, w, part.informative.solve(e, w)) / part.design.df

    for (part, genes), own in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
        s2[genes], df[genes] = own, part.design.df
    return s2, df


def split_by_missing(
    missing: NDArray[np.bool_] | None, n_genes: int, conditions: Ints, blocks: Ints, control: int
) -> list[Part]:
    """Genes by their samples with a value, of ``missing [n_samples, n_genes]``."""
    samples = np.arange(conditions.size)
    if missing is None:
        groups = [(np.arange(n_genes), samples)]
    else:
        packed = np.ascontiguousarray(np.packbits(missing, axis=0).T)
        _, first, group = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        sets = np.split(order, np.cumsum(np.bincount(group))[:-1])
        groups = [(own, samples[~missing[:, i]]) for own, i in zip(sets, first, strict=True)]
    parts = []
    for genes, own in groups:
        design = Design.build(own, conditions, blocks, control)
        informative = design.samples[design.informative()]
        parts.append(Part(genes, design, Design.build(informative, conditions, blocks, control)))
    return parts


def _blocks(parts: Sequence[Part]) -> list[tuple[Part, Ints]]:
    return [
        (part, genes)
        for part in parts
        if part.design.samples.size
        for genes in gene_blocks(part.genes, part.design.values_per_gene)
    ]


def _missing(counts: NDArray[Any], genes: Ints) -> NDArray[np.bool_] | None:
    if counts.dtype.kind != "f" or not any(np.isnan(row).any() for row in counts):
        return None
    return np.isnan(counts[:, genes])


def _drop_empty(
    counts: NDArray[Any], samples: pd.DataFrame, genes: Ints | slice = slice(None)
) -> tuple[NDArray[Any], pd.DataFrame, list[tuple[str, str, str]]]:
    """Without pseudobulks that have no counts: their logarithms would be the highest of all."""
    full = library_sizes(counts, genes) > 0
    if full.all():
        return counts, samples, []
    empty = samples[~full]
    which = "it has no counts" if isinstance(genes, slice) else "it has no counts of tested genes"
    rows = [(str(c), str(name), which) for name, c in empty["condition"].items()]
    return counts[full], samples[full], rows


def _without_control(
    samples: pd.DataFrame, codes: Ints, compared: Ints, control: int
) -> list[tuple[str, str, str]]:
    """Conditions that cannot be compared with the control, with the reason."""
    names = samples["condition"].cat.categories
    rows = []
    for code in range(names.size):
        own = codes == code
        if code == control or code in compared or not own.any():
            continue
        blocks = ["all"] if "block" not in samples else samples.loc[own, "block"].astype(str)
        blocks = list(dict.fromkeys(blocks))
        named = ", ".join(blocks[:_MAX_NAMED]) + (", ..." if len(blocks) > _MAX_NAMED else "")
        reason = f"its blocks have no pseudobulk of the control: {named}"
        rows.append((str(names[code]), "", reason))
    return rows


def _means(counts: NDArray[Any], genes: Ints, parts: Sequence[Part], scale: LogScale) -> Floats:
    """Mean logarithm of each gene over its samples."""
    mean = np.full(genes.size, np.nan)
    tasks = _blocks(parts)

    def compute(i: int) -> Floats:
        part, own = tasks[i]
        return scale.logs(counts, part.design.samples, genes[own]).mean(axis=1)

    for (_, own), values in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
        mean[own] = values
    return mean


def _trend(
    counts: NDArray[Any], genes: Ints, parts: Sequence[Part], effective: Floats
) -> tuple[Values, Floats, Floats | None]:
    """Logarithms with equal weights; the prior of the variances follows the mean."""
    scale = LogScale.of_cpm(effective)
    mean = _means(counts, genes, parts, scale)
    return _equal_weights(counts, genes, scale), mean, mean


def _equal_weights(counts: NDArray[Any], genes: Ints, scale: LogScale) -> Values:
    def values(design: Design, own: Ints) -> tuple[Floats, Floats]:
        e = scale.logs(counts, design.samples, genes[own])
        return e, np.ones((1, design.samples.size))

    return values


def _voom(
    counts: NDArray[Any], genes: Ints, parts: Sequence[Part], effective: Floats
) -> tuple[Values, Floats, Floats | None]:
    """Logarithms with weights by the trend of the standard deviation over the count (Law 2014)."""
    scale = LogScale.of_voom(effective)
    mean = _means(counts, genes, parts, scale)
    s2, df = variances(parts, _equal_weights(counts, genes, scale))
    count = mean.copy()
    for part in parts:
        count[part.genes] += scale.offset[part.design.samples].mean()
    known = df > 0
    line = voom_line(count[known], s2[known])

    def values(design: Design, own: Ints) -> tuple[Floats, Floats]:
        e = scale.logs(counts, design.samples, genes[own])
        return e, voom_weights(line, design, e, scale.offset)

    return values, mean, None


def voom_line(count: Floats, s2: Floats) -> TrendLine:
    """Root of the standard deviation by the mean logarithm of the count."""
    return lowess(count, np.sqrt(np.sqrt(s2)))


def voom_weights(line: TrendLine, design: Design, e: Floats, offset: Floats) -> Floats:
    """Weight of each value, by the count that conditions and blocks predict."""
    fitted = design.solve(e, np.ones((1, design.samples.size))).fitted
    count = design.of_samples(fitted)
    count += offset[design.samples]
    root = line(count)
    root *= root
    return 1 / (root * root)
