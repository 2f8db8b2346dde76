"""Sample the cells of an atlas onto which new plates are mapped, and measure its plates."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread
from scatlas.errors import InputError
from scatlas.io import open_tables, read_matrix, read_subset
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.matrices.lazy import read_embedding
from scatlas.matrix.components import project
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.reference_map import (
    ColumnMomentsByPlate,
    Projection,
    count_leading,
    held_variance,
    index_reference,
    usual_distances,
)
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import Neighbors
from scatlas.workflow.provenance import read_record
from scatlas.workflow.reference import MIXED, write_reference

if TYPE_CHECKING:
    from anndata import AnnData

    from scatlas.arrays.array_types import Floats, Ints

logger = logging.getLogger("scatlas")
# Cells that are projected to compare them with the components of the atlas, and by how much they
# may differ: float32 components differ by 1e-6 of the largest, those of other values by much more.
COMPARED, TOLERANCE = 1000, 1e-3


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.zarr")
    parser.add_argument("--obs", nargs="*", default=[], help="further obs columns of labels")
    votes_help = "obs columns with the type of most cells of a cluster"
    parser.add_argument("--votes", nargs="*", default=[], help=votes_help)
    parser.add_argument("--n-reference", type=int, required=True, help="cells to sample")
    parser.add_argument("--reference", type=Path, required=True, help="reference.h5ad to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.reference]) as facts:
        record = read_record(args.atlas)
        columns = ["leiden", *args.obs, *args.votes]
        sample, basis = sample_cells(args.atlas, args.n_reference, columns, record["seed"])
        # Cells of one cluster have one vote, and new cells get no cluster that the sample lacks.
        votes = sample.obs.groupby("leiden", observed=True)[args.votes].first()
        sample.obs = sample.obs.drop(columns=args.votes)
        codes, names = plates_of_cells(args.atlas, record)
        sizes = script.block_sizes(args)
        x, _ = read_matrix(args.atlas, **sizes)
        x_pca = read_embedding(args.atlas, "X_pca", block_budget=sizes["block_budget"])
        moments = ColumnMomentsByPlate.read(x, codes, len(names))
        scale = gene_scale(moments, record["config"]["scale"])
        if scale:
            x = scale.shift(x)
            moments = ColumnMomentsByPlate.read(x, codes, len(names))
        n_leading = count_leading(np.asarray(sample.uns["pca"]["variance"]))
        held = ColumnMomentsByPlate.read(x_pca[:, :n_leading], codes, len(names))
        variance = held_variance(moments, held, names)
        PCs = np.asarray(sample.varm["PCs"], np.float64)
        zero_center = bool(sample.uns["pca"]["params"]["zero_center"])
        zeros = scale.zeros if scale else np.zeros(len(PCs))
        with blas_on_one_thread():
            offset = (moments.mean_of_all if zero_center else -zeros) @ PCs
        check_components(args.atlas, x, x_pca, PCs, offset, codes)
        n_neighbors, n_pcs = neighbors_of(sample, record["config"])
        sample.obsm["X_pca"] = np.ascontiguousarray(sample.obsm.pop(basis)[:, :n_pcs])
        n_neighbors = min(n_neighbors, sample.n_obs - 1)
        index = index_reference(sample.obsm["X_pca"], n_neighbors + 1, seed=record["seed"])
        logger.info(
            "nearest of %d cells: inverted lists, %d of %d per cell, recall %.4f",
            *(sample.n_obs, index.n_probes, index.n_lists, index.recall),
        )
        usual, distances = usual_distances(index, n_neighbors)
        write_reference(
            args.reference,
            sample,
            projection=Projection(PCs, offset, scale),
            usual=usual,
            distances=distances,
            n_neighbors=n_neighbors,
            seed=record["seed"],
            variance=variance,
            votes=votes,
            n_leading=n_leading,
            mixed=sample.uns.get(MIXED),
        )
        facts |= {"n_cells": sample.n_obs, "n_cells_of_atlas": codes.size, "recall": index.recall}
        facts |= {"n_neighbors": n_neighbors, "n_pcs": n_pcs or PCs.shape[1]}


def sample_cells(atlas: Path, n_cells: int, columns: list[str], seed: int) -> tuple[AnnData, str]:
    """Random cells of the atlas with their map and labels, and the components of the map."""
    n_all = open_with_zarr_python(atlas)["X"].attrs["shape"][0]
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(n_all, size=min(n_cells, n_all), replace=False))
    store = open_with_zarr_python(atlas)
    # Its map is of the mixed cells where their clusters were kept.
    basis = MIXED if MIXED in store["uns"] else "X_pca"
    obs, obsm = ["plate", *columns], [basis, "X_umap"]
    return read_subset(atlas, chosen, x=False, obs=obs, obsm=obsm), basis


def plates_of_cells(atlas: Path, record: dict[str, Any]) -> tuple[Ints, list[str]]:
    """Plate of each cell, and the plates from which the components were computed.

    Cells of plates that were mapped onto the atlas later have the code -1.
    """
    with open_tables(atlas) as (obs, _):
        plate = obs.columns["plate"].take()
    own = {row["plate"] for row in record["plates"] if not row.get("mapped")}
    names = [str(name) for name in plate.categories if str(name) in own]
    number = {name: i for i, name in enumerate(names)}
    new_code = np.array([*(number.get(str(name), -1) for name in plate.categories), -1])
    return new_code[plate.codes], names


def gene_scale(moments: ColumnMomentsByPlate, options: dict[str, Any] | None) -> GeneScale | None:
    """Scaling of the genes before PCA, as in the step ``pca`` of the atlas."""
    if options is None:
        return None
    return GeneScale(moments.mean_of_all, moments.std_of_all, **options)


def check_components(
    atlas: Path, x: Any, x_pca: Any, PCs: Floats, offset: Floats, codes: Ints
) -> None:
    """Refuse an atlas whose components are not those of its X, which may be scaled."""
    rows = np.flatnonzero(codes >= 0)[:COMPARED]
    x, x_pca = (blocks.select_rows(part, rows) for part in (x, x_pca))
    found, stored = map(blocks.to_memory, (project(x, PCs, offset, dtype=np.float64), x_pca))
    if not np.abs(found - stored).max() <= TOLERANCE * np.abs(stored).max():
        raise InputError(
            f"{atlas}: obsm['X_pca'] is not the projection of X on varm['PCs'], so new cells would "
            "be misplaced: build the atlas again"
        )


def neighbors_of(sample: AnnData, config: dict[str, Any]) -> tuple[int, int | None]:
    """Number of neighbours and of components with which the atlas was mapped (None: all)."""
    facts = sample.uns.get("map", {})
    options = Neighbors(**config.get("neighbors") or {})
    n_pcs = facts.get("n_pcs", options.n_pcs)
    return int(facts.get("n_neighbors", options.n_neighbors)), n_pcs and int(n_pcs)


if __name__ == "__main__":
    script.run_main(main)
