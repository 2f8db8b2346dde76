"""load_plate writes the source's counts exactly, with QC metrics, whatever layout and budget."""

from __future__ import annotations

import runpy
import tracemalloc
from pathlib import Path

import anndata as ad
import dask
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from scatlas.blocks import csr
from scatlas.compute.threads import use_threads
from scatlas.datasets import simulate_plate, write_plate
from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum, values_digest
from scatlas.io.products.load_plate import load_plate
from scatlas.io.tables.table import METRICS
from scatlas.io.zarr_writer.sharded_array import CHUNK_VALUES
from scatlas.kernels.counts.check_cpu import check_counts
from tests.helpers.plates import write


def source(make_counts, make_adata, folder: Path, suffix: str = "h5ad") -> ad.AnnData:
    adata = make_adata(make_counts(60, 50).astype(np.float32))
    adata.obs["plate"] = "as given"
    adata.obs.index.name = "BARCODE"
    adata.var["gene_id"] = [f"E{i}" for i in range(50)]
    adata.uns["not carried"] = 1
    write(adata, folder / f"plate.{suffix}")
    return adata


def load(folder: Path, suffix: str = "h5ad", **options) -> tuple[dict, ad.AnnData]:
    out = folder / "counts.zarr"
    facts = load_plate(folder / f"plate.{suffix}", out, plate="P1", **options)
    return facts, ad.read_zarr(out)


def test_a_plate_of_long_offsets_is_written_once(tmp_path, make_counts, make_adata, monkeypatch):
    """As from 2^31 values on, with the limit put at 100: at it all indices were written again."""
    monkeypatch.setattr("scatlas.io.matrices.csr_writer._INT32_VALUES", 100)
    monkeypatch.delattr("scatlas.io.zarr_writer.sharded_array.ShardedArray.rewrite")
    wanted = source(make_counts, make_adata, tmp_path)
    x = load(tmp_path)[1].X
    assert x.indices.dtype == x.indptr.dtype == np.int64
    np.testing.assert_array_equal(x.toarray(), wanted.X.toarray())


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("budget", [1, 3000, "256MB"])
def test_counts_and_metrics(tmp_path, make_counts, make_adata, suffix, budget):
    wanted = source(make_counts, make_adata, tmp_path, suffix)
    facts, plate = load(tmp_path, suffix, block_budget=budget)
    dense = wanted.X.toarray().astype(np.int64)
    np.testing.assert_array_equal(plate.X.toarray(), dense)
    assert plate.X.dtype.kind == "u"
    assert plate.X.has_canonical_format

    mt = np.arange(50) < 4
    total, n_genes, total_mt = dense.sum(1), (dense > 0).sum(1), dense[:, mt].sum(1)
    with np.errstate(invalid="ignore"):
        share = total_mt / total * 100
    metrics = dict(zip(METRICS, (total, n_genes, total_mt, share), strict=True))
    for name, values in metrics.items():
        np.testing.assert_array_equal(plate.obs[name], values)
        assert plate.obs[name].dtype == (np.float64 if name.startswith("pct") else np.int64)
    assert np.isnan(plate.obs["pct_counts_mt"].iloc[3])  # an empty cell, as in scanpy
    np.testing.assert_array_equal(plate.var["mt"], mt)
    np.testing.assert_array_equal(plate.var["n_cells_by_counts"], (dense > 0).sum(0))
    np.testing.assert_array_equal(plate.var["total_counts"], dense.sum(0))

    assert list(plate.obs_names) == list(wanted.obs_names)
    assert plate.obs.index.name == "BARCODE"
    assert list(plate.obs.columns) == ["batch", "plate", *metrics]
    assert set(plate.obs["plate"]) == {"as given"}
    assert list(plate.var["gene_id"]) == list(wanted.var["gene_id"])
    assert not plate.uns
    assert facts == {
        "plate": "P1",
        "n_cells": 60,
        "n_genes": 50,
        "n_values": wanted.X.nnz,
        "total_counts": int(dense.sum()),
        "max_count": int(dense.max()),
        "n_empty_cells": 2,
        "n_mt_genes": 4,
        "n_unsorted_cells": 0,
        "n_stored_zeros": 0,
        "values_digest": values_digest(tmp_path / "counts.zarr"),
        "notices": ["2 cells have no counts", "var had columns mt: replaced by new values"],
    }


