"""Matrices in the layouts of Cell Ranger give the plates of AnnData; their damage is named."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest

from scatlas.errors import InputError
from scatlas.io import load_plate
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices import matrix_market
from scatlas.io.matrices.counts_source import what_elements_hold
from scatlas.workflow.command_line.plate_facts import read_facts
from tests.helpers import foreign_files
from tests.helpers.files import files
from tests.helpers.foreign_files import CELLS, EXPRESSION, GENES, IDS, N_CELLS, N_GENES
from tests.helpers.plates import spoiled

X = foreign_files.counts()


def in_another_order(path: Path) -> np.ndarray:
    """Antibodies stand among the genes, as nothing forbids."""
    order = np.random.default_rng(0).permutation(N_GENES + 9)

    def change(file: h5py.File) -> None:
        matrix = file["matrix"]
        for name in ("id", "name", "feature_type", "genome"):
            matrix["features"][name][:] = matrix["features"][name][:][order]
        matrix["indices"][:] = np.argsort(order)[matrix["indices"][:]]

    spoiled(path, change)
    return order[order < N_GENES]


@pytest.mark.parametrize("kind", ["cell_ranger_2", "cell_ranger_7", "cell_ranger_3_folder"])
def test_a_plate_is_that_of_anndata_with_its_content(tmp_path: Path, kind: str, monkeypatch):
    """With a name of two genes, features of other types, and text in blocks."""
    monkeypatch.setattr(matrix_market, "_BLOCK_BYTES", 1000)
    write, name, _ = foreign_files.FILES[kind]
    source, order, names = tmp_path / name, np.arange(N_GENES), np.array(GENES, object)
    write(source)
    columns = {"gene_ids": np.array(IDS), "feature_types": np.full(N_GENES, EXPRESSION)}
    if kind == "cell_ranger_2":
        spoiled(source, lambda file: file["GRCh38/gene_names"].__setitem__(7, b"GENE5"))
        names[7] = "GENE5-1"
    if kind == "cell_ranger_7":
        order, columns["genome"] = in_another_order(source), np.full(N_GENES, "GRCh38")
    var = pd.DataFrame(columns, index=names).iloc[order]
    wanted = ad.AnnData(X.astype(np.float32)[:, order], obs=pd.DataFrame(index=CELLS), var=var)
    wanted.write_h5ad(tmp_path / "wanted.h5ad")
    known = load_plate(tmp_path / "wanted.h5ad", tmp_path / "wanted.zarr", plate="p")
    options = {"plate": "p", "reference": tmp_path / "wanted.h5ad", "block_budget": "40kB"}
    found = load_plate(source, tmp_path / "found.zarr", **options)
    assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")
    load_plate(tmp_path / "wanted.h5ad", tmp_path / "x.zarr", plate="p", reference=source)
    more = [notice for notice in found.pop("notices") if notice not in known["notices"]]
    known.pop("notices")
    # The order of a cell's genes is free in a file, and the same in the plate.
    known["n_unsorted_cells"] = found["n_unsorted_cells"]
    assert found == known
    if kind == "cell_ranger_2":
        assert more == ["1 repeated gene names: made unique by a number at the end"]
    if kind == "cell_ranger_7":
        assert "3 features of type 'Antibody Capture' are left out" in more
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_of_a_matrix_per_genome_one_is_taken_by_its_name(tmp_path: Path):
    """Each has its own cells; the one with most comes first."""
    foreign_files.cell_ranger_2_barnyard(tmp_path / "two.h5")
    spoiled(tmp_path / "two.h5", lambda file: file.move("GRCh38", "of_most"))
    line = (
        r"a matrix for each of several genomes and no X: write 'source: \{counts: genome/of_most\}'"
    )
    with pytest.raises(InputError, match=line):
        load_plate(tmp_path / "two.h5", tmp_path / "out.zarr", plate="p")
    assert list(what_elements_hold(tmp_path / "two.h5")) == ["genome/of_most", "genome/mm10"]
    foreign_files.cell_ranger_2(tmp_path / "one.h5")
    load_plate(tmp_path / "one.h5", tmp_path / "one.zarr", plate="p")
    options = {"counts_in": "genome/of_most", "reference": tmp_path / "one.h5"}
    found = load_plate(tmp_path / "two.h5", tmp_path / "two.zarr", plate="p", **options)
    assert files(tmp_path / "two.zarr") == files(tmp_path / "one.zarr")
    assert "the cells of genome/mm10 are left out: list them as another plate" in found["notices"]


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
    "comments": (
        "matrix.mtx",
        lambda text: text.replace(b"\n%\n", b"\n % meta\n%%\n%\xff\n") + b" %",
    ),
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
    foreign_files.cell_ranger_2_folder(tmp_path / "run")

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
    foreign_files.cell_ranger_2_folder(tmp_path / "run")
    path = tmp_path / "run" / "matrix.mtx"
    twice = reordered(lambda rows: [*rows[1:-1], rows[0], rows[0]])
    path.write_bytes(twice(path.read_bytes()))
    with pytest.raises(InputError, match=r"hold gene \d+ \('\S+'\) twice"):
        load_plate(tmp_path / "run", tmp_path / "out.zarr", plate="p")


def test_the_folder_of_a_part_is_named(tmp_path: Path):
    foreign_files.cell_ranger_3_folder(tmp_path / "run")
    with pytest.raises(InputError, match=f"give its folder, {tmp_path / 'run'}$"):
        read_facts("p", str(tmp_path / "run/features.tsv.gz"))


def test_first_cells_of_a_text_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    foreign_files.cell_ranger_2_folder(tmp_path / "run")
    monkeypatch.setattr(matrix_market, "_BLOCK_BYTES", 1000)
    path = tmp_path / "run" / "matrix.mtx"
    for order, n_values in ((list, X.nnz), (list, 300), (sorted, 300)):
        path.write_bytes(reordered(order)(path.read_bytes()))
        run = TextMatrix.find(path.parent)
        assert run is not None
        first = matrix_market.first_cells(run, X.shape, n_values)
        assert first.shape[0] == -(-n_values * N_CELLS // X.nnz)
        assert (first != X[: first.shape[0]]).nnz == 0


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("matrix.mtx.gz", lambda b: b[: len(b) // 2], "matrix.mtx.gz: the matrix cannot be read"),
        ("matrix.mtx.gz", lambda b: edit(b, b" 1 ", b"99 1 "), "has row [0-9]+99, of 1 to 120"),
        ("matrix.mtx.gz", lambda b: edit(b, b"120 60", b"120 61"), "120 x 61 entries, but .* 60"),
        (
            "features.tsv.gz",
            lambda b: edit(b, b"ENSG", b"id\tname\ttype\nENSG"),
            "120 x 60 entries, but features.tsv.gz lists 121 genes",
        ),
        ("features.tsv.gz", lambda b: gzip.compress(gzip.decompress(b)[:-20]), "120 has no type"),
        ("barcodes.tsv.gz", lambda b: None, "barcodes.tsv is missing, also with .gz"),
        ("barcodes.tsv.gz", lambda b: b[:-30], "barcodes.tsv.gz: the table cannot be read"),
        ("features.tsv.gz", lambda b: b[:-30], "features.tsv.gz: the table cannot be read"),
        ("features.tsv.gz", lambda b: b"", "features.tsv.gz: the table cannot be read"),
        ("matrix.mtx.gz", lambda b: edit(b, b"integer", b"complex"), "its first line is .*complex"),
        ("matrix.mtx.gz", lambda b: gzip.compress(cut(b)), "there are [0-9,]+ of [0-9,]+ entries"),
    ],
)
def test_damaged_text(tmp_path: Path, name: str, spoil, sentence: str):
    foreign_files.cell_ranger_3_folder(tmp_path / "run")
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


def all_peaks(matrix: h5py.Group) -> None:
    matrix["features/feature_type"][:] = np.full(N_GENES, b"Peaks")


@pytest.mark.parametrize(
    ("spoil", "options", "sentence"),
    [
        (lambda m: m["indices"].__setitem__(7, 999), {}, "matrix/indices of cell"),
        (lambda m: m["data"].__setitem__(7, -1), {}, "matrix holds -1, a negative value, at cell"),
        (lambda m: m["indptr"].__setitem__(7, 10**6), {}, "matrix/indptr"),
        (lambda m: m.__delitem__("features/name"), {}, "matrix cannot be read"),
        (lambda m: None, {"counts_in": "raw"}, "a file of Cell Ranger with one matrix and no raw"),
        (all_peaks, {}, "no feature is of type 'Gene Expression'"),
    ],
)
def test_damaged(tmp_path: Path, spoil, options, sentence: str):
    foreign_files.cell_ranger_3(tmp_path / "v3.h5")
    spoiled(tmp_path / "v3.h5", lambda file: spoil(file["matrix"]))
    with pytest.raises(InputError, match=sentence):
        load_plate(tmp_path / "v3.h5", tmp_path / "out.zarr", plate="p", **options)
    assert not (tmp_path / "out.zarr").exists()
