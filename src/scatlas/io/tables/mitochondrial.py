"""Mitochondrial genes of a plate, found by their names."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from scatlas.errors import InputError
from scatlas.io.tables.column import InMemoryColumn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scatlas.io.tables.table import Table


def mitochondrial_genes(var: Table, prefix: str, column: str | None = None) -> np.ndarray:
    """Mask of the genes whose names, in a column or the index of ``var``, begin with ``prefix``."""
    if column is not None and column not in var.columns:
        there = ", ".join(var.columns) or "none"
        msg = (
            f"{var.path}: {var.name} has no column {column!r}, which qc.gene_names asks for; its "
            f"columns are: {there}; name one of them, or null for the index"
        )
        raise InputError(msg)
    return _begin(_names(var, column), prefix)


def why_bound_cannot_act(var: Table, prefix: str, column: str | None, bound: str) -> str:
    """Say that all mitochondrial counts are zero, so a bound cannot act, and what to set instead.

    Gene ids in place of symbols in the index, and symbols of another species, are the usual
    reasons: every column of text, and both cases of the prefix, are tried.
    """
    first = next(iter(_names(var, column)), "")
    fact = (
        f"{bound}, but all mitochondrial counts are zero: no gene name in {_place(var, column)} "
        f"begins with {prefix!r} (the first is {str(first)!r})"
    )
    n, spelling, name = find_mitochondrial(var, prefix)
    if not n:
        return f"{fact}; remove this bound"
    change = [] if name == column else [f"qc.gene_names: {name or 'null'}"]
    change += [] if spelling == prefix else [f"qc.mt_prefix: {spelling}"]
    there = f"{n:,} in {_place(var, name)} begin with {spelling!r}"
    return f"{fact}; {there}: set {' and '.join(change)}"


def find_mitochondrial(var: Table, prefix: str = "MT-") -> tuple[int, str, str | None]:
    """Find the spelling of the prefix, and the names, with most mitochondrial genes.

    Returns
    -------
    Number of genes, spelling, and column of ``var`` with their names, or None for its index; of
    equal ones the first. The number is 0 if there are none.
    """
    best: tuple[int, str, str | None] = (0, prefix, None)
    for spelling in dict.fromkeys([prefix, prefix.upper(), prefix.lower()]):
        for name in (None, *var.text_columns()):
            n = int(_begin(_names(var, name), spelling).sum())
            if n > best[0]:
                best = n, spelling, name
    return best


def _place(var: Table, column: str | None) -> str:
    return f"{var.name}[{column!r}]" if column else f"the index of {var.name}"


def _names(var: Table, column: str | None) -> Iterable[str]:
    if column is None:
        return var.index()
    values = var.columns[column]
    if isinstance(values, InMemoryColumn):
        return values.series().astype(object).fillna("").astype(str)
    return np.concatenate([np.empty(0, object), *(values.text(*span) for span in values.spans())])


def _begin(names: Iterable[str], prefix: str) -> np.ndarray:
    return np.fromiter(map(str.startswith, names, repeat(prefix)), bool)
