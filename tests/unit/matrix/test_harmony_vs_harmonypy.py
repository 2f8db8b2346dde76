"""Harmony beside harmonypy 2.1: its six stored runs, from their start and order of cells.

And, where harmonypy is installed, the mixing of batches from each one's own start.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score

import scatlas as sa
from scatlas.compute.threads import use_threads
from scatlas.kernels.linalg import harmony_cpu
from scatlas.matrix import harmony_rounds as rounds
from scatlas.matrix import harmony_rows, harmony_tables
from scatlas.matrix.harmony import mix_rows, parse_batches, parse_options
from scatlas.matrix.harmony_tables import Mixed, first_centroids

CASES = (
    *("batch_of_one_cell", "fixed_ridge", "nested_tau", "one_column", "two_columns"),
    "type_missing_pruned",
)
NAMES = {
    "nclust": "n_clusters",
    "lamb": "ridge_lambda",
    "block_size": "block_proportion",
    "batch_prop_cutoff": "batch_prune_threshold",
    "max_iter_kmeans": "max_iter_clustering",
}


def read(case: str) -> dict[str, np.ndarray]:
    path = Path(os.environ.get("SCATLAS_TEST_DATA", ""), f"../refs/harmony/{case}.npz").resolve()
    if "SCATLAS_TEST_DATA" not in os.environ or not path.is_file():
        pytest.skip("there are no results of harmonypy: SCATLAS_TEST_DATA/../refs/harmony")
    with np.load(path) as file:
        return dict(file)


class Run(NamedTuple):
    moved: np.ndarray
    mixed: Mixed
    centroids: list[np.ndarray]  # before the regression of each round, and at the end
    shares: list[np.ndarray]  # at the end of each round


def run(case: dict[str, np.ndarray], n_rounds: int) -> Run:
    z, start, order = case["Z"], case["start_Y"], case["order"].astype(np.int64)
    given = json.loads(str(case["arguments"])) | {"max_iter_harmony": n_rounds}
    given = {NAMES.get(name, name): value for name, value in given.items()}
    given.pop("random_state", None)
    batches = parse_batches({str(i): pd.Categorical(c) for i, c in enumerate(case["batches"].T)})
    options = parse_options(batches, **given)
    moved = np.empty_like(z)
    own = rounds.Rounds(z, moved, batches, options, lambda n: order[min(n, len(order) - 1)], 0)
    centroids: list[np.ndarray] = []
    shares: list[np.ndarray] = []

    def add_products(own_shares: np.ndarray, *others: object) -> None:
        shares.append(own_shares.copy())
        centroids.append(own.centroids)
        harmony_cpu.add_products(own_shares, *others)

    own.kernels = SimpleNamespace(**vars(harmony_cpu) | {"add_products": add_products})
    mixed = own.mix(lambda _: start)
    # The last sums are those of the clusters, for new plates.
    return Run(moved, mixed, [*centroids[:-1], mixed.centroids], shares[:-1])


@pytest.mark.parametrize("name", CASES)
def test_rounds_are_those_of_harmonypy(name: str):
    """Each to the single precision in which both compute, in each round."""
    case = read(name)
    n_rounds = len(case["Z_corr"])
    whole = run(case, n_rounds + 3)
    assert len(whole.shares) == n_rounds, "it ends by itself"
    for number in range(n_rounds):
        moved = run(case, number + 1).moved
        # A processor's order of products moves a cell or two of the two hardest cases by more.
        off = np.abs(moved - case["Z_corr"][number])
        assert (off > 1e-5).sum() <= 2
        assert off.max() < 1.5e-5
        np.testing.assert_allclose(whole.shares[number], case["R"][number], rtol=0, atol=5e-6)
        np.testing.assert_allclose(
            whole.centroids[number + 1], case["Y"][number], rtol=0, atol=2e-6
        )
    np.testing.assert_array_equal(whole.moved, moved)
    for mine, theirs in (("passes", "objective_kmeans"), ("objectives", "objective_harmony")):
        np.testing.assert_allclose(getattr(whole.mixed, mine), case[theirs], rtol=1e-6, atol=5e-4)


def simulated(kind: str, n: int = 3000, n_comps: int = 20) -> ad.AnnData:
    """Cells of six types in three batches that are moved: of equal shares, unequal, one missing."""
    rng = np.random.default_rng(0)
    odds = np.ones((3, 6))
    if kind == "unequal":
        odds[0] = [8, 4, 2, 1, 1, 1]
        odds[2] = odds[0, ::-1]
    if kind == "missing":
        odds[1, :2] = 0
    batch = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    types = np.array([rng.choice(6, p=odds[b] / odds[b].sum()) for b in batch])
    x = rng.normal(0, 3, (6, n_comps))[types] + rng.normal(0, 1.5, (3, n_comps))[batch]
    x += rng.normal(0, 1, x.shape)
    obs = pd.DataFrame({"batch": batch, "type": types}, index=[f"c{i}" for i in range(n)])
    return ad.AnnData(obs=obs.astype(str), obsm={"X_pca": x.astype(np.float32)})


def of_plates(folder: Path) -> ad.AnnData:
    """Components of the five real plates, of which 2 and 4 have other protocols."""
    plates = {path.stem: ad.read_h5ad(path) for path in sorted(folder.glob("*.h5ad"))}
    adata = ad.concat(plates, label="batch", index_unique="-")
    adata.obs["type"] = adata.obs["cell_line"].astype(str)
    sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    sa.pp.highly_variable_genes(adata, n_top_genes=2000)
    sa.pp.pca(adata, 30)
    return adata


def scores(adata: ad.AnnData, basis: str) -> dict[str, float]:
    """iLISI, cLISI, ARI of clusters and types, and graph connectivity of the types."""
    sa.pp.neighbors(adata, 30, use_rep=basis)
    for column in ("batch", "type"):
        sa.tl.lisi(adata, column)
    sa.tl.leiden(adata, 0.3, flavor="igraph", n_iterations=2, directed=False)
    types, graph = adata.obs["type"].to_numpy(), adata.obsp["connectivities"]
    parts = [connected_components(graph[types == t][:, types == t])[1] for t in set(types)]
    return {
        "iLISI": adata.obs["lisi_batch"].mean(),
        "cLISI": adata.obs["lisi_type"].mean(),
        "ARI": adjusted_rand_score(types, adata.obs["leiden"]),
        "connectivity": np.mean([np.bincount(part).max() / part.size for part in parts]),
    }


@pytest.mark.parametrize("kind", ["equal", "unequal", "missing", "real plates"])
def test_batches_mix_and_types_stay_as_with_harmonypy(kind: str, request: pytest.FixtureRequest):
    run_harmony = pytest.importorskip("harmonypy").run_harmony
    real = kind == "real plates"
    adata = of_plates(request.getfixturevalue("plates_dir")) if real else simulated(kind)
    theirs = run_harmony(adata.obsm["X_pca"], adata.obs, ["batch"], verbose=False).Z_corr
    adata.obsm["theirs"] = np.asarray(theirs, np.float32)
    sa.pp.harmony_integrate(adata, "batch", adjusted_basis="ours")
    before, other, own = (scores(adata, basis) for basis in ("X_pca", "theirs", "ours"))
    assert own["iLISI"] > before["iLISI"] + 0.5
    assert own["iLISI"] > other["iLISI"] - 0.02
    # Seeds of either differ as much on the plates.
    assert own["cLISI"] < min(before["cLISI"], other["cLISI"]) + (0.015 if real else 0.002)
    assert own["ARI"] > max(before["ARI"], other["ARI"] - 0.05)
    assert own["connectivity"] > max(before["connectivity"], other["connectivity"] - 0.005)
    if not real:  # Both move the cells to the same places, but for their starts and orders.
        moved = adata.obsm["theirs"] - adata.obsm["X_pca"]
        apart = adata.obsm["ours"] - adata.obsm["theirs"]
        assert np.sqrt((apart**2).mean() / (moved**2).mean()) < 0.1


def test_no_bit_depends_on_threads_tasks_or_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    adata = simulated("unequal", 2000, 7)
    batches = parse_batches({"batch": adata.obs["batch"], "type": adata.obs["type"]})
    options = parse_options(batches, max_iter_harmony=2)
    z = adata.obsm["X_pca"]

    def mixed(threads: int, in_file: bool, max_runs: int = 300) -> np.ndarray:
        monkeypatch.setattr(rounds, "_MAX_RUNS", max_runs)
        monkeypatch.setattr(harmony_rows, "HARMONY_CELLS_IN_MEMORY", 0 if in_file else 10**6)
        with (
            use_threads(threads),
            harmony_rows.scratch_rows(*z.shape, tmp_path) as original,
            harmony_rows.scratch_rows(*z.shape, tmp_path) as moved,
        ):
            assert isinstance(moved, harmony_rows.FileRows) == in_file
            original[0:] = z
            own = rounds.Rounds(original, moved, batches, options, None, 5)
            own.mix(lambda x: first_centroids(x, options.n_clusters, np.random.default_rng(5)))
            return np.array(moved[0:2000])

    first = mixed(1, in_file=False)
    for threads, in_file in ((1, True), (2, False), (5, True)):
        np.testing.assert_array_equal(mixed(threads, in_file), first)
    cell_by_cell = mixed(2, in_file=False, max_runs=10**6)
    assert not np.array_equal(cell_by_cell, first)
    np.testing.assert_allclose(cell_by_cell, first, atol=0.05 * np.abs(z).max())


def test_memory_does_not_grow_with_cells_in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Beside what parsing the batches takes: the components alone have 80 bytes per cell."""
    monkeypatch.setattr(harmony_rows, "HARMONY_CELLS_IN_MEMORY", 0)
    monkeypatch.setattr(rounds, "_MAX_RUNS", 1000)
    monkeypatch.setattr(harmony_tables, "_START_CELLS", 5000)
    peaks = []
    for n in (20_000, 60_000):
        batch = pd.Categorical.from_codes(np.arange(n) * 3 // n, ["a", "b", "c"])
        with (
            harmony_rows.scratch_rows(n, 20, tmp_path) as original,
            harmony_rows.scratch_rows(n, 20, tmp_path) as moved,
            use_threads(2),
        ):
            for first in range(0, n, 10_000):
                rng = np.random.default_rng(first)
                original[first : first + 10_000] = rng.normal(size=(10_000, 20))
            tracemalloc.start()
            mixed = mix_rows(original, moved, {"batch": batch}, max_iter_harmony=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert len(mixed.objectives) == 2
    assert peaks[1] < peaks[0] + 40_000 * 40