def test_same_bytes_for_any_budget_and_source(tmp_path, make_counts, make_adata):
    sums = set()
    for suffix in ("h5ad", "zarr"):
        source(make_counts, make_adata, tmp_path, suffix)
        for budget in (1, 5000, "256MB"):
            load(tmp_path, suffix, block_budget=budget)
            sums.add(checksum(tmp_path / "counts.zarr"))
    assert len(sums) == 1


@pytest.mark.parametrize("largest", [200, 100_000])
def test_same_bytes_each_time(tmp_path, monkeypatch, largest):
    """At the sizes of the demo's plates: chunks of several blocks, the last of each array cut."""
    plate = simulate_plate(1, n_cells=2000, n_genes=3000)
    plate.X.data[7] = largest
    write_plate(tmp_path / "plate.h5ad", plate)
    # Blosc's own threads, which zarr-python forbids in a process that has imported it.
    monkeypatch.setattr(blosc, "use_threads", True)
    found = set()
    for n in range(6):
        with use_threads(1 + n % 2):
            facts = load_plate(tmp_path / "plate.h5ad", tmp_path / "counts.zarr", plate="p")
        found.add((checksum(tmp_path / "counts.zarr"), facts["values_digest"]))
    assert len(found) == 1


def test_a_loaded_plate_loads_again(tmp_path, make_counts, make_adata):
    """The canonical store is an AnnData store like any other."""
    source(make_counts, make_adata, tmp_path)
    _, once = load(tmp_path)
    facts = load_plate(tmp_path / "counts.zarr", tmp_path / "again.zarr", plate="P1")
    again = ad.read_zarr(tmp_path / "again.zarr")
    np.testing.assert_array_equal(once.X.toarray(), again.X.toarray())
    pd.testing.assert_frame_equal(once.obs, again.obs)
    assert any(notice.startswith("obs had columns total_counts") for notice in facts["notices"])


def test_memory_follows_the_budget_not_the_plate(tmp_path, make_adata):
    """Ten times the cells, the same peak but for what is kept per cell."""
    peaks = []
    sizes = (100, 4_000, 40_000)  # the first compiles the kernels
    threads = 2
    for n_cells in sizes:
        n_values = n_cells * 300
        rng = np.random.default_rng(0)
        indices = np.tile(np.arange(0, 600, 2, dtype=np.int32), n_cells)
        data = rng.integers(1, 200, n_values).astype(np.float32)
        x = csr(data, indices, np.arange(0, n_values + 1, 300), 600)
        write(make_adata(x), tmp_path / "plate.h5ad")
        tracemalloc.start()
        try:
            with dask.config.set(num_workers=threads):
                load_plate(
                    tmp_path / "plate.h5ad",
                    tmp_path / "counts.zarr",
                    plate="P1",
                    block_budget="2MB",
                )
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    further = sizes[2] - sizes[1]
    per_cell = further * 300  # names, offsets and metrics of the further cells
    # Up to two chunks per thread wait for their encoder, of 1 and of 2 bytes per value, and as many
    # encoded ones to be written: how many do depends on the other work of the machine.
    waiting = 2 * 2 * threads * CHUNK_VALUES * 3
    assert peaks[2] - peaks[1] < per_cell + waiting
    assert per_cell + waiting < 8 * 300 * further / 4


BOUND = "qc.max_pct_mt is 5"


