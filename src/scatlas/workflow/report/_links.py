"""Links between the parts of the report, and from it to the explorer beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import pandas as pd

from scatlas.workflow.explore import MapCells, certain_columns, choose_genes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scatlas.workflow.report._odd_plates import PlateComparison
    from scatlas.workflow.report._results import Results

EXPLORER = "explore.html"


class Link(NamedTuple):
    """Words that lead somewhere; without an address, words alone."""

    text: str
    href: str | None = None
    is_code: bool = False  # to be typed as it is


@dataclass(frozen=True)
class RowLinks:
    """Links of the rows of a table on the page, one entry per row."""

    ids: Sequence[str] = ()  # anchor of each row; empty for none
    # addresses of the cells of some columns
    of: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    more: Sequence[Sequence[Link]] = ()  # links behind the first cell of each row
    # which cells of some columns deserve a look
    marked: Mapping[str, Sequence[bool]] = field(default_factory=dict)


class Explorer(NamedTuple):
    """Addresses of views in ``explore.html``, which its ``permalink.js`` reads."""

    columns: frozenset[str]
    genes: frozenset[str]

    @classmethod
    def of_config(cls, results: Results, config: Mapping[str, Any]) -> Explorer:
        """The explorer that the same config makes."""
        # As JSON, whose keys are all there: their model takes 0.1 s to import.
        wanted: Any = SimpleNamespace(**config["explore"])
        if not wanted.page:
            return cls(frozenset(), frozenset())
        mapped = results.atlas or results.umap
        assert mapped is not None
        var = MapCells(mapped).var()
        genes = choose_genes(var, results.markers, wanted, wanted.genes)
        columns = certain_columns(wanted.columns, results.labels.columns)
        return cls(columns, frozenset(genes))

    def level(self, column: str, level: str) -> str | None:
        """One value of a column alone; None if the page lacks the column."""
        if column not in self.columns:
            return None
        pair = json.dumps([column, level], ensure_ascii=False)
        return _address([("color", f"column:{column}"), ("only", pair)])

    def gene(self, name: str) -> str | None:
        """Cells coloured by a gene; None if the page lacks it."""
        return _address([("color", f"gene:{name}")]) if name in self.genes else None


def _address(pairs: list[tuple[str, str]]) -> str:
    return f"{EXPLORER}#{urlencode(pairs, quote_via=quote)}"


class Anchors(NamedTuple):
    """Anchors of rows, numbered because names of the data may hold anything."""

    clusters: dict[str, str]  # of the rows of the table of clusters
    groups: dict[tuple[str, str], str]  # of each group's first marker gene: by column and group
    plates: dict[str, str]  # of the rows of the table of plates

    @classmethod
    def number(cls, results: Results, clusters: list[str]) -> Anchors:
        """Anchors of a report, in the order of the clusters, the markers and the plate sheet."""
        groups: dict[tuple[str, str], str] = {}
        if results.markers:
            table = results.marker_table
            for pair in zip(table["by"], table["group"], strict=True):
                groups.setdefault(pair, f"markers-{len(groups)}")
        return cls(
            {name: f"cluster-{i}" for i, name in enumerate(clusters)},
            groups,
            {name: f"plate-{i}" for i, name in enumerate(results.qc)},
        )


def cluster_links(flat: pd.DataFrame, *, anchors: Anchors, explorer: Explorer) -> RowLinks:
    """From each cluster to its markers and to the explorer."""
    names = [str(name) for name in flat["leiden"]]
    more = []
    for name in names:
        markers = anchors.groups.get(("leiden", name))
        links = [Link("markers", f"#{markers}")] if markers else []
        view = explorer.level("leiden", name)
        more.append([*links, Link("explore", view)] if view else links)
    return RowLinks(ids=[anchors.clusters[name] for name in names], more=more)


def marker_links(flat: pd.DataFrame, *, anchors: Anchors, explorer: Explorer) -> RowLinks:
    """From each marker gene and its group to the explorer; an anchor at each group's first gene."""
    pairs = list(zip(flat["by"], flat["group"], strict=True))
    is_first = ~pd.Series(pairs, dtype=object).duplicated()
    ids = [
        anchors.groups[pair] if first else "" for pair, first in zip(pairs, is_first, strict=True)
    ]
    groups = [
        f"#{anchors.clusters[group]}"
        if by == "leiden" and group in anchors.clusters
        else explorer.level(by, group)
        for by, group in pairs
    ]
    return RowLinks(ids=ids, of={"group": groups, "names": [*map(explorer.gene, flat["names"])]})


def plate_links(
    flat: pd.DataFrame, *, comparison: PlateComparison, anchors: Anchors, explorer: Explorer
) -> RowLinks:
    """From each plate to the explorer; what is odd is marked."""
    views = [explorer.level("plate", plate) for plate in flat["plate"]]
    is_odd = comparison.is_odd.loc[list(flat["plate"])]
    return RowLinks(
        ids=[anchors.plates[plate] for plate in flat["plate"]],
        more=[[Link("explore", view)] if view else [] for view in views],
        marked={name: list(is_odd[name]) for name in is_odd},
    )
