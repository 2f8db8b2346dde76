"""Calls of scatlas and of scanpy with the same data and options, and what they have written.

All that a call writes is compared: values, names, types, the order of columns and genes. A module
of tests has a table of :class:`Case`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import scanpy as sc
from scipy import sparse

import scatlas as sa
from tests.helpers.marked import marked_counts

# --- data -------------------------------------------------------------------------------------


def annotated(counts: Any, *, logs: bool) -> ad.AnnData:
    """CSR float64 of counts or their logarithms, with columns of all kinds."""
    x = sparse.csr_matrix(counts, dtype=np.float64)
    totals = np.asarray(x.sum(axis=1)).ravel()
    if logs:
        x = (sparse.diags(1e3 / np.maximum(totals, 1)) @ x).tocsr()
        x.data = np.log1p(x.data)
    n, genes = x.shape
    rng = np.random.default_rng(1)
    lines = rng.integers(0, 3, n)
    lines[5:20], lines[40:50] = 3, -1
    obs = {
        "line": pd.Categorical.from_codes(lines, list("badc")),  # one small; cells without
        "drug": rng.choice(["d10", "d2", "d1"], n),
        "dose": rng.choice([0.5, 10, 2], n),
        "batch": pd.Categorical(rng.permutation(np.resize(["x", "y", "z", "w"], n))),
        "total": totals,
        "fraction": rng.random(n),
        "days": rng.integers(0, 30, n).astype(np.int16),
        "nothing": 0.0,
        "use": np.arange(n) % 4 > 0,
    }
    # Neither in alphabetical order, nor with the same names for all data.
    var = pd.DataFrame(index=[f"g{i}" for i in rng.permutation(genes)])
    var["mt"], var["set"] = np.arange(genes) < 13, rng.choice(["p", "q", "r"], genes)
    var["some"] = np.arange(genes) % 3 > 0
    return ad.AnnData(x, obs=pd.DataFrame(obs, index=[f"c{i}" for i in range(n)]), var=var)


def simulated(*, logs: bool = False, seen: bool = False, empty: bool = True) -> ad.AnnData:
    """400 cells x 600 genes with markers of three types, an outlier and two empty cells."""
    counts = marked_counts(np.random.default_rng(0))
    if empty:
        counts[[3, 77]] = 0
    counts[5, 7] = 0 if logs else 100_000
    return annotated(counts[:, counts.any(axis=0)] if seen else counts, logs=logs)


def in_blocks(x: Any) -> Any:
    """Dask array of CSR blocks."""
    return da.from_array(x, chunks=(57, x.shape[1]), asarray=False)


STORAGES: dict[str, Callable[[Any], Any]] = {
    "csr": lambda x: x.copy(),
    "csc": lambda x: x.tocsc(),
    "dense": lambda x: x.toarray(),
    "dask": in_blocks,
}

# --- what a call has written ------------------------------------------------------------------


def items(value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of anything that a function writes or returns, by name."""
    match value:
        case None:
            return
        case ad.AnnData():
            for part in ("X", "obs", "var", "layers"):
                yield from items(getattr(value, part), f"{name}{part}.")
        case pd.DataFrame():
            yield f"{name}index", value.index.to_numpy(dtype=object)
            yield f"{name}columns", np.array([*value], dtype=object)
            for column in value:
                yield from items(value[column], f"{name}{column}")
        case pd.Series() if isinstance(value.dtype, pd.CategoricalDtype):
            yield f"{name} codes", value.cat.codes.to_numpy()
            if not name.endswith("mean_bin"):  # edges depend on the means
                yield f"{name} categories", np.array([*value.cat.categories], dtype=object)
        case Mapping():
            for key, item in value.items():
                yield from items(item, f"{name}{key}.")
        case tuple():
            for i, item in enumerate(value):
                yield from items(item, f"{name}{i}.")
        case _:
            yield name, as_numpy(value)


def written(adata: ad.AnnData, result: Any, before: ad.AnnData) -> dict[str, np.ndarray]:
    """What a call returns and has changed in ``adata``, which was a copy of ``before``."""
    found = dict(items(result, "result."))
    for part in ("obs", "var"):
        table = getattr(adata, part)
        if adata.shape != before.shape:
            found[f"{part} names"] = table.index.to_numpy(dtype=object)
        new = [name for name in table if name not in getattr(before, part)]
        if new:
            found |= items(table[new].reset_index(drop=True), f"{part}.")
    if "changed" in adata.uns:
        found["X"] = adata.uns["changed"]
    for part in ("uns", "obsm", "varm", "obsp", "layers"):
        mine, old = getattr(adata, part), getattr(before, part)
        new = {key: mine[key] for key in mine if key not in old and key != "changed"}
        found |= items(new, f"{part}.")
    return found


def as_numpy(x: Any) -> np.ndarray:
    """A matrix of any kind as a NumPy array."""
    x = x.compute(scheduler="synchronous") if hasattr(x, "dask") else x
    return x.toarray() if sparse.issparse(x) else np.asarray(x)


def call(
    function: Callable[..., Any], before: ad.AnnData, x: Any, *args: Any, **options: Any
) -> Any:
    """A copy of ``before`` with the matrix ``x`` after a call, and what the call returns."""
    adata = before.copy()
    adata.X = x
    old = as_numpy(x).copy()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = function(adata, *args, **options)
    new = as_numpy(adata.X)
    if new.shape != old.shape or new.dtype != old.dtype or not np.array_equal(new, old):
        adata.uns["changed"] = new
    return adata, result


