"""The first words of the report: what was read and kept, which plates are odd, where to look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from natsort import natsorted

from scatlas.workflow.report._links import EXPLORER, Link
from scatlas.workflow.report._odd_plates import MIN_PLATES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pandas as pd

    from scatlas.workflow.report._links import Anchors, Explorer
    from scatlas.workflow.report._odd_plates import PlateComparison
    from scatlas.workflow.report._results import Results

# Where to see a fact by which plates are compared; the first that the report has.
_SEEN_IN = {
    "cells": ("figure-cells_kept",),
    "kept %": ("figure-cells_kept",),
    "median counts": ("figure-qc_violins",),
    "median genes": ("figure-qc_violins",),
    "median mt %": ("figure-qc_violins",),
    "shared genes %": ("figure-hvg_overlap",),
    "cluster distance": (
        "figure-cluster_shares",
        "figure-umap-plate",
        "table-clusters_by_plate",
        "table-clusters",
    ),
}
_MAX_NAMED = 10
_FEW_KEPT = 0.7
# A cluster is of one plate from this share of its cells, if the plate has less than half of all.
_ONE_PLATE_SHARE = 0.9
_NOTICED = 0.02  # of a score of mixing, from 0 to 1


class OddPlate(NamedTuple):
    """A plate that is unlike the others."""

    plate: Link
    reasons: list[list[Link]]
    view: Link | None


@dataclass(frozen=True)
class Summary:
    """What the page says first. A sentence is a sequence of words and links."""

    facts: list[list[Link]]  # what was read, kept and made
    verdict: list[Link]  # whether plates are odd
    odd: list[OddPlate]
    more_odd: int  # number of odd plates beyond these
    look: list[list[Link]]  # what to look at first
    following: list[list[Link]]  # what a person may do next


def summarize(
    results: Results,
    config: Mapping[str, Any],
    comparison: PlateComparison,
    by_cluster: pd.DataFrame,
    anchors: Anchors,
    explorer: Explorer,
    there: Collection[str],
) -> Summary:
    """Summarize a run; ``there`` are the anchors of the figures and tables of the page."""
    odd = comparison.odd_plates
    named = [
        OddPlate(
            Link(plate, f"#{anchors.plates[plate]}"),
            [
                _reason(words, _first(_SEEN_IN[fact], there))
                for fact, words in comparison.reasons(plate)
            ],
            Link("on the map", view) if (view := explorer.level("plate", plate)) else None,
        )
        for plate in odd[:_MAX_NAMED]
    ]
    return Summary(
        _facts(results, len(by_cluster)),
        _verdict(comparison),
        named,
        len(odd) - len(named),
        _look(results, by_cluster, anchors, explorer, there),
        _next_steps(results, config),
    )


def count(n: int, thing: str) -> str:
    """A number with its noun."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"


def _facts(results: Results, n_clusters: int) -> list[list[Link]]:
    plates = results.qc_summaries.values()
    n_in, n_kept = results.n_cells
    share = f" ({100 * n_kept / n_in:.1f}%)" if n_in else ""
    read = (
        f"{count(len(plates), 'plate')} with {count(n_in, 'cell')}: {n_kept:,}{share} passed the "
        "quality bounds."
    )
    left_out = []
    if results.left_out:
        n = len(results.left_out)
        verb = "was" if n == 1 else "were"
        words = f"{count(n, 'plate')} {verb} left out"
        left_out = [[Link(words, "#table-left_out"), Link(" as unusable.")]]
    variance = results.variance
    n_also = len(results.consensus) - len(results.ranked)
    named = f" and {n_also:,} named by consensus.also" if n_also else ""
    n_genes = max(plate["n_genes"] for plate in plates)
    genes = (
        f"Of {count(n_genes, 'gene')} the atlas has {len(results.ranked):,} whose counts vary "
        f"most between cells{named}; {count(len(variance), 'component')} hold "
        f"{100 * variance['cumulative'].iloc[-1]:.0f}% of their variance."
    )
    n_sample, everything = results.n_sample, results.atlas_map
    n_map = everything.n_cells if everything else n_sample
    where = f"The map has {count(n_map, 'cell')} in {count(n_clusters, 'cluster')}."
    if everything and n_sample < n_map:
        where += f" It was made from {n_sample:,} of them; the others were added to it."
    small = []
    if few := list(results.too_few_cells):
        named_few = few if len(few) <= _MAX_NAMED else [*few[:_MAX_NAMED], "others"]
        small = [
            [Link(f"Too small to choose genes (consensus.min_cells): {', '.join(named_few)}.")]
        ]
    return [[Link(read)], *left_out, [Link(genes)], *small, [Link(where)]]


def _verdict(comparison: PlateComparison) -> list[Link]:
    n, odd = len(comparison.facts), comparison.odd_plates
    table = Link("table of plates", "#table-odd_plates")
    if n == 1:
        return [Link("There is 1 plate, and no other to compare it with.")]
    if not comparison.can_judge:
        few = f"There are {n} plates: too few to say which one is odd, which takes at least "
        return [Link(f"{few}{MIN_PLATES}. See the "), table, Link(".")]
    if not odd:
        none = f"None of the {n} plates is odd in cells, quality, variable genes or clusters. "
        return [Link(f"{none}See the "), table, Link(".")]
    verb = "is" if len(odd) == 1 else "are"
    return [Link(f"{len(odd)} of {n} plates {verb} odd (see the "), table, Link("):")]


