"""Matrices in Matrix Market's format, as split-pipe, kb-python, alevin and archives name them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import list_samples, load_plate, split_samples
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.workflow.command_line.find_files import find_files, find_samples
from scatlas.workflow.command_line.plate_facts import read_facts
from scatlas.workflow.config.plate_sheet import read_plates

N_CELLS, N_GENES = 30, 41
X = sp.csr_matrix(np.random.default_rng(0).poisson(0.7, (N_CELLS, N_GENES)))
GENES = [f"MT-{i}" if i < 3 else f"G{i}" for i in range(N_GENES)]
IDS = [f"ENSG{i:05}" for i in range(N_GENES)]
CELLS = [f"{i // 9 + 1:02}_{i % 9 + 1:02}_07__s1" for i in range(N_CELLS)]
SAMPLES = ["b 2" if i % 3 else "a" for i in range(N_CELLS)]


def lines(*columns: list[str], sep: str = "\t", head: str = "") -> str:
    return head + "".join(sep.join(row) + "\n" for row in zip(*columns, strict=True))


def write(folder: Path, files: dict[str, str | sp.spmatrix]) -> Path:
    """Texts, and matrices in Matrix Market's format, by their names; .gz is compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        stream = io.BytesIO(content.encode() if isinstance(content, str) else b"")
        if not isinstance(content, str):
            scipy.io.mmwrite(stream, content, field="integer", symmetry="general")
        data = stream.getvalue()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def split_pipe(matrix: str = "count_matrix.mtx", **tables: str) -> dict[str, str | sp.spmatrix]:
    names = [name if i != 7 else "" for i, name in enumerate(GENES)]
    genes = lines(IDS, names, ["hg38"] * N_GENES, sep=",", head="gene_id,gene_name,genome\n")
    head = "bc_wells,sample,species,gene_count,mread_count\n"
    numbers = [str(i) for i in range(N_CELLS)]
    cells = lines(CELLS, SAMPLES, ["hg38"] * N_CELLS, numbers, numbers, sep=",", head=head)
    texts = {"genes": genes, "cells": cells} | tables
    return {matrix: X, "all_genes.csv": texts["genes"], "cell_metadata.csv": texts["cells"]}


ONE_GENE, ONE_CELL = lines(IDS), lines(CELLS)
TWO = lines(IDS, GENES)
# Files of one plate: all are the same matrix.
LAYOUTS = {
    "split-pipe": split_pipe(),
    "split-pipe before 1.1, compressed": split_pipe("DGE.mtx.gz"),
    "kb-python": {
        "cells_x_genes.mtx": X,
        "cells_x_genes.genes.txt": ONE_GENE,
        "cells_x_genes.genes.names.txt": lines(GENES),
        "cells_x_genes.barcodes.txt": ONE_CELL,
        "cells_x_tcc.mtx": X[:3],
    },
    "alevin": {
        "quants_mat.mtx.gz": X,
        "quants_mat_cols.txt": ONE_GENE,
        "quants_mat_rows.txt": ONE_CELL,
    },
    "Expression Atlas": {
        "E-1.counts.mtx": X.T,
        "E-1.counts.mtx_rows": lines(IDS, IDS),
        "E-1.counts.mtx_cols": ONE_CELL,
    },
    "archive of Cell Ranger's files": {
        "GSM1_matrix.mtx.gz": X.T,
        "GSM1_features.tsv.gz": TWO,
        "GSM1_barcodes.tsv.gz": ONE_CELL,
    },
    "any names": {"counts.mtx": X.tocsc(), "gene_names.txt": ONE_GENE, "cells.csv": ONE_CELL},
}
WITHOUT_SYMBOLS = ("alevin", "Expression Atlas", "any names")