# Roundings of what is stored as float32.
FLOAT32 = 3e-7


def same(ours: Any, theirs: Any, rtol: float, where: str, types: str | None) -> None:
    """Check for the same names and values, and the types of arrays whose name begins so."""
    assert ours.keys() == theirs.keys(), where
    for name, expected in theirs.items():
        got, message = ours[name], f"{name} of {where}"
        if types is not None and name.startswith(types) and expected.ndim:
            assert got.dtype == expected.dtype, message
        if expected.dtype.kind == "f" and rtol:
            size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            room = rtol if expected.dtype == np.float64 else max(rtol, FLOAT32)
            np.testing.assert_allclose(got, expected, rtol=room, atol=room * size, err_msg=message)
        else:
            np.testing.assert_array_equal(got, expected, message)


# --- readers of results that are not compared as they are ------------------------------------

Reader = Callable[[ad.AnnData, Any, ad.AnnData, Mapping[str, Any]], dict[str, np.ndarray]]


def as_written(adata: ad.AnnData, result: Any, before: ad.AnnData, options: Any) -> Any:
    return written(adata, result, before)


def signs_apart(adata: ad.AnnData, result: Any, before: ad.AnnData, options: Any) -> Any:
    """Components whose largest loading is positive; cells over the largest of a component."""
    found, loadings = adata.uns["pca"], adata.varm["PCs"]
    sign = np.sign(loadings[np.abs(loadings).argmax(axis=0), np.arange(loadings.shape[1])])
    cells = as_numpy(adata.obsm["X_pca"]) * sign
    return {
        "cells": (cells / np.abs(cells).max(axis=0)).astype(np.float32),
        "PCs": loadings * sign,
        "variance": np.append(found["variance"], found["variance_ratio"]),
        **dict(items(found["params"], "")),
    }


def totals_alone(adata: ad.AnnData, result: Any, before: ad.AnnData, options: Any) -> Any:
    """Totals, and cells with fewer counts than asked for, which stay as they are."""
    x = as_numpy(adata.X)
    if "total_counts" in options:
        return {"total": x.sum(dtype=np.float64)}
    few = before.obs["total"].to_numpy() <= options["counts_per_cell"]
    assert few.any()
    return {"totals": x.sum(axis=1, dtype=np.float64), "few": x[few]}


def by_gene(adata: ad.AnnData, result: Any, before: ad.AnnData, options: Any) -> Any:
    """Ranked genes in the order of var, because scanpy orders equal scores at random."""
    found = adata.uns["rank_genes_groups"]
    results = dict(items(found["params"], "params."))
    results |= items({key: found[key] for key in ("pts", "pts_rest") if key in found}, "")
    assert isinstance(found["names"], np.recarray)
    for key in ("scores", "logfoldchanges", "pvals", "pvals_adj"):
        if key not in found:
            continue
        assert found[key].dtype.names == found["names"].dtype.names
        for group in found[key].dtype.names:
            column = pd.Series(found[key][group], found["names"][group])
            assert key != "scores" or options.get("rankby_abs") or column.is_monotonic_decreasing
            cut = options.get("n_genes")
            values = column.to_numpy() if cut else column.reindex(before.var_names).to_numpy()
            results[f"{key} {group}"] = np.sort(np.abs(values)) if cut else values
    return results


# --- comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How a function is compared with scanpy's."""

    options: list[dict[str, Any]]  # choices; positional arguments are under "args"
    rtol: float = 0.0  # for float64, relative to each number and to the largest of its array
    data: Callable[[], ad.AnnData] = simulated
    narrow: float | None = None  # for other types, of which scanpy rounds sums or products
    dtypes: tuple[str, ...] = ("float64", "float32", "int32")  # of X
    wide: bool = False  # scanpy gets float64, because it compiles or rounds other types
    dense: bool = False  # scanpy gets a dense X
    theirs: Callable[..., Any] | None = None  # in place of scanpy's function of the same name
    read: Reader = as_written  # what of the results is compared
    types: str | None = ""  # how names of arrays of scanpy's types begin; None: no array
    more: tuple[tuple[str, Any], ...] = ()  # options of scatlas alone


def compare(
    name: str,
    case: Case,
    data: ad.AnnData,
    dtype: str,
    storages: Iterable[str],
    n: int | None = None,
) -> None:
    """Compare the first ``n`` choices of options, with X of one type in several storages."""
    part, function = name.split()[0].split(".")
    # Looked up in the modules, where the records of docs/fidelity.md watch them.
    ours, theirs = getattr(getattr(sa, part), function), getattr(getattr(sc, part), function, None)
    rtol = case.rtol if dtype == "float64" or case.narrow is None else case.narrow
    x = data.X.astype(dtype)
    given = x.astype(np.float64) if case.wide else x
    for chosen in case.options[:n]:
        options = {key: value for key, value in chosen.items() if key != "args"}
        args = chosen.get("args", ())
        scanpys = given.toarray() if case.dense else given.copy()
        adata, result = call(case.theirs or theirs, data, scanpys, *args, **options)
        wanted = case.read(adata, result, data, options)
        for storage in storages:
            made = STORAGES[storage](x) if sparse.issparse(x) else x.copy()
            adata, result = call(ours, data, made, *args, **options, **dict(case.more))
            found = case.read(adata, result, data, options)
            types = None if case.wide and dtype != "float64" else case.types
            same(found, wanted, rtol, f"{storage} {dtype} with {chosen}", types)
