"""Which features of a matrix are genes, by one rule for all formats, and which are mitochondrial.

Source of the types: 10x Genomics, "Feature-Barcode Matrices"; Open Problems writes ``GEX``, ``ADT``
and ``ATAC``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import open_store
from scatlas.io.tables.column import Column, InMemoryColumn, texts
from scatlas.io.tables.converted_tables import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import ExitStack

    from scatlas.io.tables.table import Table

GENE_EXPRESSION = "Gene Expression"
# In small letters: types of genes, types that say nothing, and others.
_GENES = {"gene expression", "gex", "rna"}
_UNKNOWN = {"", "unknown", "na", "n/a", "nan", "none", "null", ".", "-"}
_NO_GENES = {
    *("antibody capture", "antigen capture", "crispr guide capture", "multiplexing capture"),
    *("custom", "peaks", "adt", "atac", "hto"),
}
_PROBE_COLUMNS = {"probe_region", "filtered_probes"}


def genes_of_types(
    path: str, place: str, types: np.ndarray, notify: Callable[[str], None]
) -> np.ndarray | None:
    """Mask of the features that are genes, by the type of each in ``place``; None if all are."""
    codes, kinds = pd.factorize(types)
    small = [str(kind).strip().casefold() for kind in kinds]
    genes, unknown = (
        np.isin(codes, [i for i, kind in enumerate(small) if kind in of])
        for of in (_GENES, _UNKNOWN)
    )
    if genes.all():
        return None
    found = " and ".join(map(repr, kinds[:5]))
    if unknown.all() or (len(kinds) == 1 and small[0] not in _NO_GENES):
        notify(f"the type of all features is {found}: they are taken as genes")
        return None
    if unknown.any():
        raise InputError(
            f"{path}: feature {int(unknown.argmax()) + 1} has no type in {place}, though others "
            f"have: write the type of each feature there, {GENE_EXPRESSION!r} for genes"
        )
    if not genes.any():
        raise InputError(
            f"{path}: no feature is of type {GENE_EXPRESSION!r} in {place}, which holds {found}: "
            "give a matrix with gene expression, or write that type there for the genes"
        )
    for kind, n in pd.Series(types[~genes]).value_counts(sort=False).items():
        notify(f"{n:,} features of type {kind!r} are left out")
    return genes


def numbers_of(genes: np.ndarray) -> np.ndarray:
    """Number of each feature among the genes of a mask, int64; -1 for others."""
    return np.where(genes, np.cumsum(genes) - 1, -1)


def refuse_probes(path: str, columns: Collection[str], ids: Iterable[str] = ()) -> None:
    """Refuse a matrix of probes, by its columns or by ids of the form GENE_ID|SYMBOL|NUMBER."""
    ids = [*ids]
    if not _PROBE_COLUMNS & {*columns} and not (ids and all(i.count("|") == 2 for i in ids)):
        return
    name = Path(path).name
    sibling = name.replace("raw_probe_bc", "filtered_feature_bc")
    raise InputError(
        f"{path}: its rows are probes, of which a gene has several: give the matrix of the genes "
        f"of the same run, {'filtered_feature_bc_matrix.h5' if sibling == name else sibling}"
    )


def genes_alone(
    var: Table, stack: ExitStack, notify: Callable[[str], None]
) -> tuple[Table, np.ndarray | None]:
    """Table of the genes, until ``stack`` ends, and each feature's gene or -1; None if all are."""
    from scatlas.io.zarr_writer.elements import create_group

    n, ids = min(100, var.n_rows), var.columns.get("gene_ids")
    refuse_probes(var.path, var.columns, var.names(0, n))
    refuse_probes(var.path, (), ids.text(0, n) if isinstance(ids, Column) else ())
    column = var.columns.get("feature_types")
    if column is None or not column.is_text:
        return var, None
    types = np.array([*texts(column)], object)
    if isinstance(column, InMemoryColumn):
        # Taken from var, which lacks some features of raw: genes, as without the column.
        types[types == ""] = GENE_EXPRESSION
    genes = genes_of_types(var.path, f"{var.name}['feature_types']", types, notify)
    if genes is None:
        return var, None
    folder = temporary_folder(stack)
    create_group(folder, {})
    storable = var.storable(notify, unique_names=False)
    storable.write_groups([folder / "var"], [np.flatnonzero(genes)])
    table = replace(var.open(var.path, open_store(folder), "var"), name=var.name)
    return table, numbers_of(genes)


