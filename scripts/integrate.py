"""Say what batch correction does to the sample: map, clusters and scores before and after it."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import anndata as ad
import pandas as pd

from scatlas.errors import InputError
from scatlas.get import on_backend
from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.pp import harmony_integrate
from scatlas.pp import neighbors as find_neighbors
from scatlas.tl import leiden, lisi
from scatlas.tl import umap as map_cells
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import UMAP, Leiden, Neighbors
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Integrate
from scatlas.workflow.sample import number_by_size

logger = logging.getLogger("scatlas")
MIXED = "X_pca_harmony"


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--umap", type=Path, required=True, help="umap.h5ad")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--integrated", type=Path, required=True, help="integrated.h5ad to write")
    add_sections(parser, integrate=Integrate, neighbors=Neighbors, umap=UMAP, leiden=Leiden)
    args = parser.parse_args(argv)
    wanted = read_section(args, "integrate", Integrate)
    neighbors = read_section(args, "neighbors", Neighbors)
    with script.recorded_run(args, outputs=[args.integrated]) as facts:
        adata = ad.read_h5ad(args.umap)
        label = wanted.label if wanted.label in adata.obs else None
        check_label(adata.obs, wanted.key, label)
        # The graph of umap.h5ad is of the one side of the correction, this step's of the other.
        basis, other = ("X_pca", "uncorrected") if wanted.use else (MIXED, "harmony")
        if not wanted.use:
            mix(adata, wanted, args.seed)
        cells = adata.obsm[basis]
        adata.obsm[basis] = on_backend(cells)
        find_neighbors(
            adata,
            neighbors.n_neighbors,
            neighbors.n_pcs,
            use_rep=basis,
            random_state=args.seed,
            key_added=other,
        )
        if wanted.umap:
            draw(adata, args, other)
        adata.obsm[basis] = cells
        graphs = {"before": "neighbors", "after": other}
        if wanted.use:
            graphs = {"before": other, "after": "neighbors"}
        table = scores(adata, wanted.key, label, graphs)
        for row in table.itertuples():
            logger.info("%s should be %s: %.3f before, %.3f after", *row[:2], *row[-2:])
        adata.uns["integrate"] = {"scores": table}
        with atomic_path(args.integrated) as path:
            write_h5ad(path, adata)
        facts |= {"n_cells": adata.n_obs, "n_comps": adata.obsm[MIXED].shape[1]}
        facts["scores"] = table[["score before", "score after"]].to_dict("index")


def check_label(obs: pd.DataFrame, keys: list[str], label: str | None) -> None:
    """Refuse to mix a column with the batches that the label has."""
    for name in [key for key in keys if label and key in obs]:
        pairs = obs[[name, label]].drop_duplicates()
        if len(pairs) == obs[name].nunique() == obs[label].nunique():
            raise InputError(
                f"obs[{name!r}] and obs[{label!r}] divide the cells alike, but integrate.key mixes "
                "the first and integrate.label keeps the second apart: change one of them, or set "
                "integrate.label to null"
            )


def mix(adata: ad.AnnData, wanted: Integrate, seed: int) -> None:
    """Add the mixed components of the sample."""
    for name in wanted.key:
        if name not in adata.obs:
            raise InputError(
                f"the plates have no obs column {name!r} in common, which integrate.key names; "
                f"they have {', '.join(adata.obs.columns)}"
            )
    adata.obsm[MIXED] = adata.obsm["X_pca"][:, : wanted.n_pcs]
    options = {"theta": wanted.theta, "max_iter_harmony": wanted.max_iter_harmony}
    harmony_integrate(adata, wanted.key, basis=MIXED, random_state=seed, **options)


def draw(adata: ad.AnnData, args: argparse.Namespace, other: str) -> None:
    """Map and clusters of the graph ``other``, beside those that are there."""
    min_dist = read_section(args, "umap", UMAP).min_dist
    resolution = read_section(args, "leiden", Leiden).resolution
    keys = {"random_state": args.seed, "neighbors_key": other}
    map_cells(adata, min_dist=min_dist, key_added=f"X_umap_{other}", **keys)
    leiden(
        adata,
        resolution,
        key_added=f"leiden_{other}",
        flavor="igraph",
        n_iterations=2,
        directed=False,
        **keys,
    )
    number_by_size(adata.obs, f"leiden_{other}")


def scores(
    adata: ad.AnnData, keys: list[str], label: str | None, graphs: dict[str, str]
) -> pd.DataFrame:
    """LISI of the columns to be mixed and of the one to stay apart, before and after."""
    rows = {}
    for name in dict.fromkeys([*keys, *([label] if label else [])]):
        n_values = adata.obs[name].nunique()
        apart = name not in keys
        row = {"should be": "apart" if apart else "mixed", "values": n_values}
        found = {}
        for when, graph in graphs.items():
            column = f"lisi_{name}" if graph == "neighbors" else f"lisi_{name}_{graph}"
            lisi(adata, name, neighbors_key=graph, key_added=column)
            found[when] = adata.obs[column].mean()
        row |= {f"LISI {when}": mean for when, mean in found.items()}
        # Luecken et al. (Nature Methods 2022) put both between 0 and 1, 1 being what is wanted.
        span = max(n_values - 1, 1)
        for when, mean in found.items():
            row[f"score {when}"] = (n_values - mean if apart else mean - 1) / span
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("column")


if __name__ == "__main__":
    script.run_main(main)
