"""Variances of genes moderated by those of all genes, and the statistics that rest on them.

Formulas of Smyth (Stat. Appl. Genet. Mol. Biol. 3:3, 2004), Law et al. (Genome Biol. 15:R29, 2014),
Phipson et al. (Ann. Appl. Stat. 10:946, 2016) and Cleveland (J. Am. Stat. Assoc. 74:829, 1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scatlas.compute.threads import blas_on_one_thread
from scatlas.matrix.rank_statistics import adjust_pvalues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Lowess: robust turns, the share of the range within which a line joins two fits, and the share of
# the reach of a window within which weights are 1 and beyond which they are 0.
_TURNS, _DELTA, _NEAR = 3, 0.01, 0.001
# Variances are lifted to this share of their median where the prior is fitted.
_MIN_VARIANCE = 1e-5
# Share of genes that a condition is expected to change, and bounds of the standard deviation of
# their log fold changes, for the log-odds.
_PROPORTION, _SD_OF_EFFECTS = 0.01, (0.1, 4.0)
_INFINITE = 1e6
# Robust priors: lower and upper end of the variances that are drawn in, span of the trend, and the
# share of the median that variances are lifted to.
_ENDS, _ROBUST_SPAN, _MIN_ROBUST = (0.05, 0.1), 0.4, 1e-12


@dataclass(frozen=True)
class TrendLine:
    """A line through points, constant beyond its ends."""

    x: Floats
    y: Floats

    def __call__(self, x: Floats) -> Floats:
        return np.interp(x, self.x, self.y)


def lowess(x: Floats, y: Floats, span: float = 0.5) -> TrendLine:
    """Robust local lines through points, as Cleveland's program."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    if x.size < 2:
        return TrendLine(x, y)
    n_near = max(2, min(x.size, int(span * x.size + 1e-7)))
    at = _fitted_points(x)
    # The nearest points of each: the window moves on while its left end is the farther one.
    first = np.searchsorted(x[: x.size - n_near] + x[n_near:], 2 * x[at])
    windows = [_window(x, i, left, left + n_near) for i, left in zip(at, first, strict=True)]
    trust = np.ones(x.size)
    for turn in range(_TURNS + 1):
        fits = [_local_line(x, y, trust, i, *window) for i, window in zip(at, windows, strict=True)]
        line = TrendLine(x[at], np.array(fits))
        rest = np.abs(y - line(x))
        scale = 6 * np.median(rest)
        if turn == _TURNS or scale <= 1e-7 * rest.mean():
            break
        trust = np.where(rest > _NEAR * scale, (1 - (rest / scale) ** 2) ** 2, 1.0)
        trust[rest > (1 - _NEAR) * scale] = 0
    return line


def _fitted_points(x: Floats) -> NDArray[np.intp]:
    """Positions, in ascending x, of the points that get a fit: the last within delta of each."""
    delta, at = _DELTA * (x[-1] - x[0]), [0]
    while True:
        same = int(np.searchsorted(x, x[at[-1]], "right"))
        if same >= x.size:
            return np.array(at)
        at.append(max(same, int(np.searchsorted(x, x[at[-1]] + delta, "right")) - 1))


def _window(x: Floats, i: int, left: int, stop: int) -> tuple[slice, Floats, bool]:
    """Points near one, their weights by distance, and whether all have its x."""
    reach = max(x[i] - x[left], x[stop - 1] - x[i])
    # Points beyond the window at the same distance count, too.
    stop = max(stop, int(np.searchsorted(x, x[i] + (1 - _NEAR) * reach, "right")))
    distance = np.abs(x[left:stop] - x[i])
    weights = np.ones(distance.size)
    if reach > 0:
        weights = np.where(distance > _NEAR * reach, (1 - (distance / reach) ** 3) ** 3, 1.0)
    weights[distance > (1 - _NEAR) * reach] = 0
    return slice(left, stop), weights, reach <= 0


def _local_line(
    x: Floats, y: Floats, trust: Floats, i: int, near: slice, weights: Floats, is_flat: bool
) -> float:
    weights = weights * trust[near]
    total = weights.sum()
    if total <= 0:
        return float(y[i])
    weights /= total
    centre = (weights * x[near]).sum()
    spread = (weights * (x[near] - centre) ** 2).sum()
    if not is_flat and np.sqrt(spread) > _NEAR * (x[-1] - x[0]):
        weights *= 1 + (x[i] - centre) / spread * (x[near] - centre)
    return float((weights * y[near]).sum())