def read(path: Path, store: Path) -> ad.AnnData:
    load_plate(path, store, plate="p")
    return ad.read_zarr(store)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_is_a_plate_whatever_its_program(tmp_path: Path, layout: str):
    folder = write(tmp_path / "run", LAYOUTS[layout])
    matrix = folder / next(name for name in LAYOUTS[layout] if ".mtx" in name)
    for path in (folder, matrix):
        plate = read(path, tmp_path / f"{path.name}.zarr")
        np.testing.assert_array_equal(plate.X.toarray(), X.toarray())
        assert list(plate.obs_names) == CELLS
        assert list(plate.var["gene_ids"]) == IDS
        assert list(find_files([str(path)]).values()) == [str(path)]
    facts, genes = read_facts("p", str(folder))
    assert (facts.n_cells, list(genes)) == (N_CELLS, list(plate.var_names))
    assert plate.var_names[3] == (IDS[3] if layout in WITHOUT_SYMBOLS else "G3")


def test_tables_of_split_pipe(tmp_path: Path):
    """A gene without a name has its id, text is a category, and samples are divided."""
    folder = write(tmp_path / "all-sample/DGE_filtered", split_pipe())
    plate = read(folder, tmp_path / "p.zarr")
    assert plate.var_names[7] == IDS[7]
    assert list(plate.var["genome"].cat.categories) == ["hg38"]
    assert list(plate.obs["sample"]) == SAMPLES
    assert plate.obs["mread_count"].dtype == np.int64
    assert list_samples(folder, "sample") == {"a": 10, "b 2": 20}
    stores = {name: tmp_path / f"split/{name}.zarr" for name in ("a", "b 2")}
    split_samples(folder, stores, by="sample")
    assert sorted(path.name for path in (tmp_path / "split").iterdir()) == ["a.zarr", "b 2.zarr"]
    part = read(stores["a"], tmp_path / "a.zarr").X
    np.testing.assert_array_equal(part.toarray(), X[::3].toarray())


def test_names_of_several_genomes_and_old_tables_of_split_pipe(tmp_path: Path):
    genomes = ["hg38" if i % 2 else "mm10" for i in range(N_GENES)]
    names = ["SAME", "SAME", "X_hg38", "X_hg38", *GENES[4:]]
    head = ",gene_id,gene_name,genome\n"
    number = [str(i) for i in range(N_GENES)]
    genes = lines(number, IDS, names, genomes, sep=",", head=head)
    cells = lines(CELLS, [str(i) for i in range(N_CELLS)], sep=",", head="bc_wells,read_count\n")
    plate = read(write(tmp_path / "r", split_pipe(genes=genes, cells=cells)), tmp_path / "p.zarr")
    assert list(plate.var_names[:4]) == ["SAME_mm10", "SAME_hg38", "X_hg38_mm10", "X_hg38"]
    assert list(plate.var["genome"]) == genomes
    assert "read_count" in plate.obs


def test_genes_of_split_pipe_without_names_with_endings_and_targeted(tmp_path: Path):
    files = split_pipe(genes=lines(IDS, sep=",", head="gene_id\n"))
    assert list(read(write(tmp_path / "ids", files), tmp_path / "a.zarr").var_names) == IDS
    ended = lines(IDS, [f"{name}_hg38" for name in GENES], sep=",", head="gene_id,gene_name\n")
    files = split_pipe(genes=ended)
    files["target_genes.csv"] = files.pop("all_genes.csv")
    folder = write(tmp_path / "targeted", files)
    assert list(read(folder, tmp_path / "b.zarr").var_names[:2]) == ["MT-0_hg38", "MT-1_hg38"]
    facts, _ = read_facts("p", str(folder))
    assert (facts.mt_prefix, facts.n_mt) == ("MT-", 3)


