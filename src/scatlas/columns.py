"""Columns of obs and var as labels, numbers or masks, matched by names where pandas has them, and
names that a user lists; :class:`InputError` if a column or its values do not suit.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

# Names that a sentence lists at most: those like an unknown gene, and genes with one name.
_N_CLOSE_NAMES, _MAX_LISTED = 3, 5
# More different numbers are measures and no groups.
MAX_NUMBERS = 76
# Kinds of values, as pandas infers them from the values of any type of column.
_NUMBERS = {"boolean", "integer", "mixed-integer-float", "floating", "decimal"}
_DATES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"}


def as_names(names: Any, option: str) -> list[Any]:
    """Names in a list; a text is one name. Sets are sorted: their order is that of hashes."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise InputError(f"{option}={names!r} is no list of names: pass a text, or a list of texts")
    return sorted(names, key=str) if isinstance(names, set | frozenset) else list(names)


def get_column(table: pd.DataFrame, name: Any, option: str, axis: str = "obs") -> pd.Series:
    """The column of `table` that the option `option` of a function names."""
    import pandas as pd

    if not isinstance(name, Hashable) or name not in table:
        there = ", ".join(map(str, table.columns)) or "none"
        msg = f"{axis} has no column {name!r} ({option}); it has {there}: name one of these"
        raise InputError(msg)
    column = table[name]
    if isinstance(column, pd.DataFrame):
        msg = f"{axis} has {column.shape[1]} columns {name!r} ({option}): rename or remove one"
        raise InputError(msg)
    if isinstance(column.dtype, pd.ArrowDtype):
        import pyarrow as pa

        # pandas cannot make categories of Arrow's dictionaries, which are the same.
        if pa.types.is_dictionary(column.dtype.pyarrow_dtype):
            values = pa.chunked_array(column.array.__arrow_array__()).unify_dictionaries()
            column = pd.Series(values.to_pandas().array, index=column.index, name=column.name)
    return column


def get_labels(table: pd.DataFrame, name: Any, option: str, axis: str = "obs") -> pd.Categorical:
    """A column of any type as categories, unused ones among them; -1 for cells without a value."""
    import pandas as pd

    column = get_column(table, name, option, axis)
    try:
        return pd.Categorical(column)
    except (TypeError, NotImplementedError) as error:  # not hashable; Arrow's lists
        raise InputError(
            f"{axis}[{name!r}] ({option}) holds lists or other values that are no labels: "
            "convert them to texts or numbers"
        ) from error


def check_groups(column: pd.Series, option: str) -> None:
    """Refuse a column of measures, such as ``total_counts``: each value would be a group."""
    if kind_of_values(column) == "numbers" and (n := column.nunique()) > MAX_NUMBERS:
        raise InputError(
            f"obs[{column.name!r}] ({option}) holds {n:,} different numbers, which are no groups: "
            "name a column of labels"
        )


def kind_of_values(column: pd.Series) -> str:
    """``numbers``, ``dates`` or ``labels``, by the values and not by the type of the column."""
    import pandas as pd

    values = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    inferred = pd.api.types.infer_dtype(values)
    return "numbers" if inferred in _NUMBERS else "dates" if inferred in _DATES else "labels"


def are_measures(column: pd.Series) -> bool:
    """Whether integers have more values than a legend can name: they measure cells."""
    import pandas as pd

    return pd.api.types.is_integer_dtype(column) and column.nunique() > MAX_NUMBERS


def name_of_gaps(name: str, columns: Iterable[str], values: Collection[str]) -> str:
    """What cells without a value of an obs column are called: ``unknown`` in one of types, which
    has its probability beside it (``tl.annotate``), else ``no value``; never as one of the values.
    """
    there = set(map(str, columns))
    keys = [key.removesuffix("_runner_up") for key in there if key.endswith("_runner_up")]
    keys = [key for key in keys if f"{key}_probability" in there]
    is_of_types = any(f"{name}_".startswith(f"{key}_") for key in keys)
    word = "unknown" if is_of_types else "no value"
    while word in values:
        word = f"({word})"
    return word


