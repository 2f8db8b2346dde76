"""Matrices in the layouts of Cell Ranger: HDF5 of versions 2 and 3 and later."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import load_plate
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices import matrix_market
from scatlas.io.matrices.counts_source import what_elements_hold
from scatlas.workflow.command_line.plate_facts import read_facts
from tests.helpers.files import files

N_CELLS, N_GENES, N_ANTIBODIES = 300, 40, 5
SYMBOLS = ["MT-CO1", "TBCE", "TBCE", *(f"G{i}" for i in range(3, N_GENES))]
IDS = [f"ENSG{i:05}" for i in range(N_GENES)]


def counts(n_features: int) -> sp.csr_matrix:
    rng = np.random.default_rng(1)
    x = sp.random(N_CELLS, n_features, 0.2, "csr", np.int32, rng, lambda n: rng.integers(1, 300, n))
    filled = np.ones(N_CELLS)
    filled[5:9] = 0  # empty droplets
    x = sp.csr_matrix(sp.diags_array(filled, dtype=np.int32) @ x)
    x.eliminate_zeros()
    x.sort_indices()
    return x


def write_matrix(group: h5py.Group, x: sp.csr_matrix) -> None:
    options = {"compression": "gzip", "chunks": (100,)}
    group.create_dataset("barcodes", data=barcodes().astype("S18"), compression="gzip")
    group.create_dataset("data", data=x.data, **options)
    group.create_dataset("indices", data=x.indices.astype(np.int64), **options)
    group.create_dataset("indptr", data=x.indptr.astype(np.int64), **options)
    group.create_dataset("shape", data=np.array(x.shape[::-1], np.int32))


def barcodes() -> np.ndarray:
    return np.array([f"AAACCTGAGCA{i:05}-1" for i in range(N_CELLS)])


def write_v2(path: Path, x: sp.csr_matrix, *genomes: str) -> None:
    with h5py.File(path, "w") as file:
        for genome in genomes:
            group = file.create_group(genome)
            write_matrix(group, x)
            group.create_dataset("genes", data=np.array(IDS, "S"))
            group.create_dataset("gene_names", data=np.array(SYMBOLS, "S"))


def write_v3(path: Path, x: sp.csr_matrix, types: list[str]) -> None:
    """Antibodies stand among the genes, as nothing forbids."""
    genes = np.array(types) == "Gene Expression"
    ids, names = np.array(["Ab"] * len(types), "S20"), np.array(["CD3"] * len(types), "S20")
    if genes.any():
        ids[genes], names[genes] = np.array(IDS, "S"), np.array(SYMBOLS, "S")
    with h5py.File(path, "w") as file:
        file.attrs["software_version"] = "cellranger-7.1.0"
        write_matrix(file.create_group("matrix"), x)
        features = file["matrix"].create_group("features")
        lists = {"id": ids, "name": names, "feature_type": np.array(types, "S")}
        lists["genome"] = np.where(genes, b"GRCh38", b"")
        for name, values in lists.items():
            features.create_dataset(name, data=values, compression="gzip")
        features.create_dataset("_all_tag_keys", data=np.array([b"genome"]))


def as_scanpy_reads(x: sp.csr_matrix, **columns: list[str]) -> ad.AnnData:
    var = pd.DataFrame(columns, index=["MT-CO1", "TBCE", "TBCE-1", *SYMBOLS[3:]])
    return ad.AnnData(x.astype(np.float32), obs=pd.DataFrame(index=barcodes()), var=var)


def assert_same_plate(tmp_path: Path, source: Path, wanted: ad.AnnData) -> list[str]:
    """The plate of a file is that of AnnData with its content; returns its other notices."""
    wanted.write_h5ad(tmp_path / "wanted.h5ad")
    known = load_plate(tmp_path / "wanted.h5ad", tmp_path / "wanted.zarr", plate="p")
    found = load_plate(
        source, tmp_path / "found.zarr", plate="p",
        reference=tmp_path / "wanted.h5ad", block_budget="40kB",
    )  # fmt: skip
    assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")
    load_plate(tmp_path / "wanted.h5ad", tmp_path / "x.zarr", plate="p", reference=source)
    more = [notice for notice in found.pop("notices") if notice not in known["notices"]]
    known.pop("notices")
    # The order of a cell's genes is free in a file, and the same in the plate.
    known["n_unsorted_cells"] = found["n_unsorted_cells"]
    assert found == known
    return more


def test_version_2(tmp_path: Path):
    x = counts(N_GENES)
    write_v2(tmp_path / "v2.h5", x, "GRCh38")
    types = ["Gene Expression"] * N_GENES
    wanted = as_scanpy_reads(x, gene_ids=IDS, feature_types=types)
    assert assert_same_plate(tmp_path, tmp_path / "v2.h5", wanted) == [
        "1 repeated gene names: made unique by a number at the end"
    ]


def test_version_2_with_a_matrix_per_genome(tmp_path: Path):
    """Each with its own cells; one is taken, by its name."""
    x = counts(N_GENES)
    write_v2(tmp_path / "two.h5", x, "hg19", "mm10")
    line = r"a matrix for each of several genomes and no X: write 'source: \{counts: genome/hg19\}'"
    with pytest.raises(InputError, match=line):
        load_plate(tmp_path / "two.h5", tmp_path / "out.zarr", plate="p")
    assert list(what_elements_hold(tmp_path / "two.h5")) == ["genome/hg19", "genome/mm10"]
    write_v2(tmp_path / "one.h5", x, "hg19")
    load_plate(tmp_path / "one.h5", tmp_path / "one.zarr", plate="p")
    options = {"counts_in": "genome/mm10", "reference": tmp_path / "one.h5"}
    found = load_plate(tmp_path / "two.h5", tmp_path / "two.zarr", plate="p", **options)
    assert files(tmp_path / "two.zarr") == files(tmp_path / "one.zarr")
    assert "the cells of genome/hg19 are left out: list them as another plate" in found["notices"]


def test_version_3_with_antibodies(tmp_path: Path):
    x = counts(N_GENES + N_ANTIBODIES)
    types = ["Gene Expression"] * N_GENES
    for at in (0, 3, 20, 21, N_GENES + 4):
        types.insert(at, "Antibody Capture")
    write_v3(tmp_path / "v3.h5", x, types)
    genes = np.array(types) == "Gene Expression"
    same = {"feature_types": ["Gene Expression"] * N_GENES, "genome": ["GRCh38"] * N_GENES}
    wanted = as_scanpy_reads(x[:, genes], gene_ids=IDS, **same)
    notices = assert_same_plate(tmp_path, tmp_path / "v3.h5", wanted)
    assert notices[0] == "5 features of type 'Antibody Capture' are left out"

    with pytest.raises(InputError, match="a file of Cell Ranger with one matrix and no raw"):
        load_plate(tmp_path / "v3.h5", tmp_path / "out.zarr", plate="p", counts_in="raw")
    write_v3(tmp_path / "none.h5", x[:, ~genes], ["Antibody Capture"] * N_ANTIBODIES)
    with pytest.raises(InputError, match="no feature is of type 'Gene Expression'"):
        load_plate(tmp_path / "none.h5", tmp_path / "out.zarr", plate="p")


def write_folder(folder: Path, x: sp.csr_matrix, *, version: int) -> None:
    """A folder of text files, as Cell Ranger 2 or 3 writes it, with two antibodies in 3."""
    folder.mkdir()
    lines = [f"{gene}\t{name}" for gene, name in zip(IDS, SYMBOLS, strict=True)]
    if version == 3:
        lines = [f"{line}\tGene Expression" for line in lines]
        lines += [f"Ab{i}\tCD{i}\tAntibody Capture" for i in range(2)]
    entries = [
        f"{gene + 1} {cell + 1} {x[cell, gene]}"
        for cell in range(x.shape[0])
        for gene in sorted(x[cell].indices, reverse=version == 2)
    ]
    head = ["%%MatrixMarket matrix coordinate integer general", "%metadata_json: {}"]
    head.append(f"{x.shape[1]} {x.shape[0]} {x.nnz}")
    texts = {"matrix.mtx": [*head, *entries], "barcodes.tsv": list(barcodes())}
    texts["features.tsv" if version == 3 else "genes.tsv"] = lines
    for name, content in texts.items():
        text = "\n".join([*content, ""]).encode()
        if version == 3:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (folder / name).write_bytes(text)


@pytest.mark.parametrize("version", [2, 3])
def test_text_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int):
    monkeypatch.setattr(matrix_market, "_BLOCK_BYTES", 1000)
    x = counts(N_GENES + 2 * (version == 3))
    write_folder(tmp_path / "run", x, version=version)
    types = ["Gene Expression"] * N_GENES
    wanted = as_scanpy_reads(x[:, :N_GENES], gene_ids=IDS, feature_types=types)
    assert_same_plate(tmp_path, tmp_path / "run", wanted)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def reordered(order):
    """Change of the text of a matrix: its entries in another order."""

    def change(text: bytes) -> bytes:
        lines = text.splitlines()
        return b"\n".join([*lines[:3], *order(lines[3:]), b""])

    return change


def spelled(value: bytes, field: bytes):
    """Change of the text of a matrix: its values in another form."""
    entry = re.compile(rb"(?m)^(\d+ \d+ \d+)$(?=\n\d|\n\Z)")
    return lambda text: entry.sub(rb"\1" + value, text.replace(b"integer", field)).replace(
        value, b"", 1
    )


# The same folder, by the file that is changed.
VARIANTS = {
    "as text": ("matrix.mtx", reordered(sorted)),
    "by gene": (
        "matrix.mtx",
        reordered(lambda rows: sorted(rows, key=lambda r: int(r.split()[0]))),
    ),
    "at random": ("matrix.mtx", reordered(np.random.default_rng(0).permutation)),
    "backwards": ("matrix.mtx", reordered(lambda rows: rows[::-1])),
    "tabs": ("matrix.mtx", lambda text: text.replace(b" ", b"\t")),
    "several blanks": ("matrix.mtx", lambda text: text.replace(b" ", b" \t  ")),
    "blanks around lines": ("matrix.mtx", lambda text: text.replace(b"\n", b" \n\t ")),
    "blank lines": ("matrix.mtx", lambda text: text.replace(b"\n", b"\n\n \n")),
    "CRLF": ("matrix.mtx", lambda text: text.replace(b"\n", b"\r\n")),
    "cut end": ("matrix.mtx", lambda text: text.rstrip()),
    "byte order mark": ("matrix.mtx", lambda text: b"\xef\xbb\xbf" + text),
    "upper case": ("matrix.mtx", lambda text: text.replace(b"matrix c", b"Matrix C")),
    "comments": ("matrix.mtx", lambda text: text.replace(b"%meta", b" % meta\n%%\n%\xff") + b" %"),
    "unsigned": ("matrix.mtx", spelled(b"", b"unsigned-integer")),
    "whole reals": ("matrix.mtx", spelled(b".000E+00", b"real")),
    "whole reals called integer": ("matrix.mtx", spelled(b".0", b"integer")),
    "compressed": ("matrix.mtx", gzip.compress),
    "quoted fields": ("genes.tsv", lambda text: re.sub(rb"[^\t\n]+", rb'"\g<0>"', text)),
    "quoted rows": ("genes.tsv", lambda text: re.sub(rb".+", rb'"\g<0>"', text)),
    "quoted barcodes": ("barcodes.tsv", lambda text: re.sub(rb".+", rb'"\g<0>"', text)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_spelling_and_order_of_the_text_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
):
    monkeypatch.setattr(matrix_market, "_BLOCK_BYTES", 1000)
    write_folder(tmp_path / "run", counts(N_GENES), version=2)

    def read(name: str) -> tuple[dict[str, bytes], pd.DataFrame]:
        load_plate(tmp_path / "run", tmp_path / name, plate="p")
        return files(tmp_path / name), read_facts("p", str(tmp_path / "run"))[0].metrics

    store, metrics = read("wanted")
    name, change = VARIANTS[variant]
    path = tmp_path / "run" / name
    path.write_bytes(change(path.read_bytes()))
    found = read("found")
    assert found[0] == store
    pd.testing.assert_frame_equal(found[1], metrics)


def test_an_entry_given_twice_is_refused_in_any_order(tmp_path: Path):
    write_folder(tmp_path / "run", counts(N_GENES), version=2)
    path = tmp_path / "run" / "matrix.mtx"
    twice = reordered(lambda rows: [*rows[1:-1], rows[0], rows[0]])
    path.write_bytes(twice(path.read_bytes()))
    with pytest.raises(InputError, match=r"hold gene 3\d \('G3\d'\) twice"):
        load_plate(tmp_path / "run", tmp_path / "out.zarr", plate="p")


def test_the_folder_of_a_part_is_named(tmp_path: Path):
    write_folder(tmp_path / "run", counts(N_GENES + 2), version=3)
    with pytest.raises(InputError, match=f"give its folder, {tmp_path / 'run'}$"):
        read_facts("p", str(tmp_path / "run/features.tsv.gz"))


def test_first_cells_of_a_text_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x = counts(N_GENES)
    write_folder(tmp_path / "run", x, version=2)
    monkeypatch.setattr(matrix_market, "_BLOCK_BYTES", 1000)
    path = tmp_path / "run" / "matrix.mtx"
    for order, n_values in ((list, x.nnz), (list, 300), (sorted, 300)):
        path.write_bytes(reordered(order)(path.read_bytes()))
        run = TextMatrix.find(path.parent)
        assert run is not None
        first = matrix_market.first_cells(run, x.shape, n_values)
        assert first.shape[0] == -(-n_values * N_CELLS // x.nnz)
        assert (first != x[: first.shape[0]]).nnz == 0


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("matrix.mtx.gz", lambda b: b[: len(b) // 2], "matrix.mtx.gz: the matrix cannot be read"),
        ("matrix.mtx.gz", lambda b: edit(b, b" 1 ", b"99 1 "), "has row [0-9]+99, of 1 to 42"),
        ("matrix.mtx.gz", lambda b: edit(b, b"42 300", b"42 301"), "42 x 301 entries, but .* 300"),
        (
            "features.tsv.gz",
            lambda b: edit(b, b"ENSG", b"id\tname\ttype\nENSG"),
            "42 x 300 entries, but features.tsv.gz lists 43 genes",
        ),
        (
            "features.tsv.gz",
            lambda b: gzip.compress(gzip.decompress(b)[:-20]),
            "feature 42 has no type",
        ),
        ("barcodes.tsv.gz", lambda b: None, "barcodes.tsv is missing, also with .gz"),
        ("barcodes.tsv.gz", lambda b: b[:-30], "barcodes.tsv.gz: the table cannot be read"),
        ("features.tsv.gz", lambda b: b[:-30], "features.tsv.gz: the table cannot be read"),
        ("features.tsv.gz", lambda b: b"", "features.tsv.gz: the table cannot be read"),
        (
            "matrix.mtx.gz",
            lambda b: edit(b, b"integer", b"complex"),
            "its first line is .*complex.*: write",
        ),
        ("matrix.mtx.gz", lambda b: gzip.compress(cut(b)), "there are [0-9,]+ of [0-9,]+ entries"),
    ],
)
def test_damaged_text(tmp_path: Path, name: str, spoil, sentence: str):
    write_folder(tmp_path / "run", counts(N_GENES + 2), version=3)
    file = tmp_path / "run" / name
    spoiled = spoil(file.read_bytes())
    file.unlink() if spoiled is None else file.write_bytes(spoiled)
    with pytest.raises(InputError, match=sentence):
        load_plate(tmp_path / "run", tmp_path / "out.zarr", plate="p")
    with pytest.raises(InputError, match=sentence):
        read_facts("p", str(tmp_path / "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def cut(content: bytes) -> bytes:
    """Text of a compressed file without its last lines."""
    return b"\n".join(gzip.decompress(content).splitlines()[:-5])


def edit(content: bytes, old: bytes, new: bytes) -> bytes:
    """Compressed text with the first occurrence replaced."""
    text = gzip.decompress(content)
    assert old in text
    return gzip.compress(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda m: m["indices"].__setitem__(7, 99), "matrix/indices of cell"),
        (lambda m: m["data"].__setitem__(7, -1), "matrix holds -1, a negative value, at cell"),
        (lambda m: m["indptr"].__setitem__(7, 10**6), "matrix/indptr"),
        (lambda m: m.__delitem__("features/name"), "matrix cannot be read"),
    ],
)
def test_damaged(tmp_path: Path, spoil, sentence: str):
    write_v3(tmp_path / "v3.h5", counts(N_GENES), ["Gene Expression"] * N_GENES)
    with h5py.File(tmp_path / "v3.h5", "r+") as file:
        spoil(file["matrix"])
    with pytest.raises(InputError, match=sentence):
        load_plate(tmp_path / "v3.h5", tmp_path / "out.zarr", plate="p")
    assert not (tmp_path / "out.zarr").exists()