def _look(
    results: Results,
    by_cluster: pd.DataFrame,
    anchors: Anchors,
    explorer: Explorer,
    there: Collection[str],
) -> list[list[Link]]:
    """What to look at first; the remarkable before the usual."""
    look = []
    n_in, n_kept = results.n_cells
    if n_in and n_kept < _FEW_KEPT * n_in:
        removed = f"{100 - 100 * n_kept / n_in:.1f}% of the cells were removed: "
        look.append([Link(removed), Link("which bounds took them", "#table-thresholds")])
    look += _in_doubt(results)
    alone = clusters_of_one_plate(by_cluster)
    for plate, clusters in list(alone.items())[:_MAX_NAMED]:
        n = count(len(clusters), "cluster")
        asked = "a batch effect? The key integrate corrects it"
        asked = "after batch correction, too" if results.integrated else asked
        said = f"{plate} makes up nearly all of {n} ({asked}): "
        look.append([Link(said), *_list(clusters, anchors)])
    if len(alone) > _MAX_NAMED:
        table = Link("clusters", "#table-clusters")
        rest = count(len(alone) - _MAX_NAMED, "more plate")
        look.append([Link(f"{rest} with such "), table])
    if len(results.qc) > 1 and {"figure-umap-leiden", "figure-umap-plate"} <= {*there}:
        maps = [
            Link("clusters", "#figure-umap-leiden"),
            Link(" and "),
            Link("plates", "#figure-umap-plate"),
        ]
        look.append([Link("The map by "), *maps, Link(": do plates mix within the clusters?")])
    if "table-markers" in there:
        look.append([Link("What the clusters are: their "), Link("marker genes", "#table-markers")])
    look += [[Link(sentence)] for sentence in results.fact("markers", "to_add")]
    if results.integrated:
        said = what_mixing_did(results.mixing)
        look.append([Link("Batch correction", "#table-mixing"), Link(f": {said}")])
    if explorer.columns:
        look.append([Link("All cells, genes and columns: "), Link("the explorer", EXPLORER)])
    return look


def _next_steps(results: Results, config: Mapping[str, Any]) -> list[list[Link]]:
    """What a person may do next, with the page of the documentation that says how."""
    clusters, settings = Link("clusters", "#table-clusters"), Link("config", "#table-settings")

    def code(text: str) -> Link:
        return Link(text, is_code=True)

    named = [Link("Name the "), clusters, Link(": "), code("scatlas label")]
    batches = [Link("Correct a batch effect: "), code("integrate: {key: [plate]}")]
    groups = [Link("Compare groups of samples: "), code("effects")]
    steps = [] if results.labels.names else [[*named, Link(" (docs/after/names.md)")]]
    several = len(results.qc) > 1
    if several and not config.get("integrate"):
        steps.append([*batches, Link(" in the "), settings, Link(" (docs/after/batches.md)")])
    if several and not config.get("effects"):
        steps.append([*groups, Link(" in the "), settings, Link(" (docs/after/compare.md)")])
    return steps


def what_mixing_did(scores: pd.DataFrame) -> str:
    """Whether batches mix better, and what was to stay apart does, in one sentence."""
    parts = []
    for name, row in scores.iterrows():
        before, after = row["score before"], row["score after"]
        if row["should be"] == "mixed":
            did = "mixes better" if after > before + _NOTICED else "mixes no better"
        elif after < before - _NOTICED:
            did = "is blurred, so lower integrate.theta or set integrate.use to false"
        else:
            did = "stays apart"
        parts.append(f"{name} {did} ({before:.2f} before, {after:.2f} after; 1 is best)")
    return "; ".join(parts)


def _in_doubt(results: Results) -> list[list[Link]]:
    """Plates that keep under half of their cells, and captures whose doublets are in doubt."""
    plates, captures = results.qc_summaries, results.doublet_facts.values()
    kept = {name: plate["n_kept"] / max(1, plate["n_cells"]) for name, plate in plates.items()}
    few = [name for name in kept if kept[name] < 0.5]
    look = [
        [
            Link(f"{name} keeps only {kept[name]:.0%} of its cells: "),
            Link("bounds", "#table-thresholds"),
        ]
        for name in few[:_MAX_NAMED]
    ]
    if n := sum("doubt" in capture for capture in captures):
        words = f"Doublets are in doubt in {n:,} of {count(len(captures), 'capture')}: "
        look.append([Link(words), Link("why", "#table-doublet_rates")])
    return look


def clusters_of_one_plate(by_cluster: pd.DataFrame) -> dict[str, list[str]]:
    """Clusters of which one plate, with less than half of all cells, has nine of ten, by plate."""
    total = by_cluster.to_numpy().sum()
    minor = by_cluster.columns[by_cluster.sum() < total / 2]
    by_plate: dict[str, list[str]] = {}
    for name in natsorted(by_cluster.index) if len(minor) else []:
        row = by_cluster.loc[name]
        if row.sum() and row[minor].max() >= _ONE_PLATE_SHARE * row.sum():
            by_plate.setdefault(str(row[minor].idxmax()), []).append(name)
    return dict(sorted(by_plate.items(), key=lambda item: -len(item[1])))


def _list(clusters: list[str], anchors: Anchors) -> list[Link]:
    links: list[Link] = []
    for name in clusters[:_MAX_NAMED]:
        links += [Link(", " if links else ""), Link(name, f"#{anchors.clusters[name]}")]
    rest = len(clusters) - _MAX_NAMED
    return [*links, Link(f" and {rest} more")] if rest > 0 else links


def _reason(words: str, href: str | None) -> list[Link]:
    """A reason with a link to the figure or table that shows it."""
    if href is None:
        return [Link(f"{words}.")]
    kind = Link(href.removeprefix("#").partition("-")[0], href)
    return [Link(f"{words} ("), kind, Link(").")]


def _first(wanted: Sequence[str], there: Collection[str]) -> str | None:
    return next((f"#{anchor}" for anchor in wanted if anchor in there), None)
