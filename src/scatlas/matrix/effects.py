"""Effects of conditions on genes, from pseudobulks: which genes, logarithms, weights, the model.

As limma's voom or limma-trend, with the contrasts fitted exactly. All sums are of one gene, so no
bit depends on the blocks of genes or the threads.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from scatlas.blocks.streaming import map_in_order
from scatlas.errors import InputError
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_model import (
    ROWS_AT_ONCE,
    LinearModel,
    gene_tasks,
    split_by_missing,
    variances,
)
from scatlas.matrix.effects_moderation import TrendLine, lowess, n_discoveries
from scatlas.matrix.effects_scaling import (
    LogScale,
    Scaling,
    filter_by_expr,
    library_sizes,
    scale_libraries,
    take_counts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.matrix.effects_model import Part

    Ints = NDArray[np.intp]
    Floats = NDArray[np.float64]
    Singles = NDArray[np.float32]

logger = logging.getLogger(__name__)
Method = Literal["voom", "trend"]
METHODS = get_args(Method)
N_CELLS = "n_obs_aggregated"  # as sa.get.aggregate names it
_FDR = 0.05
_MAX_NAMED = 5
# Equal weights suit libraries that differ less (Law et al. 2014).
_MAX_FOLD = 3
_TABLE_SIZE = 2**16


@dataclass(frozen=True)
class Effects:
    """Effects of conditions on genes in one group of cells, computed as they are read."""

    model: LinearModel
    conditions: pd.DataFrame
    """By condition: ``n_replicates``, ``n_controls`` (control samples in its blocks)."""
    genes: pd.DataFrame
    """By tested gene: ``mean_expression`` (log2 counts per million), ``df_residual``, ``df`` (that
    p-values rest on), ``s2`` (variance of residuals), ``s2_post`` (moderated)."""
    samples: pd.DataFrame
    """By pseudobulk used: the given columns, ``library_size``, ``scaling_factor``."""
    left_out: pd.DataFrame
    """``condition``, ``sample`` (empty: all of the condition) and ``reason``."""

    def to_memory(self, dtype: Any = np.float32) -> tuple[NDArray[Any], NDArray[Any]]:
        """log2 fold changes and moderated t, ``[n_conditions, n_genes]``, of the tested genes."""
        shape = len(self.conditions), len(self.genes)
        change, t = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
        for block in self.model.blocks():
            change[:, block.genes], t[:, block.genes] = block.log2_fold_change, block.t
        return change, t

    def by_rows(self, folder: Path, n: int) -> Iterator[tuple[slice, Singles, Singles]]:
        """As :meth:`to_memory`, ``n`` conditions at a time: results come gene by gene, and wait in
        a file without name in ``folder``.
        """
        n_rows, parts = len(self.conditions), []
        with TemporaryFile(dir=folder) as file:
            for block in self.model.blocks():
                both = np.stack([block.log2_fold_change, block.t], 1, dtype=np.float32)
                file.write(both.data)
                parts.append(block.genes)
            for first in range(0, n_rows, n):
                rows = slice(first, min(first + n, n_rows))
                found = np.full((rows.stop - first, 2, len(self.genes)), np.nan, np.float32)
                passed = 0  # genes
                for genes in parts:
                    file.seek(8 * (passed * n_rows + genes.size * first))
                    part = np.frombuffer(file.read(8 * len(found) * genes.size), np.float32)
                    found[:, :, genes] = part.reshape(-1, 2, genes.size)
                    passed += genes.size
                yield rows, found[:, 0], found[:, 1]

    def n_genes(self, t: NDArray[Any]) -> pd.DataFrame:
        """Of some conditions, by their t: how many genes were tested, and are significant."""
        n_significant = n_discoveries(t, self.genes["df"].to_numpy(), _FDR)
        return pd.DataFrame({"n_genes": np.isfinite(t).sum(axis=1), "n_significant": n_significant})

    def summary(self, n_genes: pd.DataFrame) -> pd.DataFrame:
        """The conditions, with degrees of freedom and numbers of genes."""
        table = self.conditions.assign(
            df_residual=float(self.genes["df_residual"].max()),
            df_prior=self.model.moderation.df_prior.max(),
            **{name: n_genes[name].to_numpy() for name in n_genes},
        )
        if N_CELLS in self.samples:
            cells = self.samples.groupby("condition", observed=True)[N_CELLS].sum()
            table.insert(2, "n_cells", cells[table.index].to_numpy())
        return table


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
    robust: bool = False,
) -> Effects:
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
    method, scaling, min_count, min_total_count, robust
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
    if not compared.size:
        raise InputError(
            f"no condition has a pseudobulk in a block with the control {control!r} that has "
            "counts, too: name another block or control"
        )
    left_out += _without_control(samples, codes, compared, number)
    parts = split_by_missing(_missing(counts, at), at.size, codes, blocks, number)
    scale = LogScale.of_voom if method == "voom" else LogScale.of_cpm
    equal = EqualWeights.fit(counts, at, parts, scale(libraries.effective))
    if method == "voom":
        model = LinearModel.fit(parts, VoomWeights.fit(equal, parts), compared, robust=robust)
    else:
        if (fold := libraries.effective.max() / libraries.effective.min()) > _MAX_FOLD:
            logger.warning(
                "the counts per pseudobulk differ %.0f-fold: with method='trend' p-values are too "
                "small, with method='voom' they are not",
                fold,
            )
        model = LinearModel.fit(parts, equal, compared, level=equal.mean, robust=robust)
    m = model.moderation
    columns = {"mean_expression": equal.mean, "df_residual": m.df_residual, "df": m.df_total}
    columns |= {"s2": m.s2, "s2_post": m.s2_post}
    return Effects(
        model,
        _replicates(codes, blocks, compared, number).set_axis(names[compared]),
        pd.DataFrame(columns, index=genes[at]),
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
            f"no gene has {min_count:g} counts in enough of {len(conditions):,} pseudobulks: use "
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
    for code in np.setdiff1d(codes, np.r_[compared, control]):
        blocks = list(dict.fromkeys(samples.loc[codes == code, "block"].astype(str)))
        named = ", ".join(blocks[:_MAX_NAMED]) + (", ..." if len(blocks) > _MAX_NAMED else "")
        rows.append(
            (str(names[code]), "", f"no pseudobulk of the control is in its block: {named}")
        )
    return rows


@dataclass(frozen=True)
class EqualWeights:
    """Logarithms of counts with equal weights."""

    counts: NDArray[Any]
    genes: Ints
    scale: LogScale
    mean: Floats  # of each gene over its samples

    @classmethod
    def fit(
        cls, counts: NDArray[Any], genes: Ints, parts: Sequence[Part], scale: LogScale
    ) -> EqualWeights:
        mean = np.full(genes.size, np.nan)
        tasks = gene_tasks(parts)

        def compute(i: int) -> Floats:
            part, own = tasks[i]
            total = np.zeros(own.size)
            for first in range(0, part.design.samples.size, ROWS_AT_ONCE):
                rows = part.design.samples[first : first + ROWS_AT_ONCE]
                for row in scale.logs(take_counts(counts, rows, genes[own]), rows):
                    total += row
            return total / part.design.samples.size

        for (_, own), values in zip(tasks, map_in_order(compute, len(tasks)), strict=True):
            mean[own] = values
        return cls(counts, genes, scale, mean)

    def of_design(self, design: Design, genes: Ints) -> tuple[Floats, Floats]:
        e, _ = self.of_singles(design.samples, genes)
        return np.ascontiguousarray(e.T), np.ones((1, design.samples.size))

    def of_singles(self, samples: Ints, genes: Ints) -> tuple[Floats, float]:
        y = take_counts(self.counts, samples, self.genes[genes])
        return self.scale.logs(y, samples), 1.0


@dataclass(frozen=True)
class VoomWeights:
    """Logarithms with weights by the trend of the standard deviation over the count (Law 2014)."""

    equal: EqualWeights
    line: TrendLine  # root of the standard deviation by the logarithm of the count

    @classmethod
    def fit(cls, equal: EqualWeights, parts: Sequence[Part]) -> VoomWeights:
        s2, df = variances(parts, equal)
        count = equal.mean.copy()
        for part in parts:
            count[part.genes] += equal.scale.offset[part.design.samples].mean()
        known = df > 0
        line = lowess(count[known], np.sqrt(np.sqrt(s2[known])))
        if not (line.y > 0).all():
            raise InputError(
                "replicates do not differ, as where pseudobulks are copies of others: remove the "
                "copies, or use method='trend'"
            )
        return cls(equal, line)

    def of_design(self, design: Design, genes: Ints) -> tuple[Floats, Floats]:
        e, ones = self.equal.of_design(design, genes)
        # The weight follows the count that conditions and blocks predict.
        count = np.repeat(design.solve(e, ones).fitted, design.sizes, axis=1)
        count += self.equal.scale.offset[design.samples]
        return e, 1 / self._variance(count)

    def of_singles(self, samples: Ints, genes: Ints) -> tuple[Floats, Floats]:
        # What the model predicts for a sample that alone is a condition is its own count.
        y = take_counts(self.equal.counts, samples, self.equal.genes[genes])
        whole = y.astype(np.int64)
        if whole.max(initial=0) < _TABLE_SIZE and (whole == y).all():
            logs, variance = (np.take(table, whole) for table in self._tables)
        else:
            logs = np.log2(y.astype(np.float64) + 0.5)
            variance = self._variance(logs)
        logs -= self.equal.scale.offset[samples, None]
        return logs, variance

    @cached_property
    def _tables(self) -> tuple[Floats, Floats]:
        """Logarithms and 1 / weights of small counts: a look-up takes a tenth of the time."""
        logs = np.log2(np.arange(_TABLE_SIZE) + 0.5)
        return logs, self._variance(logs)

    def _variance(self, count: Floats) -> Floats:
        root = self.line(count)
        root *= root
        root *= root
        return root