def get_numbers(table: pd.DataFrame, name: Any, option: str, axis: str = "obs") -> NDArray[Any]:
    """A column of numbers in NumPy's type, float64 for objects; NaN for cells without a value."""
    import pandas as pd

    column = get_column(table, name, option, axis)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.to_numpy()
    kind = kind_of_values(column)
    if kind != "numbers" and not column.isna().all():
        what = "dates or times" if kind == "dates" else f"no numbers ({column.dtype})"
        raise InputError(
            f"{axis}[{name!r}] ({option}) holds {what}: convert them to numbers, or name another "
            "column"
        )
    is_mask = pd.api.types.infer_dtype(column) == "boolean" and not column.isna().any()
    return column.to_numpy(bool) if is_mask else column.to_numpy(np.float64, na_value=np.nan)


def get_mask(
    mask: Any, table: pd.DataFrame | None, n: int, option: str, axis: str
) -> NDArray[np.bool_]:
    """A mask with `n` entries: an array of booleans, or the column of `table` that `mask` names."""
    if isinstance(mask, str):
        if table is None:
            msg = f"{option}={mask!r} names a column, which an array has not: pass an AnnData"
            raise InputError(msg)
        column, what = get_column(table, mask, option, axis), f"{axis}[{mask!r}] ({option})"
        values = column.to_numpy(object)
        valid = bool(not column.isna().any() and np.isin(values, (False, True)).all())
    else:
        given = mask if table is None else in_order(mask, table.index, option)
        values = np.asarray(given)
        what = option
        valid = values.dtype == bool or (
            values.dtype == object and all(isinstance(v, bool | np.bool_) for v in values.flat)
        )
    if values.shape != (n,) or not valid:
        raise InputError(
            f"{what} must be True or False for each of the {n} "
            f"{'cells' if axis == 'obs' else 'genes'}, but is {values.dtype} of shape "
            f"{values.shape}: pass booleans, from a comparison for instance"
        )
    return values.astype(bool)


def has_names(values: Any) -> bool:
    """Whether values are a Series or table with names, not with the numbers of its rows."""
    import pandas as pd

    is_table = isinstance(values, pd.Series | pd.DataFrame)
    return is_table and not isinstance(values.index, pd.RangeIndex)


def in_order(values: Any, names: pd.Index, option: str) -> Any:
    """The same values; those of a table or Series as an array in the order of `names`."""
    import pandas as pd

    if not isinstance(values, pd.Series | pd.DataFrame):
        return values
    if not has_names(values) or values.index.equals(names):
        return values.to_numpy()
    if not values.index.is_unique:
        raise InputError(f"{option} holds a name twice: give one value for each name")
    if (missing := names.difference(values.index, sort=False)).size:
        raise InputError(
            f"{option} has no value for {missing[0]!r}: give one for each name of the AnnData, "
            "or an array in their order"
        )
    return values.reindex(names).to_numpy()


# Values of the config's key ``genes``.
GeneRule = Literal["same", "intersect", "union"]


class GeneDifference(NamedTuple):
    """The first place at which two lists of genes differ."""

    at: int
    """Position, from 0."""
    own: str | None
    """Gene there in the first list; None where the list has ended."""
    other: str | None
    """Gene there in the second list, likewise."""


def first_difference(own: pd.Index, other: pd.Index) -> GeneDifference | None:
    """Where two lists of gene names first differ in name, order or length; None if nowhere."""
    n = min(len(own), len(other))
    differing = np.flatnonzero(np.asarray(own[:n]) != np.asarray(other[:n]))
    if not differing.size and len(own) == len(other):
        return None
    at = int(differing[0]) if differing.size else n
    return GeneDifference(at, *(names[at] if at < len(names) else None for names in (own, other)))


