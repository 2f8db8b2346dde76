"""Every input that cannot be used ends `load` with one sentence, and leaves nothing behind."""

from __future__ import annotations

import bz2
import errno
import fcntl
import gzip
import lzma
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import anndata as ad
import dask
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.io import write_elem
from numcodecs import Zstd

from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum
from scatlas.io.matrices.lazy import read_lazy
from scatlas.io.products.load_plate import load_plate
from scatlas.io.products.load_statistics import HOW_TO_ROUND
from scatlas.io.tables.table import Table
from scatlas.kernels.counts.check_cpu import check_counts
from scatlas.workflow.cell_filter import evaluate_filter
from scatlas.workflow.config.values import query_columns
from tests.helpers.plates import array, attribute, flip, spoiled, write

N_CELLS, N_GENES = 12, 5


def plate() -> ad.AnnData:
    """Twelve cells with three sorted values each."""
    rng = np.random.default_rng(1)
    indices = np.sort(
        [rng.choice(N_GENES, 3, replace=False) for _ in range(N_CELLS)], axis=1
    ).ravel()
    data = rng.integers(1, 9, indices.size).astype(np.float32)
    x = sp.csr_matrix((data, indices.astype(np.int32), np.arange(0, 37, 3)), (N_CELLS, N_GENES))
    obs = pd.DataFrame({"pass_filter": "full"}, [f"c{i}" for i in range(N_CELLS)])
    return ad.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(N_GENES)]))


@pytest.fixture
def path(tmp_path) -> Path:
    """A good plate, for the test to spoil."""
    return write(plate(), tmp_path / "plate.h5ad")


def load(path: Path, **options) -> dict:
    out = path.parent / "out" / "counts.zarr"
    return load_plate(path, out, plate="P1", **options)


def refused(path: Path, **options) -> str:
    """The sentence with which `load` ends; the output folder must be empty."""
    with pytest.raises(InputError) as caught:
        load(path, **options)
    out = path.parent / "out"
    assert not out.exists() or not list(out.iterdir())
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def loaded(path: Path) -> ad.AnnData:
    return ad.read_zarr(path.parent / "out" / "counts.zarr")


# -- files ---------------------------------------------------------------------------------------


NOT_DATA = "neither an HDF5 file nor a Zarr store: "
OTHER_FILES = [
    (b"", NOT_DATA, "it is empty; copy or download it again"),
    (b"cell,gene\n1,2\n", NOT_DATA, "give an AnnData file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7\n", NOT_DATA, "git lfs pull"),
    (b"/annex/objects/MD5E-s12--a.h5ad\n", NOT_DATA, "git annex get {path}"),
    (b"PK\x03\x04\x14\x00", NOT_DATA, "the folder that holds zarr.json, .zgroup or a .mtx file"),
    (b"\n<!DOCTYPE html><html>", NOT_DATA, "it is a web page"),
    (None, "no such file: correct the path", ""),
    (Path.mkdir, "a folder with neither zarr.json nor .zgroup", ""),
    (lambda p: h5py.File(p, "w").create_group("m"), "not an AnnData file (it holds m; obs and", ""),
    (lambda p: zarr.create_array(p, data=np.arange(3)), "the Zarr metadata cannot be read", ""),
]


@pytest.mark.parametrize(("content", "start", "hint"), OTHER_FILES)
def test_what_stands_in_the_place_of_data_is_named(tmp_path, content, start, hint):
    path = tmp_path / "plate"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        content(path)
    message = refused(path)
    assert message.startswith(start)
    assert hint.format(path=path) in message


