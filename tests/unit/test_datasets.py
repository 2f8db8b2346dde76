"""The simulated plates: what they promise the demo and the tests."""

from __future__ import annotations

import hashlib
import time

import anndata as ad
import h5py
import numpy as np
import pytest
import scanpy as sc
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from scatlas.datasets import (
    planted_effects,
    simulate_plate,
    simulate_plates,
    simulate_tissue,
    write_plate,
)
from scatlas.errors import InputError

SMALL = {"n_cells": 300, "n_genes": 600, "n_lines": 4, "n_drugs": 5}
TAHOE = [
    *("sample", "gene_count", "tscp_count", "mread_count", "drugname_drugconc", "drug"),
    *("cell_line", "sublibrary", "BARCODE", "pcnt_mito", "S_score", "G2M_score", "phase"),
    *("pass_filter", "cell_name", "plate"),
]


@pytest.fixture(scope="module")
def plates():
    return simulate_plates(n_plates=3, n_cells=700, n_genes=1200)


def same(a, b):
    assert a.obs.equals(b.obs)
    assert a.var.equals(b.var)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(a.X, part), getattr(b.X, part))


def test_a_plate_alone_equals_the_plate_of_a_set():
    both = simulate_plates(n_plates=2, **SMALL)
    assert list(both) == ["plate1", "plate2"]
    same(simulate_plate(2, **SMALL), both["plate2"])


def test_seeds_and_plates_differ():
    x = simulate_plate(1, **SMALL).X
    assert (x != simulate_plate(1, seed=1, **SMALL).X).nnz > 0
    assert (x != simulate_plate(2, **SMALL).X).nnz > 0


def test_layout_is_tahoes(plates):
    for i, (name, plate) in enumerate(plates.items(), 1):
        assert plate.shape == (700, 1200)
        assert list(plate.obs.columns) == TAHOE
        assert plate.obs.index.name == "BARCODE_SUB_LIB_ID"
        assert set(plate.obs["plate"]) == {name}
        assert isinstance(plate.X, csr_matrix)
        assert plate.X.data.dtype == np.float32
        assert plate.X.indices.dtype == plate.X.indptr.dtype == np.int64
        assert plate.X.has_canonical_format
        assert (plate.X.data == np.rint(plate.X.data)).all()
        assert plate.X.data.min() == 1
        wells = plate.obs.groupby("drug", observed=True)["sample"].nunique()
        assert wells.to_dict() == {"DMSO_TF": 3} | {f"drug_{i}": 1 for i in range(1, 8)}
        assert all(s.startswith(f"smp_1{i}") for s in plate.obs["sample"])
    names = np.concatenate([p.obs_names for p in plates.values()])
    assert len(set(names)) == names.size
    assert all(p.var_names.equals(plates["plate1"].var_names) for p in plates.values())
    assert plates["plate1"].var_names.is_unique
    assert plates["plate1"].var_names.str.startswith("MT-").sum() == 13


def test_obs_says_what_the_counts_say(plates):
    plate = plates["plate2"]
    dense = plate.X.toarray().astype(np.int64)
    mt = plate.var_names.str.startswith("MT-")
    total = dense.sum(axis=1)
    np.testing.assert_array_equal(plate.obs["tscp_count"], total)
    np.testing.assert_array_equal(plate.obs["gene_count"], (dense > 0).sum(axis=1))
    np.testing.assert_array_equal(plate.obs["pcnt_mito"], dense[:, mt].sum(axis=1) / total)
    assert (plate.obs["mread_count"] >= total).all()
    control = plate.obs["drug"] == "DMSO_TF"
    assert set(plate.obs["drugname_drugconc"][control]) == {"[('DMSO_TF', 0.0, 'uM')]"}
    assert (plate.obs["G2M_score"] > plate.obs["S_score"])[plate.obs["phase"] == "G2M"].mean() > 0.9


def test_tail_of_poor_cells(plates):
    obs = sc.concat(plates).obs
    poor = obs["pcnt_mito"] > 0.2  # simulated: 0.25 to 0.6 in poor cells, 0.06 in others
    assert 0.05 < poor.mean() < 0.11
    assert obs["tscp_count"][poor].median() < 0.3 * obs["tscp_count"][~poor].median()
    minimal = obs["pass_filter"] == "minimal"
    assert set(obs["pass_filter"]) == {"full", "minimal"}
    assert poor[minimal].mean() > 0.95
    assert 0.7 < minimal[poor].mean() < 0.97


def test_cell_lines_are_found_and_plates_and_drugs_show(plates):
    kept = []
    for plate in plates.values():
        good = (plate.obs["pass_filter"] == "full") & (plate.obs["pcnt_mito"] < 0.2)
        plate = plate[good].copy()
        sc.pp.normalize_total(plate)
        sc.pp.log1p(plate)
        kept.append(plate)
    adata = ad.concat(kept)
    lines, drugs = adata.obs["cell_line"], adata.obs["drug"]
    sc.pp.highly_variable_genes(adata, n_top_genes=400)
    sc.pp.pca(adata, n_comps=20)
    found = KMeans(6, n_init=4, random_state=0).fit_predict(adata.obsm["X_pca"])
    assert adjusted_rand_score(lines, found) > 0.99

    def explained(labels) -> float:
        """Share of the variance within lines that a label explains, over all genes."""
        x = adata.X.toarray()
        for line in lines.unique():
            x[lines == line] -= x[lines == line].mean(axis=0)
        means = sum((labels == v).sum() * x[labels == v].mean(axis=0) ** 2 for v in labels.unique())
        return float(means.sum() / (x**2).sum())

    rng = np.random.default_rng(0)
    chance = explained(drugs.sample(frac=1, random_state=0).set_axis(drugs.index))
    assert explained(drugs) > 1.5 * chance
    batch = adata.obs["plate"].astype(str)
    assert explained(batch) > 5 * explained(
        batch.set_axis(rng.permutation(batch.index))[batch.index]
    )