@pytest.mark.parametrize("name", ["all-sample", "all-well"])
def test_samples_of_split_pipe_are_proposed_as_plates(tmp_path: Path, name: str):
    folder = write(tmp_path / name / "DGE_filtered", split_pipe())
    assert find_samples(str(folder)) == ["a", "b_2"]
    cells = lines(CELLS, ["a"] * N_CELLS, sep=",", head="bc_wells,sample\n")
    assert find_samples(str(write(tmp_path / "one", split_pipe(cells=cells)))) == []
    cells = lines(CELLS, sep=",", head="bc_wells\n")
    assert find_samples(str(write(tmp_path / "none", split_pipe(cells=cells)))) == []
    assert find_samples(str(write(tmp_path / "kb", LAYOUTS["kb-python"]))) == []


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"count_matrix.mtx": X, "all_guides.csv": ""}, "lists guides, no genes: give the folder"),
        ({"count_matrix.mtx": X, "cell_metadata.csv": "a"}, "all_genes.csv is missing, also with"),
        ({"matrix.mtx": X, "genes.tsv": TWO}, "barcodes.tsv is missing, also with .gz: put"),
        ({"cells_x_tcc.mtx": X}, "its columns are tcc, no genes: give the matrix of genes"),
        (
            {f"{n}.mtx": X.T for n in ("spliced", "unspliced")}
            | {"features.tsv": TWO, "barcodes.tsv": ONE_CELL},
            r"several matrices of the same cells \(spliced.mtx, unspliced.mtx\): give one",
        ),
        (
            {"a.mtx": X[:, :N_CELLS], "genes.txt": lines(IDS[:N_CELLS]), "cells.txt": ONE_CELL},
            "as many rows as columns, 30, so that nothing tells which are cells: rename",
        ),
        (
            {"quants_mat.mtx": X, "quants_mat_cols.txt": "a\nb\na-U\nb-U\na-A\nb-A\n"}
            | {"quants_mat_rows.txt": ONE_CELL},
            r"lists genes three times, spliced, unspliced \(-U\) and ambiguous \(-A\): write h5ad",
        ),
        (
            {"matrix.mtx": "%%MatrixMarket matrix coordinate integer general\n41 30 1\n1 1 2 0 1\n"}
            | {"features.tsv": TWO, "barcodes.tsv": ONE_CELL},
            "an entry has 3 values, as in STARsolo's Velocyto: give a matrix",
        ),
        (
            {"matrix.mtx": "%%MatrixMarket matrix coordinate integer symmetric\n2 2 1\n1 1 2\n"}
            | {"features.tsv": "a\nb\n", "barcodes.tsv": "c\nd\n"},
            "its first line is '%%MatrixMarket matrix coordinate integer symmetric': write it as",
        ),
        (split_pipe(genes="id,gene_name\na,b\n"), "no column 'gene_id', but id, gene_name: copy"),
        (split_pipe(cells="bc_wells,sample\n,a\n"), "cell 1 has no name in the column 'bc_wells'"),
        (split_pipe(cells=""), "cell_metadata.csv: the table cannot be read"),
        (
            {"cells_x_genes.genes.names.txt": lines(GENES[1:])}
            | {name: text for name, text in LAYOUTS["kb-python"].items() if "names" not in name},
            "genes.names.txt: it has 40 names, and cells_x_genes.genes.txt 41 genes: ",
        ),
    ],
)
def test_other_folders_are_refused_by_a_sentence(tmp_path: Path, files: dict, sentence: str):
    folder = write(tmp_path / "run", files)
    for call in (lambda: read(folder, tmp_path / "p.zarr"), lambda: read_facts("p", str(folder))):
        with pytest.raises(InputError, match=sentence):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_further_matrices_of_starsolo_are_taken_by_their_names(tmp_path: Path):
    """Velocyto's files have stored zeros; those of reads of several genes are fractional."""
    dense = X.T.toarray()
    entries = [f"{i + 1} {j + 1} {dense[i, j]}\n" for i in range(N_GENES) for j in range(N_CELLS)]
    head = f"%%MatrixMarket matrix coordinate {{}} general\n{N_GENES} {N_CELLS} {X.size}\n"
    lists = {"features.tsv": TWO, "barcodes.tsv": ONE_CELL}
    spliced = head.format("integer").replace(f" {X.size}\n", f" {dense.size}\n") + "".join(entries)
    velocyto = write(tmp_path / "Velocyto/filtered", {"spliced.mtx": spliced, "ambiguous.mtx": X.T})
    write(velocyto, lists)
    plate = read(velocyto / "spliced.mtx", tmp_path / "a.zarr")
    np.testing.assert_array_equal(plate.X.toarray(), X.toarray())
    assert plate.X.nnz == X.nnz
    halves = head.format("real") + "".join(f"{line[:-1]}.5\n" for line in entries[: X.size])
    gene = write(tmp_path / "Gene/raw", {"matrix.mtx": X.T, "UniqueAndMult-EM.mtx": halves} | lists)
    np.testing.assert_array_equal(read(gene, tmp_path / "b.zarr").X.toarray(), X.toarray())
    with pytest.raises(InputError, match=r"UniqueAndMult-EM.mtx: .*fractional"):
        read(gene / "UniqueAndMult-EM.mtx", tmp_path / "c.zarr")
    assert load_plate(
        gene / "UniqueAndMult-EM.mtx", tmp_path / "c.zarr", plate="p", fractional="round"
    )["n_rounded_values"]


