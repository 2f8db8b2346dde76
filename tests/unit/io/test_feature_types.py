"""Features that are no genes, in every format; matrices of probes."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import load_plate, split_samples
from scatlas.io.matrices.counts_source import gene_names
from scatlas.io.tables.genes import genes_of_types
from scatlas.workflow.command_line.plate_facts import read_facts
from scatlas.workflow.config.plate_sheet import find_plates
from tests.helpers.files import files
from tests.helpers.plates import write

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*zarr v3:UserWarning", "ignore:Consolidated:UserWarning", "ignore:Variable names"
)
GENE, ANTIBODY, GUIDE = "Gene Expression", "Antibody Capture", "CRISPR Guide Capture"
TYPES = [ANTIBODY, *[GENE] * 12, GUIDE, *[GENE] * 8, ANTIBODY]
IS_GENE = np.array(TYPES) == GENE
LEFT_OUT = [f"2 features of type {ANTIBODY!r} are left out", f"1 features of type {GUIDE!r} are"]


def cite_seq() -> ad.AnnData:
    """Antibodies and a guide among the genes, with columns of several kinds."""
    n = len(TYPES)
    x = sp.csr_matrix(np.random.default_rng(1).poisson(0.7, (30, n)).astype(np.float32))
    var = pd.DataFrame(index=[f"MT-{i}" if i < 4 else f"G{i}" for i in range(n)])
    var["gene_ids"], var["feature_types"] = [f"ENSG{i}" for i in range(n)], pd.Categorical(TYPES)
    var["length"], var["coding"] = np.arange(n), np.arange(n) % 2 == 0
    var["alias"] = pd.array([None if i % 5 else f"A{i}" for i in range(n)], dtype="string")
    obs = pd.DataFrame({"sample": ["a", "b"] * 15}, index=[f"c{i}" for i in range(30)])
    return ad.AnnData(x, obs=obs, var=var)


def stored(adata: ad.AnnData, how: str) -> ad.AnnData:
    """The same counts as another element or in another layout."""
    adata = adata.copy()
    if how in {"csc", "dense"}:
        adata.X = sp.csc_matrix(adata.X) if how == "csc" else adata.X.toarray()
    elif how == "layers/counts":
        adata.layers["counts"], adata.X = adata.X, adata.X * 0.5
    elif how == "raw":
        adata.raw = adata
        adata = adata[:, 3:9].copy()
    return adata


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
@pytest.mark.parametrize("how", ["csr", "csc", "dense", "layers/counts", "raw"])
def test_the_plate_is_that_of_the_genes_alone(tmp_path: Path, kind: str, how: str):
    adata, counts_in = cite_seq(), how if how in {"raw", "layers/counts"} else "X"
    source, genes = tmp_path / f"all.{kind}", tmp_path / f"genes.{kind}"
    for path, part in ((source, adata), (genes, adata[:, IS_GENE].copy())):
        write(stored(part, how), path, 3)
    options = {"plate": "p", "counts_in": counts_in, "reference_counts_in": counts_in}
    wanted = load_plate(genes, tmp_path / "wanted.zarr", reference=source, **options)
    found = load_plate(source, tmp_path / "found.zarr", reference=genes, **options)
    assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")
    notices = [notice for notice in found["notices"] if notice not in wanted["notices"]]
    assert [n[: len(LEFT_OUT[1])] for n in notices] == [n[: len(LEFT_OUT[1])] for n in LEFT_OUT]
    assert list(gene_names(source, counts_in)) == list(adata.var_names[IS_GENE])
    if how != "raw":  # X, which init sees first, holds counts, too
        facts, names = read_facts("p", str(source))
        assert (facts.n_genes, len(names), facts.n_mt) == (20, 20, 3)
        assert set(LEFT_OUT[:1]) < set(facts.notices)
        assert facts.metrics.equals(read_facts("p", str(genes))[0].metrics)
    stores = {name: tmp_path / f"{name}.zarr" for name in "ab"}
    split_samples(source, stores, by="sample", counts_in=counts_in)
    assert ad.read_zarr(stores["a"]).var_names.equals(adata.var_names[IS_GENE])
    np.testing.assert_array_equal(
        ad.read_zarr(stores["b"]).X.toarray(), adata[1::2, IS_GENE].X.toarray()
    )


def test_loom_and_raw_by_the_types_of_var(tmp_path: Path):
    """``raw.var`` without types has those of ``var``; a gene that this lacks is a gene."""
    adata = cite_seq()
    with h5py.File(tmp_path / "a.loom", "w") as file:
        file["matrix"] = adata.X.toarray().T
        file["row_attrs/Gene"] = adata.var_names.to_numpy("S")
        file["row_attrs/feature_types"] = np.array(TYPES, "S")
        file["col_attrs/CellID"] = adata.obs_names.to_numpy("S")
    raw = adata.copy()
    del raw.var["feature_types"]
    adata = adata[:, :20].copy()
    adata.raw = raw
    adata.write_h5ad(tmp_path / "a.h5ad")
    for name, counts_in, n_wanted in (("a.loom", "X", 20), ("a.h5ad", "raw", 21)):
        load_plate(tmp_path / name, tmp_path / "out.zarr", plate="p", counts_in=counts_in)
        plate = ad.read_zarr(tmp_path / "out.zarr")
        wanted = raw[:, IS_GENE | (np.arange(len(TYPES)) == 22) & (n_wanted == 21)]
        assert list(plate.var_names) == list(wanted.var_names)
        np.testing.assert_array_equal(plate.X.toarray(), wanted.X.toarray())


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        ([GENE, GENE], ([], None)),
        ([GENE, "Peaks"], (["1 features of type 'Peaks' are left out"], [True, False])),
        (["GEX", "ADT"], (["1 features of type 'ADT' are left out"], [True, False])),
        (["unknown"] * 2, "the type of all features is 'unknown': they are taken as genes"),
        (["", "NA"], "the type of all features is '' and 'NA': they are taken as genes"),
        (["protein_coding"] * 2, "the type of all features is 'protein_coding': they are taken"),
        ([ANTIBODY] * 2, InputError("no feature is of type 'Gene Expression' in here, which")),
        (["Peaks", GUIDE], InputError("holds 'Peaks' and 'CRISPR Guide Capture': give a matrix")),
        ([GENE, ""], InputError("f: feature 2 has no type in here, though others have: write")),
    ],
)
def test_types(types: list[str], wanted):
    notices: list[str] = []

    def found():
        return genes_of_types("f", "here", np.array(types, object), notices.append)

    if isinstance(wanted, InputError):
        with pytest.raises(InputError, match=str(wanted)):
            found()
    elif isinstance(wanted, str):
        assert found() is None
        assert [notice[: len(wanted)] for notice in notices] == [wanted]
    else:
        mask = found()
        assert (notices, mask if mask is None else list(mask)) == wanted


def write_probes(path: Path, *, marked: bool) -> None:
    """Three probes of each gene; ``marked`` has the columns of Space Ranger."""
    x = sp.csr_matrix(np.random.default_rng(2).poisson(0.7, (20, 30)))
    genes = [f"G{i // 3}" for i in range(30)]
    lists = {"name": genes, "feature_type": [GENE] * 30, "genome": ["GRCh38"] * 30}
    lists["id"] = [f"ENSG{g}|{g}|{i:07x}" for i, g in enumerate(genes)]
    if marked:
        lists |= {"gene_id": [f"ENSG{g}" for g in genes], "probe_region": ["spliced"] * 30}
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(x, name).astype(np.int64)
        group["shape"], group["barcodes"] = [30, 20], np.array([f"c{i}" for i in range(20)], "S")
        for name, values in lists.items():
            group[f"features/{name}"] = np.array(values, "S")


@pytest.mark.parametrize("marked", [True, False])
def test_probes_are_refused_with_the_matrix_of_the_genes(tmp_path: Path, marked: bool):
    path = tmp_path / "sample_raw_probe_bc_matrix.h5"
    write_probes(path, marked=marked)
    sc.read_10x_h5(path).write_h5ad(tmp_path / "probes.h5ad")
    for name, sibling in ((path.name, "sample_filtered_"), ("probes.h5ad", "filtered_")):
        for read in (gene_names, lambda p: load_plate(p, tmp_path / "o.zarr", plate="p")):
            with pytest.raises(InputError, match=rf"run, {sibling}feature_bc_matrix\.h5$"):
                read(tmp_path / name)
    assert find_plates(str(tmp_path)) == [str(tmp_path / "probes.h5ad")], "the other is left"
