"""Draw the figures, write the tables, and bind both into one page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from natsort import natsorted

from scatlas import pl
from scatlas.workflow.report import _tables
from scatlas.workflow.report._links import (
    EXPLORER,
    Anchors,
    Explorer,
    cluster_links,
    marker_links,
    plate_links,
)
from scatlas.workflow.report._odd_plates import PlateComparison, facts_of_plates
from scatlas.workflow.report._page import ReportWriter, caption, write_page
from scatlas.workflow.report._summary import summarize

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
    writer = ReportWriter(captions, figures, tables)
    explorer = Explorer.of_config(results, config)
    anchors = Anchors.number(results, natsorted(results.clusters_by_plate.index))
    comparison = compare_plates(results)
    links_of_plates = partial(
        plate_links, comparison=comparison, anchors=anchors, explorer=explorer
    )
    links_of_clusters = partial(cluster_links, anchors=anchors, explorer=explorer)
    links_of_markers = partial(marker_links, anchors=anchors, explorer=explorer)
    sections: dict[str, Items] = {
        "Cells": _quality(writer, results, comparison, links_of_plates),
        "Genes": _genes(writer, results),
        "Components": _components(writer, results),
        "Map": _maps(writer, results, config, links_of_clusters),
        "Markers": _markers(writer, results, links_of_markers),
        "Integration": _integration(writer, results, config),
        "Run": [
            writer.table("runs", "Time and memory", _tables.runs(results.manifests)),
            writer.table("settings", "Config", _tables.settings(config), most=None),
            writer.table("versions", "Versions", _tables.versions()),
        ],
    }
    there = {item.id for items in sections.values() for item in items}
    return write_page(
        page,
        title="Plate atlas",
        opening=caption(captions, "workflow"),
        headline=_headline(results),
        summary=summarize(results, comparison, results.clusters_by_plate, anchors, explorer, there),
        sections=sections,
        links={"Explorer": EXPLORER} if config["explore"]["page"] else {},
    )


def _headline(results: Results) -> dict[str, str]:
    summaries, everything = results.qc_summaries, results.atlas_map
    n_in, n_kept = results.n_cells
    missing = {"plates left out": f"{len(results.left_out):,}"} if results.left_out else {}
    return {
        "plates": f"{len(summaries):,}",
        **missing,
        "cells read": f"{n_in:,}",
        "cells kept": f"{n_kept:,}",
        "genes measured": f"{max(plate['n_genes'] for plate in summaries.values()):,}",
        "genes in the atlas": f"{len(results.consensus):,}",
        "components": f"{len(results.variance):,}",
        "cells on the map": f"{everything.n_cells if everything else results.n_sample:,}",
        **({"cells in its sample": f"{results.n_sample:,}"} if everything else {}),
        "clusters": f"{len(results.clusters_by_plate):,}",
    }


def compare_plates(results: Results) -> PlateComparison:
    facts = facts_of_plates(
        results.qc_summaries,
        results.median_pct_mt,
        # A plate that chooses no genes of the atlas shares few, which is not odd.
        dict.fromkeys(results.variable_genes, ()) | results.choosing_genes,
        results.consensus,
        results.clusters_by_plate,
    )
    return PlateComparison(facts)


def _quality(
    writer: ReportWriter, results: Results, comparison: PlateComparison, links: Links
) -> Items:
    """Cells kept and removed, their metrics, the bounds, and doublets."""
    summaries = results.qc_summaries
    n_in, n_kept = results.n_cells
    bounds = next(iter(summaries.values()))["thresholds"]
    left_out = []
    if results.left_out is not None:  # bad plates are left out
        table = _tables.left_out(results.left_out)
        left_out = [writer.table("left_out", "Plates left out", table)]
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
            comparison.table(),
            # Without the scores, if there are too few plates for them.
            shown=lambda plates: plates.dropna(axis=1, how="all"),
            links=links,
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


def _genes(writer: ReportWriter, results: Results) -> Items:
    """Highly variable genes of the plates, and their consensus."""
    return [
        writer.picture(
            "hvg_overlap",
            partial(pl.hvg_overlap, results.variable_genes),
            "Heat map of the highly variable genes that each two plates share.",
        ),
        writer.picture(
            "genes_by_plates",
            partial(pl.genes_by_plates, results.choosing_genes, results.consensus),
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


def _maps(writer: ReportWriter, results: Results, config: Mapping[str, Any], links: Links) -> Items:
    """Maps of the cells, and their clusters."""
    if results.atlas_map:
        return _maps_of_all(writer, results, results.atlas_map, config, links)
    cells = results.cells
    column = "cell_line" if "cell_line" in cells.obs else "plate"
    clusters = _tables.clusters(_tables.crosstab(cells.obs, column), column)
    pictures = [
        writer.picture(
            "umap",
            partial(pl.umap, cells, color),
            f"Map of {cells.n_obs:,} cells coloured by {color}, "
            f"which has {cells.obs[color].nunique()} values.",
            color=color,
        )
        for color in config["report"]["colors"]
        if color in cells.obs
    ]
    return [*pictures, _clusters(writer, clusters, links)]


def _clusters(writer: ReportWriter, table: pd.DataFrame, links: Links) -> Table:
    return writer.table("clusters", "Clusters", table, most_columns=_MAX_COLUMNS, links=links)


def _maps_of_all(
    writer: ReportWriter, results: Results, cells: AtlasMap, config: Mapping[str, Any], links: Links
) -> Items:
    """Maps of all cells of the atlas; clusters by cell line and by plate."""
    colors = [*config["report"]["colors"], "leiden_share", "map_distance"]
    how = "all in the sample"
    if cells.n_sample < cells.n_cells:
        how = f"of which {cells.n_cells - cells.n_sample:,} were projected on the sample"
    pictures = []
    for color in dict.fromkeys(color for color in colors if cells.can_colour(color)):
        n_values = cells.n_values(color)
        has = "" if n_values is None else f", which has {n_values:,} values"
        alt = f"Map of {cells.n_cells:,} cells, {how}, coloured by {color}{has}."
        pictures.append(writer.picture("umap", partial(cells.picture, color), alt, color=color))
    column = "cell_line" if cells.can_colour("cell_line") else "plate"
    clusters = _tables.clusters(cells.crosstab(column), column)
    by_plate = results.clusters_by_plate.copy()
    by_plate.insert(0, "all plates", by_plate.sum(axis=1))
    return [
        *pictures,
        _clusters(writer, clusters, links),
        writer.table("clusters_by_plate", "Clusters by plate", by_plate, most_columns=_MAX_COLUMNS),
    ]


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
        largest = groups.obs["n_cells"].nlargest(_MAX_GROUPS).index
        groups = groups[groups.obs_names.isin(largest)]
        names = groups.obs["group"].astype(str)
        mean, share = (groups.to_df(layer).set_axis(names) for layer in ("mean", "share"))
        best = markers[markers["by"] == by]
        pictures += [
            writer.picture(
                "markers_dots",
                partial(pl.marker_dots, mean, share, best),
                f"Dot plot of the first marker genes of {len(mean)} groups of {by}.",
                color=by,
            ),
            writer.picture(
                "markers_heat_map",
                partial(pl.marker_heat_map, mean, best),
                f"Heat map of the means of the first marker genes of {len(mean)} groups of {by}.",
                color=by,
            ),
        ]
    table = writer.table(
        "markers",
        "Marker genes",
        markers.set_index("by"),
        shown=lambda markers: markers[markers["rank"] <= _TOP_MARKERS],
        written=True,
        links=links,
    )
    return [*pictures, table]


def _doublets(writer: ReportWriter, facts: Mapping[str, Mapping[str, Any]]) -> Items:
    n_doublets = sum(capture["n_doublets"] for capture in facts.values())
    picture = writer.picture(
        "doublets",
        partial(pl.doublet_scores, facts),
        f"Histograms of the doublet scores of the cells and of simulated doublets in {len(facts)} "
        f"captures; {n_doublets:,} cells are taken for doublets.",
    )
    return [picture, writer.table("doublet_rates", "Doublets", _tables.doublets(facts))]


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
        if color in cells.obs and "X_umap_harmony" in cells.obsm
    ]
    return [*pictures, writer.table("mixing", "Mixing", results.mixing)]


def _milestones(variance: pd.DataFrame) -> pd.DataFrame:
    """The rows that tell the curve: 1, 2, 5, 10, 20, 50, ... and the last."""
    wanted = [step * 10**power for power in range(6) for step in (1, 2, 5)]
    return variance.loc[variance.index.isin([*wanted, len(variance)])]