@dataclass(frozen=True)
class Moderation:
    """Variances of genes and the prior that moderates them, ``[n_genes]``."""

    s2: Floats
    df_residual: Floats
    s2_prior: Floats
    df_prior: Floats
    s2_post: Floats
    df_total: Floats  # at most the sum of all residual df

    @classmethod
    def fit(
        cls, s2: Floats, df: Floats, level: Floats | None = None, *, robust: bool = False
    ) -> Moderation:
        """Prior and posterior of variances with ``df`` degrees of freedom (0: no variance); with
        ``level``, the prior follows the mean of the gene; if ``robust``, genes that vary far more
        than others have few df of it and do not change it.
        """
        s2 = np.where(df > 0, s2, 0.0)
        s2_prior, common = _fit_prior(s2, df, level)
        df_prior = np.full(s2.size, common)
        if robust and np.count_nonzero(df) > 2:
            s2_prior, df_prior = _fit_robust_prior(s2, df, level, s2_prior, common)
        with np.errstate(invalid="ignore"):
            post = (df * s2 + df_prior * s2_prior) / (df + df_prior)
        post = np.where(np.isinf(df_prior), s2_prior, post)
        return cls(s2, df, s2_prior, df_prior, post, np.minimum(df + df_prior, df.sum()))


def _fit_prior(s2: Floats, df: Floats, level: Floats | None) -> tuple[Floats, float]:
    """Scale, by gene, and degrees of freedom of the F-distribution of variances, by the moments of
    their logarithms (Smyth 2004, section 6.2).
    """
    from scipy.special import digamma, polygamma

    known = df > 0
    x, d = s2[known], df[known]
    if x.size == 1:
        return np.full(s2.size, x[0]), 0.0
    x = np.maximum(x, _MIN_VARIANCE * (np.median(x) or 1.0))
    e = np.log(x) - digamma(d / 2) + np.log(d / 2)
    mean, n_used = np.full(s2.size, e.mean()), 1
    if level is not None and (curves := _natural_curves(level[known], level)).shape[1] > 1:
        with blas_on_one_thread():
            fit = np.linalg.lstsq(curves[known], e, rcond=None)[0]
        mean, n_used = (curves * fit).sum(axis=1), curves.shape[1]
    excess = ((e - mean[known]) ** 2).sum() / (x.size - n_used) - polygamma(1, d / 2).mean()
    if excess > 0:
        df_prior = 2 * _inverse_trigamma(excess)
        return np.exp(mean + digamma(df_prior / 2) - np.log(df_prior / 2)), df_prior
    return np.full(s2.size, x.mean()) if n_used == 1 else np.exp(mean), np.inf


