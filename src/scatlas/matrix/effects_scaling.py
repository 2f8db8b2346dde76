"""Pseudobulks made comparable: genes with enough counts, scaling factors, logarithms.

Rules of edgeR, from Robinson and Oshlack (Genome Biol. 11:R25, 2010), Bullard et al. (BMC
Bioinformatics 11:94, 2010) and Chen et al. (F1000Research 5:1438, 2016), with its results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from scatlas.blocks.streaming import map_in_order
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Scaling = Literal["tmm", "upper_quartile", "none"]

# Values of pseudobulks that are processed at once, per thread.
BLOCK_VALUES = 2**19
# Above ten samples, a gene needs enough counts in this share of the others.
_MANY_SAMPLES, _SHARE_OF_OTHERS = 10, 0.7
# Genes left out at each end: by ratio, by level.
_TRIM_RATIO, _TRIM_LEVEL = 0.3, 0.05
_ROUNDING = 1e-14


class Libraries(NamedTuple):
    """Counts per pseudobulk, and the factors that they are multiplied by, ``[n_samples]``."""

    sizes: NDArray[np.float64]
    factors: NDArray[np.float64]

    @property
    def effective(self) -> NDArray[np.float64]:
        return self.sizes * self.factors


class LogScale(NamedTuple):
    """What turns counts y of a sample into logarithms: ``log2(y + prior) - offset``."""

    prior: NDArray[np.float64]
    offset: NDArray[np.float64]

    @classmethod
    def of_cpm(cls, effective: NDArray[np.float64], prior_count: float = 2.0) -> LogScale:
        """Counts per million with a prior count in proportion to the library."""
        prior = prior_count * effective / effective.mean()
        return cls(prior, np.log2((effective + 2 * prior) / 1e6))

    @classmethod
    def of_voom(cls, effective: NDArray[np.float64]) -> LogScale:
        """Counts per million of voom, with half a count more (Law et al. 2014)."""
        return cls(np.full(effective.size, 0.5), np.log2((effective + 1) / 1e6))

    def logs(
        self, counts: NDArray[np.generic], samples: NDArray[np.intp], genes: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Values ``[genes, samples]`` of some of the counts ``[n_samples, n_genes]``."""
        y = np.array(counts[np.ix_(samples, genes)].T, np.float64, order="C")
        y += self.prior[samples]
        np.log2(y, out=y)
        y -= self.offset[samples]
        return y


def library_sizes(
    counts: NDArray[np.generic], genes: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.float64]:
    """Counts per sample over some genes; NaN, for a gene that was not measured, counts zero."""
    return np.array([np.nansum(row[genes], dtype=np.float64) for row in counts])


def filter_by_expr(
    counts: NDArray[np.generic],
    sizes: NDArray[np.float64],
    smallest_group: float,
    *,
    min_count: float = 10.0,
    min_total_count: float = 15.0,
) -> NDArray[np.bool_]:
    """Genes of ``counts [n_samples, n_genes]`` with ``min_count`` counts, in a library of median
    size, in as many samples as the smallest group has, and ``min_total_count`` in all.
    """
    if smallest_group > _MANY_SAMPLES:
        smallest_group = _MANY_SAMPLES + (smallest_group - _MANY_SAMPLES) * _SHARE_OF_OTHERS
    least = min_count / np.median(sizes) * 1e6
    n_genes = counts.shape[1]
    n_enough, total = np.zeros(n_genes, np.int64), np.zeros(n_genes)
    for row, size in zip(counts, sizes, strict=True):
        n_enough += row / size * 1e6 >= least
        total += np.nan_to_num(row)
    return (n_enough >= smallest_group - _ROUNDING) & (total >= min_total_count - _ROUNDING)