def test_a_file_that_another_program_writes_is_not_damaged(path, tmp_path):
    sentence = "another program has it open to write, or was killed meanwhile: wait until"
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as HDF5 locks a file that it writes
        assert refused(path).startswith(sentence)
    killed = tmp_path / "killed.h5ad"
    with h5py.File(tmp_path / "written.h5ad", "w", libver="latest") as file:
        file.flush()
        shutil.copy(file.filename, killed)
    assert refused(killed).startswith(sentence)
    load(path)  # now that it is closed


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_damage(path, number, monkeypatch):
    text = f"Unable to open file (unable to lock file, errno = {number}, error message = '...')"
    monkeypatch.setattr(h5py, "File", Mock(side_effect=OSError(number, text)))
    assert refused(path).endswith("set the environment variable HDF5_USE_FILE_LOCKING=FALSE")


@pytest.mark.parametrize("share", [0.3, 0.7, 0.99])
def test_truncated_file(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    message = refused(path)
    assert f"the file is truncated ({int(len(content) * share):,} of {len(content):,}" in message
    assert message.endswith("copy or download it again")


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_corrupt_chunk(path, part):
    write(plate(), path, compression="gzip")
    with h5py.File(path) as file:
        chunk = file[f"X/{part}"].id.get_chunk_info(0)
    flip(path, chunk.byte_offset + chunk.size // 2, 4)
    message = refused(path)
    where = "X/indptr" if part == "indptr" else f"X/{part} of cells 0 to 11"
    assert message.startswith(f"{where} cannot be read (")
    assert "the data are damaged; copy or download the file again" in message


def test_corrupt_chunk_is_named_by_its_cells(path):
    """With small blocks the range is small."""
    with h5py.File(path, "r+") as file:
        data = file["X/data"][:]
        del file["X/data"]
        file.create_dataset("X/data", data=data, chunks=(6,), compression="gzip")
    with h5py.File(path) as file:
        chunk = file["X/data"].id.get_chunk_info(2)  # values 12 to 17: cells 4 and 5
    flip(path, chunk.byte_offset + 3, 4)
    message = refused(path, block_budget=8 * (2 * 4 * 8))
    assert message.startswith("X/data of cells 4 to 5 cannot be read (")


@pytest.mark.parametrize("part", ["data", "indices"])
def test_corrupt_zarr_chunk(tmp_path, part):
    path = write(plate(), tmp_path / "plate.zarr")
    (chunk,) = (f for f in (path / "X" / part).rglob("*") if f.is_file() and f.name[0] not in ".z")
    flip(chunk, 0, 8)
    assert f"X/{part} of cells 0 to 11 cannot be read (" in refused(path)


# -- X -------------------------------------------------------------------------------------------


def test_no_x(path):
    adata = plate()
    adata.layers["counts"] = adata.X.copy()
    adata.raw = adata.copy()
    adata.X = None
    write(adata, path)
    assert refused(path) == (
        "X is missing: write 'source: {counts: layers/counts}' or 'source: {counts: raw}' in the "
        "config, or a column 'counts' in the plate sheet"
    )


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty_plate(path, shape):
    write(ad.AnnData(sp.csr_matrix(shape, dtype=np.float32)), path)
    name, frame = ("cells", "obs") if shape[0] == 0 else ("genes", "var")
    assert refused(path).startswith(f"{frame} is empty, the plate has no {name}")


@pytest.mark.parametrize(("kind", "suffix"), [("csc", "h5ad"), ("dense", "zarr")])
def test_csc_or_dense_is_converted_within_the_budget_alone(tmp_path, kind, suffix, caplog):
    """The size of the decoded matrix counts; the command in the message does convert it."""
    adata = plate()
    wanted = adata.X.toarray()
    adata.X = adata.X.tocsc() if kind == "csc" else wanted
    path = write(adata, tmp_path / f"plate.{suffix}")
    n_bytes = 36 * (4 + 4) if kind == "csc" else N_CELLS * N_GENES * 4
    with caplog.at_level("INFO"):
        facts = load(path, block_budget=n_bytes)
    assert f"X was stored as {kind}: converted to CSR" in facts["notices"]
    assert f"plate P1: X was stored as {kind}: converted to CSR" in caplog.text
    np.testing.assert_array_equal(loaded(path).X.toarray(), wanted)
    shutil.rmtree(tmp_path / "out")
    message = refused(path, block_budget=n_bytes - 1)
    name = "CSC" if kind == "csc" else "dense"
    assert message.startswith(f"X is a {name} matrix of 0.0 MB, more than the block budget")
    start = message.index('python -c "') + len('python -c "')
    code = message[start:].removesuffix('"')
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    converted = path.with_name(f"plate.csr.{suffix}")
    assert load(converted)["n_values"] == 36
    np.testing.assert_array_equal(loaded(converted).X.toarray(), wanted)


def test_csc_with_a_bad_index(path):
    adata = plate()
    adata.X = adata.X.tocsc()
    spoiled(write(adata, path), lambda file: file["X/indices"].__setitem__(0, 10**6))
    assert "X/indices of all genes hold 1000000, but must be 0 to 11" in refused(path)


def old_obs(file: h5py.File) -> None:
    del file["obs"], file.attrs["encoding-type"]
    file["obs"] = np.zeros(N_CELLS, [("index", "S3")])


OFFSETS = np.arange(0, 37, 3)
WITHOUT_INDEX = (
    "has no attribute '_index', without which it cannot be read: write the file again with "
    "AnnData.write_h5ad or AnnData.write_zarr"
)
# What is done to the file, and how the sentence begins.
SPOILED = [
    (attribute("/", "encoding-type", "MuData"), "not an AnnData file (it holds an object of enc"),
    (old_obs, "obs is stored as in AnnData before 0.7: read it with anndata.read_h5ad"),
    (attribute("obs", "_index"), f"obs {WITHOUT_INDEX}"),
    (attribute("var", "_index"), f"var {WITHOUT_INDEX}"),
    (
        attribute("obs/pass_filter/codes", "encoding-type", "no-such-encoding"),
        "obs/pass_filter cannot be read, as anndata does not know its type (",
    ),
    (array("X"), "X is missing: there are no layers and no raw either"),
    (
        attribute("X", "encoding-type", "coo_matrix"),
        "X is stored as 'coo_matrix': store counts as a CSR matrix",
    ),
    (attribute("X", "shape", (12,)), "the shape of X cannot be read ("),
    (
        attribute("X", "shape", (12, 6)),
        "X has 12 rows and 6 columns, but obs has 12 cells and var 5 genes",
    ),
    (array("X/data"), "X has no data: the file is not complete"),
    (array("X/indices"), "X has no indices: the file is not complete"),
    (array("X/indptr"), "X has no indptr: the file is not complete"),
    (array("X/data", np.zeros(36, "S3")), "X/data holds |S3 instead of real numbers"),
    (array("X/indices", np.zeros(36, "f4")), "X/indices holds float32 instead of integers"),
    (
        array("X/indices", np.zeros(35, np.int32)),
        "X/indptr ends at 36, but X/indices has 35 values",
    ),
    (
        array("X/indptr", OFFSETS[:-1]),
        "X/indptr has 12 entries for 12 cells (13 expected): copy or",
    ),
    (array("X/indptr", OFFSETS + 1), "X/indptr starts at 1 instead of 0: copy or download"),
    (
        array("X/indptr", np.where(OFFSETS == 15, 3, OFFSETS)),
        "X/indptr falls from 12 to 3 at cell 4: copy or download",
    ),
    (
        array("X/indptr", np.where(OFFSETS == 36, 35, OFFSETS)),
        "X/indptr ends at 35, but X/data has 36 values: copy or download",
    ),
    (
        array("X/indptr", np.where(OFFSETS == 36, 99, OFFSETS)),
        "X/indptr ends at 99, but X/data has 36 values: copy or download",
    ),
]


@pytest.mark.parametrize(("spoil", "sentence"), SPOILED)
def test_a_spoiled_file(path, spoil, sentence):
    assert refused(spoiled(path, spoil)).startswith(sentence)


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
@pytest.mark.parametrize(
    "values, found",
    [
        (1, "a single number"),
        (h5py.Empty("i4"), "empty"),
        (None, "a group"),
        (np.ones((36, 1), "i4"), "an array of 2 dimensions"),
    ],
)
def test_parts_of_x_that_are_no_lines(path, part, values, found):
    spoiled(path, array(f"X/{part}", values))
    if values is None:
        spoiled(path, lambda file: file.create_group(f"X/{part}"))
    wanted = f"X/{part} is {found} instead of an array of one dimension: copy or download"
    assert refused(path).startswith(wanted)


# -- values --------------------------------------------------------------------------------------

# What the sentence about fractional values adds, where no other element holds counts.
ROUND = f"; {HOW_TO_ROUND}"


@pytest.mark.parametrize(
    "value, wanted",
    [
        (-3, "-3, a negative value"),
        (0.5, "0.5, a fractional value"),
        (np.nan, "nan, which is no count"),
        (np.inf, "inf, which is no count"),
        (-np.inf, "-inf, which is no count"),
        (2**32, "4294967296, above 4294967295"),
    ],
)
@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
@pytest.mark.parametrize("budget", ["1MB", 1000])
def test_values_that_are_no_counts(path, value, wanted, kind, budget):
    """The message names the cell and gene, also when the cell is not in the first block."""
    adata = plate()
    adata.X = adata.X.astype(np.float64)
    gene = adata.X.indices[22]  # the second value of cell 7
    adata.X.data[22] = value
    adata.X.data[30] = -1  # a later fault is not the one reported
    adata.X = {"csr": adata.X, "csc": adata.X.tocsc(), "dense": adata.X.toarray()}[kind]
    write(adata, path)
    message = refused(path, block_budget=budget)
    assert message == (
        f"X holds {wanted}, at cell 7 ('c7'), gene {gene} ('g{gene}'): "
        "give raw counts, not normalised or scaled values"
        f"{ROUND if value == 0.5 else ''}"
    )


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_integers_that_are_no_counts(path, dtype):
    adata = plate()
    data = adata.X.data.astype(dtype)
    data[22] = -3 if dtype is not np.uint64 else 2**64 - 1
    write(adata, path)
    spoiled(path, array("X/data", data))
    wanted = "18446744073709551615, above" if dtype is np.uint64 else "-3, a negative value"
    assert wanted in refused(path)


@pytest.mark.parametrize("index", [-1, N_GENES, 2**31 - 1])
@pytest.mark.parametrize("budget", ["1MB", 1000])
def test_index_out_of_range(path, index, budget):
    values = plate().X.indices.copy()
    values[22] = index
    spoiled(path, array("X/indices", values))
    message = refused(path, block_budget=budget)
    assert message.startswith(f"X/indices of cell 7 ('c7') hold {index}, but there are 5 genes")


@pytest.mark.parametrize("order", [(0, 0, 1), (1, 2, 1), (1, 0, 1)])
def test_duplicate_index(path, order):
    values = plate().X.indices.copy()
    values[21:24] = order
    spoiled(path, array("X/indices", values))
    gene = max(set(order), key=order.count)
    message = refused(path)
    assert message.startswith(f"X/indices of cell 7 ('c7') hold gene {gene} ('g{gene}') twice: ")
    assert "sum_duplicates" in message


def test_unsorted_indices_are_sorted(path):
    adata = plate()
    wanted = adata.X.toarray()
    indices, data = adata.X.indices.copy(), adata.X.data.copy()
    for cell in (2, 7):
        rows = slice(3 * cell, 3 * cell + 3)
        indices[rows], data[rows] = indices[rows][[1, 2, 0]], data[rows][[1, 2, 0]]
    spoiled(path, array("X/indices", indices), array("X/data", data))
    facts = load(path)
    assert facts["n_unsorted_cells"] == 2
    assert "X/indices of 2 cells were not sorted: sorted" in facts["notices"]
    x = loaded(path).X
    np.testing.assert_array_equal(x.toarray(), wanted)
    assert x.has_sorted_indices


def test_stored_zeros_are_dropped(path):
    data = plate().X.data.copy()
    data[[3, 4, 5, 20]] = 0
    spoiled(path, array("X/data", data))
    facts = load(path)
    assert facts["n_stored_zeros"] == 4
    assert "X held 4 stored zeros: dropped" in facts["notices"]
    assert "1 cells have no counts" in facts["notices"]
    assert loaded(path).X.nnz == facts["n_values"] == 32


# -- obs and var ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, wanted",
    [
        (["g0", "g1", "gX", "g3", "g4"], "gene 2 of var is 'gX', but 'g2' on "),
        (["g0", "g1", "g3", "g2", "g4"], "gene 2 of var is 'g3', but 'g2' on "),
        (["g0", "g1", "g2", "g3"], "gene 4 of var is missing, but 'g4' on "),
        (["g0", "g1", "g2", "g3", "g4", "g5"], "gene 5 of var is 'g5', but missing on "),
    ],
)
def test_genes_differ_from_the_reference(path, names, wanted):
    reference = path.with_name("first.h5ad")
    path.rename(reference)
    x = sp.csr_matrix(np.ones((3, len(names)), np.float32))
    write(ad.AnnData(x, var=pd.DataFrame(index=names)), path)
    assert refused(path, reference=reference) == (
        f"{wanted}{reference}: give all plates the same genes in the same order, "
        "or set 'genes: intersect' (or union) in the config"
    )
    assert load(path)["n_genes"] == len(names)


@pytest.mark.parametrize(
    "expression, sentence",
    [
        ("passes == 'full'", "obs has no column 'passes', which qc.filter (passes == 'full') asks"),
        ("pass_filter == 'all'", "qc.filter (pass_filter == 'all') keeps none of the 12 cells; "),
        ("pass_filter", "qc.filter (pass_filter) gives no true or false for each cell; write a"),
    ],
)
def test_a_filter_that_cannot_work(path, expression, sentence):
    def check(obs: Table) -> None:
        evaluate_filter(obs.for_query(query_columns(expression)), expression, source=path)

    assert refused(path, check_obs=check).startswith(sentence)


@pytest.mark.parametrize("name", ["dose", "total_counts"])
def test_damaged_columns_are_refused_beside_the_counts(path, name, monkeypatch):
    """Also one that a metric replaces; and no later block is waited for."""
    with h5py.File(path, "r+") as file:
        values = file["obs"].create_dataset(
            name, data=np.arange(N_CELLS), chunks=(N_CELLS,), compression="gzip"
        )
        values.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        order = [*file["obs"].attrs["column-order"], name]
        file["obs"].attrs["column-order"] = order
        place = values.id.get_chunk_info(0)
    with path.open("r+b") as file:
        file.seek(place.byte_offset + 2)
        file.write(bytes(4))
    blocks = []

    def slowly(*args, **options):
        time.sleep(0.5)
        blocks.append(args)
        return check_counts(*args, **options)

    monkeypatch.setattr("scatlas.io.products.load_plate.check_counts", slowly)
    with dask.config.set(num_workers=1):
        assert refused(path, block_budget=1).startswith(f"obs/{name} cannot be read (")
    assert len(blocks) < N_CELLS


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_repeated_names_get_numbers_and_are_told_first(path):
    adata = plate()
    adata.obs_names = ["a", "b", "a", "a", *(f"c{i}" for i in range(8))]
    adata.obs["when"] = 1j
    write(adata, path)
    names, column, *_ = load(path)["notices"]
    assert names == "obs had 2 repeated cell names: made unique by a number at the end"
    assert column.startswith("obs['when']")
    assert list(loaded(path).obs_names[:5]) == ["a", "b", "a-1", "a-2", "c0"]
    shutil.rmtree(path.parent / "out")
    adata.var_names = ["g0", "g1", "g2", "g1", "g4"]
    message = refused(write(adata, path))
    assert message.startswith("the gene name 'g1' stands twice in var (genes 1 and 3)")
    assert "var_names_make_unique" in message


PACKED = {
    "gunzip": gzip.compress,
    "bunzip2": bz2.compress,
    "unxz": lzma.compress,
    "unzstd": Zstd(1).encode,
}


@pytest.mark.parametrize("name", ["a plate.h5ad", "plate.h5ad.gz", "plate.zarr.zip", "plate"])
@pytest.mark.parametrize("program", [*PACKED, "tar", "unzip"])
def test_the_advice_to_unpack_leads_to_the_plate(tmp_path, name, program):
    if not shutil.which(program):
        pytest.skip(f"no {program}")
    whole, path = write(plate(), tmp_path / "whole.h5ad"), tmp_path / name
    if program in PACKED:
        path.write_bytes(PACKED[program](whole.read_bytes()))
    else:
        kind = "tar" if program == "tar" else "zip"
        made = shutil.make_archive(tmp_path / "made", kind, tmp_path, whole.name)
        Path(made).rename(path)
    command = refused(path).split("unpack it with: ")[1].split(", and give")[0]
    assert program in command
    whole.unlink()
    subprocess.run(command, shell=True, check=True, cwd="/", stdin=subprocess.DEVNULL)
    (found,) = (file for file in tmp_path.rglob("*") if file.is_file() and h5py.is_hdf5(file))
    assert found == path or program in ("tar", "unzip") or path.suffix == ".gz"
    assert load(found)["n_cells"] == N_CELLS


def of_modalities(path: Path, holder: str = "mod", name: str = "rna") -> None:
    """MuData: an AnnData in an HDF5 file or Zarr store, below the names of all cells."""
    root = h5py.File(path, "w") if path.suffix == ".h5mu" else zarr.open_group(path, mode="w")
    write_elem(root.create_group(holder), name, plate())
    if holder == "mod":
        root.attrs["encoding-type"] = "MuData"
    if path.suffix == ".h5mu":
        root.close()


def of_annbatch(path: Path) -> None:
    root = zarr.open_group(path, mode="w")
    root.attrs["encoding-type"] = "annbatch-preshuffled"
    write_elem(root, "dataset_0", plate())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.h5mu", of_modalities),
        ("x.zarr", of_modalities),
        ("x.spatial.zarr", partial(of_modalities, holder="tables", name="table")),
        ("collection", of_annbatch),
    ],
)
def test_the_way_to_the_anndata_inside_leads_to_the_plate(tmp_path, name, make):
    path = tmp_path / name
    make(path)
    advice = refused(path).rpartition(": ")[2]
    if advice.startswith("python -c "):
        (code,) = shlex.split(advice.removeprefix("python -c "))
        exec(code)  # as the command does
        advice = tmp_path / "x.rna.h5ad"
    assert load_plate(advice, tmp_path / "counts.zarr", plate="P1")["n_cells"] == N_CELLS