def _fit_robust_prior(
    s2: Floats, df: Floats, level: Floats | None, scale: Floats, df_prior: float
) -> tuple[Floats, Floats]:
    """Scale and degrees of freedom by gene, from the moments of the logarithms of which the ends
    are drawn in (Phipson et al. 2016, sections 3 and 4); ``scale`` and ``df_prior`` are those of
    :func:`_fit_prior`.
    """
    from scipy.optimize import brentq
    from scipy.stats import f, rankdata, trim_mean

    known = df > 0
    d, n = df.max(), np.count_nonzero(known)
    x = np.maximum(s2[known], _MIN_ROBUST * np.median(s2[known]))
    if (fewer := df[known] < d).any():
        # Variances with the same tail probability at the largest df.
        own, few = scale[known][fewer], df[known][fewer]
        upper, lower = f.sf(x[fewer] / own, few, df_prior), f.cdf(x[fewer] / own, few, df_prior)
        is_high = upper < lower
        x[fewer] = own * np.where(is_high, f.isf(upper, d, df_prior), f.ppf(lower, d, df_prior))
    logs = np.log(x)
    if level is None:
        trend = np.full(s2.size, trim_mean(logs, _ENDS[1]))
    else:
        trend = lowess(level[known], logs, _ROBUST_SPAN)(level)
    rest = logs - trend[known]
    inner = np.clip(rest, *np.quantile(rest, [_ENDS[0], 1 - _ENDS[1]]))
    variance = inner.var(ddof=1)

    def excess(share: float) -> float:
        df_at = share / (1 - share) if share < 1 else np.inf
        return float(np.log(variance / _moments_of_log_f(d, df_at)[1]))

    if excess(1.0) <= 0:
        df_prior = np.inf
    elif np.isinf(df_prior):
        return scale, np.full(s2.size, np.inf)
    elif excess(low := df_prior / (1 + df_prior)) < 0:
        share = brentq(excess, low, 1.0, xtol=1e-15, rtol=1e-14)
        df_prior = share / (1 - share)
    log_scale = trend + inner.mean() - _moments_of_log_f(d, df_prior)[0]
    ratio = np.exp(logs - log_scale[known])
    tail = _log_tail(ratio, d, df_prior)
    # Tail probabilities that are smaller than ranks let expect.
    is_usual = np.minimum(tail - np.log((n - rankdata(ratio) + 0.5) / n), 0)
    usual, by_gene = np.exp(is_usual), np.full(s2.size, df_prior)
    order = np.argsort(tail, kind="stable")
    if np.isinf(df_prior):
        own_df = np.where(is_usual < 0, usual * n * d, np.inf)[order]
    else:
        # An outlier has the df at which the largest ratio would be a median.
        outlier = np.log(0.5) / tail.min() * df_prior
        outlier *= np.log(0.5) / _log_tail(ratio.max(keepdims=True), d, outlier)[0]
        own_df = (usual * df_prior - np.expm1(is_usual) * outlier)[order]
        # No gene has fewer df than one that varies more: the first share a mean.
        running = np.cumsum(own_df) / np.arange(1, n + 1)
        own_df[: running.argmin() + 1] = running.min()
    by_gene[np.flatnonzero(known)[order]] = np.maximum.accumulate(own_df)
    return np.exp(log_scale), by_gene


def _moments_of_log_f(df: float, df_prior: float) -> tuple[float, float]:
    """Mean and variance of the logarithm of F with its ends drawn in, by Gauss's nodes."""
    from scipy.stats import chi2, f

    law = chi2(df, scale=1 / df) if np.isinf(df_prior) else f(df, df_prior)
    ends = law.ppf([_ENDS[0], 1 - _ENDS[1]])
    low, high = ends / (1 + ends)
    nodes, weights = np.polynomial.legendre.leggauss(128)
    nodes = low + (high - low) * (nodes + 1) / 2
    at = nodes / (1 - nodes)
    weights = np.r_[weights * (high - low) / 2 * law.pdf(at) / (1 - nodes) ** 2, _ENDS]
    logs = np.log(np.r_[at, ends])
    mean = (weights * logs).sum()
    return float(mean), float((weights * (logs - mean) ** 2).sum())


def _log_tail(ratio: Floats, df: float, df_prior: float) -> Floats:
    """Logarithm of the upper tail of F, also where the tail itself would be zero."""
    from scipy.special import betaln, hyp2f1
    from scipy.stats import chi2, f

    if np.isinf(df_prior):
        return chi2.logsf(ratio * df, df)
    with np.errstate(divide="ignore"):
        out = f.logsf(ratio, df, df_prior)
    far = out < -600
    a, b, x = df_prior / 2, df / 2, df_prior / (df_prior + df * ratio[far])
    out[far] = a * np.log(x) + b * np.log1p(-x) - np.log(a) - betaln(a, b)
    out[far] += np.log(hyp2f1(a + b, 1, a + 1, x))
    return out


def _natural_curves(x: Floats, at: Floats) -> Floats:
    """Natural cubic splines, ``[at.size, n]``, with knots at up to four quantiles of x, by their
    values at the knots; straight beyond these.
    """
    from scipy.interpolate import CubicSpline

    n = min(1 + (x.size >= 3) + (x.size >= 6) + (x.size >= 30), np.unique(x).size)
    knots = np.unique(np.quantile(x, np.linspace(0, 1, n)))
    if knots.size < 2:
        return np.ones((at.size, 1))
    curves = CubicSpline(knots, np.eye(knots.size), bc_type="natural")
    inside = np.clip(at, knots[0], knots[-1])
    return curves(inside) + curves(inside, 1) * (at - inside)[:, None]


