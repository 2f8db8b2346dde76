"""Pseudobulks made comparable: genes with enough counts, scaling factors, logarithms.

Rules of edgeR, from Robinson and Oshlack (Genome Biol. 11:R25, 2010), Bullard et al. (BMC
Bioinformatics 11:94, 2010) and Chen et al. (F1000Research 5:1438, 2016), with its results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from scatlas.blocks.streaming import map_in_order
from scatlas.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scaling = Literal["tmm", "upper_quartile", "none"]
SCALINGS = get_args(Scaling)

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

    def logs(self, y: NDArray[Any], samples: NDArray[np.intp]) -> NDArray[np.float64]:
        """Logarithms of counts ``[samples, genes]``."""
        logs = y + self.prior[samples, None]
        np.log2(logs, out=logs)
        logs -= self.offset[samples, None]
        return logs


def take_counts(
    counts: NDArray[Any], samples: NDArray[np.intp], genes: NDArray[np.intp]
) -> NDArray[Any]:
    """Counts of samples and ascending genes, whose rows are copied in one piece."""
    first = genes[0]
    piece = counts[samples, first : genes[-1] + 1]
    return piece if piece.shape[1] == genes.size else piece[:, genes - first]


def library_sizes(
    counts: NDArray[Any], genes: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.float64]:
    """Counts per sample over some genes; NaN, for a gene that was not measured, counts zero."""
    return np.array([np.nansum(row[genes], dtype=np.float64) for row in counts])


def filter_by_expr(
    counts: NDArray[Any],
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


def scale_libraries(counts: NDArray[Any], genes: NDArray[np.intp], method: Scaling) -> Libraries:
    """Library sizes over some genes and their factors, with a product of 1, for samples that all
    have counts. Factors come from the genes that all samples measure.
    """
    sizes = library_sizes(counts, genes)
    n_samples = sizes.size
    if method == "none" or n_samples == 1:
        return Libraries(sizes, np.ones(n_samples))
    largest = np.zeros(counts.shape[1], counts.dtype)
    for row in counts:
        np.maximum(largest, row, out=largest)  # NaN stays
    genes = genes[largest[genes] > 0]
    if not genes.size:
        raise InputError(
            "no gene is measured in all pseudobulks, so that they cannot be scaled: leave out the "
            "plates of other genes, or set scaling='none'"
        )

    upper = np.array(
        [*map_in_order(lambda i: _upper_quartile(counts[i, genes]) / sizes[i], n_samples)]
    )
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
        genes = genes[counts[reference, genes] > 0]
        against = _Reference.build(counts[reference, genes].astype(np.float64), sizes[reference])
        factors = np.array(
            [*map_in_order(lambda i: against.factor(counts[i, genes], sizes[i]), n_samples)]
        )
    return Libraries(sizes, factors / np.exp(np.log(factors).mean()))


def _upper_quartile(values: NDArray[Any]) -> float:
    """``np.quantile``, which takes longer."""
    at, share = divmod(0.75 * (values.size - 1), 1)
    parted = np.partition(values, int(at))[int(at) :].astype(np.float64)
    return float(parted[0] + share * (parted[1:].min() - parted[0] if share else 0))


def _reference(counts: NDArray[Any], genes: NDArray[np.intp], upper: NDArray[np.float64]) -> int:
    """The sample whose upper quartile is nearest to the mean; if most are zero, that with the most
    genes and counts.
    """
    if np.median(upper) < 1e-20:
        return int(np.argmax([np.sqrt(row[genes].astype(np.float64)).sum() for row in counts]))
    return int(np.argmin(np.abs(upper - upper.mean())))


class _Reference(NamedTuple):
    """The sample that others are compared with, of the genes that it has, ``[n_genes]``."""

    share: NDArray[np.float64]
    log_share: NDArray[np.float64]
    variance: NDArray[np.float64]

    @classmethod
    def build(cls, counts: NDArray[np.float64], size: float) -> _Reference:
        share = counts / size
        return cls(share, np.log2(share), (size - counts) / size / counts)

    def factor(self, counts: NDArray[Any], size: float) -> float:
        """Weighted mean of a sample's ratios to the reference, without the genes of the largest and
        smallest ratios and levels (TMM).
        """
        both = np.flatnonzero(counts)
        counts = counts[both].astype(np.float64)
        share = counts / size
        # One quotient: the difference of two logarithms would break ties.
        ratio = np.log2(share / self.share[both])
        if not ratio.size or max(ratio.max(), -ratio.min()) < 1e-6:
            return 1.0
        level = np.log2(share, out=share)
        level += self.log_share[both]
        level /= 2
        kept = np.flatnonzero(_inner(ratio, _TRIM_RATIO) & _inner(level, _TRIM_LEVEL))
        counts = counts[kept]
        weight = 1 / ((size - counts) / size / counts + self.variance[both[kept]])
        return float(2.0 ** (np.sum(ratio[kept] * weight) / weight.sum())) if kept.size else 1.0


def _inner(values: NDArray[np.float64], trim: float) -> NDArray[np.bool_]:
    """Values without a share at each end; equal ones have the mean of their ranks."""
    low = int(values.size * trim) + 1
    high = values.size + 1 - low
    # Two partitions take half the time of a sort, and of one partition at two ranks.
    upper = np.partition(values, high - 1)
    cuts = np.partition(upper[:high], low - 1)[low - 1], upper[high - 1]
    inner = (values >= cuts[0]) & (values <= cuts[1])
    for cut in cuts:
        at = values == cut
        n_lower, n_equal = np.count_nonzero(values < cut), np.count_nonzero(at)
        if n_equal > 1 and not low <= n_lower + (n_equal + 1) / 2 <= high:
            inner &= ~at
    return inner