@pytest.mark.parametrize(
    ("name", "elements", "call"),
    [
        ("x.h5", ["m/data", "m/indices", "m/indptr", "m/shape"], "zellkonverter::writeH5AD(Sing"),
        ("x.h5", ["m/idxptr", "m/version"], "BPCells::open_matrix_hdf5('{path}', 'm'), '{h5ad}')"),
        ("x.h5seurat", ["assays/RNA", "meta.data/a"], "SeuratDisk::Convert('{path}', dest = 'h5"),
        ("bp/", ["idxptr", "version"], "BPCells::open_matrix_dir('{path}'), '{h5ad}')"),
        ("soma/", ["__group/1", "obs/1"], "io.to_h5ad(s.Experiment.open('{path}'), '{h5ad}'"),
        ("x.h5", ["matrix/barcodes", "matrix/data"], "load takes it, or read it with: scanpy."),
        ("x.rds", [], "anndataR::write_h5ad(readRDS('{path}'), '{h5ad}')"),
        ("x.RData", [], "anndataR::write_h5ad(get(load('{path}')), '{h5ad}')"),
    ],
)
def test_files_of_other_programs_come_with_the_call_that_writes_h5ad(
    tmp_path, name, elements, call
):
    path = tmp_path / name
    if name.endswith("/"):
        for element in elements:
            (path / element).parent.mkdir(parents=True, exist_ok=True)
            (path / element).touch()
    elif elements:
        with h5py.File(path, "w") as file:
            for element in elements:
                file[element] = np.arange(3)
    else:
        path.write_bytes(gzip.compress(b"X\n"))
    wanted = call.format(path=path, h5ad=path.with_suffix(".h5ad"))
    for read in (lazily_refused,) if "load takes it" in call else (refused, lazily_refused):
        assert wanted in read(path)


