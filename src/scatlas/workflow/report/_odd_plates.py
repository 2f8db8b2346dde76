"""Which plates are unlike the others, by robust z-scores of a few facts about each plate.

The z-score of a plate is ``(x - median) / (1.4826 MAD)``, with the median and the median absolute
deviation (MAD) of all plates (Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers; Leys et
al. 2013, J. Exp. Soc. Psychol. 49:764): odd plates hardly move it unless they are nearly half of
all. Sizes are compared by their logarithms, because they vary by factors.

A plate is odd by a fact if both hold:

* its z-score is beyond ``5 + 20 / (n - 4)`` for n plates. The 3 or 3.5 that are usual for one
  number would name some plate of nearly every large atlas, and the MAD of few plates is itself
  uncertain. If plates differ by chance alone (normal, seven independent facts), this limit names a
  plate in 2 to 5 of 100 atlases of 5 to 20 plates, and in fewer than 1 of 100 from 60 plates on
  (``tests/unit/workflow/test_odd_plates.py``).
* it differs from the median by what a person would care about (``Fact.smallest``), so that hundreds
  of nearly equal plates, whose MAD is close to zero, have no odd one by a trifle.

Below five plates nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

MIN_PLATES = 5
_TO_SD = 1.4826  # from the MAD of a normal distribution to its standard deviation
# With fewer cells per cluster, chance alone makes compositions differ.
_CELLS_PER_CLUSTER = 10


class Fact(NamedTuple):
    name: str  # its column in the table
    words: str  # the value of a plate in words, a format of x
    others: str  # the median of the others in words, a format of x
    smallest: float  # difference from the median that matters; of sizes, a factor
    is_size: bool = False  # compared by its logarithm
    only_high: bool = False  # low values are not odd


FACTS = (
    Fact("cells", "{x:,.0f} cells were read", "other plates have about {x:,.0f}", 2.0,
         is_size=True),
    Fact("kept %", "{x:.0f}% of its cells passed", "other plates keep about {x:.0f}%", 5.0),
    Fact("median counts", "{x:,.0f} counts in its median cell", "on other plates about {x:,.0f}",
         1.25, is_size=True),
    Fact("median genes", "{x:,.0f} genes in its median cell", "on other plates about {x:,.0f}",
         1.25, is_size=True),
    Fact("median mt %", "{x:.1f}% mitochondrial counts in its median cell",
         "on other plates about {x:.1f}%", 2.0),
    Fact("shared genes %", "{x:.0f}% of its variable genes are in the atlas",
         "of other plates about {x:.0f}%", 5.0),
    Fact("cluster distance", "its cells are in other clusters than usual: distance {x:.2f}",
         "other plates about {x:.2f}", 0.1, only_high=True),
)  # fmt: skip


def facts_of_plates(
    summaries: Mapping[str, Mapping[str, Any]],
    median_pct_mt: Mapping[str, float],
    variable: Mapping[str, Collection[str]],
    consensus: Collection[str],
    by_cluster: pd.DataFrame,
) -> pd.DataFrame:
    """The facts by which plates are compared: a row per plate and the columns :data:`FACTS`, NaN
    where it has none; `by_cluster` has the cells of each cluster (rows) on each plate.
    """
    chosen = set(consensus)
    rows = {}
    for plate, summary in summaries.items():
        genes = variable[plate]
        rows[plate] = {
            "cells": summary["n_cells"],
            "kept %": _percent(summary["n_kept"], summary["n_cells"]),
            "median counts": summary["median_counts"],
            "median genes": summary["median_genes"],
            "median mt %": median_pct_mt[plate],
            "shared genes %": _percent(sum(gene in chosen for gene in genes), len(genes)),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("plate").astype(np.float64)
    table["cluster distance"] = cluster_distances(by_cluster).reindex(table.index)
    return table


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else np.nan


def cluster_distances(by_cluster: pd.DataFrame) -> pd.Series:
    """Hellinger distance of each plate's shares of the clusters from the median shares.

    ``sqrt(1 - sum(sqrt(p q)))``: 0 for equal shares, 1 for no cluster in common (Legendre and
    Legendre 2012, Numerical Ecology, 7.4). NaN for plates with fewer than ten cells per cluster,
    and for all if no cluster is on most plates.
    """
    n_cells = by_cluster.sum()
    enough = n_cells.index[n_cells >= max(1, _CELLS_PER_CLUSTER * len(by_cluster))]
    shares = by_cluster[enough] / n_cells[enough]
    usual = shares.median(axis=1)
    distances = pd.Series(np.nan, index=by_cluster.columns)
    if usual.sum() > 0:
        common = np.sqrt(shares.mul(usual / usual.sum(), axis=0)).sum()
        distances[enough] = np.sqrt((1 - common).clip(lower=0))
    return distances


def limit(n: int) -> float:
    """Robust z-score beyond which one of `n` plates is odd; infinite below five plates."""
    return 5 + 20 / (n - MIN_PLATES + 1) if n >= MIN_PLATES else np.inf


def robust_z(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(x - median) / (1.4826 MAD)``; without spread 0 at the median and infinite elsewhere."""
    known = values[np.isfinite(values)]
    if not known.size:
        return np.full(len(values), np.nan)
    away = values - np.median(known)
    away[~np.isfinite(values)] = np.nan
    spread = _TO_SD * np.median(np.abs(known - np.median(known)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(away == 0, 0.0, away / spread)


@dataclass(frozen=True)
class PlateComparison:
    """Plates compared with each other, by the table of :func:`facts_of_plates`."""

    facts: pd.DataFrame

    @property
    def can_judge(self) -> bool:
        return len(self.facts) >= MIN_PLATES

    @cached_property
    def z(self) -> pd.DataFrame:
        """Robust z-scores, of the same shape as the facts."""
        return pd.DataFrame({fact.name: robust_z(self._compared(fact)) for fact in FACTS},
                            index=self.facts.index)  # fmt: skip

    @cached_property
    def is_odd(self) -> pd.DataFrame:
        """Whether a plate is odd by a fact, of the same shape as the facts."""
        return pd.DataFrame({fact.name: self._is_odd(fact) for fact in FACTS},
                            index=self.facts.index)  # fmt: skip

    @cached_property
    def odd_plates(self) -> list[str]:
        """Names of the odd plates, the largest z-score first."""
        largest = self.z.abs().where(self.is_odd).max(axis=1).dropna()
        return list(largest.sort_values(ascending=False, kind="stable").index)

    def reasons(self, plate: str) -> list[tuple[str, str]]:
        """By which facts a plate is odd, and in words how; the largest z-score first."""
        odd = [fact for fact in FACTS if self.is_odd.loc[plate, fact.name]]
        odd.sort(key=lambda fact: -abs(self.z.loc[plate, fact.name]))
        return [(fact.name, self._reason(plate, fact)) for fact in odd]

    def table(self) -> pd.DataFrame:
        """One row per plate: ``odd by``, the facts, and their z-scores; odd plates first."""
        names = [", ".join(self.is_odd.columns[row]) for row in self.is_odd.to_numpy()]
        scores = self.z if self.can_judge else self.z * np.nan
        table = pd.concat(
            [
                pd.DataFrame({"odd by": names}, index=self.facts.index),
                self.facts.round(1).assign(
                    **{"cluster distance": self.facts["cluster distance"].round(3)}
                ),
                scores.round(2).add_prefix("z of "),
            ],
            axis=1,
        )
        odd = set(self.odd_plates)
        others = [plate for plate in table.index if plate not in odd]
        return table.loc[[*self.odd_plates, *others]]

    def _compared(self, fact: Fact) -> NDArray[np.float64]:
        values = self.facts[fact.name].to_numpy(np.float64, copy=True)
        # log(1 + x): a plate may have no counts at all.
        return np.log1p(values) if fact.is_size else values

    def _is_odd(self, fact: Fact) -> NDArray[np.bool_]:
        values, z = self._compared(fact), self.z[fact.name].to_numpy()
        known = np.isfinite(values)
        if not known.any():
            return known
        away = values - np.median(values[known])
        smallest = np.log(fact.smallest) if fact.is_size else fact.smallest
        far = z if fact.only_high else np.abs(z)
        return known & (far > limit(int(known.sum()))) & (np.abs(away) >= smallest)

    def _reason(self, plate: str, fact: Fact) -> str:
        only = "only " if self.z.loc[plate, fact.name] < 0 else ""
        said = only + fact.words.format(x=self.facts.loc[plate, fact.name])
        others = fact.others.format(x=self.facts[fact.name].median())
        return f"{said[0].upper()}{said[1:]}; {others}"
