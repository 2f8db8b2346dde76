"""Which columns and genes the page has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas.columns import are_measures
from scatlas.errors import InputError
from scatlas.matrix.map_pixels import side_for
from scatlas.workflow.sample import ATLAS_ROW

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.matrix.measured_genes import MeasuredGenes
    from scatlas.workflow.config.sections import Explore
    from scatlas.workflow.explore._cells import MapCells

logger = logging.getLogger("scatlas")

_MAX_LEVELS = 10_000
_MAX_COLUMNS = 24
_FIRST = ("leiden", "plate", "cell_line", "drug")
TOP_MARKERS = 10  # of each group, which the page has in any case
# Genes for each MB of the page at most: the means of one take 3 to 10 kB.
_GENES_PER_MB = 50
_VARIABLE = ("dispersions_norm", "variances_norm", "residual_variances")
# Numbers become 0 to 254; 255 is for cells without a number.
N_CODES = 255


class PageColumn(NamedTuple):
    """A column of obs on the page."""

    name: str
    kind: Literal["category", "number"]
    levels: list[str]  # names of the categories, in order
    low: float  # ends of the scale of numbers
    high: float

    @property
    def side(self) -> int:
        """Pixels per side of its histograms."""
        return side_for(len(self.levels) + 1)

    def codes(self, values: Any) -> NDArray[np.int64]:
        """Codes of categories, the next one for none, and -1 for one that the sample lacks; or
        numbers as 0 to 254, 255 for none.
        """
        if self.kind == "category":
            return _codes_of(values, self.levels)
        numbers = _as_numbers(values)
        scaled = (numbers - self.low) / max(self.high - self.low, 1e-300) * (N_CODES - 1)
        codes = np.rint(scaled.clip(0, N_CODES - 1), where=np.isfinite(scaled), out=scaled)
        return np.where(np.isfinite(numbers), codes, N_CODES).astype(np.int64)


class PageGene(NamedTuple):
    """A gene of the page."""

    name: str
    symbol: str = ""  # where the plates have symbols beside the names


def choose(
    cells: MapCells,
    sample: MapCells,
    wanted: Explore,
    markers: Path | None,
    measured: MeasuredGenes | None = None,
    first: Sequence[str] = (),
) -> tuple[list[PageColumn], list[PageGene]]:
    """Columns and genes of the page; the cells of ``sample`` become points. Without ``measured``
    it has genes of the atlas alone.
    """
    assert measured or not wanted.genes
    var, symbols = sample.var(), measured.symbols.to_dict() if measured else {}
    named = measured.find(wanted.genes, "explore.genes") if measured else []
    known = measured.genes if measured else var.index
    names = choose_genes(var, markers, wanted, named, known=known)
    names.sort(key=lambda name: name not in var.index)  # so are they read
    genes = [PageGene(name, symbols.get(name, "")) for name in names]
    return choose_columns(cells, sample, wanted.columns, first), genes


def choose_columns(
    cells: MapCells, sample: MapCells, wanted: Sequence[str] = (), first: Sequence[str] = ()
) -> list[PageColumn]:
    """Columns of the page, by the values of the sample, with the categories of all cells; without
    ``wanted`` all that have colours, 24 at most, those of ``first`` at the beginning.
    """
    stored = set(cells.columns)
    known = [name for name in sample.columns if name != ATLAS_ROW and name in stored]
    if not wanted:
        first = [name for name in (*first, *_FIRST) if name in known]
        candidates = (_describe(cells, sample, name) for name in dict.fromkeys([*first, *known]))
        columns = [c for c in candidates if c and (c.kind == "number" or len(c.levels) > 1)]
        for column in columns[_MAX_COLUMNS:]:
            logger.info("obs[%r] is not on the page, which has %d", column.name, _MAX_COLUMNS)
        return columns[:_MAX_COLUMNS]
    columns = []
    for name in dict.fromkeys(wanted):
        if name not in known:
            raise InputError(
                f"{sample.path} has no obs column {name!r}, which explore.columns names; it has "
                f"{', '.join(known)}"
            )
        described = _describe(cells, sample, name)
        if described is None:
            raise InputError(
                f"{sample.path}: obs[{name!r}], which explore.columns names, has more than "
                f"{_MAX_LEVELS:,} values or none: leave it out"
            )
        columns.append(described)
    return columns


def certain_columns(wanted: Sequence[str], first: Sequence[str] = ()) -> frozenset[str]:
    """Columns that the page has, whatever else the cells have, if they have two values or more."""
    return frozenset(wanted or (*first, *_FIRST))


def _describe(cells: MapCells, sample: MapCells, name: str) -> PageColumn | None:
    """A column of the page; None if it has no value, or names each cell."""
    n_cells = sample.n_cells
    values = sample.values(name)
    series = pd.Series(values)
    is_number = pd.api.types.is_numeric_dtype(series) and series.dtype != bool
    is_integer = pd.api.types.is_integer_dtype(series)
    if not is_number or (is_integer and not are_measures(series)):
        return _category(name, series, cells.categories(name), n_cells)
    numbers = _as_numbers(values)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size or numbers.min() == numbers.max():
        return None
    # One per mille of the cells would else take most of the colours.
    low, high = np.percentile(numbers, [0.1, 99.9])
    if low == high:
        low, high = numbers.min(), numbers.max()
    return PageColumn(name, "number", [], float(low), float(high))


def _category(
    name: str, series: pd.Series, categories: list[str] | None, n_cells: int
) -> PageColumn | None:
    is_categorical = categories is not None
    names = categories or [str(value) for value in series.dropna().unique()]
    if not names or len(names) > min(_MAX_LEVELS, max(n_cells // 2, 2)):
        return None
    names = list(dict.fromkeys(names))
    # Keep an order that somebody has given; else plate10 comes after plate9.
    if not is_categorical or names == sorted(names):
        names = natsorted(names)
    return PageColumn(name, "category", names, 0, 0)


def _codes_of(values: Any, levels: list[str]) -> NDArray[np.int64]:
    index = pd.Index(levels, dtype=object)
    if isinstance(values, pd.Categorical):
        level_positions = index.get_indexer(values.categories.astype(str).astype(object))
        return np.append(level_positions, len(levels))[values.codes].astype(np.int64)
    series = pd.Series(values)
    codes, distinct = pd.factorize(series)
    level_positions = index.get_indexer(pd.Index([str(v) for v in distinct], dtype=object))
    return np.append(level_positions, len(levels))[codes].astype(np.int64)


def _as_numbers(values: Any) -> NDArray[np.float64]:
    return pd.Series(values).to_numpy(np.float64, na_value=np.nan)


def read_markers(path: Path) -> pd.DataFrame:
    """Rows of ``markers.tsv``; names may look like numbers or gaps."""
    text = dict.fromkeys(("by", "group", "names", "label"), str)
    return pd.read_csv(path, sep="\t", dtype=text, keep_default_na=False)


def choose_genes(
    var: pd.DataFrame,
    markers: Path | None,
    wanted: Explore,
    named: Sequence[str] = (),
    *,
    known: pd.Index | None = None,
) -> list[str]:
    """Genes of the page: those that the config names, the best markers of all groups in turn, and
    the most variable ones of the atlas, by its ``var``; markers are among ``known``, if given.
    """
    most = int(_GENES_PER_MB * wanted.max_mb)
    if len(named) > most:
        raise InputError(
            f"explore.genes names {len(named):,} genes, but a page of {wanted.max_mb:g} MB has "
            f"room for {most:,}: raise explore.max_mb, or name fewer"
        )
    best: list[str] = []
    if markers is not None:
        table = read_markers(markers)
        table = table[table["rank"] <= TOP_MARKERS].sort_values("rank", kind="stable")
        best = list(table["names"] if known is None else table["names"][table["names"].isin(known)])
    certain = list(dict.fromkeys([*named, *best]))
    if len(certain) > most:
        logger.warning(
            "%s of the best marker genes of all groups are not on the page, which has room for "
            "%s genes: raise explore.max_mb",
            *(f"{len(certain) - most:,}", f"{most:,}"),
        )
    n_genes = min(max(wanted.n_genes, len(certain)), most)
    by = [name for name in _VARIABLE if name in var]
    order = var.sort_values(by[0], ascending=False, kind="stable") if by else var
    return list(dict.fromkeys([*certain, *order.index]))[:n_genes]
