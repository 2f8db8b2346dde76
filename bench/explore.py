"""Time, memory and size of explore.html for a simulated atlas.

The atlas has 60 clusters on 14 plates, 380 drugs, 50 cell lines, five numbers and 2,000 genes; each
fifth cell, or another share, is in the sample. Prints seconds, processor seconds and peak memory of
the job ``explore``, the bytes of the page, and leaves it for a look or for the browser.

    python bench/explore.py --cells 1000000 --folder build/explore
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import runner
from scipy import sparse

from scatlas.io.files.hdf5_writing import write_h5ad

N_GENES, GENES_PER_CELL = 2000, 100
LEVELS = {"leiden": 60, "plate": 14, "cell_line": 50, "drug": 380}
_TOOK = ("seconds", "processor_seconds", "peak_memory_bytes")


def main() -> None:
    parser = runner.parser(__doc__, cells=1_000_000)
    parser.add_argument("--step", type=int, default=5, help="each n-th cell is in the sample")
    parser.add_argument("--folder", type=Path, required=True, help="folder for all files")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    atlas, umap = args.folder / "atlas.zarr", args.folder / "umap.h5ad"
    if not atlas.exists():
        cells = simulate(args.cells)
        write_h5ad(umap, cells[:: args.step].copy())
        with warnings.catch_warnings(action="ignore"):  # zarr-python and anndata announce changes
            cells.write_zarr(atlas)
    manifest = args.folder / "explore.json"
    command = [sys.executable, runner.ROOT / "scripts/explore.py", "--cells", atlas, "--umap", umap]
    command += ["--html", args.folder / "explore.html", "--manifest", manifest, "--threads", "2"]
    subprocess.run(command, check=True)
    record = json.loads((args.folder / "runs/explore.json").read_text())
    facts = json.loads(manifest.read_text())
    lines = runner.head("anndata", "numpy", "zarr")
    lines.append(" ".join(f"{key} {record[key]}" for key in _TOOK))
    names = ("bytes", "n_cells", "n_points", "n_gene_points", "n_genes")
    lines += [f"{name} {facts[name]:,}" for name in names]
    runner.publish(lines, args.out)


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


if __name__ == "__main__":
    main()