def test_counts_are_overdispersed():
    # One line, one drug: beyond Poisson even after the depth is taken out.
    plate = simulate_plate(1, n_cells=1500, n_genes=300, n_lines=1, n_drugs=1)
    x = plate[plate.obs["pcnt_mito"] < 0.2].X.toarray().astype(np.float64)
    depth = x.sum(axis=1, keepdims=True) / x.sum(axis=1).mean()
    high = x.mean(axis=0) > 5
    expected = depth * x.mean(axis=0)
    ratio = ((x - expected) ** 2 / expected).mean(axis=0)
    assert np.median(ratio[high]) > 1.5


def test_same_plate_same_bytes(tmp_path):
    plate = simulate_plate(1, **SMALL)
    before = plate.copy()
    digests = []
    for name in ("a.h5ad", "new/b.h5ad"):
        write_plate(tmp_path / name, plate)
        digests.append(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
        time.sleep(1.1)  # HDF5's time stamps count seconds
    assert digests[0] == digests[1]
    same(plate, before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5ad", "new"]
    with h5py.File(tmp_path / "a.h5ad") as file:
        assert file["X/indices"].dtype == file["X/indptr"].dtype == np.int64
        assert file["X/data"].compression == "gzip"
    back = ad.read_h5ad(tmp_path / "a.h5ad")
    same(back, plate)


@pytest.mark.parametrize(
    "wrong", [{"plate": 0}, {"n_cells": 0}, {"n_genes": 199}, {"n_lines": 0}, {"n_drugs": 0}]
)
def test_too_small_is_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(InputError, match=rf"{name} is {value}: simulated counts need at least"):
        simulate_plate(**{"plate": 1, **SMALL, **wrong})


def test_numbers_of_a_tissue_and_of_the_truth_are_checked():
    with pytest.raises(InputError, match="n_donors is 1: simulated counts need at least 2"):
        simulate_tissue(n_donors=1)
    with pytest.raises(InputError, match="plate is 0: simulated counts need at least 1"):
        planted_effects(n_plates=0)


@pytest.mark.parametrize("n_lines", [1, 3])
@pytest.mark.parametrize("n_drugs", [1, 2, 10])
def test_drugs_have_the_effects_of_their_kind(n_lines, n_drugs):
    sizes = {"n_genes": 300, "n_lines": n_lines, "n_drugs": n_drugs}
    truth = planted_effects(**sizes)
    n_rows = {1: 4, 2: 4, 3: 4 / n_lines}  # by the number of the drug: of the genes of each line
    for i in range(1, n_drugs):
        own = truth[truth["drug"] == f"drug_{i}"]
        genes = own["gene"].nunique()
        assert len(own) == n_rows.get(i % 4, 0) * n_lines * genes, i
        assert own["cell_line"].nunique() == {0: 0, 3: 1}.get(i % 4, n_lines)
        assert not own["gene"].str.startswith("MT-").any()
        of_gene = own.groupby(["cell_line", "gene"])["log2_fold_change"]
        ratio = of_gene.max().abs() / of_gene.min().abs()
        np.testing.assert_allclose(np.maximum(ratio, 1 / ratio), 3 if i % 4 == 2 else 1)
    assert "DMSO_TF" not in set(truth["drug"])
    plate = simulate_plate(2, n_cells=200, **sizes)
    labels = truth.loc[truth["plate"] == "plate2", "drugname_drugconc"]
    assert set(labels) <= set(plate.obs["drugname_drugconc"].cat.categories)


def test_tissue():
    tissue = simulate_tissue(n_donors=5, n_cells=60, n_genes=300, n_types=3)
    obs = tissue.obs
    assert tissue.shape == (300, 300)
    assert obs_of(obs, "donor") == {f"donor{i}": 60 for i in range(1, 6)}
    assert obs_of(obs.drop_duplicates("donor"), "disease") == {"healthy": 3, "diseased": 2}
    assert set(obs["cell_type"]) == {"type 1", "type 2", "type 3"}
    same(simulate_tissue(n_donors=5, n_cells=60, n_genes=300, n_types=3), tissue)
    changes = tissue.varm["log2_fold_change"]
    assert changes.index.equals(tissue.var_names)
    assert (changes != 0).sum().to_dict() == {"type 1": 10, "type 2": 10, "type 3": 0}


def obs_of(obs, name: str) -> dict[str, int]:
    return obs[name].value_counts().to_dict()


@pytest.mark.parametrize("size", [{"n_cells": 1}, {"n_lines": 1, "n_drugs": 1}, {"n_genes": 200}])
def test_small_plates(size):
    plate = simulate_plate(1, **{**SMALL, **size})
    assert plate.shape == (size.get("n_cells", 300), size.get("n_genes", 600))
    assert plate.obs_names.is_unique
