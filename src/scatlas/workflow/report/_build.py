"""Draw the figures, write the tables, and bind both into one page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from natsort import natsorted

from scatlas import pl
from scatlas._version import __version__
from scatlas.workflow.report import _tables
from scatlas.workflow.report._effects import effects
from scatlas.workflow.report._links import (
    EXPLORER,
    Anchors,
    Explorer,
    cluster_links,
    marker_links,
    plate_links,
)
from scatlas.workflow.report._page import ReportWriter, caption, write_page
from scatlas.workflow.report._results import MAX_POINTS
from scatlas.workflow.report._summary import summarize
from scatlas.workflow.report._types import types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd

    from scatlas.workflow.report._links import RowLinks
    from scatlas.workflow.report._page import Picture, Table
    from scatlas.workflow.report._results import AtlasMap, Results

    Items = list[Picture | Table]
    Links = Callable[[pd.DataFrame], RowLinks]

_MAX_COLUMNS = 20
_MAX_GROUPS = 40  # of a figure of marker genes
_TOP_MARKERS = 3  # of each group, on the page


def build(
    results: Results,
    config: Mapping[str, Any],
    *,
    captions: Path,
    figures: Path,
    tables: Path,
    page: Path,
) -> dict[str, int]:
    """Write ``figures/*.png``, ``tables/*.tsv`` and the page with them all, images included; return
    their numbers. ``captions`` has a ``.rst`` for each, and ``workflow.rst``, the opening.
    """
    formats = config["report"].get("formats", ())
    writer = ReportWriter(captions, figures, tables, formats, n_plates=len(results.qc))
    explorer = Explorer.of_config(results, config)
    # Begun first, as they take the longest; the page shows one before all others.
    first, *maps = _maps(writer, results, config)
    anchors = Anchors.number(results, natsorted(results.clusters_by_plate.index))
    links_of_clusters = partial(cluster_links, anchors=anchors, explorer=explorer)
    links_of_markers = partial(marker_links, anchors=anchors, explorer=explorer)
    sections: dict[str, Items] = {
        "Cells": _quality(writer, results, anchors, explorer),
        "Genes": _genes(writer, results),
        "Components": _components(writer, results),
        "Map": [
            *maps,
            *_clusters(writer, results, links_of_clusters),
        ],
        "Types": types(writer, results, config["annotate"]) if config.get("annotate") else [],
        "Markers": _markers(writer, results, links_of_markers),
        "Effects": (
            effects(
                *(writer, results.effects, config["effects"]), is_sample=results.atlas_map is None
            )
            if results.effects
            else []
        ),
        "Integration": _integration(writer, results, config),
        "Run": [
            writer.table("runs", "Time and memory", _tables.runs(results.manifests)),
            writer.table("settings", "Config", _tables.settings(config), most=None),
            writer.table("versions", "Versions", _tables.versions()),
        ],
    }
    there = {first.id, *(item.id for items in sections.values() for item in items)}
    clusters = results.clusters_by_plate
    said = summarize(results, config, results.comparison, clusters, anchors, explorer, there)
    return write_page(
        page,
        title=_title(config),
        about=", ".join(filter(None, [results.finished, f"scatlas {__version__}"])),
        opening=caption(captions, "workflow"),
        headline=_headline(results),
        summary=said,
        first=first,
        sections=sections,
        links={"Explorer": EXPLORER} if config["explore"]["page"] else {},
    )


def _title(config: Mapping[str, Any]) -> str:
    """Title of the page: that of the config, or the name of the folder of the results."""
    name = config["outdir"].rpartition("/")[2]
    return config["title"] or ("Atlas of single cells" if name == "results" else name)


def _headline(results: Results) -> dict[str, str]:
    return {
        "cells": f"{results.n_cells[1]:,}",
        "plate" if len(results.qc) == 1 else "plates": f"{len(results.qc):,}",
        "clusters": f"{len(results.clusters_by_plate):,}",
    }


def _quality(writer: ReportWriter, results: Results, anchors: Anchors, explorer: Explorer) -> Items:
    """Cells kept and removed, their metrics, the bounds, and doublets."""
    summaries = results.qc_summaries
    n_in, n_kept = results.n_cells
    bounds = next(iter(summaries.values()))["thresholds"]
    left_out = []
    if results.left_out is not None:  # Snakemake expects the table without such plates, too
        table = _tables.left_out(results.left_out)
        left_out = [writer.table("left_out", "Plates left out", table)][: len(table)]
    return [
        writer.picture(
            "cells_kept",
            partial(pl.cells_kept, summaries),
            f"Bars of the cells kept and removed of {len(summaries)} plates; "
            f"{n_kept:,} of {n_in:,} cells were kept.",
        ),
        writer.picture(
            "qc_violins",
            partial(pl.qc_violins, results.qc_tables, bounds, by_plate=results.plate_bounds),
            "Violins of counts, genes and mitochondrial share of the cells of each plate, "
            "all and kept, with the bounds as dashed lines.",
        ),
        writer.table(
            "odd_plates",
            "Plates compared",
            results.comparison.table(),
            shown=_without_scores,
            links=partial(
                plate_links, comparison=results.comparison, anchors=anchors, explorer=explorer
            ),
        ),
        writer.table("cells", "Cells of each plate", _tables.cells(summaries), total=True),
        *left_out,
        writer.table("thresholds", "Bounds", _tables.thresholds(summaries)),
        *(
            [writer.table("bounds", "Bounds of each plate", results.plate_bounds)]
            if results.plate_bounds is not None
            else []
        ),
        *(_doublets(writer, results.doublet_facts) if results.doublets else []),
    ]


def _without_scores(plates: pd.DataFrame) -> pd.DataFrame:
    """The table of plates without what few plates or readers need."""
    facts = plates.loc[:, ~plates.columns.str.startswith("z of ")].dropna(axis=1, how="all")
    return facts if facts["odd by"].any() else facts.drop(columns="odd by")


def _genes(writer: ReportWriter, results: Results) -> Items:
    """Highly variable genes of the plates, and their consensus."""
    n_also = len(results.consensus) - len(results.ranked)
    return [
        writer.picture(
            "hvg_overlap",
            partial(pl.hvg_overlap, results.variable_genes),
            "Heat map of the highly variable genes that each two plates share.",
        ),
        writer.picture(
            "genes_by_plates",
            partial(pl.genes_by_plates, results.choosing_genes, results.ranked, n_also=n_also),
            "Bars of the genes by the number of plates on which they are highly variable; "
            f"{len(results.consensus):,} genes make the atlas.",
        ),
        writer.table(
            "consensus",
            "Genes by number of plates",
            _tables.consensus(results.choosing_genes, results.consensus),
        ),
    ]


def _components(writer: ReportWriter, results: Results) -> Items:
    variance = results.variance
    return [
        writer.picture(
            "pca_scree",
            partial(pl.pca_scree, variance["variance_ratio"]),
            f"Curves of the variance of {len(variance)} components and of their running sum, "
            f"which ends at {100 * variance['cumulative'].iloc[-1]:.1f} per cent.",
        ),
        writer.table("pca", "Variance of the components", variance, shown=_milestones),
    ]


def _maps(writer: ReportWriter, results: Results, config: Mapping[str, Any]) -> list[Picture]:
    """Maps of the cells; with the first one the page begins."""
    colors = dict.fromkeys([*results.labels.columns, "leiden", *config["report"]["colors"]])
    if results.atlas_map:
        return _maps_of_all(writer, results.atlas_map, [*colors, "leiden_share", "map_distance"])
    cells = results.cells
    return [
        writer.picture(
            "umap",
            partial(pl.umap, cells, color),
            f"Map of {cells.n_obs:,} cells coloured by {color}, "
            f"which has {cells.obs[color].nunique()} values.",
            color=color,
            n_values=cells.obs[color].nunique() if cells.obs[color].dtype.kind != "f" else 0,
            is_density=False,
        )
        for color in colors
        if color in cells.obs
    ]


def _maps_of_all(writer: ReportWriter, cells: AtlasMap, colors: list[str]) -> list[Picture]:
    """Maps of all cells of the atlas."""
    how = "all in the sample"
    if cells.n_sample < cells.n_cells:
        how = f"of which {cells.n_cells - cells.n_sample:,} were projected on the sample"
    pictures = []
    for color in filter(cells.can_colour, colors):
        n_values = cells.n_values(color)
        has = "" if n_values is None else f", which has {n_values:,} values"
        picture = writer.picture(
            "umap",
            partial(cells.picture, color),
            f"Map of {cells.n_cells:,} cells, {how}, coloured by {color}{has}.",
            color=color,
            n_values=n_values or 0,
            is_density=cells.n_cells > MAX_POINTS,
        )
        pictures.append(picture)
    return pictures


def _clusters(writer: ReportWriter, results: Results, links: Links) -> Items:
    """What the clusters are made of: by cell line, if there are any, and by plate."""
    cells, by_plate = results.atlas_map, results.clusters_by_plate
    columns = cells.columns if cells else results.cells.obs
    column = "cell_line" if "cell_line" in columns else "plate"
    items: Items = []
    # Snakemake expects the picture for the plates of the sheet.
    many = len(results.qc) + len(results.left_out or ()) > _MAX_COLUMNS
    if many:
        said = f"Heat map of the shares of {len(by_plate)} clusters in the cells of each plate."
        draw = partial(pl.cluster_shares, by_plate)
        items.append(writer.picture("cluster_shares", draw, said, has_table=bool(cells)))
    values = cells.crosstab(column) if cells else _tables.crosstab(results.cells.obs, column)
    table = _tables.clusters(values, column, results.labels.names)
    n_facts = table.shape[1] - values.shape[1]
    items.append(
        writer.table(
            "clusters",
            "Clusters",
            table,
            shown=lambda table: (
                table if values.shape[1] <= _MAX_COLUMNS else table.iloc[:, :n_facts]
            ),
            names=[f"most common {column}"],
            links=links,
        )
    )
    if cells:
        by_plate = by_plate.copy()
        by_plate.insert(0, "all plates", by_plate.sum(axis=1))
        by_plate_table = writer.table("clusters_by_plate", "Clusters by plate", by_plate)
        items += [] if many else [by_plate_table]
    return items


def _markers(writer: ReportWriter, results: Results, links: Links) -> Items:
    """Marker genes of the groups, if the config asks for them."""
    if not results.markers:
        return []
    markers, everything = results.marker_table, results.group_means
    for name in ("markers_dots", "markers_heat_map"):  # Snakemake expects them without markers, too
        (writer.figures / name).mkdir(parents=True, exist_ok=True)
    pictures = []
    for by in markers["by"].unique():
        groups = everything[everything.obs["by"] == by]
        n_groups = len(groups)
        largest = groups.obs["n_cells"].nlargest(_MAX_GROUPS).index
        groups = groups[groups.obs_names.isin(largest)]
        title = group_titles(results.labels.names if by == "leiden" else {})
        names = groups.obs["group"].astype(str).map(title)
        mean, share = (groups.to_df(layer).set_axis(names) for layer in ("mean", "share"))
        best = markers[markers["by"] == by]
        best = best.assign(group=best["group"].map(title))
        pictures += [
            writer.picture(
                "markers_dots",
                partial(pl.marker_dots, mean, share, best),
                f"Dot plot of the first marker genes of {len(mean)} groups of {by}.",
                color=by,
                n_groups=n_groups,
            ),
            writer.picture(
                "markers_heat_map",
                partial(pl.marker_heat_map, mean, best),
                f"Heat map of the means of the first marker genes of {len(mean)} groups of {by}.",
                color=by,
                n_groups=n_groups,
            ),
        ]
    table = writer.table(
        "markers",
        "Marker genes",
        markers.set_index("by"),
        shown=lambda markers: markers[markers["rank"] <= _TOP_MARKERS],
        names=["group"],
        written=True,
        links=links,
    )
    return [*pictures, table]


def group_titles(names: Mapping[str, str]) -> Callable[[str], str]:
    """Titles of clusters: their numbers, with their names if they have some."""
    return lambda group: f"{group}: {names[group]}" if names.get(group) else group


def _doublets(writer: ReportWriter, facts: Mapping[str, Mapping[str, Any]]) -> Items:
    n_doublets = sum(capture["n_doublets"] for capture in facts.values())
    picture = writer.picture(
        "doublets",
        partial(pl.doublet_scores, facts),
        f"Histograms of the doublet scores of the cells and of simulated doublets in {len(facts)} "
        f"captures; {n_doublets:,} cells are taken for doublets.",
    )
    table = _tables.doublets(facts)
    # Where no capture has a threshold, the sentences of doubt have the room of its columns.
    filled = table.dropna(axis=1, how="all")
    return [picture, writer.table("doublet_rates", "Doublets", table, shown=lambda _: filled)]


def _integration(writer: ReportWriter, results: Results, config: Mapping[str, Any]) -> Items:
    """Pictures and scores of the mixed cells, if the config asks for them."""
    if not results.integrated:
        return []
    cells, wanted = results.mixed_cells, config["integrate"]
    colors = dict.fromkeys([*wanted["key"], wanted["label"]])
    pictures = [
        writer.picture(
            "integration",
            partial(pl.before_after, cells, color),
            f"Two maps of {cells.n_obs:,} cells coloured by {color}: before mixing and after.",
            color=color,
        )
        for color in colors
        if color in cells.obs and {"X_umap_harmony", "X_umap_uncorrected"} & {*cells.obsm}
    ]
    return [*pictures, writer.table("mixing", "Mixing", results.mixing)]


def _milestones(variance: pd.DataFrame) -> pd.DataFrame:
    """The rows that tell the curve: 1, 2, 5, 10, 20, 50, ... and the last."""
    wanted = [step * 10**power for power in range(6) for step in (1, 2, 5)]
    return variance.loc[variance.index.isin([*wanted, len(variance)])]