def lazily_refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_lazy(path)
    return str(caught.value)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_store_of_lfs_pointers(tmp_path, zarr_format):
    with ad.settings.override(zarr_write_format=zarr_format):
        path = write(plate(), tmp_path / "plate.zarr")
    root = path / {2: ".zgroup", 3: "zarr.json"}[zarr_format]
    root.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7\nsize 12\n")
    with pytest.raises(InputError, match=f"{root}: no metadata of a Zarr store: .* git lfs pull"):
        load(path)


@pytest.mark.parametrize("place", [Path, Path.as_uri])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("array", ["obs/_index", "var/_index", "X/data"])
def test_a_zarr_store_that_lacks_a_chunk_of_names(tmp_path, zarr_format, array, place):
    """Which would read as names without a letter, and cells as '', '-1', '-2'."""
    with ad.settings.override(zarr_write_format=zarr_format):
        path = write(plate(), tmp_path / "plate.zarr")
    chunks = [
        file
        for file in (path / array).rglob("*")
        if file.is_file() and file.name not in {"zarr.json", ".zarray", ".zattrs"}
    ]
    kept = chunks[0].rename(tmp_path / "kept")
    with pytest.raises(InputError) as caught:
        load_plate(place(path), tmp_path / "counts.zarr", plate="P1")
    lacks = f"{place(path)}: {array} lacks 1 of {len(chunks)} chunk files: copy or"
    assert str(caught.value).startswith(lacks)
    kept.rename(chunks[0])
    load_plate(place(path), tmp_path / "counts.zarr", plate="P1")


