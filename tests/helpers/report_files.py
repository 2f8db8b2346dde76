"""Files of a run as the workflow's steps write them, and the report of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import zarr

from scatlas.io.files.checksums import write_json
from scatlas.workflow.report import Results, build

CAPTIONS = Path(__file__).parents[2] / "workflow" / "report"
CONFIG = {
    "title": None,
    "outdir": "runs/demo",
    "plates": "config/plates.tsv",
    "seed": 0,
    "qc": {"filter": "pass_filter == 'full'", "min_genes": 200, "max_pct_mt": 20.0},
    "consensus": {"min_plates": 2},
    "scale": None,
    "report": {"colors": ["cell_line", "plate", "no such column", "leiden"]},
    "explore": {"page": True, "columns": [], "genes": [], "n_genes": 300, "max_mb": 30},
}


def make_results(
    folder: Path,
    *,
    n_plates: int = 3,
    n_cells: int = 200,
    n_lines: int = 4,
    n_comps: int = 12,
    cell_line: bool = True,
) -> Results:
    """Files of a run as the workflow's steps write them."""
    rng = np.random.default_rng(0)
    plates = [f"plate{i + 1}" for i in range(n_plates)]
    genes = [f"gene{i}" for i in range(60)]
    paths: dict[str, dict[str, Path]] = {"qc": {}, "summaries": {}, "hvg": {}}
    for i, plate in enumerate(plates):
        at = folder / "plates" / plate
        at.mkdir(parents=True)
        counts = np.exp(rng.normal(8, 0.7, n_cells)).astype(np.int64)
        n_genes = (counts**0.8).astype(np.int64)
        mt = rng.gamma(3, 2, n_cells).clip(0, 100)
        keep = (n_genes >= 200) & (mt <= 20)
        table = pd.DataFrame(
            {
                "total_counts": counts,
                "n_genes_by_counts": n_genes,
                "total_counts_mt": (counts * mt / 100).astype(np.int64),
                "pct_counts_mt": mt,
                "keep": keep,
            },
            index=[f"{plate}-{j}" for j in range(n_cells)],
        )
        few = int((n_genes < 200).sum())
        summary = {
            "plate": plate,
            "n_cells": n_cells,
            "n_kept": int(keep.sum()),
            "n_genes": 60,
            "removed": {"min_genes": few, "max_pct_mt": int((~keep).sum()) - few},
            "thresholds": {"filter": None, "min_genes": 200, "max_pct_mt": 20.0},
            "median_counts": float(table.loc[keep, "total_counts"].median()),
            "median_genes": float(table.loc[keep, "n_genes_by_counts"].median()),
        }
        hvg = pd.DataFrame({"means": 1.0, "dispersions": 1.0, "dispersions_norm": 1.0}, index=genes)
        hvg["highly_variable"] = np.arange(60) % (i + 2) == 0
        paths["qc"][plate] = at / "qc.parquet"
        paths["summaries"][plate] = at / "qc_summary.json"
        paths["hvg"][plate] = at / "hvg.parquet"
        table.to_parquet(paths["qc"][plate])
        write_json(paths["summaries"][plate], summary)  # as the step does: keys are sorted
        hvg.rename_axis("gene").to_parquet(paths["hvg"][plate])
    sets = [
        set(pd.read_parquet(path).query("highly_variable").index) for path in paths["hvg"].values()
    ]
    chosen = [gene for gene in genes if sum(gene in one for one in sets) >= 2]
    (folder / "consensus_genes.tsv").write_text("gene\n" + "".join(f"{g}\n" for g in chosen))

    store = zarr.open_group(folder / "pca.zarr", mode="w")
    ratio = 0.3 / np.arange(1, n_comps + 1) ** 1.5
    store["variance_ratio"] = ratio
    store["variance"] = ratio * 50

    n = n_plates * n_cells
    which = rng.integers(0, n_lines, n)
    obs = pd.DataFrame(index=[f"c{i}" for i in range(n)])
    obs["plate"] = pd.Categorical(rng.choice(plates, n), categories=plates)
    if cell_line:
        obs["cell_line"] = pd.Categorical([f"CVCL_{100 + i}" for i in which])
    obs["leiden"] = pd.Categorical(which.astype(str), sorted(set(which.astype(str)), key=int))
    adata = ad.AnnData(np.ones((n, 3), np.float32), obs=obs)
    centres = rng.normal(size=(n_lines, 2)) * 10
    adata.obsm["X_umap"] = (centres[which] + rng.normal(size=(n, 2))).astype(np.float32)
    adata.write_h5ad(folder / "umap.h5ad")

    for rule, names in {"umap": [""], "load": plates, "own_rule": [""]}.items():
        records = folder / "manifests" / (rule if names[0] else "") / "runs"
        records.mkdir(parents=True, exist_ok=True)
        for i, name in enumerate(names):
            record: dict[str, float] = {"seconds": 1.5 + i}
            if rule != "own_rule":
                record |= {"peak_memory_bytes": (100.5 + i) * 2**20, "processor_seconds": 2.0 + i}
            (records / f"{name or rule}.json").write_text(json.dumps(record))
    return Results(
        **paths,
        genes=folder / "consensus_genes.tsv",
        pca=folder / "pca.zarr",
        umap=folder / "umap.h5ad",
        manifests=folder / "manifests",
    )


def make_report(folder: Path, results: Results, config: dict[str, Any] = CONFIG) -> dict[str, int]:
    return build(
        results,
        config,
        captions=CAPTIONS,
        figures=folder / "figures",
        tables=folder / "tables",
        page=folder / "report.html",
    )