class Mitochondrial(NamedTuple):
    """Number of names in a column of ``var``, or its index, that begin with a prefix."""

    n: int
    prefix: str
    column: str | None
    others: list[str]  # prefixes of further mitochondrial genes there, as of a second genome


def mitochondrial_genes(var: Table, prefix: str, column: str | None = None) -> np.ndarray:
    """Mask of the genes whose names, in a column or the index of ``var``, begin with ``prefix``."""
    if column is not None and column not in var.columns:
        there = ", ".join(var.columns) or "none"
        raise InputError(
            f"{var.path}: {var.name} has no column {column!r}, which qc.gene_names asks for; its "
            f"columns are: {there}; name one of them, or null for the index"
        )
    return np.fromiter(map(str.startswith, _names(var, column), repeat(prefix)), bool)


def why_bound_cannot_act(var: Table, prefix: str, column: str | None, bound: str) -> str:
    """Say that all mitochondrial counts are zero, so a bound cannot act, and what to set."""
    first = next(iter(_names(var, column)), "")
    fact = (
        f"{bound}, but all mitochondrial counts are zero: no gene name in {_place(var, column)} "
        f"begins with {prefix!r} (the first is {str(first)!r})"
    )
    n, spelling, name, _ = find_mitochondrial(var, prefix)
    if not n:
        return f"{fact}; remove this bound"
    change = [] if name == column else [f"qc.gene_names: {name or 'null'}"]
    change += [] if spelling == prefix else [f"qc.mt_prefix: {spelling}"]
    there = f"{n:,} in {_place(var, name)} begin with {spelling!r}"
    return f"{fact}; {there}: set {' and '.join(change)}"


def find_mitochondrial(var: Table, prefix: str = "MT-") -> Mitochondrial:
    """Find the spelling of the prefix with most mitochondrial genes, in small or capital letters,
    also behind the name of a genome that at least a tenth of all genes have, as ``GRCh38_MT-ND1``.
    """
    core = re.search(r"[A-Za-z]+[\W_]?$", prefix)
    pattern = re.compile(rf"(\S+?[_.:|-]+)?{re.escape(core[0] if core else prefix)}", re.IGNORECASE)
    found: list[Mitochondrial] = []
    for column in (None, *var.text_columns()):
        names = sorted(_names(var, column))
        matches = [(m[0], m[1] or "") for m in map(pattern.match, names) if m]
        common = {genome: _n_begin(names, genome) >= len(names) / 10 for _, genome in matches}
        numbers = Counter(spelling for spelling, genome in matches if common[genome])
        found += [
            Mitochondrial(n, spelling, column, sorted({*numbers} - {spelling}))
            for spelling, n in numbers.items()
        ]
    usual = [prefix, prefix.upper(), prefix.lower()]
    return min(
        found,
        key=lambda m: (-m.n, usual.index(m.prefix) if m.prefix in usual else len(usual)),
        default=Mitochondrial(0, prefix, None, []),
    )


def _place(var: Table, column: str | None) -> str:
    return f"{var.name}[{column!r}]" if column else f"the index of {var.name}"


def _names(var: Table, column: str | None) -> Iterable[str]:
    return var.index() if column is None else texts(var.columns[column])


def _n_begin(ordered: list[str], prefix: str) -> int:
    """Number of ordered names that begin with a prefix."""
    return bisect_left(ordered, f"{prefix}\U0010ffff") - bisect_left(ordered, prefix)
