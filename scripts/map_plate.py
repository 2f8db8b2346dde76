"""Map the cells of a new plate onto an atlas: components, coordinates, labels and distances."""

from __future__ import annotations

import argparse
import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.errors import prefix_errors
from scatlas.io import CsrWriter, in_place, open_tables, read_cells, read_matrix
from scatlas.io.matrices.lazy import read_embedding
from scatlas.io.zarr_writer.elements import ARRAY
from scatlas.io.zarr_writer.sharded_array import PROJECTED_CODEC, ShardedArray, encoding_pool
from scatlas.kernels.counts.select_cpu import spread_genes
from scatlas.matrix.reference_map import (
    UNLIKE_RANK,
    ColumnMomentsByPlate,
    Placement,
    held_variance,
    join_parts,
)
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script
from scatlas.workflow.annotation import types_of_cells
from scatlas.workflow.cell_filter import doublet_columns
from scatlas.workflow.reference import MIXED, find_genes, read_reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scatlas.matrix.symphony import MixedClusters
    from scatlas.workflow.reference import Reference

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--doublets", type=Path, help="doublets.parquet, if doublets are scored")
    parser.add_argument("--reference", type=Path, required=True, help="reference.h5ad")
    parser.add_argument("--max-missing-genes", type=float, required=True, help="share of genes")
    parser.add_argument("--labels", type=json.loads, default="{}", help="labels of the plate: JSON")
    parser.add_argument(
        "--annotators", nargs="+", default=[], metavar="SOURCE=PATH", help="classifiers of types"
    )
    parser.add_argument("--key", default="cell_type", help="obs column of the types")
    parser.add_argument("--mapped", type=Path, required=True, help="store to write")
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.mapped]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        cells = read_cells(args.size_factors, ["row", "size_factor"])
        rows, factors = cells["row"].to_numpy(), cells["size_factor"].to_numpy()
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        reference = read_reference(args.reference)
        genes = find_genes(var, reference.var.index, max_missing=args.max_missing_genes)
        by_row = size_factors_by_row(cells, x.shape[0])
        selected = select_and_log_normalize(x, genes.positions, size_factors=by_row)
        known = {"size_factor": factors, **doublet_columns(args.doublets, rows)}
        known |= constant_columns(args.plate, args.labels, rows.size)
        keep = np.zeros(x.shape[0], dtype=bool)
        keep[rows] = True
        types = types_of_cells(x, var, keep, script.plate_paths(args.annotators), args.key)
        known |= types
        unlike = write_mapped(args, selected, genes.columns, reference, rows, known)
        facts |= {"plate": args.plate, "n_cells": rows.size, "n_unlike": unlike}
        facts |= {"missing_genes": genes.missing}
        facts |= variance_of_plate(args, reference)


def write_mapped(
    args: argparse.Namespace,
    selected: Any,
    columns: np.ndarray,
    reference: Reference,
    rows: np.ndarray,
    known: dict[str, Any],
) -> int:
    """Write the store in one pass over the counts; return the number of cells unlike the atlas."""
    n_genes, n_comps = reference.projection.PCs.shape
    votes = [name for label in reference.labels for name in (label, f"{label}_share")]
    new = [*votes, *reference.votes, "map_distance", "unlike_atlas"]
    types = [name for name in known if name == args.key or name.startswith(f"{args.key}_")]

    def project(block: Any) -> tuple[Any, np.ndarray]:
        wide = spread_genes(block, columns, n_genes)
        return wide, reference.projection(wide)

    with (
        open_tables(args.store) as (obs, _),
        CsrWriter(args.mapped, n_vars=n_genes, data_dtype=np.float32, var=reference.var) as writer,
        encoding_pool() as pool,
    ):
        obs, notices = obs.with_room_for([*new, "size_factor", *(types if args.annotators else [])])
        for notice in notices:
            logger.warning("plate %s: %s", args.plate, notice)
        batches = batches_of(obs, reference.mixed_by, args.labels, rows)
        array = partial(ShardedArray, pool=pool, compression=PROJECTED_CODEC, attributes=ARRAY)
        folder = writer.folder / "obsm"
        with (
            obs.writing(
                writer.folder / "obs", deferred_columns=[*known, *new], rows=rows
            ) as finish_obs,
            array(folder / "X_pca", np.float32, row_shape=(n_comps,)) as x_pca,
            array(folder / "X_umap", np.float32, row_shape=(2,)) as x_umap,
        ):

            def components() -> Iterator[np.ndarray]:
                for block, projected in blocks.stream(selected, project):
                    writer.append(block)
                    x_pca.append(projected, copy=False)
                    yield projected

            def mixed(clusters: MixedClusters) -> Iterator[np.ndarray]:
                with array(folder / MIXED, np.float32, row_shape=clusters.sums.shape[1:]) as out:
                    for part in clusters.mix(components(), batches, writer.folder.parent):
                        out.append(part, copy=False)
                        yield part

            found = []
            parts = mixed(reference.mixed) if reference.mixed else components()
            for part in join_parts(part[:, : reference.n_pcs] for part in parts):
                first = sum(placed.ranks.size for placed in found)
                keys = rows[first : first + len(part)].astype(np.uint64)
                found.append(reference.cells.place(part, keys))
                x_umap.append(found[-1].coordinates, copy=False)
            placed = placed_columns(found, reference)
            finish_obs(known | placed)
        writer.obs = in_place
    return int(placed["unlike_atlas"].sum())


