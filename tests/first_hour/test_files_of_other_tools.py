"""Files of other tools come in: by ``load`` with the right counts, and by ``scatlas init``."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pytest
import yaml

from scatlas.errors import InputError
from scatlas.io import load_plate
from scatlas.workflow.command_line.main import main
from scatlas.workflow.config.plate_sheet import read_plates
from tests.helpers import foreign_files
from tests.helpers.foreign_files import CELLS, FILES, GENES, IDS, N_CELLS, N_GENES

LEFT_OUT = {
    "cell_ranger_7": ["Antibody Capture", "CRISPR Guide Capture", "Multiplexing Capture"],
    "cell_ranger_9": ["Antigen Capture", "Custom"],
    "cell_ranger_2_barnyard": ["genome/mm10"],
    "symbols_in_var": ["raw/var has no column feature_name: taken from var", "118 of 120 rows"],
    "loom_velocyto": ["col_attrs/tsne", "the layers spliced, unspliced"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*zarr v3:UserWarning", "ignore:Consolidated:UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_counts_and_names_are_those_of_the_tool(folder: Path, name: str, capsys):
    write, file, counts_in = FILES[name]
    write(folder / file)
    by_id = name in ("cellxgene", "symbols_in_var")
    symbols = "feature_name" if by_id else None
    facts = load_plate(
        folder / file, folder / "counts.zarr", plate="p", counts_in=counts_in, gene_names=symbols
    )
    found, expected = ad.read_zarr(folder / "counts.zarr"), foreign_files.counts()
    np.testing.assert_array_equal(found.X.toarray(), expected.toarray())
    assert list(found.obs_names) == CELLS
    assert list(found.var_names) == (IDS if by_id else GENES)
    assert facts["n_mt_genes"] == 4
    for words in LEFT_OUT.get(name, ()):
        assert any(words in notice for notice in facts["notices"]), facts["notices"]
    if name.startswith("loom"):
        assert list(found.var["Accession"]) == IDS
        np.testing.assert_array_equal(found.obs["total"], found.obs["total_counts"])

    if "line" in found.obs:
        assert list(found.obs["line"]) == ["a", "b"] * (N_CELLS // 2)

    if "some" in found.obs:
        assert list(found.obs["some"].astype(object).fillna("gap")) == ["known", "gap"] * 30

    assert main(["init", file]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    config = yaml.safe_load(Path("atlas.yaml").read_text())
    (row,) = read_plates("plates.tsv")
    assert row.n_cells == N_CELLS
    assert config["source"] == {"counts": counts_in}
    assert config["qc"]["mt_prefix"] == "MT-"
    assert config["qc"].get("gene_names") == symbols
    assert f"{N_CELLS}     {N_GENES}" in " ".join(said.split(" "))


def test_layers_of_loom_are_taken_by_name(folder: Path):
    foreign_files.loom_velocyto(folder / "v.loom")
    facts = load_plate(folder / "v.loom", folder / "s.zarr", plate="p", counts_in="layers/spliced")
    half = foreign_files.counts().toarray() // 2
    np.testing.assert_array_equal(ad.read_zarr(folder / "s.zarr").X.toarray(), half)
    assert facts["total_counts"] == half.sum()
    for wrong in ("raw", "layers/no"):
        line = f"a Loom file with no {wrong}: write X or layers/spliced or layers/unspliced in"
        with pytest.raises(InputError, match=line):
            load_plate(folder / "v.loom", folder / "n.zarr", plate="p", counts_in=wrong)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: f.__delitem__("row_attrs/Gene"), None),
        (lambda f: [f.__delitem__(f"row_attrs/{n}") for n in ("Gene", "Accession")], "add Gene"),
        (lambda f: f.__delitem__("col_attrs/CellID"), "which name the cells: add CellID"),
        (lambda f: f["matrix"].__setitem__((3, 7), -1), "matrix holds -1, a negative value, at"),
        (lambda f: f["matrix"].__setitem__((3, 7), 0.5), "matrix holds 0.5, a fractional value"),
        (lambda f: f["matrix"].resize((N_GENES, 50)), "col_attrs/CellID has 60 values, but matrix"),
    ],
)
def test_damaged_loom(folder: Path, spoil, sentence: str | None):
    foreign_files.loom_3(folder / "p.loom")
    with h5py.File(folder / "p.loom", "r+") as file:
        spoil(file)
    if sentence is None:  # genes have another name
        load_plate(folder / "p.loom", folder / "p.zarr", plate="p")
        assert list(ad.read_zarr(folder / "p.zarr").var_names) == IDS
        return
    with pytest.raises(InputError, match=sentence):
        load_plate(folder / "p.loom", folder / "p.zarr", plate="p", block_budget="60kB")
    assert sorted(path.name for path in folder.iterdir()) == ["p.loom"]


def test_repeated_genes_of_loom_get_numbers(folder: Path):
    foreign_files.loom_3(folder / "p.loom")
    with h5py.File(folder / "p.loom", "r+") as file:
        file["row_attrs/Gene"][5] = "GENE4"
    facts = load_plate(folder / "p.loom", folder / "p.zarr", plate="p")
    assert ad.read_zarr(folder / "p.zarr").var_names[5] == "GENE4-1"
    assert "1 repeated gene names: made unique by a number at the end" in facts["notices"]


def test_loom_is_read_in_blocks_of_chunks(folder: Path):
    """A file of 200 MB, of which a block has 1.4 MB: the whole never is in memory."""
    from scatlas.io.matrices.counts_source import open_counts

    with h5py.File(folder / "p.loom", "w") as file:
        shape = (10_000, 5_000)
        matrix = file.create_dataset("matrix", shape, "f4", chunks=(500, 64), compression="gzip")
        matrix[:, 100:120] = 2
        file["row_attrs/Gene"] = [f"g{i}" for i in range(shape[0])]
        file["col_attrs/CellID"] = [f"c{i}" for i in range(shape[1])]
    with open_counts(folder / "p.loom") as source:
        cut, read = source.blocks(64_000_000, print)
        assert {stop - first for first, stop in cut[:-1]} == {64}
        blocks = [read(i) for i in range(4)]
    assert [block.nnz for block in blocks] == [0, 200_000, 0, 0]
    assert all(block.shape[1] == 10_000 for block in blocks)
