"""Time, memory and size of explore.html for a simulated atlas.

The sample has 60 clusters on 14 plates, 380 drugs, 50 cell lines, five numbers and 2,000 genes.
``--copies`` counts each cell of the sample several times, a little moved, so that the pixels are
those of a large atlas: 100 copies of 1,000,000 cells are 100,000,000. Prints seconds, processor
seconds and peak memory of the jobs ``explore_cells``, ``explore_plate`` (of one plate, and of all
cells as one plate) and ``explore``, the bytes of the page, and leaves it for a look or for the
browser.

    python bench/explore.py --cells 1000000 --copies 100 --folder build/explore
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from scipy import sparse

from scatlas.io.files.hdf5_elements import write_h5ad
from scatlas.matrix.map_pixels import (
    FIXED_POINT,
    MEANS_SIDE,
    SIDE,
    add_counts,
    box_of,
    count_levels,
    pixels,
    positions,
    sum_by_pixel,
)
from scatlas.workflow.config.sections import ExploreContent
from scatlas.workflow.explore import MapCells, choose, write_pixels
from scatlas.workflow.explore._choose import N_CODES
from scatlas.workflow.explore._pixels import PlatePixels, codes_of, count_cells

ROOT = Path(__file__).parents[1]
N_GENES, GENES_PER_CELL = 2000, 100
LEVELS = {"leiden": 60, "plate": 14, "cell_line": 50, "drug": 380}
_TOOK = ("seconds", "processor_seconds", "peak_memory_bytes")
MOVED = 0.15  # standard deviation of the copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1_000_000, help="cells of the sample")
    parser.add_argument("--copies", type=int, default=1, help="cells of the atlas per sampled one")
    parser.add_argument("--folder", type=Path, required=True, help="folder for all files")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    umap, counted = args.folder / "umap.h5ad", args.folder / "pixels.h5"
    if not umap.exists():
        write_h5ad(umap, simulate(args.cells))
    write_pixels(counted, count(MapCells(umap), args.copies))
    whole = args.folder / "whole.h5ad"
    if not whole.exists():
        cells = ad.read_h5ad(umap)
        cells.obs["plate"] = pd.Categorical(["all"] * cells.n_obs)
        write_h5ad(whole, cells)
    pixels = ["--pixels", args.folder / "one.h5"]
    page = ["--pixels", f"all={counted}", "--html", args.folder / "explore.html"]
    run(args.folder, "explore_cells", umap, umap, [])
    run(args.folder, "explore_plate", umap, umap, ["--plate", "plate 3", *pixels])
    run(args.folder, "explore_plate", whole, umap, ["--plate", "all", *pixels])
    facts = run(args.folder, "explore", umap, umap, page)
    for name in ("bytes", "n_cells", "n_points", "n_gene_points", "n_genes"):
        print(name, f"{facts[name]:,}")


def run(folder: Path, name: str, cells: Path, umap: Path, options: list[str | Path]) -> dict:
    """Run a script, print what it took, and return its facts."""
    manifest = folder / f"{name}.json"
    command = [sys.executable, ROOT / f"scripts/{name}.py", "--cells", cells, "--umap", umap]
    command += ["--manifest", manifest, "--threads", "2", *options]
    subprocess.run(command, check=True)
    record, facts = (
        json.loads(path.read_text()) for path in (folder / f"runs/{name}.json", manifest)
    )
    took = [f"{key} {record[key]}" for key in _TOOK]
    print(name, f"{facts.get('n_cells', 0):,} cells:", *took)
    return facts


def simulate(n: int) -> ad.AnnData:
    """Cells of clusters with arms, like those of a UMAP."""
    rng = np.random.default_rng(0)
    codes = {name: rng.integers(0, k, n) for name, k in LEVELS.items()}
    codes["plate"] = np.sort(codes["plate"])
    cluster = codes["leiden"] = rng.choice(60, n, p=rng.dirichlet(np.full(60, 2.0)))
    codes["cell_line"] = np.where(rng.random(n) < 0.8, cluster % 50, codes["cell_line"])
    middle = rng.uniform(-15, 15, (60, 2))
    bend, along = rng.uniform(-1.5, 1.5, (60, 2)), rng.normal(size=(n, 1))
    xy = middle[cluster] + along * bend[cluster] + 0.4 * along**2 * bend[cluster][:, ::-1]
    xy = (xy + rng.normal(scale=0.5, size=(n, 2))).astype(np.float32)
    obs = pd.DataFrame(
        {
            name: pd.Categorical.from_codes(values, [f"{name} {i}" for i in range(LEVELS[name])])
            for name, values in codes.items()
        }
    )
    for i in range(5):
        obs[f"score {i}"] = rng.normal(cluster % (i + 2), 1, n)
    obs["atlas_row"] = np.arange(n)
    barcodes = rng.integers(0, 4, (n, 12), dtype=np.uint8)
    words = np.array(list("ACGT"))[barcodes].view("U12").ravel().astype(object)
    obs.index = words + "-" + obs["plate"].astype(object).to_numpy()
    # Genes of a cell: mostly those of its cluster.
    genes = (cluster[:, None] * 31 + rng.integers(0, 200, (n, GENES_PER_CELL))) % N_GENES
    x = sparse.csr_matrix(
        (
            np.log1p(rng.gamma(2, 1, genes.size)).astype(np.float32),
            genes.ravel().astype(np.int32),
            np.arange(0, genes.size + 1, GENES_PER_CELL),
        ),
        shape=(n, N_GENES),
    )
    x.sum_duplicates()
    var = pd.DataFrame({"dispersions_norm": rng.random(N_GENES)})
    var.index = [f"GENE{i}" for i in range(N_GENES)]
    return ad.AnnData(x, obs=obs, var=var, obsm={"X_umap": xy})


def count(sample: MapCells, copies: int) -> PlatePixels:
    """Pixels of an atlas with this many cells for each one of the sample."""
    columns, genes = choose(sample, sample, ExploreContent(), None)
    n = sample.n_cells
    xy, rng = sample.coordinates(0, n), np.random.default_rng(1)
    box = box_of(xy)
    codes = {column.name: codes_of(sample, column, 0, n) for column in columns}
    parts: dict[str, list] = {name: [] for name in ["", *codes]}
    for _ in range(copies):
        moved = xy + rng.normal(scale=MOVED, size=xy.shape) * (copies > 1)
        places = positions(moved, box)
        found = {"": count_levels(pixels(places, SIDE), np.zeros(n, int), 1, SIDE**2)}
        for column in columns:
            if column.kind == "category":
                pixel = pixels(places, column.side)
                n_levels = len(column.levels)
                found[column.name] = count_levels(
                    pixel, codes[column.name], n_levels, column.side**2
                )
        for name, counts in found.items():
            parts[name] = [add_counts([*parts[name], counts])]
    coarse, n_pixels = pixels(positions(xy, box), MEANS_SIDE), MEANS_SIDE**2
    place = sample.var().index.get_indexer(genes)
    sums, first = [sparse.csr_matrix((n_pixels, len(genes)), dtype=np.int64)], 0
    for block in sample.expression(0, n, place):
        sums[0] = sums[0] + sum_by_pixel(block, coarse[first : first + block.shape[0]], n_pixels)
        first += block.shape[0]
    for column in columns:
        if column.kind == "number":
            values = codes[column.name]
            known = np.stack([np.where(values < N_CODES, values, 0), values < N_CODES], axis=1)
            sums.append(sum_by_pixel(known * FIXED_POINT, coarse, n_pixels))
    total = {name: part[0] for name, part in parts.items() if part}
    whole = PlatePixels(n * copies, total.pop(""), total, sparse.hstack(sums, format="csr"))
    # Means of the pixels stay those of the sample.
    factor = count_cells(whole) / np.maximum(np.bincount(coarse, minlength=n_pixels), 1)
    return whole._replace(sums=(sparse.diags(factor) @ whole.sums).tocsr().astype(np.int64))


if __name__ == "__main__":
    main()
