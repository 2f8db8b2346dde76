"""E-distance of conditions from a control, from sums of cells by replicate: no pairs of cells.

For squared Euclidean distances the mean over pairs is closed in sums. With means x and y of n and m
cells, and sums S and T of the squared distances of cells from their mean,
E = 2 |x - y|^2 - 2 S / (n (n - 1)) - 2 T / (m (m - 1)) (Peidli et al., Nat. Methods 2024).
"""

from __future__ import annotations

from itertools import combinations
from math import comb, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scatlas.blocks import on_host
from scatlas.compute.threads import blas_on_one_thread
from scatlas.matrix.effects_moderation import false_discovery_rates
from scatlas.matrix.group_sums import aggregate_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]
    Masks = NDArray[np.bool_]

# Fewer relabellings give no p-value of 0.05.
MIN_RELABELLINGS = 20
# Relabellings that exchange the two sides have the same distance, but for rounding.
_ROUNDING = 1e-9
# Relabellings whose distances are computed together.
_AT_ONCE = 500
_MAX_NAMED = 5


class _Block(NamedTuple):
    """Replicates of a condition, which come first, and of the control, in one block."""

    n_own: int
    n_cells: Floats  # [replicates]
    sums: Floats  # [replicates, components], about the mean of all cells
    squares: Floats  # [replicates], about the same mean

    @classmethod
    def build(
        cls, own: Ints, others: Ints, cells: Floats, sums: Floats, deviations: Floats
    ) -> _Block:
        at = np.r_[own, others]
        n, sums = cells[at], sums[at]
        sums = sums - n[:, None] * (sums.sum(axis=0) / n.sum())
        return cls(own.size, n, sums, deviations[at] + (sums**2).sum(axis=1) / n)

    def is_own(self) -> Masks:
        return np.arange(self.n_cells.size) < self.n_own


def sum_cells(x: Any, labels: pd.DataFrame) -> tuple[pd.DataFrame, Floats, Floats]:
    """Table, sums and deviations of the cells of each row of ``labels``, as :func:`edistances`
    takes them, in one pass over ``x [n_cells, n_components]``.
    """
    groups = labels.groupby([*labels], observed=True)
    codes, sizes = groups.ngroup().fillna(-1).to_numpy(np.int64), groups.size()
    n = sizes.to_numpy(np.int64)
    sums = aggregate_rows(x, codes, n, ("sum", "var"), 0)
    squares = on_host(sums["var"]).sum(axis=1) * n
    return sizes.rename("n_cells").reset_index(), on_host(sums["sum"]), squares


def edistances(
    samples: pd.DataFrame,
    sums: Floats,
    deviations: Floats,
    *,
    control: str,
    within: Sequence[str] = (),
    min_cells: int = 10,
    n_permutations: int = 9_999,
    random_state: int = 0,
    dof: int = 1,
) -> pd.DataFrame:
    """Table of :func:`scatlas.tl.edistance`, whose condition is in the column ``condition``.

    ``samples``, without gaps, has ``n_cells``, categorical ``condition``, the columns of `within`,
    and ``block`` and ``replicate`` where there are any; rows of one replicate, as those of several
    plates, are added up. ``sums [n_samples, n_components]`` are sums of cells, and ``deviations
    [n_samples]`` those of the squared distances of cells from the mean of their row.
    """
    units, sums, deviations = add_up(samples, sums, deviations, within)
    cells = units["n_cells"].to_numpy()
    block = pd.factorize(units["block"])[0] if "block" in units else np.zeros(len(units), int)
    rows = []
    with blas_on_one_thread():
        for key, own in units.groupby(list(within), observed=True) if within else [((), units)]:
            conditions = own.groupby("condition", observed=True).indices
            controls = own.index.to_numpy()[conditions.pop(control, [])]
            controls = controls[cells[controls] >= min_cells]
            of_block = {b: controls[block[controls] == b] for b in np.unique(block[controls])}
            for name, numbers in conditions.items():
                every = own.index.to_numpy()[numbers]
                at = every[cells[every] >= min_cells]
                pairs = [
                    (at[block[at] == b], of_block[b]) for b in np.unique(block[at]) if b in of_block
                ]
                blocks = [_Block.build(*pair, cells, sums, deviations) for pair in pairs]
                if blocks:
                    found = _test(blocks, n_permutations, random_state, dof)
                else:
                    found = (np.nan, np.nan, 0, _why_none(units.loc[at], control, min_cells))
                n_own, n_others = (sum(pair[side].size for pair in pairs) for side in (0, 1))
                rows.append((*key, name, n_own, n_others, int(cells[every].sum()), *found))
    names = ["n_replicates", "n_controls", "n_cells", "edistance", "p_value", "n_relabellings"]
    table = pd.DataFrame(rows, columns=[*within, "condition", *names, "reason"])
    rates = false_discovery_rates(table["p_value"].to_numpy(np.float64))
    table.insert(table.columns.get_loc("n_relabellings"), "fdr", rates)
    return table


