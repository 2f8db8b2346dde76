"""Cells unlike the others of their group, by median absolute deviations (MADs) from its median."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray


def is_outlier(
    values: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    nmads: float = 3.0,
    log: Literal["log2", "log1p"] | None = None,
    side: Literal["lower", "higher", "both"] = "both",
    min_diff: float = 0.0,
    to_sd: float = 1.4826,
    mask: ArrayLike | None = None,
) -> tuple[NDArray[np.bool_], pd.DataFrame]:
    """Cells farther than some MADs from the median of their group.

    With ``log="log2"`` for ``log=TRUE``, calls and bounds are those of scuttle's ``isOutlier``
    (McCarthy et al. 2017, https://doi.org/10.1093/bioinformatics/btw777); with ``log="log1p"`` and
    ``to_sd=1`` those of sc-best-practices.org (Heumos et al. 2023,
    https://doi.org/10.1038/s41576-023-00586-w).

    Parameters
    ----------
    values
        A number of each cell [cells].
    groups
        Group of each cell [cells], such as its plate; None for a single group, ``"all"``.
    nmads, to_sd
        Number of MADs, each times `to_sd`: times 1.4826 the MAD of normal values is their standard
        deviation.
    log
        Compare logarithms: to the base 2, where zeros are minus infinity, or of ``1 + value``.
    side
        Which side of the median can be an outlier.
    min_diff
        An outlier is farther than this from the median, on the scale that is compared.
    mask
        bool [cells]: cells of which median and MAD are taken; None for all. All cells are called.

    Returns
    -------
    calls
        bool [cells]. False for a value that is NaN, on a bound, or in a group without bounds.
    bounds
        float64, a row per group in the order of text: ``lower`` and ``higher`` on the scale of the
        values, ``median`` and ``mad`` (times `to_sd`) on that which is compared, and ``n`` cells.
        A group without cells, or with infinite values in the middle, has NaN.

    Raises
    ------
    InputError
        When `groups` or `mask` do not have an entry for each value.
    """
    import pandas as pd

    values = np.asarray(values, np.float64)
    for option, given in {"groups": groups, "mask": mask}.items():
        if given is not None and (n_given := np.shape(given)[0]) != values.size:
            msg = f"{option} has {n_given:,} entries for {values.size:,} values"
            raise InputError(f"{msg}: give one for each value")
    back: Any = {"log2": np.exp2, "log1p": np.expm1}.get(log or "", np.asarray)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = getattr(np, log)(values) if log else values
        use = ~np.isnan(scaled) & (True if mask is None else np.asarray(mask, bool))
        texts = pd.Categorical(np.repeat("all", values.size) if groups is None else groups)
        names, to_name = np.unique(texts.categories.astype(str), return_inverse=True)
        codes = np.append(to_name, -1)[texts.codes]
        middle, mad, n = (np.full(names.size, np.nan) for _ in range(3))
        for code in range(names.size):
            group = scaled[use & (codes == code)]
            n[code] = group.size
            if group.size:
                middle[code] = np.median(group)
                mad[code] = to_sd * np.median(np.abs(group - middle[code]))
        reach = np.maximum(min_diff, nmads * mad)
        low = middle - reach if side != "higher" else np.full(names.size, -np.inf)
        high = middle + reach if side != "lower" else np.full(names.size, np.inf)
        # A cell without a group has the last entry of these, and no bound.
        calls = (scaled < np.append(low, np.nan)[codes]) | (scaled > np.append(high, np.nan)[codes])
    bounds = {"lower": back(low), "higher": back(high), "median": middle, "mad": mad, "n": n}
    return calls, pd.DataFrame(bounds, index=pd.Index(names, name="group"))