@pytest.mark.parametrize("rows", ["genes", "cells"])
def test_of_as_many_cells_as_genes_the_names_of_the_files_decide(tmp_path: Path, rows: str):
    square = X[:, :N_CELLS]
    lists = {"genes.tsv": lines(IDS[:N_CELLS]), "barcodes.tsv": ONE_CELL}
    name = "matrix.mtx" if rows == "genes" else "cells_x_genes.mtx"
    folder = write(tmp_path / "r", {name: square.T if rows == "genes" else square, **lists})
    found = read(folder, tmp_path / "p.zarr").X
    np.testing.assert_array_equal(found.toarray(), square.toarray())


def test_plates_of_a_folder_of_text_matrices(tmp_path: Path):
    """Lists that a pattern matches are no plates; a stray matrix does not hide plates."""
    both = {f"{n}_{name.partition('_')[2]}": text for n in ("S1", "S2")
            for name, text in LAYOUTS["archive of Cell Ranger's files"].items()}  # fmt: skip
    folder = write(tmp_path / "geo", both)
    paths = [str(folder / f"{n}_matrix.mtx.gz") for n in ("S1", "S2")]
    for given in (str(folder), f"{folder}/*"):
        assert list(find_files([given]).values()) == paths
        assert [plate.path for plate in read_plates(given)] == paths
    pd.DataFrame().to_csv(folder / "stray.mtx")
    assert [plate.path for plate in read_plates(str(folder))] == paths
    assert TextMatrix.find(folder) is None
    one = write(tmp_path / "one", LAYOUTS["Expression Atlas"])
    assert [plate.path for plate in read_plates(str(one))] == [str(one)]
    with pytest.raises(InputError, match=r"x.mtx: features.tsv is missing"):
        read_plates(str(write(tmp_path / "none", {"x.mtx": X})))


def test_the_same_cells_are_no_two_plates(tmp_path: Path):
    for name in ("S1/DGE_filtered", "S1/DGE_unfiltered", "all-sample/DGE_filtered"):
        write(tmp_path / name, split_pipe())
    single = f"{tmp_path}/S1/DGE_filtered"
    assert [*find_files([f"{tmp_path}/*/DGE_filtered"]).values()] == [single]
    assert [plate.path for plate in read_plates(f"{tmp_path}/*/DGE_filtered")] == [single]
    whole = f"{tmp_path}/all-sample/DGE_filtered"
    assert whole in find_files([whole, f"{tmp_path}/S1/DGE_unfiltered"]).values()
    with pytest.raises(
        InputError, match=r"DGE_unfiltered: the same sample as .*/S1/DGE_filtered, "
    ):
        find_files([f"{tmp_path}/S1/*"])
    assert [*find_files([f"{tmp_path}/S1"]).values()] == [f"{tmp_path}/S1/DGE_filtered"]
    with pytest.raises(InputError, match=r"give their pattern, '.*/\*/DGE_filtered'"):
        find_files([str(tmp_path)])
    both = dict.fromkeys(("matrix.mtx", "UniqueAndMult-EM.mtx"), X.T)
    solo = write(tmp_path / "solo", both | {"features.tsv": TWO, "barcodes.tsv": ONE_CELL})
    for call in (find_files, lambda given: read_plates(given[0])):
        with pytest.raises(InputError, match=r"\.mtx: it counts the same cells as .*\.mtx: give"):
            call([f"{solo}/*.mtx"])
