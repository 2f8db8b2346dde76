"""Functions of files: a written matrix is read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from anndata import AnnData

import scatlas as sa
from scatlas import blocks
from scatlas._util.numbers import parse_bytes
from scatlas.arrays.kinds import is_dask
from scatlas.compute.threads import DEFAULT_BUDGET
from scatlas.io.products.embeddings import component_blocks
from scatlas.matrix.components import components
from scatlas.matrix.size_factors import cell_totals
from tests.adversarial.counting import exact_sums
from tests.adversarial.judge import Function, in_memory, refuse
from tests.adversarial.matrices import INTEGERS, Values, forms, values
from tests.adversarial.moments import gram_of


def in_folder(call: Callable[[AnnData, Path], dict[str, Any]]) -> Callable[[AnnData], Any]:
    """Make the call in a temporary folder; compute lazy results before its removal."""

    def wrapped(adata: AnnData) -> dict[str, Any]:
        with TemporaryDirectory(prefix="scatlas-adversarial-") as folder:
            return {name: in_memory(x) for name, x in call(adata, Path(folder)).items()}

    return wrapped


def _as_csr(block: Any) -> Any:
    from scipy import sparse

    return block if sparse.issparse(block) else sparse.csr_matrix(block)


def _write(adata: AnnData, path: Path, **options: Any) -> None:
    """Write X block by block, with obs and var."""
    with sa.io.CsrWriter(path, n_vars=adata.n_vars, obs=adata.obs, var=adata.var, **options) as to:
        for block in blocks.stream(adata.X):
            to.append(_as_csr(block))


def _no_counts(x: np.ndarray) -> bool:
    wide = x.astype(np.float64)
    whole = np.isfinite(wide).all() and (wide == np.round(wide)).all()
    return not (whole and (wide >= 0).all() and (wide < 2**32).all())


# -- reading -------------------------------------------------------------------------------------


def _read_lazy(adata: AnnData, folder: Path) -> dict[str, Any]:
    adata.copy().write_h5ad(folder / "x.h5ad")
    adata.copy().write_zarr(folder / "x.zarr")
    results = {}
    for path in (folder / "x.h5ad", folder / "x.zarr"):
        lazy = sa.read_lazy(path, block_budget="1kB")
        assert is_dask(lazy.X)
        assert list(lazy.obs) == list(adata.obs)
        results[path.suffix] = in_memory(lazy.X)
        for compact in (False, True):
            x, var = sa.io.read_matrix(path, compact=compact)
            assert list(var.index) == list(adata.var_names)
            results[f"{path.suffix} {compact}"] = in_memory(x)
        with sa.io.open_tables(path) as (obs, _):
            assert list(obs.read().index) == list(adata.obs_names)
        with sa.io.open_counts(path) as source:
            assert source.shape == adata.shape
            cut, read = source.blocks(DEFAULT_BUDGET, print)
            rows = np.vstack([read(i).toarray() for i in range(len(cut))])
            np.testing.assert_array_equal(rows, results[path.suffix])
    return results


def _all_read(values: Values, bare: AnnData) -> dict[str, Any]:
    names = [f"{kind}{how}" for kind in (".h5ad", ".zarr") for how in ("", " False", " True")]
    return dict.fromkeys(names, values.dense)


def _split(adata: AnnData, folder: Path) -> dict[str, Any]:
    """Every second cell is of another sample; their stores together are the file."""
    file = adata.copy()
    if adata.n_obs == 0:
        file.write_h5ad(folder / "x.h5ad")
        return {"X": sa.io.list_samples(folder / "x.h5ad", "sample")}
    rows = {"a": np.arange(0, adata.n_obs, 2), "b": np.arange(1, adata.n_obs, 2)}
    file.obs["sample"] = pd.Series("a", file.obs_names, dtype=str)
    file.obs.iloc[1::2, file.obs.columns.get_loc("sample")] = "b"
    file.write_h5ad(folder / "x.h5ad")
    samples = sa.io.list_samples(folder / "x.h5ad", "sample")
    assert samples == {name: len(of) for name, of in rows.items() if len(of)}
    stores = {name: folder / f"{name}.zarr" for name in samples}
    sa.io.split_samples(folder / "x.h5ad", stores, by="sample", block_budget="1kB")
    x = np.zeros(adata.shape, adata.X.dtype)
    for name, store in stores.items():
        found = ad.read_zarr(store)
        assert list(found.obs_names) == list(adata.obs_names[rows[name]])
        x[rows[name]] = found.X.toarray()
    return {"X": x}


def _split_read(values: Values, bare: AnnData) -> dict[str, Any]:
    refuse(bare.n_obs == 0, "no cells")
    return {"X": values.dense}


# -- writing -------------------------------------------------------------------------------------


def _written(adata: AnnData, folder: Path) -> dict[str, Any]:
    path = folder / "x.zarr"
    _write(adata, path, data_dtype=adata.X.dtype)
    found = ad.read_zarr(path)
    pd.testing.assert_index_equal(found.obs_names, adata.obs_names, exact=False)
    some = np.arange(0, adata.n_obs, 2)
    part = sa.io.read_subset(path, some)
    assert list(part.obs_names) == list(adata.obs_names[some])
    return {"X": found.X, "part": part.X}


def _counts_written(adata: AnnData, folder: Path) -> dict[str, Any]:
    path = folder / "counts.zarr"
    _write(adata, path)
    x, _ = sa.io.read_matrix(path)
    return {"X": x.astype(np.int64)}


def _counts_read(values: Values, bare: AnnData) -> dict[str, Any]:
    refuse(_no_counts(values.dense), "no counts that 32 bits hold")
    return {"X": values.dense.astype(np.int64)}


def _load(adata: AnnData, folder: Path) -> dict[str, Any]:
    adata.copy().write_h5ad(folder / "x.h5ad")
    out = folder / "counts.zarr"
    facts = sa.io.load_plate(folder / "x.h5ad", out, plate="p")
    found = ad.read_zarr(out)
    assert found.X.has_canonical_format
    return {
        "X": found.X.astype(np.int64),
        "totals": found.obs["total_counts"].to_numpy(),
        "of genes": found.var["total_counts"].to_numpy(),
        "n": facts["n_values"],
        # Stored zeros and unsorted cells do not change the file.
        "bytes": np.array(sa.io.checksum(out / "X")),
    }


def _loaded(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense
    refuse(min(x.shape) == 0, "no cells, or no genes")
    refuse(_no_counts(x), "no counts that 32 bits hold")
    return {
        "X": x.astype(np.int64),
        "totals": exact_sums(x, 1),
        "of genes": exact_sums(x, 0),
        "n": np.count_nonzero(x),
    }


def _concat(adata: AnnData, folder: Path) -> dict[str, Any]:
    stores = {name: folder / f"{name}.zarr" for name in ("a", "b")}
    for path in stores.values():
        _write(adata, path, data_dtype=adata.X.dtype)
    sa.io.concat_on_disk(stores, folder / "both.zarr")
    sa.io.merge_sums(stores, folder / "sums.h5ad")
    both = ad.read_zarr(folder / "both.zarr")
    sums = ad.read_h5ad(folder / "sums.h5ad")
    assert list(both.obs_names) == list(sums.obs_names)
    assert len(set(both.obs_names)) == both.n_obs
    assert list(both.obs["plate"].astype(str)) == ["a"] * adata.n_obs + ["b"] * adata.n_obs
    return {"X": both.X, "sums": sums.X}


def _twice(values: Values, bare: AnnData) -> dict[str, Any]:
    x = np.concatenate([values.dense] * 2)
    return {"X": x, "sums": x}


def _gram(adata: AnnData, folder: Path) -> dict[str, Any]:
    stats = gram_of(adata)
    sa.io.write_gram(folder / "gram.zarr", n_cells=adata.n_obs, n_genes=adata.n_vars, stats=stats)
    stored = sa.io.StoredGram.open(folder / "gram.zarr")
    sums, upper = np.zeros_like(stats.sums), np.zeros_like(stats.gram)
    stored.add_to(sums, upper)
    np.testing.assert_array_equal(sums, stats.sums)
    np.testing.assert_array_equal(upper, np.triu(stats.gram))
    return {"n": stored.n_cells, "gram": upper}


def _gram_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    refuse(not np.isfinite(values.dense).all(), "values that are not finite")
    x = values.dense.astype(np.longdouble)
    return {"n": len(x), "gram": np.triu(x.T @ x)}


def _assemble(adata: AnnData, folder: Path) -> dict[str, Any]:
    merged, pca = folder / "merged.zarr", folder / "pca.zarr"
    _write(adata, merged, data_dtype=np.float32)
    found = components(gram_of(adata), 1)
    x_pca = found.project(adata.X)
    sa.io.write_pca(
        pca,
        x_pca=[in_memory(block) for block in blocks.stream(x_pca)],
        n_cells=adata.n_obs,
        components=found,
        genes=list(adata.var_names),
        params={"zero_center": True},
    )
    cells = in_memory(x_pca)
    pieces = [piece for _, piece in component_blocks(pca)]
    np.testing.assert_array_equal(np.concatenate(pieces), cells)
    sa.io.write_embedding(folder / "more.zarr", "X_more", cells)
    more = {"X_more": folder / "more.zarr"}
    sa.io.assemble(merged, pca, folder / "atlas.zarr", var=adata.var, obsm=more)
    atlas = ad.read_zarr(folder / "atlas.zarr")
    np.testing.assert_array_equal(atlas.obsm["X_more"], atlas.obsm["X_pca"])
    return {"X": atlas.X, "cells": atlas.obsm["X_pca"]}


def _assembled(values: Values, bare: AnnData) -> dict[str, Any]:
    refuse(values.shape[0] < 2, "fewer than two cells")
    refuse(values.shape[1] == 0, "no genes")
    return {"X": values.dense.astype(np.float32)}


# -- tables --------------------------------------------------------------------------------------


def _cells(adata: AnnData, folder: Path) -> dict[str, Any]:
    table = pd.DataFrame({"total": cell_totals(adata.X)})
    names = adata.obs_names.to_numpy(dtype=object)
    half = len(names) // 2
    sa.io.write_cells(folder / "cells.parquet", table, [names[:half], names[half:]])
    sa.io.write_json(folder / "cells.json", {"totals": table["total"].to_numpy()})
    size = (folder / "cells.json").stat().st_size
    assert parse_bytes(f"{size} B") == size
    with sa.io.atomic_path(folder / "copy.json") as partial:
        partial.write_bytes((folder / "cells.json").read_bytes())
    assert sa.io.checksum(folder / "copy.json") == sa.io.checksum(folder / "cells.json")
    assert list(pd.read_parquet(folder / "cells.parquet").index) == list(adata.obs_names)
    read = sa.io.read_cells(folder / "cells.parquet", ["total"])
    return {"total": read["total"].to_numpy()}


def _totals(values: Values, bare: AnnData) -> dict[str, Any]:
    return {"total": exact_sums(values.dense, 1)}


# AnnData does not write all types of Dask arrays, and its output has no blocks.
FILES = {"forms": forms(lazy=False), "warns": ("Writing zarr v2 data",), "typical": None}
# SciPy has no sparse matrix of float16.
SPARSE = values(dtypes=(*INTEGERS, "float32", "float64"))
WHOLE = values(kinds=("counts", "huge", "negative"), dtypes=(*INTEGERS, "float32", "float64"))

FUNCTIONS = {
    "read_lazy": Function(in_folder(_read_lazy), _all_read, **FILES),
    "io.CsrWriter": Function(
        in_folder(_written),
        lambda values, bare: {"X": values.dense, "part": values.dense[::2]},
        SPARSE,
    ),
    "io.CsrWriter of counts": Function(in_folder(_counts_written), _counts_read, SPARSE),
    "io.load_plate": Function(in_folder(_load), _loaded, **FILES),
    "io.split_samples": Function(in_folder(_split), _split_read, SPARSE, **FILES),
    "io.concat_on_disk": Function(in_folder(_concat), _twice, SPARSE),
    "io.write_gram": Function(
        in_folder(_gram), _gram_expected, rtol=1e-14, why="float64 sums", storages="close"
    ),
    "io.assemble": Function(in_folder(_assemble), _assembled, WHOLE, storages="close", rtol=3e-7),
    "io.write_cells": Function(in_folder(_cells), _totals, WHOLE, forms(views=False)),
}