def common_genes(lists: Sequence[pd.Index], rule: GeneRule) -> pd.Index:
    """Genes that all plates have (``"intersect"``), or any (``"union"``), in the order of the first
    plate that has them; ``"same"``: the first list, which the caller has compared with the others.
    """
    first, *others = lists
    if rule == "union":
        names = dict.fromkeys(chain.from_iterable(lists))
        return type(first)(list(names), dtype=first.dtype, name=first.name)
    if rule == "intersect":
        for names in others:
            first = first[first.isin(names)]
    return first


def among_genes(var: pd.DataFrame, genes: pd.Index) -> pd.DataFrame:
    """Table of a plate's genes among others, with gaps (0 for ``n_cells_by_counts`` and
    ``total_counts``) where the plate lacks one.
    """
    at = var.index.get_indexer(genes)  # `genes.isin` takes a third of a second for Arrow's text
    if (at >= 0).all():
        return var.iloc[at]
    kinds = {"b": "boolean", "i": "Int64", "u": "UInt64"}
    sums = [name for name in ("n_cells_by_counts", "total_counts") if name in var]
    wide = {
        name: kinds[dtype.kind]
        for name, dtype in var.dtypes.items()
        if name not in sums and isinstance(dtype, np.dtype) and dtype.kind in kinds
    }
    table = var.astype(wide).reindex(genes)
    table.index.name = var.index.name
    for name in sums:
        table[name] = table[name].fillna(0).astype(var[name].dtype)
    return table


def name_columns(var: pd.DataFrame) -> list[str]:
    """Columns with other names of the genes: text that differs for most of them."""
    return [
        str(name)
        for name, column in var.items()
        if kind_of_values(column) == "labels" and 2 * column.astype(str).nunique() > len(column)
    ]


def known_names(var: pd.DataFrame, known: pd.Index) -> pd.Index:
    """Names of the genes by the index, or by the column of names of which more are known."""
    import pandas as pd

    names = [var.index, *(var[column] for column in name_columns(var))]
    names = [pd.Index(some.astype(str)) for some in names]
    return max(names, key=lambda some: int(known.isin(some).sum()))


def gene_positions(var: pd.DataFrame, names: Iterable[str], source: str) -> list[int | None]:
    """Number of each gene by its name in the index of ``var``, or else in a column of names; None
    if there is none. More than one are an error.
    """
    names = list(names)
    found = _positions(var.index, names, source, "var_names")
    for column in () if len(found) == len({*names}) else name_columns(var):
        rest = [name for name in names if name not in found]
        found |= _positions(var[column], rest, source, f"var[{column!r}]", var.index)
    return [found.get(name) for name in names]


def _positions(
    values: pd.Index | pd.Series,
    names: list[str],
    source: str,
    where: str,
    genes: pd.Index | None = None,
) -> dict[str, int]:
    """Position of each name among values; ``genes`` are those to which the values belong."""
    at = np.flatnonzero(values.isin(names))
    found = dict(zip(np.asarray(values, object)[at].tolist(), at.tolist(), strict=True))
    if len(found) < len(at):
        named = np.asarray(values, object)[at]
        name = next(name for name in found if (named == name).sum() > 1)
        twice = at[named == name]
        which = f"{source}: {len(twice)} genes have the name {name!r}"
        if genes is None:
            raise InputError(f"{which}: make var_names unique first")
        listed = ", ".join(map(repr, genes[twice[:_MAX_LISTED]]))
        listed += ", ..." if len(twice) > _MAX_LISTED else ""
        raise InputError(f"{which} in {where}: give one of {listed}")
    return found


def close_names(var: pd.DataFrame, name: str) -> str:
    """End of a sentence about a gene that is not there: names in ``var`` that are like its name."""
    by_upper: dict[str, str] = {}
    for names in (var.index, *(var[column] for column in name_columns(var))):
        for known in map(str, names):
            by_upper.setdefault(known.upper(), known)
    close = get_close_matches(str(name).upper(), by_upper, _N_CLOSE_NAMES, 0.7)
    listed = ", ".join(repr(by_upper[key]) for key in close)
    return f"close names are {listed}" if close else "no name is close to it"
