"""Mitochondrial genes of a plate, found by their names."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.errors import InputError
from scatlas.io.tables.column import texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scatlas.io.tables.table import Table


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
        msg = (
            f"{var.path}: {var.name} has no column {column!r}, which qc.gene_names asks for; its "
            f"columns are: {there}; name one of them, or null for the index"
        )
        raise InputError(msg)
    return _begin(_names(var, column), prefix)


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
    """Find the spelling of the prefix, and the names, with most mitochondrial genes.

    The prefix may have other letters, small for capital, and stand behind the name of a genome that
    at least a tenth of all genes have, as in ``GRCh38_MT-ND1``.
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


def _begin(names: Iterable[str], prefix: str) -> np.ndarray:
    return np.fromiter(map(str.startswith, names, repeat(prefix)), bool)