@pytest.fixture
def by_id(tmp_path, make_counts, make_adata) -> ad.AnnData:
    """A plate whose genes are called by ids; symbols, human and mouse, are columns of var."""
    adata = source(make_counts, make_adata, tmp_path)
    symbols = adata.var_names
    assert symbols.str.startswith("MT-").any()
    adata.var["symbols"] = pd.Categorical(symbols)
    adata.var["mouse"] = symbols.str.lower()
    adata.var["number"] = np.arange(adata.n_vars)
    adata.var_names = [f"ENSG{i:05}" for i in range(adata.n_vars)]
    write(adata, tmp_path / "plate.h5ad")
    return adata


@pytest.mark.usefixtures("by_id")
def test_mitochondrial_genes_are_found_in_a_column(tmp_path, make_counts, make_adata):
    """As in the index of the same plate whose genes are called by their symbols."""
    (tmp_path / "named").mkdir()
    source(make_counts, make_adata, tmp_path / "named")
    wanted, named = load(tmp_path / "named")
    for options in ({"gene_names": "symbols"}, {"gene_names": "mouse", "mt_prefix": "mt-"}):
        facts, plate = load(tmp_path, **options, mt_bound=BOUND)
        assert facts["n_mt_genes"] == wanted["n_mt_genes"] > 0
        assert list(plate.var_names[:2]) == ["ENSG00000", "ENSG00001"]
        for metric in METRICS:
            np.testing.assert_array_equal(plate.obs[metric], named.obs[metric])


@pytest.mark.parametrize(
    ("options", "mend"),
    [
        ({}, "begin with 'MT-': set qc.gene_names: symbols"),
        ({"mt_prefix": "mt-"}, "in var['mouse'] begin with 'mt-': set qc.gene_names: mouse"),
        ({"mt_prefix": "mt-", "gene_names": "symbols"}, "set qc.gene_names: mouse"),
        ({"mt_prefix": "grch38_"}, "remove this bound"),
    ],
)
@pytest.mark.usefixtures("by_id")
def test_a_bound_that_could_not_act_is_refused(tmp_path, options, mend):
    """With the setting that would find mitochondrial genes, before any count is read."""
    with pytest.raises(InputError) as caught:
        load(tmp_path, **options, mt_bound=BOUND)
    assert str(caught.value).startswith(
        f"{tmp_path}/plate.h5ad: {BOUND}, but all mitochondrial counts are"
    )
    assert str(caught.value).endswith(mend)
    assert load(tmp_path, **options)[0]["n_mt_genes"] == 0, "without the bound it is no error"


def test_mt_prefix(tmp_path, make_counts, make_adata):
    source(make_counts, make_adata, tmp_path)
    for prefix, said in (("mt-", True), (None, False)):
        facts, plate = load(tmp_path, mt_prefix=prefix)
        assert facts["n_mt_genes"] == 0
        assert not plate.obs["total_counts_mt"].any()
        notice = "no gene name begins with 'mt-': mitochondrial counts are all zero"
        assert (notice in facts["notices"]) == said
    with pytest.raises(InputError, match=r"begin with 'MT-': set qc.mt_prefix: MT-$"):
        load(tmp_path, mt_prefix="mt-", mt_bound=BOUND)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("MAX_PCT_MT", "5", BOUND),
        ("QC_FILTER", "pct_counts_mt < 5", "qc.filter is pct_counts_mt < 5"),
        ("QC_FILTER", "batch == 'b1' or total_counts_mt > 3", "qc.filter is batch == 'b1' or t"),
    ],
)
@pytest.mark.usefixtures("by_id")
def test_the_script_knows_each_bound_of_the_config(tmp_path, monkeypatch, name, value, bound):
    monkeypatch.setenv(f"SCATLAS_{name}", value)
    main = runpy.run_path(str(Path(__file__).parents[3] / "scripts/load.py"))["main"]
    files = {"--source": "plate.h5ad", "--store": "counts.zarr", "--manifest": "m.json"}
    options = [text for option, file in files.items() for text in (option, str(tmp_path / file))]
    with pytest.raises(InputError) as caught:
        main(["--plate", "p", *options])
    assert str(caught.value).startswith(f"{tmp_path}/plate.h5ad: {bound}")
    assert str(caught.value).endswith("set qc.gene_names: symbols")