def test_a_matrix_of_an_old_anndata_beside_tables_of_a_new_one(path):
    load(path)
    wanted = checksum(path.parent / "out")
    with h5py.File(path, "r+") as file:
        attrs = file["X"].attrs
        attrs["h5sparse_format"], attrs["h5sparse_shape"] = "csr", attrs["shape"]
        for name in ("encoding-type", "encoding-version", "shape"):
            del attrs[name]
    load(path)
    assert checksum(path.parent / "out") == wanted


@pytest.mark.parametrize("place", ["layers/umis", "raw", None])
@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csr_matrix.toarray])
def test_normalised_values_point_to_the_counts(tmp_path, place, suffix, form):
    adata = plate()
    counts, adata.X = adata.X.copy(), adata.X * np.float32(0.37)
    adata.layers["scaled"] = adata.X * 2
    adata.layers["umis" if place == "layers/umis" else "nothing"] = form(counts * bool(place))
    if place == "raw":
        adata.layers["nothing"] *= 0
        adata.raw = ad.AnnData(form(counts), obs=adata.obs, var=adata.var)
    message = refused(write(adata, tmp_path / f"plate.{suffix}"))
    said = "give raw counts, not normalised or scaled values"
    assert message.endswith(
        f"{said}; {place} holds whole numbers: write 'source: {{counts: {place}}}' in the config, "
        f"or {place} in a column 'counts' of the plate sheet"
        if place
        else said + ROUND
    )
