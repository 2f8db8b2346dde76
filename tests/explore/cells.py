"""Small atlases for tests of explore.html, with hostile names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
from scipy import sparse

from scatlas.io import CsrWriter, write_cells
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.matrix.measured_genes import MeasuredGenes
from scatlas.workflow.config.sections import Explore
from scatlas.workflow.explore import MapCells, build, choose, count_pixels
from scatlas.workflow.explore._cells import MapPixels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scatlas.matrix.map_pixels import SparseCounts
    from scatlas.workflow.explore._choose import PageColumn

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "\"quotes\" 'and' `more`",
    "</script><b>bold</b>",
    "🧬 emoji 日本語",
    "a\tb & c",
    "toString",
    "__proto__",
]
PLATES = ("p1", "p2", "p10")


def sample(n: int = 1200, *, n_levels: int = 12, seed: int = 0) -> ad.AnnData:
    """Cells of three plates, in clusters; ``group`` has ``n_levels`` values, hostile ones first."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 12, n)
    middle = np.stack([cluster % 4, cluster // 4], axis=1) * 4.0
    names = HOSTILE + [f"level {i}" for i in range(len(HOSTILE), n_levels)]
    counts = rng.poisson(0.3 + 2 * (np.arange(60)[None] % 12 == cluster[:, None]))
    score = rng.normal(cluster, 0.2)
    score[::50] = np.nan
    obs = pd.DataFrame(
        {
            "plate": pd.Categorical.from_codes(np.arange(n) * 3 // n, PLATES),
            "leiden": pd.Categorical.from_codes(cluster, [str(i) for i in range(12)]),
            "group": pd.Categorical.from_codes(rng.integers(0, n_levels, n), names),
            "phase": rng.choice(["G1", "S", "G2M"], n).astype(object),
            "score": score,
            "total_counts": counts.sum(axis=1),
            "same": "x",
            "barcode": [f"code {i}" for i in range(n)],
            "atlas_row": np.arange(n) * 7,
        },
        index=[f"cell{i}" for i in range(n)],
    )
    obs.loc[obs.index[::17], "leiden"] = np.nan
    var = pd.DataFrame({"dispersions_norm": np.arange(60.0)})
    var.index = [f"GENE{i}" for i in range(60)]
    xy = (middle + rng.normal(size=(n, 2))).astype(np.float32)
    x = sparse.csr_matrix(np.log1p(counts).astype(np.float32))
    return ad.AnnData(x, obs=obs, var=var, obsm={"X_umap": xy})


class Made(NamedTuple):
    """A page with what it was made of."""

    page: Path
    cells: ad.AnnData
    columns: list[PageColumn]
    genes: list[str]
    total: MapPixels
    facts: dict[str, int]


def make_page(
    folder: Path,
    cells: ad.AnnData,
    *,
    times: int = 1,
    mixed: ad.AnnData | None = None,
    markers: Path | None = None,
    measured: MeasuredGenes | None = None,
    effects: Path | None = None,
    **wanted: object,
) -> Made:
    """Build the page as the script does.

    Parameters
    ----------
    times
        Count each cell this often, as if the atlas had as many cells.
    mixed
        The same cells with a second map.
    wanted
        Keys of the config's section ``explore``.
    """
    write_h5ad(folder / "umap.h5ad", cells)
    found, config = MapCells(folder / "umap.h5ad"), Explore(**wanted)
    columns, genes = choose(found, found, config, markers, measured)
    total = multiplied(count_pixels(found, found, columns), times)
    if mixed is not None:
        write_h5ad(folder / "integrated.h5ad", mixed)
    facts = build(
        folder / "explore.html",
        total,
        found,
        found,
        mixed=MapCells(folder / "integrated.h5ad") if mixed is not None else None,
        columns=columns,
        genes=genes,
        markers=markers,
        n_points=config.points,
        max_bytes=int(config.max_mb * 1e6),
        measured=measured,
        effects=effects,
    )
    names = [gene.name for gene in genes]
    return Made(folder / "explore.html", cells, columns, names, total, facts)


def effects_of(folder: Path, groups: Sequence[str] = ("A549", HOSTILE[0])) -> ad.AnnData:
    """Effects of five conditions on 3,000 genes, which ``effects.h5ad`` in the folder has: the
    stronger, the higher the dose; GENE0 and on are the page's.
    """
    rng = np.random.default_rng(0)
    doses = [f"[('drug x', {dose}, 'uM')]" for dose in (5.0, 0.05, 0.5)]
    conditions, sizes = [*doses, "level 8", HOSTILE[1]], [60, 5, 20, 40, 0]
    labels = [(group, name) for group in groups for name in conditions]
    obs = pd.DataFrame(labels, columns=["line", "group"]).iloc[:-1]
    t = rng.normal(0, 0.3, (len(obs), 3000))
    for row in range(len(t)):
        n = sizes[row % 5]
        t[row, :n] = np.linspace(20, 10, n) * rng.choice([-1, 1], n)
        obs.loc[obs.index[row], "n_significant"] = n
    t[:, -1] = np.nan
    obs = obs.astype({"n_significant": int}).assign(model=[groups.index(g) for g in obs["line"]])
    found = ad.AnnData(
        (t / 5).astype(np.float32),
        obs=obs.set_axis([f"row {i}" for i in range(len(obs))]),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(3000)]),
        layers={"t": t.astype(np.float32)},
        varm={"df": np.full((3000, len(groups)), 30.0)},
        uns={"effects": {"condition": "group", "control": HOSTILE[2]}},
    )
    write_h5ad(folder / "effects.h5ad", found)
    return found


def plate_of(cells: ad.AnnData, folder: Path) -> tuple[MeasuredGenes, sparse.csr_matrix]:
    """A plate that measures 30 genes more, with symbols SYM0 and so on of all; and the counts of
    these in all its cells, of which ``atlas_row`` are the sample.
    """
    n = int(cells.obs["atlas_row"].max()) + 1
    counts = sparse.random(n, 30, 0.2, "csr", np.float32, 0, lambda k: np.ones(k))
    names = [f"GENE{i}" for i in range(60)] + [f"MEASURED {i}" for i in range(30)]
    symbols = pd.DataFrame({"feature_name": [f"SYM{i}" for i in range(90)]}, index=names)
    x = sparse.hstack([sparse.csr_matrix((n, 60), dtype=np.float32), counts]).tocsr()
    with CsrWriter(folder / "counts.zarr", n_vars=90, var=symbols) as writer:
        writer.append(x)
    table = pd.DataFrame({"row": np.arange(n), "size_factor": np.full(n, 0.5)})
    write_cells(folder / "factors.parquet", table, [np.arange(n).astype(str).astype(object)])
    stores = {"p1": folder / "counts.zarr"}, {"p1": folder / "factors.parquet"}
    return MeasuredGenes(*stores), counts


def multiplied(found: MapPixels, times: int) -> MapPixels:
    def more(counts: SparseCounts) -> SparseCounts:
        return counts._replace(counts=counts.counts * times)

    return MapPixels(
        more(found.cells),
        {name: more(counts) for name, counts in found.levels.items()},
        found.wide_cells * times,
        found.wide_pixel,
        [sums * times for sums in found.numbers],
    )