@pytest.mark.usefixtures("by_id")
def test_a_column_of_gene_names_that_is_not_there(tmp_path):
    columns = "mt, gene_id, symbols, mouse, number"
    with pytest.raises(InputError, match=f"no column 'symbol', .* its columns are: {columns};"):
        load(tmp_path, gene_names="symbol")


# -- the kernel ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=8), max_size=6
    ),
    data_dtype=st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8]),
    index_dtype=st.sampled_from([np.int32, np.int64, np.uint16]),
)
def test_check_counts_against_scipy(rows, data_dtype, index_dtype):
    """Rows in any order, with zeros and repeats."""
    indices = np.array([gene for row in rows for gene, _ in row], index_dtype)
    data = np.array([value for row in rows for _, value in row], data_dtype)
    indptr = np.cumsum([0, *map(len, rows)])
    before = data.copy(), indices.copy()
    flagged = np.arange(7) % 3 == 0
    checked = check_counts(csr(data, indices, indptr, 7), flagged)
    np.testing.assert_array_equal(data, before[0])
    np.testing.assert_array_equal(indices, before[1])

    repeats = [len({gene for gene, _ in row}) < len(row) for row in rows]
    if any(repeats):
        assert checked.problem.kind == "duplicate"
        assert checked.problem.row == repeats.index(True)
        genes = [gene for gene, _ in rows[checked.problem.row]]
        assert genes.count(checked.problem.gene_index) > 1
        return
    assert checked.problem is None
    wanted = sp.csr_matrix(
        (data.astype(np.int64), indices.astype(np.int32), indptr), (len(rows), 7)
    )
    wanted.sort_indices()
    wanted.eliminate_zeros()
    np.testing.assert_array_equal(checked.counts, wanted.data)
    np.testing.assert_array_equal(checked.indices, wanted.indices)
    np.testing.assert_array_equal(checked.indptr, wanted.indptr)
    wanted_dtype = np.uint8 if wanted.data.max(initial=0) < 256 else np.uint16
    assert (checked.counts.dtype, checked.indices.dtype) == (wanted_dtype, np.uint16)
    dense = wanted.toarray()
    np.testing.assert_array_equal(checked.totals, dense.sum(axis=1))
    np.testing.assert_array_equal(checked.masked, dense[:, flagged].sum(axis=1))
    np.testing.assert_array_equal(checked.per_gene[:, 0], dense.sum(axis=0))
    np.testing.assert_array_equal(checked.per_gene[:, 1], (dense > 0).sum(axis=0))
    assert checked.n_unsorted == sum(
        [g for g, _ in row] != sorted(g for g, _ in row) for row in rows
    )
    assert checked.n_zeros == sum(value == 0 for row in rows for _, value in row)


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize(
    "value, kind",
    [
        *[(-1, "negative"), (1.5, "fractional"), (2.0**31 + 0.5, "fractional")],
        *[(np.nan, "nan"), (np.inf, "infinite"), (-np.inf, "infinite"), (2.0**32, "too_large")],
    ],
)
def test_check_counts_finds_each_problem_anywhere(value, kind, at):
    data = np.arange(1.0, 10)
    data[at] = value
    indices = np.tile([1, 4, 5], 3).astype(np.int32)
    problem = check_counts(csr(data, indices, np.array([0, 3, 6, 9]), 6)).problem
    assert (problem.kind, problem.row, problem.gene_index) == (kind, at // 3, indices[at])
    np.testing.assert_equal(problem.value, value)
