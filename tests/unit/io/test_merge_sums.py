"""The plates' sums in one h5ad: same and differing genes, labels, names, groups without cells."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from scatlas.errors import InputError
from scatlas.io import CsrWriter, merge_sums

GENES = [f"g{i}" for i in range(30)]


def write(path: Path, genes: list[str], names: list[str], seed: int) -> ad.AnnData:
    """A plate's store of sums, some of which int32 does not hold, and the same in memory."""
    rng = np.random.default_rng(seed)
    x = sparse.csr_matrix(rng.poisson(0.5, (len(names), len(genes))) * rng.choice([1, 2**33]))
    obs = pd.DataFrame(
        {"line": pd.Categorical(names), "n_obs_aggregated": rng.integers(1, 9, len(names))},
        index=names,
    )
    var = pd.DataFrame(
        {"mt": [g in {"g1", "g2"} for g in genes], "n": rng.random(len(genes))}, index=genes
    )
    with CsrWriter(path, n_vars=len(genes), data_dtype=np.int64, var=var, obs=obs) as writer:
        for row in range(len(names)):
            writer.append(x[row])
    return ad.AnnData(X=x, obs=obs, var=var)


def assert_merged(out: Path, plates: dict[str, ad.AnnData]) -> ad.AnnData:
    found = ad.read_h5ad(out)
    expected = ad.concat(plates, label="plate", merge="same", index_unique="-")
    assert found.X.dtype == np.int64
    assert (found.X != expected.X).nnz == 0
    assert found.var_names.tolist() == expected.var_names.tolist()
    assert found.var.columns.tolist() == ["mt"]
    for column in ("line", "plate", "n_obs_aggregated"):
        assert found.obs[column].tolist() == expected.obs[column].tolist()
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []
    return found


def test_same_genes(tmp_path):
    plates = {
        "p1": write(tmp_path / "p1", GENES, ["a", "b", "c"], 1),
        "p2": write(tmp_path / "p2", GENES, ["b", "d"], 2),
    }
    out = tmp_path / "out" / "sums.h5ad"
    labels = {"p1": {"donor": "x"}, "p2": {"donor": "y"}}
    facts = merge_sums({p: tmp_path / p for p in plates}, out, labels=labels)
    found = assert_merged(out, plates)
    assert found.obs_names.tolist() == ["a", "b-p1", "c", "b-p2", "d"]
    assert found.obs["donor"].tolist() == list("xxxyy")
    assert facts["plates"] == {"p1": 3, "p2": 2}
    assert (facts["n_groups"], facts["n_genes"]) == (5, 30)
    assert facts["n_values"] == found.X.nnz
    before = out.read_bytes()
    merge_sums({p: tmp_path / p for p in plates}, out, labels=labels)
    assert out.read_bytes() == before


def test_genes_that_every_plate_has_in_the_order_of_the_first(tmp_path):
    rng = np.random.default_rng(0)
    order = rng.permutation(GENES).tolist()
    plates = {
        "p1": write(tmp_path / "p1", GENES[3:], ["a", "b"], 1),
        "p2": write(tmp_path / "p2", order[5:], ["c"], 2),
        "p3": write(tmp_path / "p3", GENES[::-1], ["d", "e"], 3),
    }
    stores = {p: tmp_path / p for p in plates}
    shared = [g for g in GENES[3:] if g in order[5:]]
    merge_sums(stores, tmp_path / "out" / "sums.h5ad", genes="intersect")
    assert_merged(tmp_path / "out" / "sums.h5ad", {p: x[:, shared] for p, x in plates.items()})
    merge_sums(stores, tmp_path / "out" / "sums.h5ad", genes="union")
    union = list(dict.fromkeys([*GENES[3:], *order[5:], *GENES[::-1]]))
    assert set(union) == set(GENES)
    outer = ad.concat({p: ad.AnnData(x.X, x.obs, x.var[[]]) for p, x in plates.items()},
                      join="outer", fill_value=0)  # fmt: skip
    found = ad.read_h5ad(tmp_path / "out" / "sums.h5ad")
    assert found.var_names.tolist() == union
    assert (found.X != outer[:, union].X).nnz == 0
    assert found.X.dtype == np.int64
    assert found.var["mt"].dtype == bool
    with pytest.raises(InputError, match=r"gene 1 of plate p2 is 'g4', of plate p1 'g3'"):
        merge_sums(stores, tmp_path / "out" / "other.h5ad")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sums.h5ad"]