def scale_libraries(
    counts: NDArray[np.generic], genes: NDArray[np.intp], method: Scaling
) -> Libraries:
    """Library sizes over some genes and their factors, with a product of 1, for samples that all
    have counts. Factors come from the genes that all samples measure.
    """
    sizes = library_sizes(counts, genes)
    n_samples = sizes.size
    if method == "none" or n_samples == 1:
        return Libraries(sizes, np.ones(n_samples))
    measured, seen = np.ones(genes.size, bool), np.zeros(genes.size, bool)
    for row in counts:
        measured &= ~np.isnan(row[genes])
        seen |= row[genes] > 0
    genes = genes[measured & seen]
    if not genes.size:
        raise InputError(
            "no gene is measured in all pseudobulks, so that they cannot be scaled: leave out the "
            "plates of other genes, or set scaling='none'"
        )

    def quartile(i: int) -> float:
        return float(np.quantile(counts[i, genes], 0.75) / sizes[i])

    upper = np.array([*map_in_order(quartile, n_samples)])
    if method == "upper_quartile":
        if not upper.all():
            raise InputError(
                f"{np.count_nonzero(upper == 0):,} of {n_samples:,} pseudobulks have no count of "
                "three quarters of the genes, so that their upper quartile is zero: set "
                "scaling='tmm'"
            )
        factors = upper
    else:
        reference = _reference(counts, genes, upper)
        against = counts[reference, genes].astype(np.float64)

        def factor(i: int) -> float:
            row = counts[i, genes].astype(np.float64)
            return _trimmed_mean(row, against, sizes[i], sizes[reference])

        factors = np.array([*map_in_order(factor, n_samples)])
    return Libraries(sizes, factors / np.exp(np.log(factors).mean()))


def _reference(
    counts: NDArray[np.generic], genes: NDArray[np.intp], upper: NDArray[np.float64]
) -> int:
    """The sample whose upper quartile is nearest to the mean; if most are zero, that with the most
    genes and counts.
    """
    if np.median(upper) < 1e-20:
        return int(np.argmax([np.sqrt(row[genes].astype(np.float64)).sum() for row in counts]))
    return int(np.argmin(np.abs(upper - upper.mean())))


def _trimmed_mean(
    a: NDArray[np.float64], b: NDArray[np.float64], size: float, reference_size: float
) -> float:
    """Weighted mean of the ratios of two samples to their libraries, without the genes of the
    largest and smallest ratios and levels (TMM).
    """
    both = (a > 0) & (b > 0)
    a, b = a[both], b[both]
    share, other = a / size, b / reference_size
    # One quotient: the difference of two logarithms would break ties.
    ratio = np.log2(share / other)
    level = (np.log2(share) + np.log2(other)) / 2
    if not ratio.size or np.abs(ratio).max() < 1e-6:
        return 1.0
    kept = _inner(ratio, _TRIM_RATIO) & _inner(level, _TRIM_LEVEL)
    a, b = a[kept], b[kept]
    weight = 1 / ((size - a) / size / a + (reference_size - b) / reference_size / b)
    return float(2.0 ** (np.sum(ratio[kept] * weight) / weight.sum())) if a.size else 1.0


def _inner(values: NDArray[np.float64], trim: float) -> NDArray[np.bool_]:
    """Values without a share at each end; equal ones have the mean of their ranks."""
    low = int(values.size * trim) + 1
    high = values.size + 1 - low
    cuts = np.partition(values, [low - 1, high - 1])[[low - 1, high - 1]]
    inner = (values >= cuts[0]) & (values <= cuts[1])
    for cut in cuts:
        below, to = np.count_nonzero(values < cut), np.count_nonzero(values <= cut)
        if not low <= (below + to + 1) / 2 <= high:
            inner &= values != cut
    return inner


def gene_blocks(genes: NDArray[np.intp], values_per_gene: int) -> Iterator[NDArray[np.intp]]:
    """Genes in blocks that fit :data:`BLOCK_VALUES`."""
    step = max(1, BLOCK_VALUES // max(1, values_per_gene))
    for first in range(0, genes.size, step):
        yield genes[first : first + step]