def batches_of(
    obs: Any, names: Sequence[str], labels: dict[str, str], rows: np.ndarray
) -> np.ndarray:
    """Number of each cell's batch: its values in the columns by which the atlas was mixed, of which
    the plate may have none.
    """
    own = [name for name in names if name in obs.columns and not labels.get(name)]
    if not (own := [name for name in own if name != "plate"]):
        return np.zeros(rows.size, np.int64)
    table = obs.read(own, index=False).iloc[rows]
    return table.groupby(own, dropna=False, observed=True).ngroup().to_numpy(np.int64)


def constant_columns(plate: str, labels: dict[str, str], n_cells: int) -> dict[str, pd.Categorical]:
    """Name and labels of the plate as obs columns; an empty label leaves the plate's own column."""
    values = {"plate": plate, **{name: value for name, value in labels.items() if value}}
    zeros = np.zeros(n_cells, np.int8)
    return {name: pd.Categorical.from_codes(zeros, [value]) for name, value in values.items()}


def placed_columns(found: list[Placement], reference: Reference) -> dict[str, Any]:
    """Columns of obs of the cells that were placed, part by part."""
    columns: dict[str, Any] = {}
    for name, dtype in reference.labels.items():
        codes = np.concatenate([part.labels[name] for part in found])
        columns[name] = pd.Categorical.from_codes(codes, dtype=dtype)
        shares = np.concatenate([part.shares[name] for part in found])
        columns[f"{name}_share"] = shares.astype(np.float32)
    leiden = columns["leiden"]
    of_clusters = reference.votes.reindex(leiden.categories)
    for name, values in of_clusters.items():
        columns[str(name)] = pd.api.extensions.take(values.array, leiden.codes, allow_fill=True)
    distances = np.concatenate([part.distances for part in found])
    columns["map_distance"] = distances.astype(np.float32)
    columns["unlike_atlas"] = np.concatenate([part.ranks for part in found]) > UNLIKE_RANK
    return columns


def variance_of_plate(args: argparse.Namespace, reference: Reference) -> dict[str, float]:
    """Variance of the plate, and what the components hold of it."""
    sizes = script.block_sizes(args)
    x, _ = read_matrix(args.mapped, **sizes)
    x = reference.projection.scale.shift(x) if reference.projection.scale else x
    x_pca = read_embedding(args.mapped, "X_pca", block_budget=sizes["block_budget"])
    codes = np.zeros(x.shape[0], np.int64)
    leading = x_pca[:, : reference.n_leading]
    moments = (ColumnMomentsByPlate.read(part, codes, 1) for part in (x, leading))
    row = held_variance(*moments, [args.plate]).iloc[0]
    return {name: float(row[name]) for name in ("variance", "held", "share")}


if __name__ == "__main__":
    script.run_main(main)