def _inverse_trigamma(x: float) -> float:
    """Newton's steps for 1 / trigamma, which is nearly straight (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    if x > 1e7:
        return 1 / float(np.sqrt(x))
    if x < 1e-6:
        return 1 / x
    y, step = 0.5 + 1 / x, 1.0
    while abs(step) > 1e-8 * y:
        trigamma = polygamma(1, y)
        step = float(trigamma * (1 - trigamma / x) / polygamma(2, y))
        y += step
    return y


def t_pvalues(t: NDArray[np.floating], df: Floats) -> Floats:
    """Two-sided p-values of t."""
    from scipy.special import stdtr

    return 2 * stdtr(df, -np.abs(t, dtype=np.float64))


def f_pvalues(f: Floats, df: Floats, df_total: Floats) -> Floats:
    """P-values of F, on the same degrees of freedom as those of t."""
    from scipy.special import fdtrc

    return fdtrc(df, df_total, f)


def false_discovery_rates(p: Floats) -> Floats:
    """False discovery rates of all p-values together (Benjamini and Hochberg); NaN stays."""
    out = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    out[known] = adjust_pvalues(p[known], "benjamini-hochberg")
    return out


def n_discoveries(t: NDArray[np.floating], df: Floats, fdr: float = 0.05) -> NDArray[np.int64]:
    """Genes of each condition, of ``t [conditions, genes]``, that Benjamini and Hochberg's rule
    keeps at a false discovery rate.
    """
    from scipy.special import stdtrit

    known, df_at = np.unique(df, return_inverse=True)

    def bound(p: float) -> Floats:
        return stdtrit(known, 1 - p / 2) * (1 - 1e-6)

    out, first = np.zeros(len(t), np.int64), bound(fdr)[df_at]
    for i, row in enumerate(t):
        n_tests, size = max(int(np.isfinite(row).sum()), 1), np.abs(row)
        # If n p-values are below a limit, those that count are below fdr * n / n_tests: few are
        # left, of which the p-values take time.
        at = np.flatnonzero(size >= first)
        at = at[size[at] >= bound(fdr * at.size / n_tests)[df_at[at]]]
        p = np.sort(t_pvalues(row[at], df[at]))
        passed = np.flatnonzero(p <= fdr * np.arange(1, p.size + 1) / n_tests)
        out[i] = passed[-1] + 1 if passed.size else 0
    return out


def log_odds(t: Floats, unscaled: Floats, df_total: Floats, moderation: Moderation) -> Floats:
    """Log-odds B that a condition changes each gene, from its t and the standard deviation of its
    difference in units of sigma (Smyth 2004, sections 5 and 6.3).
    """
    spread = _spread_of_effects(t, unscaled, df_total, float(np.median(moderation.s2_prior)))
    ratio = (unscaled**2 + spread) / unscaled**2
    squared = t**2
    kernel = (1 + df_total) / 2 * np.log((squared + df_total) / (squared / ratio + df_total))
    is_infinite = moderation.df_prior > _INFINITE
    kernel[is_infinite] = (squared * (1 - 1 / ratio) / 2)[is_infinite]
    return np.log(_PROPORTION / (1 - _PROPORTION)) - np.log(ratio) / 2 + kernel


def _spread_of_effects(t: Floats, unscaled: Floats, df_total: Floats, s2: float) -> float:
    """Variance of the log fold changes that are not zero, in units of sigma squared, from the
    largest t.
    """
    from scipy.special import stdtr, stdtrit

    known = np.flatnonzero(np.isfinite(t))
    size, df = np.abs(t[known]), df_total[known]
    n = int(np.ceil(_PROPORTION / 2 * known.size))
    if not n:
        return np.nan
    share = max(n / known.size, _PROPORTION)
    top = df.max()
    fewer = df < top
    size[fewer] = -stdtrit(top, stdtr(df[fewer], -size[fewer]))
    first = np.argsort(-size, kind="stable")[:n]
    size, own = size[first], unscaled[known[first]] ** 2
    null = 2 * stdtr(top, -size)
    wanted = ((np.arange(n) + 0.5) / known.size - (1 - share) * null) / share
    spread = np.zeros(n)
    more = wanted > null
    spread[more] = own[more] * ((size[more] / stdtrit(top, wanted[more] / 2)) ** 2 - 1)
    low, high = np.array(_SD_OF_EFFECTS) ** 2 / s2
    return float(np.clip(spread, low, high).mean())
