"""The page about new plates on an atlas: where their cells lie, what they are, what is unlike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import pl
from scatlas.io import open_tables
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.matrix.reference_map import smallest_usual_share
from scatlas.workflow.report._page import ReportWriter, caption, write_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_OBS = ["leiden", "leiden_share", "unlike_atlas"]
# Cells of a plate on its picture: more show nothing new.
_MAX_DRAWN = 200_000


@dataclass(frozen=True)
class NewPlates:
    """Files of mapped plates, and their content."""

    reference: Path  # reference.h5ad
    mapped: Mapping[str, Path]  # store of each plate, in the order of the plate sheet
    manifests: Mapping[str, Path]  # of `map_plate`, by plate

    @cached_property
    def atlas(self) -> ad.AnnData:
        """The sampled cells of the atlas."""
        return ad.read_h5ad(self.reference)

    @cached_property
    def facts(self) -> dict[str, dict[str, Any]]:
        return {p: json.loads(path.read_text("utf-8")) for p, path in self.manifests.items()}

    @cached_property
    def obs(self) -> dict[str, pd.DataFrame]:
        """Cluster, its share and novelty of the cells of each plate."""
        tables = {}
        for plate, path in self.mapped.items():
            with open_tables(path) as (obs, _):
                tables[plate] = obs.read(_OBS, index=False)
        return tables

    def drawn(self, plate: str) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of a plate's cells, or of a sample of them, and which are unlike."""
        xy = open_with_zarr_python(self.mapped[plate])["obsm/X_umap"][:]
        unlike = self.obs[plate]["unlike_atlas"].to_numpy(bool)
        if len(xy) <= _MAX_DRAWN:
            return xy, unlike
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(len(xy), _MAX_DRAWN, replace=False))
        return xy[rows], unlike[rows]

    @cached_property
    def shares_of_atlas(self) -> pd.Series:
        """Share of the variance of each plate of the atlas that the components hold."""
        return self.atlas.uns["variance"]["share"]

    @property
    def smallest_share(self) -> float:
        """Share below which a plate asks for new components."""
        return smallest_usual_share(self.shares_of_atlas.to_numpy(np.float64))

    @property
    def shares(self) -> dict[str, float]:
        """Share of each new plate; NaN for a plate without variance."""
        shares = {plate: facts["share"] for plate, facts in self.facts.items()}
        return {p: np.nan if share is None else share for p, share in shares.items()}

    @property
    def outdated_for(self) -> list[str]:
        """Plates of which the components hold too little."""
        return [plate for plate, share in self.shares.items() if share < self.smallest_share]


def build_new_plates(
    results: NewPlates,
    *,
    captions: Path,
    figures: Path,
    tables: Path,
    page: Path,
    formats: Sequence[str] = (),
) -> dict[str, Any]:
    """Write figures, tables and the page that holds them; return their numbers and ``advice``,
    whether to build the atlas again. ``captions`` has a ``.rst`` for each, and ``opening.rst``.
    """
    writer = ReportWriter(captions, figures, tables, formats)
    n_cells = sum(facts["n_cells"] for facts in results.facts.values())
    n_unlike = sum(facts["n_unlike"] for facts in results.facts.values())
    drawn = {plate: results.drawn(plate) for plate in results.mapped}
    atlas = results.atlas
    said = advice(results)
    sections: dict[str, list[Any]] = {
        "Map": [
            writer.picture(
                "new_cells",
                partial(pl.new_cells, atlas.obsm["X_umap"], drawn),
                f"Maps of the cells of {len(drawn)} new plates over those of the atlas; "
                f"{n_unlike:,} of {n_cells:,} cells are unlike the atlas.",
            ),
            writer.picture(
                "umap",
                partial(pl.umap, atlas, "leiden"),
                f"Map of {atlas.n_obs:,} cells of the atlas coloured by cluster.",
                color="leiden",
            ),
        ],
        "Cells": [
            writer.table("plates", "New plates", plate_table(results)),
            writer.table("composition", "Clusters", composition(results)),
        ],
        "Drift": [
            writer.picture(
                "held_variance",
                partial(
                    pl.held_variance,
                    results.shares_of_atlas.to_dict(),
                    results.shares,
                    results.smallest_share,
                ),
                f"Share of the variance that the components hold, by plate. {said}",
            ),
            writer.table("held_variance", said, variance_table(results)),
        ],
    }
    headline = {
        "new plates": f"{len(drawn):,}",
        "new cells": f"{n_cells:,}",
        "unlike the atlas": f"{100 * n_unlike / max(1, n_cells):.1f}%",
        "plates of the atlas": f"{len(results.shares_of_atlas):,}",
        "build again": "yes" if results.outdated_for else "no",
    }
    written = write_page(
        page,
        title="New plates on the atlas",
        opening=caption(captions, "opening"),
        headline=headline,
        sections=sections,
    )
    return {**written, "advice": said}


def advice(results: NewPlates) -> str:
    """Whether to build the atlas again, in one sentence."""
    low = results.outdated_for
    if not np.isfinite(results.smallest_share):
        return "The atlas's plates have no variance to compare with."
    bound = f"{100 * results.smallest_share:.1f}% of the variance"
    if not low:
        return f"The atlas's components hold at least {bound} of each new plate: keep the atlas."
    plates = f"{len(low):,} of {len(results.shares):,} new plates ({', '.join(low[:5])}"
    plates += ", ...)" if len(low) > 5 else ")"
    return (
        f"The atlas's components hold less than {bound} of {plates}: build the atlas again with "
        "these plates."
    )


def plate_table(results: NewPlates) -> pd.DataFrame:
    """Cells of each new plate, and how well they fit."""
    rows = {}
    for plate, facts in results.facts.items():
        share = results.obs[plate]["leiden_share"].median()
        rows[plate] = {
            "cells": facts["n_cells"],
            "unlike the atlas": facts["n_unlike"],
            "unlike %": round(100 * facts["n_unlike"] / max(1, facts["n_cells"]), 1),
            "median leiden_share": round(float(share), 3),
            "missing genes": len(facts["missing_genes"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("plate")


def composition(results: NewPlates) -> pd.DataFrame:
    """Share of each cluster in percent, of the atlas and of each new plate."""
    columns = {"atlas": results.atlas.obs["leiden"]}
    columns |= {plate: obs["leiden"] for plate, obs in results.obs.items()}
    table = pd.DataFrame(
        {name: 100 * labels.value_counts(normalize=True) for name, labels in columns.items()}
    )
    table.index = table.index.astype(str)
    return table.fillna(0).round(1).loc[natsorted(table.index)].rename_axis("leiden")


def variance_table(results: NewPlates) -> pd.DataFrame:
    """Variance of all plates, those of the atlas first, and the share that components hold."""
    known = results.atlas.uns["variance"]
    rows = {
        plate: {"plate of": "atlas", "variance": row["variance"], "held %": 100 * row["share"]}
        for plate, row in known.iterrows()
    }
    for plate, share in results.shares.items():
        variance = results.facts[plate]["variance"]
        rows[plate] = {"plate of": "new", "variance": variance, "held %": 100 * share}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("plate")
    return table.round({"variance": 2, "held %": 1})