def add_up(
    samples: pd.DataFrame, sums: Floats, deviations: Floats, within: Sequence[str]
) -> tuple[pd.DataFrame, Floats, Floats]:
    """Table, sums and deviations of each replicate, of rows as :func:`edistances` takes them."""
    keys = [*within, "condition", *samples.columns.intersection(["block", "replicate"])]
    at = samples.groupby(keys, observed=True).ngroup().to_numpy()
    _, first = np.unique(at, return_index=True)
    n = samples["n_cells"].to_numpy(np.float64)
    units = samples.iloc[first].reset_index(drop=True).assign(n_cells=np.bincount(at, n))
    total = np.zeros((len(units), sums.shape[1]))
    np.add.at(total, at, sums)
    apart = sums - n[:, None] * (total / units["n_cells"].to_numpy()[:, None])[at]
    squares = deviations + (apart**2).sum(axis=1) / n
    return units, total, np.bincount(at, squares).astype(np.float64)


def _why_none(units: pd.DataFrame, control: str, min_cells: int) -> str:
    if not len(units):
        return f"no replicate has {min_cells} cells"
    reason = f"no replicate of {control} has {min_cells} cells"
    if "block" not in units:
        return reason
    blocks = units["block"].astype(str).unique()
    more = ", ..." if blocks.size > _MAX_NAMED else ""
    return f"{reason} in its blocks: {', '.join(blocks[:_MAX_NAMED])}{more}"


def _test(
    blocks: list[_Block], n_permutations: int, random_state: int, dof: int
) -> tuple[float, float, int, str]:
    """E-distance, p-value, number of relabellings, and why there is no p-value."""
    own = float(_distances(blocks, [block.is_own()[None] for block in blocks], dof)[0])
    n_all = prod(comb(block.n_cells.size, block.n_own) for block in blocks)
    # With sides of equal size, two relabellings exchange them.
    n = n_all // (2 if all(2 * block.n_own == block.n_cells.size for block in blocks) else 1)
    if n < MIN_RELABELLINGS:
        why = f"its replicates have {n} relabellings, and p-values need {MIN_RELABELLINGS}"
        return own, np.nan, n, why
    every = n_all <= n_permutations
    relabelled = _all(blocks) if every else _random(blocks, n_permutations, random_state)
    values = np.concatenate([_distances(blocks, masks, dof) for masks in relabelled])
    as_far = np.count_nonzero(values >= own - _ROUNDING * np.abs(values).max())
    if every:
        return own, as_far / n_all, n, ""
    return own, (1 + as_far) / (1 + n_permutations), n_permutations, ""


def _all(blocks: list[_Block]) -> Iterator[list[Masks]]:
    """All relabellings of the replicates of each block, ``[relabellings, replicates]``."""
    choices = []
    for block in blocks:
        chosen = np.array([*combinations(range(block.n_cells.size), block.n_own)])
        choices.append(np.zeros((len(chosen), block.n_cells.size), bool))
        np.put_along_axis(choices[-1], chosen, True, axis=1)
    sizes = [len(each) for each in choices]
    for first in range(0, prod(sizes), _AT_ONCE):
        numbers = np.unravel_index(np.arange(first, min(first + _AT_ONCE, prod(sizes))), sizes)
        yield [each[own] for each, own in zip(choices, numbers, strict=True)]


def _random(blocks: list[_Block], n: int, random_state: int) -> Iterator[list[Masks]]:
    """Seeded relabellings; the same for each condition of a size, whatever others there are."""
    rng = np.random.default_rng(random_state)
    for first in range(0, n, _AT_ONCE):
        shape = min(_AT_ONCE, n - first), 1
        yield [rng.permuted(np.tile(block.is_own(), shape), axis=1) for block in blocks]


def _distances(blocks: list[_Block], masks: list[Masks], dof: int) -> Floats:
    """E-distances ``[relabellings]`` of the replicates in the masks from the others.

    With several blocks the difference of the means is that of a linear model with effects of
    blocks: the mean over blocks, with weights n m / (n + m).
    """
    weight = noise = np.zeros(len(masks[0]))
    difference = np.zeros((len(masks[0]), blocks[0].sums.shape[1]))
    for block, mask in zip(blocks, masks, strict=True):
        chosen = mask.astype(np.float64)
        n = chosen @ block.n_cells
        m = block.n_cells.sum() - n
        own_sum = chosen @ block.sums  # the others' is its negative
        own_squares = chosen @ block.squares
        square = (own_sum**2).sum(axis=1)
        s = own_squares - square / n
        t = block.squares.sum() - own_squares - square / m
        own_weight = n * m / (n + m)
        weight = weight + own_weight
        noise = noise + own_weight**2 * dof * (s / (n * (n - dof)) + t / (m * (m - dof)))
        difference += own_sum
    return 2 * ((difference**2).sum(axis=1) - noise) / weight**2
